"""The entries of a log's index, and the records that they are kept in.

The value of an index record is a version (1), and entries one after the other. An entry is its kind, and numbers in
Kafka's form of variable length. Entries follow the order of the log. Each run entry says at which offset a run begins;
an open one reaches up to the next run, or to the end of its partition.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from dafka.batches.varints import read_varint, write_varint
from dafka.errors import BatchError, StorageFormatError
from dafka.records import decode_text, encode_text

ENTRIES_VERSION = 1
"""The version of index records."""

TRANSACTIONAL = 1
"""The flag of a `BatchEntry` whose records are part of a transaction."""

_NONE = -1
"""What is written for a number that is None."""

CONTROL = "\ud800"
"""The address that stands for the ends of transactions, which are in the index alone. No node can have this address."""

_POSITIONS = 2**62

_RUN, _BATCH, _START, _END, _MARKER, _RESTART, _BRANCH = 1, 2, 3, 4, 5, 6, 7


class RunEntry(NamedTuple):
    """A run of a partition's records begins in the log.

    Attributes:
        offset: The offset of its first record.
        address: The address of the partition; empty for the broker's own partition of the log.
        first_sequence: The sequence of its first record.
        record_count: The number of its records; 0 if the run is open.
    """

    offset: int
    address: str
    first_sequence: int
    record_count: int


class BatchEntry(NamedTuple):
    """A batch of a producer that has a producer id, in the broker's own partition. Names are those of its header.

    Attributes:
        sequence: The sequence of its first record in the partition; the position of an offset (`position_of`) if the
            batch is in another partition.
        record_count: The number of its records.
        producer_id: The producer.
        producer_epoch: The epoch of the producer.
        base_sequence: The producer's own number of the first record; None if the entry only says which records are part
            of a transaction.
        flags: 1 if the batch is transactional.
        timestamp_ms: When it was appended.
    """

    sequence: int
    record_count: int
    producer_id: int
    producer_epoch: int
    base_sequence: int | None
    flags: int
    timestamp_ms: int


class MarkerEntry(NamedTuple):
    """The end of a transaction. It has an offset, and no record in a partition.

    Attributes:
        offset: Its offset.
        position: The sequence of the next record in the broker's own partition; the position of an offset
            (`position_of`) if another broker has appended it.
        producer_id: The producer.
        producer_epoch: The epoch of the producer.
        is_commit: 1 if the transaction is committed, 0 if it is aborted.
        timestamp_ms: When it was appended.
        first_sequence: The sequence of the transaction's first record, or the position of its offset (`position_of`) if
            an earlier leader has appended it; None if the transaction has no record in this log.
    """

    offset: int
    position: int
    producer_id: int
    producer_epoch: int
    is_commit: int
    timestamp_ms: int
    first_sequence: int | None


class IndexRewriteEntry(NamedTuple):
    """The index begins again: the entries that follow replace all before."""


class LogStartEntry(NamedTuple):
    """The records before an offset are deleted."""

    offset: int


class EpochStartEntry(NamedTuple):
    """A leader begins its branch: the first entry of an index, unless the branch is the first one of its log.

    Attributes:
        offset: The offset at which the branch begins. What another index has from there on does not belong to the log.
        epoch: The leader epoch.
    """

    offset: int
    epoch: int


class DroppedEntry(NamedTuple):
    """The records of a partition before a sequence were in the log once, and no run says so any more."""

    address: str
    sequence: int


Entry: TypeAlias = (
    RunEntry | BatchEntry | MarkerEntry | IndexRewriteEntry | LogStartEntry | DroppedEntry | EpochStartEntry
)

ProducerEntry: TypeAlias = BatchEntry | MarkerEntry | IndexRewriteEntry
"""The entries that say what producers with an id have done."""

_NUMBERS: dict[type[Entry], int] = {
    BatchEntry: _BATCH,
    EpochStartEntry: _BRANCH,
    MarkerEntry: _MARKER,
    IndexRewriteEntry: _RESTART,
    LogStartEntry: _START,
}
"""The kinds of entries that are numbers alone."""

_OPTIONAL: dict[type[Entry], int] = {
    BatchEntry: BatchEntry._fields.index("base_sequence"),
    MarkerEntry: MarkerEntry._fields.index("first_sequence"),
}
"""Which of these numbers may be None."""

_ENTRY_OF: dict[int, type[Entry]] = {kind: entry for entry, kind in _NUMBERS.items()}


def position_of(offset: int) -> int:
    """Return the position of an offset. Sequences of the broker's own partition are positions, too."""
    return offset - _POSITIONS


