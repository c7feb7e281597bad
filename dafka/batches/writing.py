"""Write the records of a batch, in Python: the reference for the C code, which must return the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, pairwise, repeat
from typing import cast

import attrs

from dafka.batches.columns import NO_HEADERS
from dafka.batches.varints import write_varint
from dafka.contents import PackedContents

_DELTA_LIMITS = (0, 64, 8192, 2**20, 2**27, 2**31)
"""An offset delta below the second of these has one byte, one below the third two, and so on."""

_DELTAS_KEPT = 8192
_deltas: list[bytes] = []


def _small_deltas() -> list[bytes]:
    if not _deltas:
        _deltas.extend(map(write_varint, range(_DELTAS_KEPT)))
    return _deltas


def write_delta(number: int) -> bytes:
    """Return an offset delta."""
    return _small_deltas()[number] if number < _DELTAS_KEPT else write_varint(number)


def delta_ranges(count: int) -> list[tuple[int, int]]:
    """Return the ranges of the first `count` offset deltas that have the same size."""
    return [(start, min(end, count)) for start, end in pairwise(_DELTA_LIMITS) if start < count]


@attrs.frozen
class PlainRecords:
    """What records without a key and headers look like whose values have the same size, and their offset deltas, too.

    Attributes:
        before: The bytes before the offset delta.
        after: The bytes between it and the value.
        delta_size: The size of the offset delta.
        value_size: The size of the value.
    """

    before: bytes
    after: bytes
    delta_size: int
    value_size: int

    @classmethod
    def of_value(cls, value_size: int, number: int, timestamp_delta: int) -> PlainRecords:
        """Return how records look that have values of a size. One of them has the offset delta `number`."""
        lead, after = b"\0" + write_varint(timestamp_delta), b"\x01" + write_varint(value_size)
        delta_size = len(write_varint(number))
        before = write_varint(len(lead) + delta_size + len(after) + value_size + len(NO_HEADERS)) + lead
        return cls(before, after, delta_size, value_size)

    @classmethod
    def of_body(cls, body_size: int, number: int, timestamp_delta: int) -> PlainRecords | None:
        """Return how records look that have a size without its length field; None if there are no such records."""
        fixed = 3 + len(write_varint(timestamp_delta)) + len(write_varint(number))
        for length_size in range(1, 6):
            value_size = body_size - fixed - length_size
            if value_size >= 0 and len(write_varint(value_size)) == length_size:
                return cls.of_value(value_size, number, timestamp_delta)
        return None

    @property
    def head_size(self) -> int:
        """The size of what precedes the value."""
        return len(self.before) + self.delta_size + len(self.after)

    @property
    def size(self) -> int:
        """The size of a record."""
        return self.head_size + self.value_size + len(NO_HEADERS)

    def head(self, number: int) -> bytes:
        """Return what precedes the value of a record."""
        return self.before + write_delta(number) + self.after

    def heads(self, start: int, end: int) -> Iterator[bytes]:
        """Return what precedes the value of each record in a range."""
        before, after = self.before, self.after
        deltas = _small_deltas()[start:end] if end <= _DELTAS_KEPT else map(write_varint, range(start, end))
        return (before + delta + after for delta in deltas)


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
    if blocks is None and timestamp_deltas is None and kinds == {bytes} and keys is None:
        return _write_plain(cast("Sequence[bytes]", values))
    rows = zip(
        range(len(values)),
        values,
        repeat(None) if keys is None else keys,
        repeat(NO_HEADERS) if blocks is None else blocks,
        repeat(0) if timestamp_deltas is None else timestamp_deltas,
        strict=False,
    )
    parts: list[bytes] = []
    for number, value, key, block, timestamp_delta in rows:
        head = b"".join((b"\0", write_varint(timestamp_delta), write_delta(number)))
        body = b"".join((head, *_sized(key), *_sized(value), block))
        parts += (write_varint(len(body)), body)
    return b"".join(parts)


def _kinds(column: Sequence[bytes | None]) -> set[type]:
    return {bytes} if isinstance(column, PackedContents) else set(map(type, column))


def _sized(item: bytes | None) -> tuple[bytes, ...]:
    return (b"\x01",) if item is None else (write_varint(len(item)), item)


def _write_plain(values: Sequence[bytes]) -> bytes:
    """Return records that have neither keys nor headers nor times of their own."""
    parts = []
    common = values.common_length() if isinstance(values, PackedContents) else None
    for start, end in delta_ranges(len(values)):
        part = values[start:end]
        deltas = map(write_delta, range(start, end))
        if common is not None:
            plain = PlainRecords.of_value(common, start, 0)
            rows = zip(repeat(plain.before), deltas, repeat(plain.after), part, repeat(NO_HEADERS))
        else:
            lengths = list(map(len, part))
            shapes = {length: PlainRecords.of_value(length, start, 0) for length in set(lengths)}
            befores = {length: shape.before for length, shape in shapes.items()}
            afters = {length: shape.after for length, shape in shapes.items()}
            rows = zip(
                map(befores.__getitem__, lengths), deltas, map(afters.__getitem__, lengths), part, repeat(NO_HEADERS)
            )
        parts.append(b"".join(chain.from_iterable(rows)))
    return b"".join(parts)
