"""The basic values of dafka: partitions, records and batches of records.

Topics and addresses are text. On the wire they are bytes, and any bytes are allowed (RFC 46, "Topics, Partitions and
Records"). Bytes that are not UTF-8 are represented as lone surrogates, as Python does for such file names (PEP 383), so
that every name read from the wire can be written back unchanged.
"""

from __future__ import annotations

import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from itertools import accumulate, chain, compress, count, repeat
from operator import not_
from typing import TypeAlias, TypeVar

import attrs

from dafka.errors import EncodingError
from dafka.packed_bytes import Repeated, content_ends, count_bytes, has_null, join_contents, join_numbers

__all__ = [
    "Header",
    "Partition",
    "ProducerRecord",
    "Record",
    "RecordBatch",
    "decode_text",
    "encode_text",
    "join",
    "new_address",
]

SEQUENCE_MAX = 2**62
"""The largest sequence that nodes accept. No partition reaches it, and every storage supports it."""

RECORD_MEMORY_BYTES = 64
"""The memory of a record without its content, in bytes: a Python object and its entry in a list."""

RECORD_BYTES_LIMIT = 2**29
"""The largest value of `[node] message_bytes_max`, in bytes. SQLite accepts no larger value, and a record batch cannot
express much larger lengths."""

BATCH_OVERHEAD_BYTES = 1024
"""The maximum size of a record batch with a single record, without the record, in bytes."""

BATCH_BYTES_LIMIT = RECORD_BYTES_LIMIT + BATCH_OVERHEAD_BYTES
"""The largest size of the records of one batch when decompressed, in bytes. No larger batch is made or decompressed."""

TEXT_BYTES_MAX = 255
"""The length of the longest topic or address in bytes: the `string` of the grammar has a length of one byte."""


def encode_text(value: str, field: str = "text") -> bytes:
    """Return the bytes of a topic or an address: at most 255, which `decode_text` turns into the same text.

    Raise `EncodingError`, which names the field, if the value is not text, is too long, or is text that `decode_text`
    would not return.
    """
    if not isinstance(value, str):
        raise EncodingError(field, f"text, not {type(value).__name__}")
    try:
        data = value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise EncodingError(field, "text that can be encoded (it contains a lone surrogate)") from None
    if len(data) > TEXT_BYTES_MAX:
        raise EncodingError(field, f"at most {TEXT_BYTES_MAX} bytes, not {len(data)}")
    if not value.isascii() and decode_text(data) != value:
        raise EncodingError(field, "text in its shortest form (its escaped bytes spell valid UTF-8)")
    return data


def decode_text(data: bytes) -> str:
    """Return the topic or address of these bytes. Any are valid; those that are not UTF-8 become lone surrogates."""
    return data.decode("utf-8", "surrogateescape")


def new_address() -> str:
    """Return a new node address: a random UUID as 32 upper-case hexadecimal digits, as libdafka writes it."""
    return uuid.uuid4().hex.upper()


@attrs.frozen(order=True, cache_hash=True)
class Partition:
    """The stream of one producer within a topic (RFC 46, "Topics, Partitions and Records").

    Attributes:
        topic: The topic.
        address: The address of the producer, which is the name of the partition.
    """

    topic: str
    address: str

    def __str__(self) -> str:
        return f"{self.topic}/{self.address}"


Header: TypeAlias = tuple[str, bytes | None]
"""A header of a record: a name, which may occur several times, and a value."""

NO_TIMESTAMP = -1
"""The timestamp of a record whose time of making is unknown, as Kafka writes it."""


@attrs.frozen
class Record:
    """One record.

    Attributes:
        partition: The partition of the record.
        sequence: Its position in the partition, from 0.
        value: The bytes that the producer sent; None for a tombstone.
        key: The key; None if there is none.
        headers: The headers, in the order in which the producer gave them.
        timestamp: When the record was made, in milliseconds since 1970 UTC; None if that is unknown.
        stored_at: When the record was stored, in milliseconds since 1970 UTC; None unless requested from a storage.
    """

    partition: Partition
    sequence: int
    value: bytes | None
    key: bytes | None = None
    headers: tuple[Header, ...] = ()
    timestamp: int | None = None
    stored_at: int | None = None

    @property
    def topic(self) -> str:
        """The topic that the record was published to."""
        return self.partition.topic


