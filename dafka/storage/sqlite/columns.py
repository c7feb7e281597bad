"""Reads the columns of records from SQLite, many rows at once."""

from __future__ import annotations

import json
import sqlite3
import struct
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from types import NoneType

import attrs

from dafka.packed_bytes import PackedContents, Repeated
from dafka.records import NO_TIMESTAMP, Partition, RecordBatch
from dafka.storage.sqlite.headers import decode_headers
from dafka.storage.sqlite.schema import to_columns

RUN = """
    FROM records
    WHERE partition_id = (SELECT id FROM partitions WHERE topic = ?1 AND address = ?2)
      AND sequence >= ?3 AND sequence < ?4
"""


_SELECT_TIMES = f"SELECT count(*), typeof(sum(stored_at)), json_group_array(stored_at) {RUN}"

_SELECT_COLUMNS = f"""
    SELECT count(*), max(sequence), typeof(sum(stored_at)),
           typeof(min(content)), json_group_array(length(content)), CAST(group_concat(content, '') AS BLOB),
           typeof(min(key)), json_group_array(length(key)), CAST(group_concat(key, '') AS BLOB),
           json_group_array(headers), json_group_array(timestamp)
    {RUN}
"""


def add_times(reader: sqlite3.Connection, run: RecordBatch) -> RecordBatch | None:
    """Return records with their times of storing. Return None if one of the times is damaged."""
    key = (*to_columns(run.partition), run.first_sequence, run.end_sequence)
    found, kind, times_text = reader.execute(_SELECT_TIMES, key).fetchone()
    return attrs.evolve(run, stored_at=json.loads(times_text)) if (found, kind) == (len(run), "integer") else None


def read_columns(
    reader: sqlite3.Connection, partition: Partition, first_sequence: int, end_sequence: int
) -> RecordBatch:
    """Read records with all of their columns as one row. Raise `ValueError` if one is damaged."""
    found, last, times_kind, *columns, headers_text, timestamps_text = reader.execute(
        _SELECT_COLUMNS, (*to_columns(partition), first_sequence, end_sequence)
    ).fetchone()
    if (found, last, times_kind) != (end_sequence - first_sequence, end_sequence - 1, "integer"):
        raise ValueError("records are missing, or a time is damaged")
    texts = json.loads(headers_text)
    headers = {text: decode_headers(text) for text in set(texts)}  # many records often share the same headers
    return RecordBatch(
        partition,
        first_sequence,
        split_blobs(*columns[:3]),
        keys=none_if_empty(split_blobs(*columns[3:])),
        headers=[headers[text] for text in texts] if any(headers.values()) else None,
        timestamps=read_timestamps(json.loads(timestamps_text)),
    )


def split_blobs(kind: str, lengths_text: str, data: bytes | None) -> Sequence[bytes | None]:
    """Return the values of a column: blobs and NULL."""
    lengths = json.loads(lengths_text)
    if kind == "null":
        return [None] * len(lengths)
    known = [length for length in lengths if length is not None]
    if kind != "blob" or data is None or len(data) != sum(known):
        raise ValueError("a content or a key is damaged")
    packed = PackedContents(data, struct.pack(f">{len(known)}I", *known))
    if len(known) == len(lengths):
        return packed
    blobs = iter(packed)
    return [None if length is None else next(blobs) for length in lengths]


def read_timestamps(column: Sequence[object]) -> list[int] | None:
    """Return the timestamps of a batch. Raise `ValueError` if one is not a number."""
    kinds = set(map(type, column))
    if kinds == {NoneType}:
        return None
    if not kinds <= {int, NoneType}:
        raise ValueError("a timestamp is damaged")
    return [NO_TIMESTAMP if timestamp is None else timestamp for timestamp in column]  # type: ignore[misc]


def add_timestamps(first: object, kind: str, known: int, deltas_text: str) -> Sequence[int] | None:
    """Return the timestamps of a run from the first one and a JSON list of differences from it; None if there are none.

    `kind` is the type of their sum, and `known` their number. Raise `ValueError` if one is missing or not a number.
    """
    count = deltas_text.count(",") + 1
    if first is None and known == 0:
        return None
    if type(first) is not int or kind != "integer" or known != count:
        raise ValueError("timestamps are missing or damaged")
    if deltas_text == f"[{'0,' * (count - 1)}0]":
        return Repeated(first, count)
    return [first + delta for delta in json.loads(deltas_text)]


def none_if_empty(column: Sequence[bytes | None]) -> Sequence[bytes | None] | None:
    """Return a column, or None if none of its rows has a value."""
    return column if any(each is not None for each in column) else None


def read_lengths(text: str, bytes_max: int) -> tuple[bytes, int]:
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
