"""The entries of a log's index, and the format of index records.

The value of an index record is a version (1), followed by entries. An entry is its kind, followed by numbers in Kafka's
varint format. Entries are in log order. Each run entry gives the offset at which a run begins. An open run ends at the
next run, or at the end of its partition.
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
"""The number that is written for None."""

CONTROL = "\ud800"
"""The address of transaction markers, which are stored only in the index. No node can have this address."""

_POSITIONS = 2**62

_RUN, _BATCH, _LOG_START, _DROPPED, _MARKER, _INDEX_REWRITE, _EPOCH_START = 1, 2, 3, 4, 5, 6, 7


class RunEntry(NamedTuple):
    """The start of a run of a partition's records in the log.

    Attributes:
        offset: The offset of its first record.
        address: The address of the partition; empty for the leader partition.
        first_sequence: The sequence of its first record.
        record_count: The number of its records; 0 if the run is open.
    """

    offset: int
    address: str
    first_sequence: int
    record_count: int


class BatchEntry(NamedTuple):
    """A batch of a producer with a producer id, in the leader partition. Its fields are named as in its header.

    Attributes:
        sequence: The sequence of its first record in the partition; the position of an offset (`position_of`) if the
            batch is in another partition.
        record_count: The number of its records.
        producer_id: The producer.
        producer_epoch: The epoch of the producer.
        base_sequence: The producer's own sequence of the first record; None if the entry only marks records of a
            transaction.
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
    """A transaction marker. It has an offset, but no record in a partition.

    Attributes:
        offset: Its offset.
        position: The sequence of the next record in the leader partition; the position of an offset (`position_of`) if
            another broker has appended the marker.
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
    """The start of a rewritten index: the following entries replace all earlier ones."""


class LogStartEntry(NamedTuple):
    """The new start of a log: the records before an offset are deleted."""

    offset: int


class EpochStartEntry(NamedTuple):
    """The start of a leader epoch: the first entry of an index, except in the first epoch of its log.

    Attributes:
        offset: The offset at which the epoch begins. Entries of other indexes from there on do not belong to the log.
        epoch: The leader epoch.
    """

    offset: int
    epoch: int


class DroppedEntry(NamedTuple):
    """The end of a partition whose runs have all been dropped: records before a sequence were in the log."""

    address: str
    sequence: int


Entry: TypeAlias = (
    RunEntry | BatchEntry | MarkerEntry | IndexRewriteEntry | LogStartEntry | DroppedEntry | EpochStartEntry
)

ProducerEntry: TypeAlias = BatchEntry | MarkerEntry | IndexRewriteEntry
"""The entries about idempotent and transactional producers."""

_NUMBERS: dict[type[Entry], int] = {
    BatchEntry: _BATCH,
    EpochStartEntry: _EPOCH_START,
    MarkerEntry: _MARKER,
    IndexRewriteEntry: _INDEX_REWRITE,
    LogStartEntry: _LOG_START,
}
"""The kinds of entries that consist only of numbers."""

_OPTIONAL: dict[type[Entry], int] = {
    BatchEntry: BatchEntry._fields.index("base_sequence"),
    MarkerEntry: MarkerEntry._fields.index("first_sequence"),
}
"""The numbers that can be None."""

_ENTRY_OF: dict[int, type[Entry]] = {kind: entry for entry, kind in _NUMBERS.items()}


def position_of(offset: int) -> int:
    """Return the position of an offset. Sequences of the leader partition are positions, too."""
    return offset - _POSITIONS


def names_offset(position: int) -> bool:
    """Return whether a position is that of an offset, and not a sequence of the leader partition."""
    return position < 0


def offset_of(position: int) -> int:
    """Return the offset at a position."""
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
            parts += (write_varint(_DROPPED), write_varint(len(address)), address, write_varint(entry.sequence))
        else:
            parts.append(write_varint(_NUMBERS[type(entry)]))
            parts += (write_varint(_NONE if each is None else each) for each in entry)
    return b"".join(parts)


def is_rewrite(value: bytes) -> bool:
    """Return whether an index record starts a rewritten index."""
    return value.startswith(_IS_REWRITE)


def decode_entries(value: bytes) -> list[Entry]:
    """Return the entries of an index record.

    Args:
        value: A value returned by `encode_entries` or by an earlier version of it.

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


_IS_REWRITE = encode_entries([IndexRewriteEntry()])


def _read_entry(reader: _Reader) -> Entry:
    kind = reader.number()
    if kind == _RUN:
        return RunEntry(reader.number(), reader.text(), reader.number(), reader.number())
    if kind == _DROPPED:
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
