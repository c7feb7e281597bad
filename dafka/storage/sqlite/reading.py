"""Reading records.

Each row that SQLite returns takes the interpreter lock. Next to a busy event loop, that allows a few thousand rows per
second. A run of records is therefore read as one row, whose contents SQLite concatenates without the lock. If that
fails, or the run is short, the records are read row by row.
"""

from __future__ import annotations

import json
import sqlite3
import struct
from bisect import bisect_right
from collections.abc import Callable
from contextlib import closing
from itertools import accumulate

from dafka.contents import LENGTH_BYTES, PackedContents
from dafka.errors import StorageCorruptError
from dafka.records import Partition, RecordBatch
from dafka.storage.base import PartitionInfo
from dafka.storage.sqlite.connection import snapshot
from dafka.storage.sqlite.schema import SEQUENCE_MAX, PartitionTable, to_columns

READ_RECORDS_MAX = 10_000
"""The maximum number of records in one read."""

RUN_RECORDS_MIN = 32
"""Shorter runs are read row by row: they are quick to read, or so large that another copy would be noticeable."""

_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_TOOBIG}

_SELECT = """
    SELECT sequence, content, {stored_at} FROM records
    WHERE partition_id = (SELECT id FROM partitions WHERE topic = ? AND address = ?) AND sequence >= ?
    ORDER BY sequence LIMIT ?
"""

# An aggregate over a range of the key takes the rows in key order. Types are checked through aggregates, because
# checking each row would double the cost: the minimum of blobs and other types is not a blob, and only a sum of
# integers is an integer.
_RUN = """
    FROM records
    WHERE partition_id = (SELECT id FROM partitions WHERE topic = ? AND address = ?) AND sequence >= ? AND sequence < ?
"""

_SELECT_LENGTHS = f"SELECT json_group_array(length(content)), max(sequence) {_RUN}"

_SELECT_RUN = f"""
    SELECT count(*), max(sequence), typeof(min(content)), CAST(group_concat(content, '') AS BLOB) {_RUN}
"""

_SELECT_TIMES = f"SELECT count(*), typeof(sum(stored_at)), json_group_array(stored_at) {_RUN}"

_SELECT_READABLE = """
    SELECT sequence FROM records
    WHERE partition_id = ? AND sequence >= ? AND sequence < ?
      AND typeof(content) = 'blob' AND typeof(stored_at) = 'integer'
    ORDER BY sequence LIMIT 1
"""

_SELECT_TIME = """
    SELECT sequence, stored_at FROM records
    WHERE partition_id = ? AND sequence >= ? AND sequence < ?
    ORDER BY sequence LIMIT 1
"""


def read_records(
    reader: sqlite3.Connection,
    table: PartitionTable,
    partition: Partition,
    first_sequence: int,
    count: int,
    bytes_max: int,
    with_times: bool,
    info: PartitionInfo,
) -> RecordBatch | None:
    """See `Storage.read`. `info` gives the average size of the partition's records."""
    if first_sequence > SEQUENCE_MAX or count < 1:
        return None
    # SQLite reads a whole row even if only its length is needed, so limit the rows to those that are likely to fit.
    fitting = bytes_max * info.count // info.content_bytes if info.content_bytes else count
    count = min(count, READ_RECORDS_MAX, max(fitting, 1))
    if count >= RUN_RECORDS_MIN:
        run = _read_run(reader, partition, first_sequence, count, bytes_max, with_times)
        if run is not None:
            return run
    contents: list[bytes] = []
    times: list[int] = []
    size = 0
    failure: sqlite3.Error | None = None
    statement = _SELECT.format(stored_at="stored_at" if with_times else "0")
    arguments = (*to_columns(partition), first_sequence, count)
    try:
        with closing(reader.execute(statement, arguments)) as found:
            for sequence, content, stored_at in found:
                if type(content) is not bytes or type(stored_at) is not int:
                    break
                if sequence != first_sequence + len(contents) or (contents and size + len(content) > bytes_max):
                    break
                contents.append(content)
                times.append(stored_at)
                size += len(content)
    except sqlite3.Error as error:
        failure = error  # the rows before it are intact
        if not contents and error.sqlite_errorcode & 0xFF not in _DAMAGE:
            raise
    if contents:
        return RecordBatch(partition, first_sequence, contents, stored_at=times if with_times else None)
    _raise_if_damaged(reader, table, partition, first_sequence, failure)
    return None


