"""Appending records, dropping the oldest ones, and removing single ones that compaction has chosen.

Records are dropped and removed in small steps, so that appends do not wait long.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable
from itertools import accumulate, compress

import attrs

from dafka.records import Partition, RecordBatch
from dafka.storage.base import PartitionInfo, RetentionPolicy
from dafka.storage.capabilities import Compactable, Compacted, FindRemoved
from dafka.storage.sqlite.connection import snapshot
from dafka.storage.sqlite.inserting import insert_records
from dafka.storage.sqlite.schema import (
    RECORD_BYTES,
    PartitionRow,
    PartitionTable,
    check_sequence,
    insert_partition,
    update_partition,
)


def append_batch(
    writer: sqlite3.Connection, row: PartitionRow | None, batch: RecordBatch, time_ms: int
) -> PartitionRow:
    """Insert the records of a batch, and return the changed row of its partition, which the caller must write.

    The row is None if the partition must be created. Records without `stored_at` are stored at `time_ms`. Raise
    `StorageSequenceError` if the batch does not continue the partition.
    """
    check_sequence(batch.partition, batch.end_sequence)
    if row is None:
        row = insert_partition(writer, batch.partition, batch.first_sequence)
    info = row.info
    info.check_append(batch)
    if batch.stored_at is None:
        earliest_at = latest_at = max(time_ms, row.latest_stored_at)
        insert_records(writer, row.row_id, batch, latest_at)
    else:
        risen = list(accumulate(batch.stored_at, max, initial=row.latest_stored_at))[1:]
        earliest_at, latest_at = risen[0], risen[-1]
        insert_records(writer, row.row_id, batch, risen)
    begins = not info.count
    changed = PartitionInfo(
        batch.first_sequence if begins else info.earliest_sequence,
        batch.end_sequence,
        info.content_bytes + batch.content_bytes,
        earliest_at if begins else info.earliest_stored_at,
        latest_at,
        latest_at,
        compacted_end=info.compacted_end if batch.compacted is None else batch.end_sequence,
    )
    return PartitionRow(row.row_id, changed, latest_at)


STEP_S = 0.002
"""How long one transaction drops records. Appends run between transactions."""

CHUNK_RECORDS_MAX = 200
"""The maximum number of records dropped by one statement."""

CHUNK_BYTES_MAX = 2**17
"""The approximate maximum size of the records dropped by one statement, in bytes. Larger records take longer."""

# Each limit drops the first records, so they are counted from the first one.
_MEASURE = f"""
    SELECT count(*), max(sequence) + 1, sum(size)
    FROM (
        SELECT sequence, stored_at, size, sum(size) OVER (ORDER BY sequence) - size AS size_before
        FROM (
            SELECT sequence, stored_at, {RECORD_BYTES} AS size FROM records
            WHERE partition_id = ?1 AND sequence >= ?2 ORDER BY sequence LIMIT ?3
        )
    )
    WHERE sequence < ?4 OR size_before < ?5 OR stored_at < ?6
"""

_DELETE = "DELETE FROM records WHERE partition_id = ? AND sequence < ?"

_SELECT_FIRST = """
    SELECT stored_at FROM records WHERE partition_id = ? AND sequence >= ? AND sequence < ? ORDER BY sequence LIMIT 1