@attrs.frozen
class ProducerRecord:
    """A record to publish.

    Attributes:
        value: The value; None for a tombstone, which deletes the key's value.
        key: The key; None for none.
        headers: Pairs of a name and a value, in order; names may repeat.
        timestamp: When the record was made, in milliseconds since 1970 UTC; None for the time at which it is sent.
    """

    value: bytes | None
    key: bytes | None = None
    headers: Sequence[Header] = ()
    timestamp: int | None = None


@attrs.frozen
class RecordBatch:
    """Consecutive records of one partition, the unit of every hot path. Iterating yields `Record` objects.

    Each attribute is a column: a sequence with an item for each record. A column is None if no record has a value in
    it.

    Compaction removes records and keeps the sequences of the others. A removed record has an empty item in every
    column, so that sequences and indexes match; iterating skips it. Programs receive batches without such items.

    Attributes:
        partition: The partition of the records.
        first_sequence: The sequence of `values[0]`; each following record has the next one.
        values: The values of the records. A value of None is a tombstone.
        keys: The keys; None for a record without one.
        headers: The headers.
        timestamps: When each record was made, in milliseconds since 1970 UTC; `NO_TIMESTAMP` if that is unknown.
        stored_at: When each record was stored, in milliseconds since 1970 UTC. None unless requested from a storage.
        encoded: The same records as encoded record batches (docs/reference/record-batches.md), in order, if they
            arrived or were stored in this form; else empty. It avoids encoding them again.
        compacted: A byte for each record: 1 if compaction has removed it, so that its value, key and headers are empty;
            else 0. None if no record was removed.
    """

    partition: Partition
    first_sequence: int
    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None = attrs.field(default=None, kw_only=True)
    headers: Sequence[tuple[Header, ...]] | None = attrs.field(default=None, kw_only=True)
    timestamps: Sequence[int] | None = attrs.field(default=None, kw_only=True)
    stored_at: Sequence[int] | None = attrs.field(default=None, kw_only=True)
    encoded: tuple[bytes, ...] = attrs.field(default=(), kw_only=True, eq=False, repr=False)
    compacted: bytes | None = attrs.field(default=None, kw_only=True)

    @classmethod
    def removed(cls, partition: Partition, first_sequence: int, end_sequence: int) -> RecordBatch:
        """Return a batch of records that compaction has removed.

        Args:
            partition: The partition.
            first_sequence: The sequence of the first removed record.
            end_sequence: The sequence after the last one.

        Returns:
            A batch of only removed records.
        """
        size = end_sequence - first_sequence
        return cls(partition, first_sequence, [None] * size, compacted=b"\1" * size)

    @classmethod
    def from_records(
        cls, partition: Partition, first_sequence: int, records: Sequence[Record | ProducerRecord], now_ms: int
    ) -> RecordBatch:
        """Return a batch of records.

        Args:
            partition: The partition of the batch.
            first_sequence: The sequence of the first record. Sequences and partitions of the records are ignored.
            records: The records.
            now_ms: The timestamp of records without one.

        Returns:
            The batch.
        """
        return cls(
            partition,
            first_sequence,
            [record.value for record in records],
            keys=[record.key for record in records] if any(record.key is not None for record in records) else None,
            headers=[tuple(record.headers) for record in records] if any(each.headers for each in records) else None,
            timestamps=[now_ms if record.timestamp is None else record.timestamp for record in records],
        )

    @property
    def end_sequence(self) -> int:
        """The sequence after that of the last record."""
        return self.first_sequence + len(self.values)

    @cached_property
    def content_bytes(self) -> int:
        """The total length of values, keys and headers in bytes."""
        total = count_bytes(self.values)
        if self.keys is not None:
            total += count_bytes(self.keys)
        if self.headers is not None:
            total += sum(map(headers_bytes, self.headers))
        return total

    @cached_property
    def has_only_values(self) -> bool:
        """Whether no record has a key or a header, and none is a tombstone."""
        return self.keys is None and self.headers is None and not has_null(self.values)

    @property
    def held_count(self) -> int:
        """The number of records that compaction has not removed."""
        return len(self.values) if self.compacted is None else self.compacted.count(0)

    @property
    def memory_bytes(self) -> int:
        """The approximate memory that the batch takes, in bytes, including an overhead for each record."""
        return self.content_bytes + RECORD_MEMORY_BYTES * len(self.values) + sum(map(len, self.encoded))

    def between(self, first_sequence: int, end_sequence: int) -> RecordBatch:
        """Return the records from one sequence up to another.

        Args:
            first_sequence: The first sequence to include; it can be before this batch.
            end_sequence: The sequence after the last one to include; it can be after this batch.

        Returns:
            The part of this batch in this range, which can be empty.
        """
        start = max(first_sequence - self.first_sequence, 0)
        stop = max(end_sequence - self.first_sequence, start)
        if start == 0 and stop >= len(self.values):
            return self
        return RecordBatch(
            self.partition,
            self.first_sequence + start,
            self.values[start:stop],
            keys=None if self.keys is None else self.keys[start:stop],
            headers=None if self.headers is None else self.headers[start:stop],
            timestamps=None if self.timestamps is None else self.timestamps[start:stop],
            stored_at=None if self.stored_at is None else self.stored_at[start:stop],
            compacted=None if self.compacted is None else _mask(self.compacted[start:stop]),
        )

    def held_runs(self) -> Iterator[RecordBatch]:
        """Yield the remaining records as batches without removed ones."""
        if self.compacted is None:
            yield self
            return
        for start, stop in find_held(self.compacted):
            yield self.between(self.first_sequence + start, self.first_sequence + stop)

    def without(self, removed: bytes) -> RecordBatch:
        """Return a batch in which compaction has removed some of the records.

        Args:
            removed: A byte for each record: 1 to remove it. Removed records stay removed.

        Returns:
            The batch, whose content size counts only the remaining records.
        """
        if self.compacted is not None:
            removed = bytes(map(max, removed, self.compacted))
        mask = _mask(removed)
        if mask is None or mask == self.compacted:
            return self

        def clear(column: Sequence[_Item], empty: _Item) -> list[_Item]:
            return [empty if gone else item for item, gone in zip(column, removed, strict=True)]

        return attrs.evolve(
            self,
            values=clear(self.values, None),
            keys=None if self.keys is None else clear(self.keys, None),
            headers=None if self.headers is None else clear(self.headers, ()),
            timestamps=None if self.timestamps is None else clear(self.timestamps, NO_TIMESTAMP),
            encoded=(),
            compacted=mask,
        )

    def within(self, bytes_max: int) -> RecordBatch:
        """Return the first records, up to a total size.

        Args:
            bytes_max: The limit in bytes.

        Returns:
            The first part of this batch: at least one record, even if it is larger than the limit.
        """
        return next(self.parts(bytes_max))

    def parts(self, bytes_max: int) -> Iterator[RecordBatch]:
        """Yield all records in order, in batches up to a total size.

        Args:
            bytes_max: The limit in bytes.

        Yields:
            Batches of at least one record, which can be larger than the limit; this batch itself if it is within the
            limit.
        """
        if self.content_bytes <= bytes_max:
            yield self
            return
        if self.keys is None and self.headers is None:
            ends = content_ends(self.values)
        else:
            ends = list(accumulate(self.record_sizes(), initial=0))
        start, first = 0, self.first_sequence
        while start < len(self):
            stop = max(bisect_right(ends, ends[start] + bytes_max) - 1, start + 1)
            yield self.between(first + start, first + stop)
            start = stop

    def record_sizes(self) -> Iterator[int]:
        """Return the length of each record's value, key and headers in bytes."""
        keys = repeat(None) if self.keys is None else self.keys
        headers = repeat(()) if self.headers is None else self.headers
        return (
            len(value or b"") + len(key or b"") + headers_bytes(pairs)
            for value, key, pairs in zip(self.values, keys, headers, strict=False)
        )

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Record]:
        keys = repeat(None) if self.keys is None else self.keys
        headers = repeat(()) if self.headers is None else self.headers
        timestamps = repeat(NO_TIMESTAMP) if self.timestamps is None else self.timestamps
        stored_at = repeat(None) if self.stored_at is None else self.stored_at
        columns = zip(count(self.first_sequence), self.values, keys, headers, timestamps, stored_at)
        if self.compacted is not None:
            columns = compress(columns, map(not_, self.compacted))  # type: ignore[assignment]
        for sequence, value, key, pairs, timestamp, stored in columns:
            made = None if timestamp == NO_TIMESTAMP else timestamp
            yield Record(self.partition, sequence, value, key, pairs, made, stored)


