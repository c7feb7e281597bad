"""Finding damage in a store's file: SQLite's integrity check, and each partition's row compared with its records."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import attrs

from dafka.records import Partition
from dafka.storage.base import Damage, PartitionInfo
from dafka.storage.sqlite.connection import describe_error, snapshot
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


@attrs.frozen
class DamageFinder:
    """Checks the file of a store through one connection."""

    connection: sqlite3.Connection
    table: PartitionTable
    path: str

    def run(self) -> Iterator[Damage]:
        """Yield all damage. Each partition is checked in one snapshot."""
        try:
            for (text,) in self.connection.execute(f"PRAGMA integrity_check({DAMAGES_MAX})"):
                yield from (Damage(self.path, line) for line in str(text).splitlines() if line not in ("ok", ""))
            partitions = list(self.table.select_infos(self.connection))
            (orphans,) = self.connection.execute(
                "SELECT count(DISTINCT partition_id) FROM records WHERE partition_id NOT IN (SELECT id FROM partitions)"
            ).fetchone()
            if orphans:
                yield Damage(self.path, f"there are records of {orphans} partitions without a row")
        except sqlite3.DatabaseError as error:
            yield _unreadable(self.path, error)
            return
        for partition in partitions:
            try:
                with snapshot(self.connection):
                    damages = list(self._check_partition(partition))
            except sqlite3.DatabaseError as error:
                damages = [_unreadable(self.path, error, partition)]
            yield from damages

    def _check_partition(self, partition: Partition) -> Iterator[Damage]:
        row = self.table.select_one(self.connection, partition)
        if row is None:
            return
        info = row.info
        count, content_bytes, first, end, invalid = self.connection.execute(
            _SUMMARIZE, (row.row_id, info.earliest_sequence)
        ).fetchone()
        is_compacted = info.compacted_end > info.earliest_sequence
        if is_compacted or count == info.count:
            if content_bytes != info.content_bytes:
                yield self._difference(partition, info, f"{content_bytes} bytes, expected {info.content_bytes}")
            has_times = not invalid and not is_compacted  # compaction may have removed the first record
            if has_times and self._read_edge_times(row) != (info.earliest_stored_at, info.latest_stored_at):
                yield self._difference(partition, info, "different times than the row of the partition")
        yield from self._check_sequences(partition, row, count, first, end)
        if invalid:
            for sequence, after in self.connection.execute(_INVALID, (row.row_id,)):
                yield Damage(self.path, "the record is damaged, or its time decreases", partition, sequence, after)

    def _check_sequences(
        self, partition: Partition, row: PartitionRow, count: int, first: int, end: int
    ) -> Iterator[Damage]:
        info = row.info
        if count != info.count:
            whole_from = max(info.earliest_sequence, min(info.compacted_end, info.end_sequence))
            for missing, found in self.connection.execute(_GAPS, (row.row_id, whole_from, info.end_sequence)):
                yield Damage(self.path, "missing", partition, missing, found)
        if first < info.earliest_sequence:
            reason = "present, but before the earliest sequence"
            yield Damage(self.path, reason, partition, first, info.earliest_sequence)
        if end > info.end_sequence:
            yield Damage(self.path, "present, but past the end", partition, info.end_sequence, end)

    def _difference(self, partition: Partition, info: PartitionInfo, what: str) -> Damage:
        return Damage(self.path, f"the records have {what}", partition, info.earliest_sequence, info.end_sequence)

    def _read_edge_times(self, row: PartitionRow) -> tuple[int | None, int | None]:
        """Return the times of the first record of a partition and of the last one."""
        statement = "SELECT stored_at FROM records WHERE partition_id = ? AND sequence = ?"
        first, last = (
            self.connection.execute(statement, (row.row_id, sequence)).fetchone() or (None,)
            for sequence in (row.info.earliest_sequence, row.info.end_sequence - 1)
        )
        return first[0], last[0]


def _unreadable(path: str, error: sqlite3.Error, partition: Partition | None = None) -> Damage:
    reason = describe_error(error)
    return Damage(path, reason if partition is None else f"{reason}, at {partition}")
