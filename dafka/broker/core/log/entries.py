"""The entries of a log's index, and the format of index records.

The value of an index record is a version (1), followed by entries. An entry is its kind, followed by numbers in Kafka's
varint format. Entries are in log order. Each run entry gives the offset at which a run begins. An open run ends at the
next run, or at the end of its partition.

A `Position` is one number: a sequence is written as it is, an offset less 2^62.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

from dafka.batches import TimestampType, read_header
from dafka.batches.varints import read_varint, write_varint
from dafka.broker.core.positions import AtOffset, Offset, Position, ProducerSequence, RecordSequence
from dafka.errors import BatchError, StorageFormatError
from dafka.records import RecordBatch, decode_text, encode_text

ENTRIES_VERSION = 1
"""The version of index records."""

TRANSACTIONAL = 1
"""The flag of a `BatchEntry` whose records are part of a transaction."""

_NONE = -1
"""The number that is written for None."""

CONTROL = "\ud800"
"""The address of transaction markers, which are stored only in the index. No node can have this address."""

_FIRST_OFFSET = -(2**62)
"""The number that is written for the position at offset 0. It is less than any sequence."""

_RUN, _BATCH, _LOG_START, _DROPPED, _MARKER, _INDEX_REWRITE, _EPOCH_START, _NEXT_START, _MERGED = range(1, 10)


class RunEntry(NamedTuple):
    """The start of a run of a partition's records in the log. The address of the leader partition is empty."""

    offset: Offset
    address: str
    first_sequence: RecordSequence
    record_count: int  # 0 if the run is open


class BatchEntry(NamedTuple):
    """A batch of a producer with a producer id. Its fields are named as in its header."""

    position: Position
    record_count: int
    producer_id: int
    producer_epoch: int
    base_sequence: ProducerSequence | None  # None if the entry only marks records of a transaction
    flags: int  # `TRANSACTIONAL` or 0
    timestamp_ms: int


class MarkerEntry(NamedTuple):
    """A transaction marker. It has an offset, but no record in a partition."""

    offset: Offset
    position: Position  # of the next record of the leader partition, or of the marker itself if another leader wrote it
    producer_id: int
    producer_epoch: int
    is_commit: int  # 1 if the transaction is committed, 0 if it is aborted
    timestamp_ms: int
    first_position: Position | None  # of the transaction's first record; None if it has no record in this log


class IndexRewriteEntry(NamedTuple):
    """The start of a rewritten index: the following entries replace all earlier ones."""


class NextStartEntry(NamedTuple):
    """The next start of a log, as its leader has decided: nothing is deleted yet."""

    offset: Offset


class LogStartEntry(NamedTuple):
    """The new start of a log: the records before an offset are deleted.

    Enough replicas have stored the `NextStartEntry` that decided it, so no leader begins the log earlier again.
    """

    offset: Offset


class EpochStartEntry(NamedTuple):
    """The start of a leader epoch: the first entry of an index, except in the first epoch of its log.

    Entries of other indexes from its offset on do not belong to the log.
    """

    offset: Offset
    epoch: int


class DroppedEntry(NamedTuple):
    """The end of a partition whose runs have all been dropped: records before a sequence were in the log."""

    address: str
    sequence: RecordSequence


class MergedEntry(NamedTuple):
    """The end of what was merged of a divergent leader partition.

    Its records before a sequence have offsets before this one, or their producers have sent them again.
    """

    offset: Offset
    address: str
    sequence: RecordSequence


DivergentEntry: TypeAlias = RunEntry | BatchEntry | MergedEntry
"""What is merged of a leader epoch: runs, each followed by its batches, and the end of them all."""

Entry: TypeAlias = (
    RunEntry
    | BatchEntry
    | MarkerEntry
    | IndexRewriteEntry
    | NextStartEntry
    | LogStartEntry
    | DroppedEntry
    | MergedEntry
    | EpochStartEntry
)

ProducerEntry: TypeAlias = BatchEntry | MarkerEntry | IndexRewriteEntry
"""The entries about idempotent and transactional producers."""

_KINDS: dict[type[Entry], int] = {
    RunEntry: _RUN,
    BatchEntry: _BATCH,
    LogStartEntry: _LOG_START,
    DroppedEntry: _DROPPED,
    MarkerEntry: _MARKER,
    IndexRewriteEntry: _INDEX_REWRITE,
    EpochStartEntry: _EPOCH_START,
    NextStartEntry: _NEXT_START,
    MergedEntry: _MERGED,
}


