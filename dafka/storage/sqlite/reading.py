"""Reading records: what is held is given whole, and what is held but cannot be read is said to be damaged.

Rows come one by one through the interpreter lock: beside a busy event loop, a few thousand a second. A run of records
is therefore one row, whose contents SQLite has put together without the lock; what is unusual is read row by row.
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
from dafka.storage.sqlite.schema import SEQUENCE_MAX, PartitionRows, to_columns

READ_RECORDS_MAX = 10_000
"""Records of one read."""

RUN_RECORDS_MIN = 32
"""Fewer are read row by row: they are soon done, or so large that one more copy would show."""

_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_TOOBIG}

_SELECT = """
    SELECT sequence, content, {stored_at} FROM records
    WHERE partition_id = (SELECT id FROM partitions WHERE topic = ? AND address = ?) AND sequence >= ?
    ORDER BY sequence LIMIT ?
"""

# An aggregate takes the rows of a range of the key as they stand in it: in order. The least of blobs and others is
# none of the blobs, and only whole numbers have a whole sum; asking each row for its types would double the cost.
_RUN = """
    FROM records
    WHERE partition_id = (SELECT id FROM partitions WHERE topic = ? AND address = ?) AND sequence >= ? AND sequence < ?
"""

_SELECT_LENGTHS = f"SELECT json_group_array(length(content)), max(sequence) {_RUN}"

_SELECT_RUN = f"""
    SELECT count(*), max(sequence), typeof(min(content)), CAST(group_concat(content, '') AS BLOB) {_RUN}
"""

_SELECT_TIMES = f"SELECT count(*), typeof(sum(stored_at)), json_group_array(stored_at) {_RUN}"

_SELECT_SOUND = """
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
    rows: PartitionRows,
    partition: Partition,
    first_sequence: int,
    count: int,
    bytes_max: int,
    with_times: bool,
    info: PartitionInfo,
) -> RecordBatch | None:
    """See `Storage.read`. `info` tells about how large the partition's records are."""
    if first_sequence > SEQUENCE_MAX or count < 1:
        return None
    # Looking at a row costs reading all of it, even where only its length is wanted: none are looked at in vain.
    fitting = bytes_max * info.count // info.content_bytes if info.content_bytes else count
    count = min(count, READ_RECORDS_MAX, max(fitting, 1))
    if count >= RUN_RECORDS_MIN:
        run = _select_run(reader, partition, first_sequence, count, bytes_max, with_times)
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
        failure = error  # what came before it is good
        if not contents and error.sqlite_errorcode & 0xFF not in _DAMAGE:
            raise
    if contents:
        return RecordBatch(partition, first_sequence, contents, times if with_times else None)
    _refuse_damage(reader, rows, partition, first_sequence, failure)
    return None


def _select_run(
    reader: sqlite3.Connection,
    partition: Partition,
    first_sequence: int,
    count: int,
    bytes_max: int,
    with_times: bool,
) -> RecordBatch | None:
    """The records as one row; None where there are too few for that, or anything is not as it should be."""
    key = (*to_columns(partition), first_sequence)
    try:
        lengths_text, last = reader.execute(_SELECT_LENGTHS, (*key, first_sequence + count)).fetchone()
        lengths, size = _read_lengths(lengths_text, bytes_max)
        kept = len(lengths) // LENGTH_BYTES
        end_sequence = first_sequence + kept
        if kept < RUN_RECORDS_MIN or last < end_sequence - 1:
            return None
        found, last, kind, octets = reader.execute(_SELECT_RUN, (*key, end_sequence)).fetchone()
        if (found, last, kind, len(octets)) != (kept, end_sequence - 1, "blob", size):
            return None
        times = None
        if with_times:
            found, kind, times_text = reader.execute(_SELECT_TIMES, (*key, end_sequence)).fetchone()
            if (found, kind) != (kept, "integer"):
                return None
            times = json.loads(times_text)
    except (sqlite3.DatabaseError, TypeError):
        return None
    return RecordBatch(partition, first_sequence, PackedContents(octets, lengths), times)


def _read_lengths(text: str, bytes_max: int) -> tuple[bytes, int]:
    """The first of these lengths that are no more than `bytes_max` together, as they are packed, and their sum."""
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


def _refuse_damage(
    reader: sqlite3.Connection,
    rows: PartitionRows,
    partition: Partition,
    first_sequence: int,
    failure: sqlite3.Error | None,
) -> None:
    """Raises `StorageCorruptError` where this record is held, for nothing was read."""
    with snapshot(reader):  # or an append between the two would look like damage
        held = rows.select_one(reader, partition)
        if held is None or not held.info.earliest_sequence <= first_sequence < held.info.end_sequence:
            return
        end_sequence = held.info.end_sequence

        def find_sound(sequence: int) -> int | None:
            try:
                found = reader.execute(_SELECT_SOUND, (held.row_id, sequence, end_sequence)).fetchone()
            except sqlite3.DatabaseError:
                return None
            return end_sequence if found is None else int(found[0])

        sound = find_sound(first_sequence) if failure is None else None
        if sound is None:
            sound = _next_sound(find_sound, first_sequence, end_sequence)
    if sound > first_sequence:
        missing = sound - first_sequence
        which = f"sequence {first_sequence} is" if missing == 1 else f"sequences {first_sequence} to {sound - 1} are"
        reason = "missing" if failure is None else " ".join(str(failure).split())
        raise StorageCorruptError(f"{partition}: {which} damaged: {reason}", sound)


def _next_sound(find_sound: Callable[[int], int | None], damaged: int, end_sequence: int) -> int:
    """The first record beyond a damaged stretch: damage is by the page, so one side of a place is good, one is not."""
    step = 1
    found: int | None = None
    while found is None and damaged + step < end_sequence:
        found = find_sound(damaged + step)
        if found is None:
            damaged += step
            step *= 2
    if found is None:
        return end_sequence
    good = damaged + step
    while good - damaged > 1:
        middle = (damaged + good) // 2
        sound = find_sound(middle)
        if sound is None:
            damaged = middle
        else:
            good, found = middle, sound
    return found


def select_time(reader: sqlite3.Connection, rows: PartitionRows, partition: Partition, stored_at: int) -> int:
    """See `Storage.find_sequence_by_time`. Looks up a record for every halving of the partition."""
    with snapshot(reader):
        held = rows.select_one(reader, partition)
        if held is None:
            return 0
        low, high = held.info.earliest_sequence, held.info.end_sequence
        if held.latest_stored_at < stored_at:
            return high
        while low < high:
            middle = (low + high) // 2
            found = reader.execute(_SELECT_TIME, (held.row_id, middle, high)).fetchone()
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