"""


@attrs.frozen(kw_only=True)
class TrimLimits:
    """Limits that select the oldest records of a partition to drop, until no limit is exceeded."""

    before_sequence: int = 0
    before_time: int = 0
    records_max: int | None = None
    bytes_max: int | None = None

    @classmethod
    def from_policy(cls, policy: RetentionPolicy, time_ms: int) -> TrimLimits:
        """Return the limits of a retention policy at a time."""
        before_time = 0 if policy.age_ms is None else max(time_ms - policy.age_ms, 0)
        return cls(before_time=before_time, records_max=policy.records_max, bytes_max=policy.bytes_max)

    def earliest_sequence(self, info: PartitionInfo) -> int:
        """Return the first sequence to keep according to `before_sequence` and `records_max`."""
        sequence = self.before_sequence
        if self.records_max is not None:
            sequence = max(sequence, info.end_sequence - self.records_max)
        return min(max(sequence, info.earliest_sequence), info.end_sequence)

    def surplus_bytes(self, info: PartitionInfo) -> int:
        """Return the minimum size of the contents to drop, in bytes."""
        return 0 if self.bytes_max is None else max(info.content_bytes - self.bytes_max, 0)

    def is_exceeded_by(self, info: PartitionInfo) -> bool:
        """Return whether any record must be dropped."""
        return info.count > 0 and (
            self.earliest_sequence(info) > info.earliest_sequence
            or self.surplus_bytes(info) > 0
            or (info.earliest_stored_at or 0) < self.before_time
        )


def trim_step(
    limits: TrimLimits, partitions: Iterable[tuple[Partition, PartitionRow]], writer: sqlite3.Connection
) -> tuple[dict[Partition, PartitionRow], int]:
    """Drop records for about `STEP_S`, in a transaction of the caller.

    Return the rows that changed, which have been written, and the number of partitions that are finished.
    """
    deadline = time.perf_counter() + STEP_S
    changed = {}
    finished = 0
    for partition, before in partitions:
        row = before
        rest = _trim_chunk(writer, limits, row)
        while rest != row and limits.is_exceeded_by(rest.info) and time.perf_counter() < deadline:
            row = rest
            rest = _trim_chunk(writer, limits, row)
        if rest != before:
            update_partition(writer, rest)
            changed[partition] = rest
        if limits.is_exceeded_by(rest.info) and rest != row:
            break
        finished += 1
        if time.perf_counter() >= deadline:
            break
    return changed, finished


def _trim_chunk(writer: sqlite3.Connection, limits: TrimLimits, row: PartitionRow) -> PartitionRow:
    info = row.info
    limit = max(1, min(CHUNK_RECORDS_MAX, CHUNK_BYTES_MAX * info.count // (info.content_bytes + 1)))
    by_sequence = limits.earliest_sequence(info)
    count, end_sequence, dropped_bytes = writer.execute(
        _MEASURE,
        (row.row_id, info.earliest_sequence, limit, by_sequence, limits.surplus_bytes(info), limits.before_time),
    ).fetchone()
    earliest = end_sequence if count else info.earliest_sequence
    if count < limit:
        earliest = max(earliest, by_sequence)  # even if records before it are missing
    writer.execute(_DELETE, (row.row_id, earliest))
    first = writer.execute(_SELECT_FIRST, (row.row_id, earliest, info.end_sequence)).fetchone()
    if first is None:
        end = info.end_sequence
        rest = PartitionInfo(end, end, last_append_at=info.last_append_at, compacted_end=info.compacted_end)
        return attrs.evolve(row, info=rest)
    content_bytes = max(info.content_bytes - (dropped_bytes or 0), 0)
    rest = attrs.evolve(info, earliest_sequence=earliest, content_bytes=content_bytes, earliest_stored_at=first[0])
    return attrs.evolve(row, info=rest)


DELETE_RECORDS_MAX = 500
"""The maximum number of records that are removed in one transaction: a few milliseconds of work."""

_CLEAN_BYTES = f"""
    SELECT ifnull(sum({RECORD_BYTES}), 0) FROM records WHERE partition_id = ? AND sequence >= ? AND sequence < ?
"""

_DELETE_SINGLE = f"""
    DELETE FROM records WHERE partition_id = ?1 AND sequence IN (SELECT value FROM json_each(?2))
    RETURNING {RECORD_BYTES}
"""


def find_compactable(
    reader: sqlite3.Connection, table: PartitionTable, partition: Partition, clean_end: int
) -> Compactable | None:
    """See `CompactsPartitions.find_compactable`."""
    with snapshot(reader):
        row = table.select_one(reader, partition)
        if row is None:
            return None
        info = row.info
        clean = 0
        if clean_end > info.earliest_sequence:
            (clean,) = reader.execute(_CLEAN_BYTES, (row.row_id, info.earliest_sequence, clean_end)).fetchone()
    end = max(info.end_sequence - 1, info.earliest_sequence)
    return Compactable(end, clean, max(info.content_bytes - clean, 0))


def choose_removed(batch: RecordBatch, end_sequence: int, find_removed: FindRemoved) -> list[int]:
    """Return the sequences of the records of a batch to remove, before an end."""
    removed = find_removed(batch)[: max(end_sequence - batch.first_sequence, 0)]
    if batch.compacted is not None:
        removed = bytes(wanted and not gone for wanted, gone in zip(removed, batch.compacted, strict=False))
    return [*compress(range(batch.first_sequence, batch.end_sequence), removed)]


def delete_records(
    writer: sqlite3.Connection, row: PartitionRow, sequences: list[int]
) -> tuple[PartitionRow, Compacted]:
    """Remove records with these increasing sequences, and write the row of their partition, in the open transaction."""
    sizes = [size for (size,) in writer.execute(_DELETE_SINGLE, (row.row_id, json.dumps(sequences)))]
    info = row.info
    info = attrs.evolve(
        info,
        content_bytes=max(info.content_bytes - sum(sizes), 0),
        compacted_end=max(info.compacted_end, sequences[-1] + 1),
    )
    row = attrs.evolve(row, info=info)
    update_partition(writer, row)
    return row, Compacted(0, len(sizes), sum(sizes))