def headers_bytes(headers: Sequence[Header]) -> int:
    """Return the total length of the names and values of headers in bytes."""
    return sum(len(name.encode("utf-8", "surrogateescape")) + len(value or b"") for name, value in headers)


def record_bytes(record: Record | ProducerRecord) -> int:
    """Return the total length of a record's value, key and headers in bytes."""
    return len(record.value or b"") + len(record.key or b"") + headers_bytes(record.headers)


def join(batches: Sequence[RecordBatch]) -> RecordBatch:
    """Return consecutive batches of one partition, at least one, as one batch. It has times of storing if all have."""
    first = batches[0]
    if len(batches) == 1:
        return first
    encoded = [batch.encoded for batch in batches]
    stored_at = [batch.stored_at for batch in batches if batch.stored_at is not None]
    is_compacted = any(batch.compacted is not None for batch in batches)
    return RecordBatch(
        first.partition,
        first.first_sequence,
        join_contents([batch.values for batch in batches]),
        keys=_join_column(batches, lambda batch: batch.keys, lambda count: [None] * count, join_contents),
        headers=_join_column(
            batches, lambda batch: batch.headers, lambda count: [()] * count, lambda parts: [*chain(*parts)]
        ),
        timestamps=_join_column(batches, lambda batch: batch.timestamps, partial(Repeated, NO_TIMESTAMP), join_numbers),
        stored_at=join_numbers(stored_at) if len(stored_at) == len(batches) else None,
        encoded=tuple(chain.from_iterable(encoded)) if all(encoded) else (),
        compacted=b"".join(batch.compacted or bytes(len(batch)) for batch in batches) if is_compacted else None,
    )


def find_held(compacted: bytes) -> Iterator[tuple[int, int]]:
    """Yield the start and the end of each run of records in `RecordBatch.compacted` that compaction has not removed."""
    start = compacted.find(0)
    while start >= 0:
        stop = compacted.find(1, start)
        stop = len(compacted) if stop < 0 else stop
        yield start, stop
        start = compacted.find(0, stop)


def _mask(compacted: bytes) -> bytes | None:
    """Return which records compaction has removed; None if it has removed none."""
    return compacted if 1 in compacted else None


_Item = TypeVar("_Item")


def _join_column(
    batches: Sequence[RecordBatch],
    column: Callable[[RecordBatch], Sequence[_Item] | None],
    make_missing: Callable[[int], Sequence[_Item]],
    join_parts: Callable[[Sequence[Sequence[_Item]]], Sequence[_Item]],
) -> Sequence[_Item] | None:
    columns = [column(batch) for batch in batches]
    if all(each is None for each in columns):
        return None
    return join_parts(
        [make_missing(len(batch)) if each is None else each for batch, each in zip(batches, columns, strict=True)]
    )
