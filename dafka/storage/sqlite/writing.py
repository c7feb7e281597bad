"""Appending: a batch is one INSERT.

SQLite works on all of its rows without the interpreter lock, which stepping row by row would pass back and forth
with the event loop for every record.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise, repeat

from dafka.contents import PackedContents, pack, take_within
from dafka.errors import StorageError
from dafka.records import RecordBatch
from dafka.storage.base import PartitionInfo
from dafka.storage.sqlite.rows import SEQUENCE_MAX, Held, begin_partition
from dafka.storage.support import stamp

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
        held = begin_partition(writer, batch.partition, batch.first_sequence)
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
        for run in stamp(batch, 0, held.latest_stored_at):
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
