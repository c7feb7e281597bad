"""Appending: a batch is one INSERT.

SQLite works on all of its rows without the interpreter lock, which stepping row by row would pass back and forth
with the event loop for every record.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise, repeat

import attrs

from dafka.contents import PackedContents, pack, take_within
from dafka.errors import StorageError
from dafka.records import Partition, RecordBatch
from dafka.storage.base import PartitionInfo, RetentionPolicy
from dafka.storage.plugin_helpers import split_by_time
from dafka.storage.sqlite.schema import SEQUENCE_MAX, Held, insert_partition, update_partition

INSERT_BYTES_MAX = 16 * 2**20
"""Contents bound to one INSERT: they are copied once, and SQLite's own limit is a thousand million octets."""

INSERT_RECORDS_MAX = 50_000

RUN_RECORDS_MIN = 16
"""Runs of records stored at one time that are shorter, on average, are inserted row by row."""

_INSERT_ONE = "INSERT INTO records (partition_id, sequence, stored_at, content) VALUES (?, ?, ?, ?)"

# One element of the JSON array a content; all contents have one length.
_INSERT_EVEN_RUN = """
    INSERT INTO records (partition_id, sequence, stored_at, content)
    SELECT ?1, ?2 + key, ?3, ifnull(substr(?4, key * ?6 + 1, ?6), x'') FROM json_each(?5)
"""

# Each value of the JSON array is a content's place in the bound octets (from 1, in the upper half) and its length.
_INSERT_RUN = """
    INSERT INTO records (partition_id, sequence, stored_at, content)
    SELECT ?1, ?2 + key, ?3, ifnull(substr(?4, value >> 32, value & 4294967295), x'') FROM json_each(?5)
"""


def append_batch(writer: sqlite3.Connection, held: Held | None, batch: RecordBatch, time_ms: int) -> Held:
    """Inserts a batch's records and gives what its row must become; `time_ms` is for records that bring no time.

    Raises `StorageSequenceError` where it does not continue the partition.
    """
    if batch.end_sequence > SEQUENCE_MAX:
        raise StorageError(f"{batch.partition}: sequence {batch.end_sequence} is more than SQLite can count")
    if held is None:
        held = insert_partition(writer, batch.partition, batch.first_sequence)
    info = held.info
    info.check_append(batch)
    times = batch.stored_at
    if times is None:
        earliest_at = latest_at = max(time_ms, held.latest_stored_at)
        _insert_run(writer, held.row_id, batch, latest_at)
    else:
        earliest_at = max(times[0], held.latest_stored_at)
        latest_at = max(*times, earliest_at)
        _insert_timed(writer, held, batch, times)
    begins = not info.count
    return Held(
        held.row_id,
        PartitionInfo(
            batch.first_sequence if begins else info.earliest_sequence,
            batch.end_sequence,
            info.content_bytes + batch.content_bytes,
            earliest_at if begins else info.earliest_stored_at,
            latest_at,
        ),
        latest_at,
    )


def _insert_timed(writer: sqlite3.Connection, held: Held, batch: RecordBatch, times: Sequence[int]) -> None:
    changes = sum(map(int.__ne__, times, times[1:]))
    if (changes + 1) * RUN_RECORDS_MIN <= len(batch) or not changes:
        for run in split_by_time(batch, 0, held.latest_stored_at):
            assert run.stored_at is not None
            _insert_run(writer, held.row_id, run, run.stored_at[0])
        return
    risen = accumulate(times, max, initial=held.latest_stored_at)
    next(risen)
    sequences = range(batch.first_sequence, batch.end_sequence)
    writer.executemany(_INSERT_ONE, zip(repeat(held.row_id), sequences, risen, batch.contents))


def _insert_run(writer: sqlite3.Connection, row_id: int, batch: RecordBatch, stored_at: int) -> None:
    sequence = batch.first_sequence
    for contents in _chunks(batch.contents):
        count = len(contents)
        if count == 1:
            writer.execute(_INSERT_ONE, (row_id, sequence, stored_at, contents[0]))
        elif (length := contents.common_length()) is not None:
            elements = f"[{'0,' * (count - 1)}0]"
            writer.execute(_INSERT_EVEN_RUN, (row_id, sequence, stored_at, contents.octets, elements, length))
        else:
            ends = contents.ends
            places = [start + 1 << 32 | end - start for start, end in pairwise(ends)]
            # The representation of a list of whole numbers is JSON.
            writer.execute(_INSERT_RUN, (row_id, sequence, stored_at, contents.octets, repr(places)))
        sequence += count


def _chunks(contents: Sequence[bytes]) -> Iterator[PackedContents]:
    start = 0
    while start < len(contents):
        chunk = take_within(contents, start, INSERT_RECORDS_MAX, INSERT_BYTES_MAX)
        yield pack(chunk)
        start += len(chunk)


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
class TrimLimits:
    """What must go of a partition: records before a sequence, before a time, and the first beyond a number or size."""

    before_sequence: int = 0
    before_time: int = 0
    records_max: int | None = None
    bytes_max: int | None = None

    @classmethod
    def retaining(cls, retention: RetentionPolicy, time_ms: int) -> TrimLimits:
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


def trim_step(
    cut: TrimLimits, partitions: Iterable[tuple[Partition, Held]], writer: sqlite3.Connection
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


def _trim_chunk(writer: sqlite3.Connection, cut: TrimLimits, held: Held) -> Held:
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
