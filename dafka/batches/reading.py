"""Reads the records of batches, in Python: the reference for the C code, which must return or raise the same.

Most records have no key, no headers, and the same time as the previous record. They are compared with the bytes
expected in this case; only other records are decoded field by field.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple, TypeAlias

from dafka.batches.columns import NO_HEADERS
from dafka.batches.varints import read_varint, write_natural, write_varint
from dafka.batches.writing import PlainRecords, delta_ranges
from dafka.errors import BatchError
from dafka.packed_bytes import PackedContents, pack

Column: TypeAlias = Sequence[bytes | None]
Columns: TypeAlias = "tuple[Column, Column | None, PackedContents | None, int | array[int]]"
"""Values, keys, encoded headers, and the time of all records or of each."""

TIMESTAMP_MIN, TIMESTAMP_MAX = -(2**63), 2**63 - 1


class RecordsPart(NamedTuple):
    """The uncompressed records of one batch: data with them at its end, and where they begin in it, in bytes.

    The data is large enough for their number. Their timestamps are relative to `base_timestamp`.
    """

    data: bytes | memoryview
    position: int
    record_count: int
    base_timestamp: int


class _Reader:
    """Reads records in order."""

    def __init__(self, data: bytes, position: int, base_timestamp: int) -> None:
        self.data = data
        self.position = position
        self.base_timestamp = base_timestamp
        self.values: list[bytes | None] = []
        self.keys: dict[int, bytes] = {}
        self.blocks: dict[int, bytes] = {}
        self.timestamps: list[int] = []

    def read_alike(self, start: int, end: int) -> bool:
        """Read records that differ only in their offsets and the bytes of their values.

        Return whether that was possible.
        """
        data, position, count = self.data, self.position, end - start
        size = data[position] >> 1 if data[position] < 128 else 0
        if position + 1 < len(data) and not size:
            size = (data[position] & 0x7F | data[position + 1] << 7) >> 1
        time = write_varint(self._timestamp_before - self.base_timestamp)
        plain = PlainRecords.of_body(size, start, len(time))
        if plain is None:
            return False
        total = plain.size * count
        last = position + total - plain.size
        if last + plain.size > len(data) or not data.startswith(next(plain.heads(end - 1, end, time)), last):
            return False
        layout = f"{plain.head_size}s{plain.value_size}s1s"
        heads, values, ends = zip(*struct.iter_unpack(layout, data[position : position + total]), strict=True)
        if heads != tuple(plain.heads(start, end, time)) or ends != (NO_HEADERS,) * count:
            return False
        self.values += values
        self.timestamps += repeat(self._timestamp_before, count)
        self.position += total
        return True

    @property
    def _timestamp_before(self) -> int:
        return self.timestamps[-1] if self.timestamps else self.base_timestamp

    def read_each(self, start: int, end: int) -> None:
        """Read records that can differ in every field."""
        data = self.data
        shapes: dict[bytes, tuple[bytes, bytes, int] | None] = {}
        timestamp = self._timestamp_before
        time = write_varint(timestamp - self.base_timestamp)
        for number in range(start, end):
            position = self.position
            lead = data[position : position + 1]
            if lead >= b"\x80":
                lead = data[position : position + 2]
            if lead in shapes:
                shape = shapes[lead]
            else:
                shapes[lead] = shape = _shape(lead, number, len(time))
            if shape is not None:
                before, after, size = shape
                head = before + time + write_natural(number) + after
                stop = position + len(head) + size
                if data.startswith(head, position) and data[stop : stop + 1] == NO_HEADERS:
                    self.values.append(data[position + len(head) : stop])
                    self.timestamps.append(timestamp)
                    self.position = stop + 1
                    continue
            self._read(number)
            if self._timestamp_before != timestamp:
                timestamp = self._timestamp_before
                former, time = time, write_varint(timestamp - self.base_timestamp)
                if len(time) != len(former):
                    shapes.clear()

    def read_sparse(self, record_count: int, span: int) -> list[int]:
        """Read records with increasing offset deltas below a limit, and return the deltas."""
        deltas: list[int] = []
        for number in range(record_count):
            deltas.append(self._read(number, range(deltas[-1] + 1 if deltas else 0, span)))
        return deltas

    def _read(self, number: int, deltas: range | None = None) -> int:
        """Read a record, and return its offset delta, which must be its number or one of `deltas`."""
        data, position = self.data, self.position
        length, start = read_varint(data, position, len(data), "length")
        end = start + length
        if not 0 <= length <= len(data) - start:
            raise BatchError("length", f"a length from 0 to {len(data) - start}, not {length}", position)
        if start == end:
            raise BatchError("attributes", "a complete number", start)
        if data[start]:
            raise BatchError("attributes", f"0, not {data[start]}", start)
        delta, after = read_varint(data, start + 1, end, "timestamp delta", 64)
        timestamp = self.base_timestamp + delta
        if not TIMESTAMP_MIN <= timestamp <= TIMESTAMP_MAX:
            raise BatchError("timestamp delta", "a timestamp of 64 bits", start + 1)
        offset_delta, position = read_varint(data, after, end, "offset delta")
        if offset_delta != number if deltas is None else offset_delta not in deltas:
            expected = f"{number}" if deltas is None else f"a number from {deltas.start} to {deltas.stop - 1}"
            raise BatchError("offset delta", f"{expected}, not {offset_delta}", after)
        key, position = _read_bytes(data, position, end, "key length")
        value, position = _read_bytes(data, position, end, "value length")
        after = _skip_headers(data, position, end)
        if after != end:
            raise BatchError("length", f"{after - start}, not {length}", self.position)
        self.values.append(value)
        self.timestamps.append(timestamp)
        if key is not None:
            self.keys[offset_delta] = key
        if after - position > 1 or data[position]:
            self.blocks[offset_delta] = data[position:after]
        self.position = after
        return offset_delta


class SparseRecords(NamedTuple):
    """The records of a compacted batch. Keys and encoded headers that are present are by the record's offset delta."""

    deltas: list[int]
    values: list[bytes | None]
    keys: dict[int, bytes]
    blocks: dict[int, bytes]
    timestamps: list[int]