def encode_entries(entries: Iterable[Entry]) -> bytes:
    """Return the value of an index record."""
    parts = [write_varint(ENTRIES_VERSION)]
    for entry in entries:
        parts.append(write_varint(_KINDS[type(entry)]))
        parts += map(_encode_field, entry)
    return b"".join(parts)


def batch_entries(batch: RecordBatch, now_ms: int) -> list[BatchEntry]:
    """Return the entries of the batches in a leader partition whose producers have ids, as their headers say.

    Records without their encoded form have none.
    """
    return [
        BatchEntry(
            RecordSequence(header.base_offset),  # in a leader partition, the offsets of batches are sequences
            header.end_offset - header.base_offset,
            header.producer_id,
            header.producer_epoch,
            ProducerSequence(header.base_sequence),
            TRANSACTIONAL if header.is_transactional else 0,
            header.max_timestamp if header.timestamp_type is TimestampType.LOG_APPEND_TIME else now_ms,
        )
        for header in map(read_header, batch.encoded)
        if header.producer_id >= 0
    ]


def is_rewrite(value: bytes) -> bool:
    """Return whether an index record starts a rewritten index."""
    return value.startswith(_IS_REWRITE)


def decode_entries(value: bytes) -> list[Entry]:
    """Return the entries of an index record.

    Raise `StorageFormatError` if it is malformed, or a newer version of dafka has written it.
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


def _encode_field(field: int | str | AtOffset | None) -> bytes:
    if isinstance(field, str):
        address = encode_text(field)
        return write_varint(len(address)) + address
    if field is None:
        return write_varint(_NONE)
    return write_varint(field.offset + _FIRST_OFFSET if isinstance(field, AtOffset) else field)


_IS_REWRITE = encode_entries([IndexRewriteEntry()])


def _read_entry(reader: _Reader) -> Entry:
    kind = reader.number()
    if kind not in _READERS:
        raise StorageFormatError(f"the index of a log has an entry of the unknown kind {kind}")
    return _READERS[kind](reader)


def _read_batch(reader: _Reader) -> BatchEntry:
    position, count, producer_id, epoch, base, flags, timestamp_ms = (reader.number() for _ in BatchEntry._fields)
    base_sequence = None if base == _NONE else ProducerSequence(base)
    return BatchEntry(_decode_position(position), count, producer_id, epoch, base_sequence, flags, timestamp_ms)


def _read_marker(reader: _Reader) -> MarkerEntry:
    offset = reader.offset()
    position, producer_id, epoch, is_commit, timestamp_ms, first = (reader.number() for _ in MarkerEntry._fields[1:])
    first_position = None if first == _NONE else _decode_position(first)
    return MarkerEntry(offset, _decode_position(position), producer_id, epoch, is_commit, timestamp_ms, first_position)


def _decode_position(number: int) -> Position:
    return AtOffset(Offset(number - _FIRST_OFFSET)) if number < 0 else RecordSequence(number)


class _Reader:
    """Reads the numbers and texts of a value."""

    def __init__(self, value: bytes) -> None:
        self.value = value
        self.position = 0

    def number(self) -> int:
        found, self.position = read_varint(self.value, self.position, len(self.value), "number", 64)
        return found

    def offset(self) -> Offset:
        return Offset(self.number())

    def sequence(self) -> RecordSequence:
        return RecordSequence(self.number())

    def text(self) -> str:
        size = self.number()
        end = self.position + size
        if not 0 <= size <= len(self.value) - self.position:
            raise BatchError("address", f"{size} bytes", self.position)
        found = decode_text(self.value[self.position : end])
        self.position = end
        return found


_READERS: dict[int, Callable[[_Reader], Entry]] = {
    _RUN: lambda reader: RunEntry(reader.offset(), reader.text(), reader.sequence(), reader.number()),
    _BATCH: _read_batch,
    _LOG_START: lambda reader: LogStartEntry(reader.offset()),
    _NEXT_START: lambda reader: NextStartEntry(reader.offset()),
    _MERGED: lambda reader: MergedEntry(reader.offset(), reader.text(), reader.sequence()),
    _DROPPED: lambda reader: DroppedEntry(reader.text(), reader.sequence()),
    _MARKER: _read_marker,
    _INDEX_REWRITE: lambda _: IndexRewriteEntry(),
    _EPOCH_START: lambda reader: EpochStartEntry(reader.offset(), reader.number()),
}
"""Reads an entry after its kind."""
