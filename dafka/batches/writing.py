"""Writes the records of batches, in Python: the reference for the C code, which must return the same."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise, repeat
from typing import NamedTuple, cast

import attrs

from dafka.batches.columns import NO_HEADERS
from dafka.batches.varints import write_natural, write_varint
from dafka.packed_bytes import PackedContents, content_ends

_DELTA_LIMITS = (0, 64, 8192, 2**20, 2**27, 2**31)
"""The offset deltas at which the size changes: one byte below the second number, two below the third, and so on."""


def delta_ranges(count: int) -> list[tuple[int, int]]:
    """Return the ranges of the first `count` offset deltas that have the same size."""
    return [(start, min(end, count)) for start, end in pairwise(_DELTA_LIMITS) if start < count]


@attrs.frozen
class PlainRecords:
    """The layout of records without key and headers whose times, offset deltas and values have the same sizes.

    `lead` is before the time, and `after` between the offset delta and the value.
    """

    lead: bytes
    after: bytes
    time_size: int
    delta_size: int
    value_size: int

    @classmethod
    def of_value(cls, value_size: int, number: int, time_size: int) -> PlainRecords:
        """Return the layout of records with values of a size. One of them has the offset delta `number`."""
        after = b"\x01" + write_varint(value_size)
        delta_size = len(write_varint(number))
        body_size = 1 + time_size + delta_size + len(after) + value_size + len(NO_HEADERS)
        return cls(write_varint(body_size) + b"\0", after, time_size, delta_size, value_size)

    @classmethod
    def of_body(cls, body_size: int, number: int, time_size: int) -> PlainRecords | None:
        """Return the layout of records with this length as their first field; None if it is impossible."""
        fixed = 3 + time_size + len(write_varint(number))
        for length_size in range(1, 6):
            value_size = body_size - fixed - length_size
            if value_size >= 0 and len(write_varint(value_size)) == length_size:
                return cls.of_value(value_size, number, time_size)
        return None

    @property
    def head_size(self) -> int:
        """The number of bytes before the value."""
        return len(self.lead) + self.time_size + self.delta_size + len(self.after)

    @property
    def size(self) -> int:
        """The size of a record."""
        return self.head_size + self.value_size + len(NO_HEADERS)

    def heads(self, start: int, end: int, time: bytes) -> Iterator[bytes]:
        """Return the bytes before the value of each record in a range."""
        before, after = self.lead + time, self.after
        return (before + delta + after for delta in map(write_natural, range(start, end)))


class WrittenRecords(NamedTuple):
    """The encoded records of one batch, uncompressed, and the first and the latest time; 0 if no times were given."""

    record_count: int
    base_time: int
    max_time: int
    data: bytes


def write_records(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None,
    blocks: PackedContents | None,
    times: array[int] | None,
    bytes_max: int,
    count_max: int,
) -> list[WrittenRecords]:
    """Encode records as batches of at most `count_max` records, with times relative to the first one of the batch.

    Keys and encoded headers are None if no record has any, and times if all are equal. The values, keys and headers of
    a batch have at most `bytes_max` bytes, unless a single record is larger. A new batch also begins where the
    difference of times exceeds 64 bits. Raise `TypeError` if a value or a key is neither bytes nor None.
    """
    kinds = _kinds(values) | (set() if keys is None else _kinds(keys))
    if not kinds <= {bytes, type(None)}:
        raise TypeError("expected bytes or None")
    written = []
    columns = [content_ends(column) for column in (values, keys, blocks) if column is not None]
    ends = columns[0] if len(columns) == 1 else list(map(sum, zip(*columns, strict=True)))
    for start, end in _split(ends, times, bytes_max, count_max):
        base_time = max_time = 0
        deltas: list[int] | None = None
        if times is not None:
            base_time, max_time = times[start], max(times[start:end])
            deltas = [time - base_time for time in times[start:end]]
        data = _write_batch(
            values[start:end],
            None if keys is None else keys[start:end],
            None if blocks is None else blocks[start:end],
            deltas if deltas is not None and any(deltas) else None,
            kinds,
        )
        written.append(WrittenRecords(end - start, base_time, max_time, data))
    return written


def _split(ends: Sequence[int], times: array[int] | None, bytes_max: int, count_max: int) -> Iterator[tuple[int, int]]:
    """Yield the first and the end index of each batch. `ends` contains 0, and the total size up to each record."""
    start, count = 0, len(ends) - 1
    while start < count:
        end = min(max(bisect_right(ends, ends[start] + bytes_max) - 1, start + 1), start + count_max, count)
        if times is not None:
            low, high = times[start] - 2**63, times[start] + 2**63 - 1
            if min(times[start:end]) < low or max(times[start:end]) > high:
                end = next(index for index in range(start, end) if not low <= times[index] <= high)
        yield start, end
        start = end


def _write_batch(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None,
    blocks: Sequence[bytes] | None,
    timestamp_deltas: Sequence[int] | None,
    kinds: set[type],
) -> bytes:
    times = None if timestamp_deltas is None else _encode_times(timestamp_deltas)
    if blocks is None and kinds == {bytes} and keys is None:
        return _write_plain(cast("Sequence[bytes]", values), times)
    rows = zip(
        repeat(b"\0") if times is None else times,
        map(write_natural, range(len(values))),
        repeat(b"\x01") if keys is None else _with_lengths(keys),
        _with_lengths(values),
        repeat(NO_HEADERS) if blocks is None else blocks,
        strict=False,
    )
    bodies = [b"\0%b%b%b%b%b" % row for row in rows]
    return b"".join(chain.from_iterable(zip(map(write_natural, map(len, bodies)), bodies, strict=True)))


def _encode_times(deltas: Sequence[int]) -> list[bytes]:
    encoded = {delta: write_varint(delta) for delta in set(deltas)}
    return [encoded[delta] for delta in deltas]


def _kinds(column: Sequence[bytes | None]) -> set[type]:
    return {bytes} if isinstance(column, PackedContents) else set(map(type, column))


def _with_lengths(column: Sequence[bytes | None]) -> Iterator[bytes]:
    return (b"\x01" if item is None else write_natural(len(item)) + item for item in column)


def _write_plain(values: Sequence[bytes], times: Sequence[bytes] | None) -> bytes:
    """Encode records without keys and headers."""
    parts = []
    common = values.common_length() if isinstance(values, PackedContents) and times is None else None
    for start, end in delta_ranges(len(values)):
        part = values[start:end]
        encoded = [b"\0"] * len(part) if times is None else times[start:end]
        leads: Iterator[bytes]
        afters: Iterator[bytes]
        if common is not None:
            plain = PlainRecords.of_value(common, start, 1)
            leads, afters = repeat(plain.lead), repeat(plain.after)
        else:
            shapes = list(zip(map(len, part), map(len, encoded), strict=True))
            plains = {shape: PlainRecords.of_value(shape[0], start, shape[1]) for shape in set(shapes)}
            leads = map({shape: plain.lead for shape, plain in plains.items()}.__getitem__, shapes)
            afters = map({shape: plain.after for shape, plain in plains.items()}.__getitem__, shapes)
        deltas = map(write_natural, range(start, end))
        rows = zip(leads, encoded, deltas, afters, part, repeat(NO_HEADERS))
        parts.append(b"".join(chain.from_iterable(rows)))
    return b"".join(parts)