def _read_run(
    reader: sqlite3.Connection,
    partition: Partition,
    first_sequence: int,
    count: int,
    bytes_max: int,
    with_times: bool,
) -> RecordBatch | None:
    """Read the records as one row. Return None if they are too few or anything is not as expected."""
    key = (*to_columns(partition), first_sequence)
    try:
        lengths_text, last = reader.execute(_SELECT_LENGTHS, (*key, first_sequence + count)).fetchone()
        lengths, size = _read_lengths(lengths_text, bytes_max)
        kept = len(lengths) // LENGTH_BYTES
        end_sequence = first_sequence + kept
        if kept < RUN_RECORDS_MIN or last < end_sequence - 1:
            return None
        found, last, kind, data = reader.execute(_SELECT_RUN, (*key, end_sequence)).fetchone()
        if (found, last, kind, len(data)) != (kept, end_sequence - 1, "blob", size):
            return None
        times = None
        if with_times:
            found, kind, times_text = reader.execute(_SELECT_TIMES, (*key, end_sequence)).fetchone()
            if (found, kind) != (kept, "integer"):
                return None
            times = json.loads(times_text)
    except (sqlite3.DatabaseError, TypeError):
        return None
    return RecordBatch(partition, first_sequence, PackedContents(data, lengths), stored_at=times)


def _read_lengths(text: str, bytes_max: int) -> tuple[bytes, int]:
    """Return the lengths, from the first, whose sum is at most `bytes_max`, packed, and their sum."""
    count = text.count(",") + 1
    first = text[1:-1].partition(",")[0]
    if first.isdecimal() and text == f"[{f'{first},' * (count - 1)}{first}]":
        length = int(first)
        kept = min(count, bytes_max // length if length else count)
        return struct.pack(">I", length) * kept, length * kept
    lengths = json.loads(text)
    ends = list(accumulate(lengths, initial=0))
    kept = max(bisect_right(ends, bytes_max) - 1, 0)
    return struct.pack(f">{kept}I", *lengths[:kept]), ends[kept]


def _raise_if_damaged(
    reader: sqlite3.Connection,
    table: PartitionTable,
    partition: Partition,
    first_sequence: int,
    failure: sqlite3.Error | None,
) -> None:
    """Raise `StorageCorruptError` if the record is listed as held although it could not be read."""
    with snapshot(reader):  # an append between the two queries would look like damage
        row = table.select_one(reader, partition)
        if row is None or not row.info.earliest_sequence <= first_sequence < row.info.end_sequence:
            return
        end_sequence = row.info.end_sequence

        def find_readable(sequence: int) -> int | None:
            try:
                found = reader.execute(_SELECT_READABLE, (row.row_id, sequence, end_sequence)).fetchone()
            except sqlite3.DatabaseError:
                return None
            return end_sequence if found is None else int(found[0])

        readable = find_readable(first_sequence) if failure is None else None
        if readable is None:
            readable = _find_next_readable(find_readable, first_sequence, end_sequence)
    if readable > first_sequence:
        missing = readable - first_sequence
        which = f"sequence {first_sequence} is" if missing == 1 else f"sequences {first_sequence} to {readable - 1} are"
        reason = "missing" if failure is None else " ".join(str(failure).split())
        raise StorageCorruptError(f"{partition}: {which} damaged: {reason}", readable)


def _find_next_readable(find_readable: Callable[[int], int | None], damaged: int, end_sequence: int) -> int:
    """Return the first readable record after a damaged one, by binary search: damage affects whole pages."""
    step = 1
    found: int | None = None
    while found is None and damaged + step < end_sequence:
        found = find_readable(damaged + step)
        if found is None:
            damaged += step
            step *= 2
    if found is None:
        return end_sequence
    good = damaged + step
    while good - damaged > 1:
        middle = (damaged + good) // 2
        readable = find_readable(middle)
        if readable is None:
            damaged = middle
        else:
            good, found = middle, readable
    return found


def find_sequence_by_time(
    reader: sqlite3.Connection, table: PartitionTable, partition: Partition, stored_at: int
) -> int:
    """See `Storage.find_sequence_by_time`. A binary search over the records of the partition."""
    with snapshot(reader):
        row = table.select_one(reader, partition)
        if row is None:
            return 0
        low, high = row.info.earliest_sequence, row.info.end_sequence
        if row.latest_stored_at < stored_at:
            return high
        while low < high:
            middle = (low + high) // 2
            found = reader.execute(_SELECT_TIME, (row.row_id, middle, high)).fetchone()
            if found is None:
                high = middle
                continue
            sequence, time_ms = found
            if type(time_ms) is not int:
                raise sqlite3.DataError(f"the time of sequence {sequence} of {partition} is damaged")
            if time_ms < stored_at:
                low = sequence + 1
            else:
                high = middle
    return low
