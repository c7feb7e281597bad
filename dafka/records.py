"""The vocabulary everybody shares: partitions, records, and runs of records.

Topics and addresses are text. On the wire they are octets, any octets at all (RFC 46, "Topics, Partitions and
Records"); octets that are not UTF-8 are carried the way Python carries such file names, as lone surrogates
(PEP 383), so that every name read from the wire can be written back unchanged.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from functools import cached_property

import attrs

from dafka.contents import count_bytes, count_within, join_contents
from dafka.errors import WireError

__all__ = ["Partition", "Record", "RecordBatch", "decode_text", "encode_text", "join", "new_address"]

SEQUENCE_MAX = 2**62
"""The largest sequence that nodes accept: no partition comes this far, and every storage can count to it."""

RECORD_MEMORY_BYTES = 64
"""What a record takes in memory beyond its content where it is taken apart: an object and a place in a list."""

TEXT_BYTES_MAX = 255
"""The longest topic or address, in octets: the grammar's `string` has a one-octet length."""


def encode_text(value: str, field: str = "text") -> bytes:
    """The octets of a topic or an address.

    Raises `WireError` (naming `field`) for anything but a str of at most 255 octets that `decode_text` gives back.
    """
    if not isinstance(value, str):
        raise WireError(field, f"text, not {type(value).__name__}")
    try:
        octets = value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise WireError(field, "text that octets can carry (a lone surrogate stands in it)") from None
    if len(octets) > TEXT_BYTES_MAX:
        raise WireError(field, f"at most {TEXT_BYTES_MAX} octets, not {len(octets)}")
    if not value.isascii() and decode_text(octets) != value:
        raise WireError(field, "text in its shortest form (its escaped octets spell valid UTF-8)")
    return octets


def decode_text(octets: bytes) -> str:
    """The topic or address that these octets spell. Never fails."""
    return octets.decode("utf-8", "surrogateescape")


def new_address() -> str:
    """A fresh node address: a random UUID as 32 upper-case hexadecimal digits, as libdafka writes it."""
    return uuid.uuid4().hex.upper()


@attrs.frozen(order=True, cache_hash=True)
class Partition:
    """One producer's stream within a topic; its name is the producer's address (RFC 46)."""

    topic: str
    address: str

    def __str__(self) -> str:
        return f"{self.topic}/{self.address}"


@attrs.frozen
class Record:
    """One record: its partition, its sequence within it (counted from 0) and its content."""

    partition: Partition
    sequence: int
    content: bytes

    @property
    def topic(self) -> str:
        """The topic that the record was published to."""
        return self.partition.topic


@attrs.frozen
class RecordBatch:
    """A run of consecutive records of one partition: what every hot path takes and returns.

    `contents[0]` has sequence `first_sequence`, each next one the sequence after. Iterating gives `Record`s.
    `stored_at`, where a storage was asked for it, is when each of them was stored, in milliseconds since 1970, UTC;
    None elsewhere, for a time does not travel on the wire.
    """

    partition: Partition
    first_sequence: int
    contents: Sequence[bytes]
    stored_at: Sequence[int] | None = None

    @property
    def end_sequence(self) -> int:
        """The sequence after the last record's."""
        return self.first_sequence + len(self.contents)

    @cached_property
    def content_bytes(self) -> int:
        """The contents' octets, added up."""
        return count_bytes(self.contents)

    @property
    def memory_bytes(self) -> int:
        """About what holding the run costs: many empty records are not for nothing."""
        return self.content_bytes + RECORD_MEMORY_BYTES * len(self.contents)

    def between(self, first_sequence: int, end_sequence: int) -> RecordBatch:
        """The records of this run from `first_sequence` up to, not including, `end_sequence`."""
        start = max(first_sequence - self.first_sequence, 0)
        stop = max(end_sequence - self.first_sequence, start)
        if start == 0 and stop >= len(self.contents):
            return self
        times = None if self.stored_at is None else self.stored_at[start:stop]
        return RecordBatch(self.partition, self.first_sequence + start, self.contents[start:stop], times)

    def within(self, bytes_max: int) -> RecordBatch:
        """The first records of this run, of about so many octets of contents together, at least one."""
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


def join(runs: Sequence[RecordBatch]) -> RecordBatch:
    """Runs of one partition, each following the one before, as one. Its times are known where all of theirs are."""
    first = runs[0]
    if len(runs) == 1:
        return first
    contents = join_contents([run.contents for run in runs])
    times = [run.stored_at for run in runs if run.stored_at is not None]
    stored_at = [time for each in times for time in each] if len(times) == len(runs) else None
    return RecordBatch(first.partition, first.first_sequence, contents, stored_at)