def names_offset(position: int) -> bool:
    """Return whether a position is that of an offset, and not a sequence of the broker's own partition."""
    return position < 0


def offset_of(position: int) -> int:
    """Return the offset that has a position."""
    return position + _POSITIONS


def encode_entries(entries: Iterable[Entry]) -> bytes:
    """Return the value of an index record."""
    parts = [write_varint(ENTRIES_VERSION)]
    for entry in entries:
        if isinstance(entry, RunEntry):
            address = encode_text(entry.address)
            parts += (write_varint(_RUN), write_varint(entry.offset), write_varint(len(address)), address)
            parts += (write_varint(entry.first_sequence), write_varint(entry.record_count))
        elif isinstance(entry, DroppedEntry):
            address = encode_text(entry.address)
            parts += (write_varint(_END), write_varint(len(address)), address, write_varint(entry.sequence))
        else:
            parts.append(write_varint(_NUMBERS[type(entry)]))
            parts += (write_varint(_NONE if each is None else each) for each in entry)
    return b"".join(parts)


def begins_again(value: bytes) -> bool:
    """Return whether an index record, and those that follow it, replace all before."""
    return value.startswith(_BEGINS_AGAIN)


def decode_entries(value: bytes) -> list[Entry]:
    """Return the entries of an index record.

    Args:
        value: What `encode_entries` or an earlier version of it has returned.

    Returns:
        The entries.

    Raises:
        StorageFormatError: The value is malformed, or a newer version of dafka has written it.
    """
    reader = _Reader(value)
    try:
        version = reader.number()
        if version != ENTRIES_VERSION:
            raise StorageFormatError(
                f"the index of a log has version {version}, and this dafka reads version {ENTRIES_VERSION}: start the "
                "version of dafka that wrote it, or a later one"
            )
        entries: list[Entry] = []
        while reader.position < len(value):
            entries.append(_read_entry(reader))
    except BatchError as error:
        raise StorageFormatError(f"the index of a log has a malformed record: {error}") from None
    return entries


_BEGINS_AGAIN = encode_entries([IndexRewriteEntry()])


def _read_entry(reader: _Reader) -> Entry:
    kind = reader.number()
    if kind == _RUN:
        return RunEntry(reader.number(), reader.text(), reader.number(), reader.number())
    if kind == _END:
        return DroppedEntry(reader.text(), reader.number())
    entry = _ENTRY_OF.get(kind)
    if entry is None:
        raise StorageFormatError(f"the index of a log has an entry of the unknown kind {kind}")
    numbers: list[int | None] = [reader.number() for _ in entry._fields]
    optional = _OPTIONAL.get(entry)
    if optional is not None and numbers[optional] == _NONE:
        numbers[optional] = None
    return entry(*numbers)  # type: ignore[arg-type]


class _Reader:
    """Reads the numbers and texts of a value."""

    def __init__(self, value: bytes) -> None:
        self.value = value
        self.position = 0

    def number(self) -> int:
        found, self.position = read_varint(self.value, self.position, len(self.value), "number", 64)
        return found

    def text(self) -> str:
        size = self.number()
        end = self.position + size
        if not 0 <= size <= len(self.value) - self.position:
            raise BatchError("address", f"{size} bytes", self.position)
        found = decode_text(self.value[self.position : end])
        self.position = end
        return found
