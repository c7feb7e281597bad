"""Dropping the oldest records of partitions, a little at a time, so that an append never waits long for it."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable

import attrs

from dafka.records import Partition
from dafka.storage.base import PartitionInfo, Retention
from dafka.storage.sqlite.rows import Held, update_partition

STEP_S = 0.002
"""One transaction drops for about this long, and is one turn among the appends."""

CHUNK_RECORDS_MAX = 200

CHUNK_BYTES_MAX = 2**17
"""One statement drops about this much, and the time is looked at after each: long contents take longer."""

# The records that the limits do not keep are the first ones, by each limit: so they are counted from the first on.
_MEASURE = """
    SELECT count(*), max(sequence) + 1, sum(size)
    FROM (
        SELECT sequence, stored_at, size, sum(size) OVER (ORDER BY sequence) - size AS size_before
        FROM (
            SELECT sequence, stored_at, length(content) AS size FROM records
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
class Cut:
    """What must go of a partition: records before a sequence, before a time, and the first beyond a number or size."""

    before_sequence: int = 0
    before_time: int = 0
    records_max: int | None = None
    bytes_max: int | None = None

    @classmethod
    def retaining(cls, retention: Retention, time_ms: int) -> Cut:
        """What these limits do not keep now."""
        before_time = 0 if retention.age_ms is None else max(time_ms - retention.age_ms, 0)
        return cls(before_time=before_time, records_max=retention.records_max, bytes_max=retention.bytes_max)

    def earliest_sequence(self, info: PartitionInfo) -> int:
        """The sequence before which nothing is kept, going by sequences."""
        sequence = self.before_sequence
        if self.records_max is not None:
            sequence = max(sequence, info.end_sequence - self.records_max)
        return min(max(sequence, info.earliest_sequence), info.end_sequence)

    def surplus_bytes(self, info: PartitionInfo) -> int:
        """How many octets of contents must go, at the least."""
        return 0 if self.bytes_max is None else max(info.content_bytes - self.bytes_max, 0)

    def concerns(self, info: PartitionInfo) -> bool:
        """Must anything go?"""
        return info.count > 0 and (
            self.earliest_sequence(info) > info.earliest_sequence
            or self.surplus_bytes(info) > 0
            or (info.earliest_stored_at or 0) < self.before_time
        )


def trim_some(
    cut: Cut, partitions: Iterable[tuple[Partition, Held]], writer: sqlite3.Connection
) -> tuple[dict[Partition, Held], int]:
    """Drops for a while, in a transaction of the caller's; gives the rows that changed, and how many were finished."""
    deadline = time.perf_counter() + STEP_S
    changed = {}
    finished = 0
    for partition, before in partitions:
        held = before
        rest = _trim_chunk(writer, cut, held)
        while rest != held and cut.concerns(rest.info) and time.perf_counter() < deadline:
            held = rest
            rest = _trim_chunk(writer, cut, held)
        if rest != before:
            update_partition(writer, rest)
            changed[partition] = rest
        if cut.concerns(rest.info) and rest != held:
            break
        finished += 1
        if time.perf_counter() >= deadline:
            break
    return changed, finished


def _trim_chunk(writer: sqlite3.Connection, cut: Cut, held: Held) -> Held:
    info = held.info
    limit = max(1, min(CHUNK_RECORDS_MAX, CHUNK_BYTES_MAX * info.count // (info.content_bytes + 1)))
    by_sequence = cut.earliest_sequence(info)
    count, end_sequence, dropped_bytes = writer.execute(
        _MEASURE,
        (held.row_id, info.earliest_sequence, limit, by_sequence, cut.surplus_bytes(info), cut.before_time),
    ).fetchone()
    earliest = end_sequence if count else info.earliest_sequence
    if count < limit:
        earliest = max(earliest, by_sequence)  # also where the records before it are missing
    writer.execute(_DELETE, (held.row_id, earliest))
    first = writer.execute(_SELECT_FIRST, (held.row_id, earliest, info.end_sequence)).fetchone()
    if first is None:
        return Held(held.row_id, PartitionInfo(info.end_sequence, info.end_sequence), held.latest_stored_at)
    content_bytes = max(info.content_bytes - (dropped_bytes or 0), 0)
    rest = attrs.evolve(info, earliest_sequence=earliest, content_bytes=content_bytes, earliest_stored_at=first[0])
    return attrs.evolve(held, info=rest)