def read_sparse_records(batch: RecordsPart, span: int) -> SparseRecords:
    """Return the remaining records of a compacted batch, which spans `span` offsets and can be empty.

    Raise `BatchError` if a record is malformed, or bytes follow the last one.
    """
    reader = _Reader(bytes(batch.data), batch.position, batch.base_timestamp)
    deltas = reader.read_sparse(batch.record_count, span)
    _check_end(reader)
    return SparseRecords(deltas, reader.values, reader.keys, reader.blocks, reader.timestamps)


def read_records(batches: Sequence[RecordsPart]) -> Columns:
    """Return the columns of the records that batches contain, at least one. Values and keys are packed if none is None.

    Raise `BatchError` if a record is malformed, or is not the next one, or bytes follow the last one.
    """
    values: list[bytes | None] = []
    keys: dict[int, bytes] = {}
    blocks: dict[int, bytes] = {}
    timestamps: list[int] = []
    for batch in batches:
        reader, first = _read_batch(batch), len(values)
        values += reader.values
        timestamps += reader.timestamps
        keys.update((first + number, key) for number, key in reader.keys.items())
        blocks.update((first + number, block) for number, block in reader.blocks.items())
    count = len(values)
    return (
        _packed(values),
        _packed([keys.get(number) for number in range(count)]) if keys else None,
        pack([blocks.get(number, NO_HEADERS) for number in range(count)]) if blocks else None,
        timestamps[0] if timestamps.count(timestamps[0]) == count else array("q", timestamps),
    )


def _read_batch(batch: RecordsPart) -> _Reader:
    reader = _Reader(bytes(batch.data), batch.position, batch.base_timestamp)
    for start, end in delta_ranges(batch.record_count):
        if reader.position >= len(reader.data) or not reader.read_alike(start, end):
            reader.read_each(start, end)
    _check_end(reader)
    return reader


def _check_end(reader: _Reader) -> None:
    if reader.position != len(reader.data):
        follow = len(reader.data) - reader.position
        raise BatchError("records", f"their end, {follow} bytes follow", reader.position)


def _packed(column: list[bytes | None]) -> Column:
    present = [item for item in column if item is not None]
    return pack(present) if len(present) == len(column) else column


def _shape(lead: bytes, number: int, time_size: int) -> tuple[bytes, bytes, int] | None:
    """Return a plain record's bytes before the time and after the offset, and its value's size, for this length."""
    try:
        size, _ = read_varint(lead, 0, len(lead), "length")
    except BatchError:
        return None
    plain = PlainRecords.of_body(size, number, time_size)
    if plain is None or not plain.lead.startswith(lead):
        return None
    return plain.lead, plain.after, plain.value_size


def _read_bytes(data: bytes, position: int, end: int, field: str) -> tuple[bytes | None, int]:
    length, start = read_varint(data, position, end, field)
    if not -1 <= length <= end - start:
        raise BatchError(field, f"a length from -1 to {end - start}, not {length}", position)
    return (None, start) if length < 0 else (data[start : start + length], start + length)


def _skip_headers(data: bytes, position: int, end: int) -> int:
    count, start = read_varint(data, position, end, "header count")
    if not 0 <= count <= (end - start) // 2:
        raise BatchError("header count", f"a count from 0 to {(end - start) // 2}, not {count}", position)
    position = start
    for _ in range(count):
        length, start = read_varint(data, position, end, "header name length")
        if not 0 <= length <= end - start:
            raise BatchError("header name length", f"a length from 0 to {end - start}, not {length}", position)
        position = start + length
        length, start = read_varint(data, position, end, "header value length")
        if not -1 <= length <= end - start:
            raise BatchError("header value length", f"a length from -1 to {end - start}, not {length}", position)
        position = start + max(length, 0)
    return position
