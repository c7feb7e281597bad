"""Write the records of a batch, in Python: the reference for the C code, which must return the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, pairwise, repeat
from typing import cast

import attrs

from dafka.batches.columns import NO_HEADERS
from dafka.batches.varints import write_natural, write_varint
from dafka.contents import PackedContents

_DELTA_LIMITS = (0, 64, 8192, 2**20, 2**27, 2**31)
"""An offset delta below the second of these has one byte, one below the third two, and so on."""


def delta_ranges(count: int) -> list[tuple[int, int]]:
    """Return the ranges of the first `count` offset deltas that have the same size."""
    return [(start, min(end, count)) for start, end in pairwise(_DELTA_LIMITS) if start < count]


@attrs.frozen
class PlainRecords:
    """What records without a key and headers look like if their times, offset deltas and values have the same sizes.

    Attributes:
        lead: The bytes before the time.
        after: The bytes between the offset delta and the value.
        time_size: The size of the time.
        delta_size: The size of the offset delta.
        value_size: The size of the value.
    """

    lead: bytes
    after: bytes
    time_size: int
    delta_size: int
    value_size: int

    @classmethod
    def of_value(cls, value_size: int, number: int, time_size: int) -> PlainRecords:
        """Return how records look that have values of a size. One of them has the offset delta `number`."""
        after = b"\x01" + write_varint(value_size)
        delta_size = len(write_varint(number))
        body_size = 1 + time_size + delta_size + len(after) + value_size + len(NO_HEADERS)
        return cls(write_varint(body_size) + b"\0", after, time_size, delta_size, value_size)

    @classmethod
    def of_body(cls, body_size: int, number: int, time_size: int) -> PlainRecords | None:
        """Return how records look whose first field, the length, is this; None if there are no such records."""
        fixed = 3 + time_size + len(write_varint(number))
        for length_size in range(1, 6):
            value_size = body_size - fixed - length_size
            if value_size >= 0 and len(write_varint(value_size)) == length_size:
                return cls.of_value(value_size, number, time_size)
        return None

    @property
    def head_size(self) -> int:
        """The size of what precedes the value."""
        return len(self.lead) + self.time_size + self.delta_size + len(self.after)

    @property
    def size(self) -> int:
        """The size of a record."""
        return self.head_size + self.value_size + len(NO_HEADERS)

    def heads(self, start: int, end: int, time: bytes) -> Iterator[bytes]:
        """Return what precedes the value of each record in a range."""
        before, after = self.lead + time, self.after
        return (before + delta + after for delta in map(write_natural, range(start, end)))


def write_records(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None,
    blocks: Sequence[bytes] | None,
    timestamp_deltas: Sequence[int] | None,
) -> bytes:
    """Return records as a batch contains them.

    Args:
        values: Their values.
        keys: Their keys; None if no record has one.
        blocks: Their encoded headers; None if no record has any.
        timestamp_deltas: Their times, from the base timestamp of the batch; None if all of them are 0.

    Returns:
        The records, uncompressed.

    Raises:
        TypeError: A value or a key is neither bytes nor None.
    """
    kinds = _kinds(values) | (set() if keys is None else _kinds(keys))
    if not kinds <= {bytes, type(None)}:
        raise TypeError("expected bytes or None")
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
    """Return records that have neither keys nor headers."""
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
