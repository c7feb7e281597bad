"""Finding damage in a store's file: SQLite's integrity check, and each partition's row compared with its records."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from dafka.records import Partition
from dafka.storage.base import Damage, PartitionInfo
from dafka.storage.sqlite.connection import snapshot
from dafka.storage.sqlite.schema import IS_DAMAGED, RECORD_BYTES, PartitionRow, PartitionTable

DAMAGES_MAX = 100
"""The maximum number of damages of one kind that are reported."""

_SUMMARIZE = f"""
    SELECT count(*), ifnull(sum(size), 0), ifnull(min(sequence), ?2), ifnull(max(sequence) + 1, ?2),
           ifnull(sum(is_damaged OR stored_at < before), 0)
    FROM (
        SELECT sequence, {RECORD_BYTES} AS size, {IS_DAMAGED} AS is_damaged, stored_at,
               lag(stored_at, 1, stored_at) OVER (ORDER BY sequence) AS before
        FROM records WHERE partition_id = ?1
    )
"""

_GAPS = f"""
    SELECT before + 1, sequence
    FROM (
        SELECT sequence, lag(sequence, 1, ?2 - 1) OVER (ORDER BY sequence) AS before
        FROM (
            SELECT sequence FROM records WHERE partition_id = ?1 AND sequence >= ?2 AND sequence < ?3
            UNION ALL SELECT ?3
        )
    )
    WHERE sequence > before + 1 ORDER BY sequence LIMIT {DAMAGES_MAX}
"""

_INVALID = f"""
    SELECT sequence, sequence + 1
    FROM (
        SELECT sequence, {IS_DAMAGED} AS is_damaged, stored_at,
               lag(stored_at, 1, stored_at) OVER (ORDER BY sequence) AS before
        FROM records WHERE partition_id = ?1
    )
    WHERE is_damaged OR stored_at < before
    ORDER BY sequence LIMIT {DAMAGES_MAX}
"""


def find_damage(connection: sqlite3.Connection, table: PartitionTable, path: str) -> Iterator[Damage]:
    """Yield all damage. Each partition is checked in one snapshot."""
    try:
        for (text,) in connection.execute(f"PRAGMA integrity_check({DAMAGES_MAX})"):
            yield from (Damage(path, line) for line in str(text).splitlines() if line not in ("ok", ""))
        partitions = list(table.select_infos(connection))
        (orphans,) = connection.execute(
            "SELECT count(DISTINCT partition_id) FROM records WHERE partition_id NOT IN (SELECT id FROM partitions)"
        ).fetchone()
        if orphans:
            yield Damage(path, f"there are records of {orphans} partitions without a row")
    except sqlite3.DatabaseError as error:
        yield _unreadable(path, error)
        return
    for partition in partitions:
        try:
            with snapshot(connection):
                damages = list(_check_partition(connection, table, path, partition))
        except sqlite3.DatabaseError as error:
            damages = [_unreadable(path, error, partition)]
        yield from damages


def _check_partition(
    connection: sqlite3.Connection, table: PartitionTable, path: str, partition: Partition
) -> Iterator[Damage]:
    row = table.select_one(connection, partition)
    if row is None:
        return
    info = row.info
    count, content_bytes, first, end, invalid = connection.execute(
        _SUMMARIZE, (row.row_id, info.earliest_sequence)
    ).fetchone()
    if count == info.count or _is_compacted(info):
        yield from _check_sums(connection, path, partition, row, content_bytes, is_valid=not invalid)
    if count != info.count:
        whole_from = max(info.earliest_sequence, min(info.compacted_end, info.end_sequence))
        for missing, found in connection.execute(_GAPS, (row.row_id, whole_from, info.end_sequence)):
            yield Damage(path, "missing", partition, missing, found)
    if first < info.earliest_sequence:
        yield Damage(path, "present, but before the earliest sequence", partition, first, info.earliest_sequence)
    if end > info.end_sequence:
        yield Damage(path, "present, but past the end", partition, info.end_sequence, end)
    if invalid:
        for sequence, after in connection.execute(_INVALID, (row.row_id,)):
            yield Damage(path, "the record is damaged, or its time decreases", partition, sequence, after)


def _check_sums(
    connection: sqlite3.Connection,
    path: str,
    partition: Partition,
    row: PartitionRow,
    content_bytes: int,
    *,
    is_valid: bool,
) -> Iterator[Damage]:
    """Compare the row of a partition with the size of its records, and the times of the first and the last one."""
    info = row.info
    if content_bytes != info.content_bytes:
        yield _difference(path, partition, info, f"{content_bytes} bytes, expected {info.content_bytes}")
    is_known = is_valid and not _is_compacted(info)  # compaction may have removed the first record
    if is_known and _read_edge_times(connection, row) != (info.earliest_stored_at, info.latest_stored_at):
        yield _difference(path, partition, info, "different times than the row of the partition")


def _is_compacted(info: PartitionInfo) -> bool:
    return info.compacted_end > info.earliest_sequence


def _read_edge_times(connection: sqlite3.Connection, row: PartitionRow) -> tuple[int | None, int | None]:
    statement = "SELECT stored_at FROM records WHERE partition_id = ? AND sequence = ?"
    first, last = (
        connection.execute(statement, (row.row_id, sequence)).fetchone() or (None,)
        for sequence in (row.info.earliest_sequence, row.info.end_sequence - 1)
    )
    return first[0], last[0]


def _difference(path: str, partition: Partition, info: PartitionInfo, what: str) -> Damage:
    return Damage(path, f"the records have {what}", partition, info.earliest_sequence, info.end_sequence)


def _unreadable(path: str, error: sqlite3.Error, partition: Partition | None = None) -> Damage:
    reason = " ".join(str(error).split())
    return Damage(path, reason if partition is None else f"{reason}, at {partition}")
