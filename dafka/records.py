"""The vocabulary of all parts of dafka: partitions, records and batches of records.

Topics and addresses are text. On the wire they are bytes, and any bytes are allowed (RFC 46, "Topics, Partitions and
Records"). Bytes that are not UTF-8 are represented as lone surrogates, as Python does for such file names (PEP 383), so
that every name read from the wire can be written back unchanged.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from functools import cached_property

import attrs

from dafka.contents import count_bytes, count_within, join_contents
from dafka.errors import EncodingError

__all__ = ["Partition", "Record", "RecordBatch", "decode_text", "encode_text", "join", "new_address"]

SEQUENCE_MAX = 2**62
"""The largest sequence that nodes accept: no partition comes this far, and every storage can count to it."""

RECORD_MEMORY_BYTES = 64
"""The memory that a record takes beyond its content: a Python object and its place in a list, in bytes."""

TEXT_BYTES_MAX = 255
"""The length of the longest topic or address in bytes: the `string` of the grammar has a length of one byte."""


def encode_text(value: str, field: str = "text") -> bytes:
    """Return the bytes of a topic or an address.

    Args:
        value: The topic or address.
        field: The name to use in the error message.

    Returns:
        At most 255 bytes, which `decode_text` turns into the same text.

    Raises:
        EncodingError: The value is not text, is too long, or is text that `decode_text` would not return.
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
    """Return the topic or address of these bytes. Any bytes are valid.

    Args:
        data: The bytes from the wire.

    Returns:
        The text. Bytes that are not UTF-8 become lone surrogates.
    """
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


@attrs.frozen
class Record:
    """One record.

    Attributes:
        partition: The partition of the record.
        sequence: Its position in the partition, from 0.
        content: The bytes that the producer sent.
    """

    partition: Partition
    sequence: int
    content: bytes

    @property
    def topic(self) -> str:
        """The topic that the record was published to."""
        return self.partition.topic


@attrs.frozen
class RecordBatch:
    """Consecutive records of one partition: what every hot path takes and returns. Iterating yields `Record` objects.

    Attributes:
        partition: The partition of the records.
        first_sequence: The sequence of `contents[0]`; each further record has the next one.
        contents: The contents of the records.
        stored_at: The time at which each record was stored, in milliseconds since 1970 UTC. None unless a storage was
            asked for it: the wire does not carry times.
    """

    partition: Partition
    first_sequence: int
    contents: Sequence[bytes]
    stored_at: Sequence[int] | None = None

    @property
    def end_sequence(self) -> int:
        """The sequence after that of the last record."""
        return self.first_sequence + len(self.contents)

    @cached_property
    def content_bytes(self) -> int:
        """The total length of the contents in bytes."""
        return count_bytes(self.contents)

    @property
    def memory_bytes(self) -> int:
        """The approximate memory that the batch takes, in bytes, including an overhead for each record."""
        return self.content_bytes + RECORD_MEMORY_BYTES * len(self.contents)

    def between(self, first_sequence: int, end_sequence: int) -> RecordBatch:
        """Return the records from one sequence up to another.

        Args:
            first_sequence: The first sequence to include; it may be before this batch.
            end_sequence: The sequence after the last one to include; it may be after this batch.

        Returns:
            The part of this batch that lies in between, which may be empty.
        """
        start = max(first_sequence - self.first_sequence, 0)
        stop = max(end_sequence - self.first_sequence, start)
        if start == 0 and stop >= len(self.contents):
            return self
        times = None if self.stored_at is None else self.stored_at[start:stop]
        return RecordBatch(self.partition, self.first_sequence + start, self.contents[start:stop], times)

    def within(self, bytes_max: int) -> RecordBatch:
        """Return the first records, up to a total size of their contents.

        Args:
            bytes_max: The limit in bytes.

        Returns:
            The first part of this batch: at least one record, even if it is larger than the limit.
        """
        if self.content_bytes <= bytes_max:
            return self
        kept = max(count_within(self.contents, bytes_max), 1)
        return self.between(self.first_sequence, self.first_sequence + kept)

    def __len__(self) -> int:
        return len(self.contents)

    def __iter__(self) -> Iterator[Record]:
        partition = self.partition
        for sequence, content in enumerate(self.contents, self.first_sequence):
            yield Record(partition, sequence, content)


def join(batches: Sequence[RecordBatch]) -> RecordBatch:
    """Return consecutive batches of one partition as one batch.

    Args:
        batches: At least one batch; each continues the one before.

    Returns:
        One batch. It has times if all of them have.
    """
    first = batches[0]
    if len(batches) == 1:
        return first
    contents = join_contents([batch.contents for batch in batches])
    times = [batch.stored_at for batch in batches if batch.stored_at is not None]
    stored_at = [time for each in times for time in each] if len(times) == len(batches) else None
    return RecordBatch(first.partition, first.first_sequence, contents, stored_at)
