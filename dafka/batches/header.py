"""The header of a record batch: 61 bytes of fixed fields, and operations on batches that need only the header."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import Enum

import attrs
from crc32c import crc32c

from dafka.errors import BatchError

HEADER_BYTES = 61
"""The size of a header."""

MAGIC = 2
"""The version of Kafka's format that this package reads and writes."""

RECORD_BYTES_MIN = 7
"""The size of the smallest record: its length, and six fields of one byte."""

OFFSET_MAX = 2**63 - 1
"""The largest offset of a record."""

SPAN_MAX = 2**13
"""The maximum number of offsets in a compacted batch, including removed records. It bounds the cost of decoding one."""

_HEADER = struct.Struct(">qiibIhiqqqhii")
_PLACE = struct.Struct(">qi")
_LENGTH_END = 12
_EPOCH = struct.Struct(">i")
_EPOCH_END = 16
_CRC = struct.Struct(">I")
_CRC_AT, _CRC_END = 17, 21
_COMPRESSION_MASK = 0x07
_LOG_APPEND_TIME = 0x08
_TRANSACTIONAL = 0x10
_CONTROL = 0x20


class Compression(Enum):
    """The compression of a batch. The values are Kafka's numbers."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class TimestampType(Enum):
    """The meaning of a batch's timestamps. The values are Kafka's numbers."""

    CREATE_TIME = 0
    """When the producer made each record."""

    LOG_APPEND_TIME = 1
    """When a broker stored the batch: `max_timestamp` is the timestamp of every record."""


_COMPRESSIONS = {kind.value: kind for kind in Compression}


@attrs.frozen
class BatchHeader:
    """The fields of a record batch besides its records. The names are those of Kafka's documentation.

    Attributes:
        base_offset: The offset of the first record. In dafka: its sequence.
        size: The size of the whole batch, in bytes.
        leader_epoch: Kafka's partition leader epoch; -1 if the batch has none.
        crc: The CRC-32C of everything after it.
        compression: The compression of the records.
        timestamp_type: The meaning of the timestamps.
        is_transactional: Whether the batch is part of a transaction.
        is_control: Whether the records are Kafka's own control records.
        last_offset_delta: The offset of the last record, minus `base_offset`.
        base_timestamp: The time to which the records' timestamps are relative, in milliseconds since 1970 UTC.
        max_timestamp: The latest timestamp of the records.
        producer_id: The number that a broker gave the producer; -1 if it has none.
        producer_epoch: The epoch of that producer, which counts its incarnations; -1 if it has none.
        base_sequence: The producer's sequence number of the first record; -1 if it has none.
        count: The number of records.
    """

    base_offset: int
    size: int
    leader_epoch: int
    crc: int
    compression: Compression
    timestamp_type: TimestampType
    is_transactional: bool
    is_control: bool
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int

    @property
    def end_offset(self) -> int:
        """The offset after that of the last record."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def is_compacted(self) -> bool:
        """Whether compaction has removed some of the records, or all of them."""
        return self.count != self.last_offset_delta + 1

    def check_not_compacted(self) -> None:
        """Raise `BatchError` if compaction has removed some of the records."""
        if self.is_compacted:
            expected = f"{self.count - 1}, not {self.last_offset_delta}: a compacted batch"
            raise BatchError("last offset delta", expected, 23)

    @property
    def attributes(self) -> int:
        """The field `attributes`, which combines four fields in its bits."""
        return (
            self.compression.value
            | self.timestamp_type.value * _LOG_APPEND_TIME
            | self.is_transactional * _TRANSACTIONAL
            | self.is_control * _CONTROL
        )


def read_header(data: bytes | memoryview, position: int = 0) -> BatchHeader:
    """Return the header of a batch. The records need not be present.

    Args:
        data: Bytes that contain a header.
        position: The position of the batch in the data, in bytes.

    Returns:
        The header. It is plausible: a batch of that size can have that number of records. Its CRC is not checked.

    Raises:
        BatchError: The header is incomplete or malformed, or uses a feature that dafka does not support.
    """
    left = len(data) - position
    if left < HEADER_BYTES:
        raise BatchError("header", f"{HEADER_BYTES} bytes, {left} are left", 0)
    fields = _HEADER.unpack_from(data, position)
    base_offset, length, leader_epoch, magic, crc, attributes, last_offset_delta, *others, count = fields
    if magic != MAGIC:
        raise BatchError("magic", f"{MAGIC}, not {magic}", 16)
    size = length + _LENGTH_END
    if size < HEADER_BYTES + (RECORD_BYTES_MIN - 1 if count else 0):
        raise BatchError("length", f"room for a header and a record, not {length}", 8)
    compression = _COMPRESSIONS.get(attributes & _COMPRESSION_MASK)
    if compression is None or attributes & ~(_COMPRESSION_MASK | _LOG_APPEND_TIME | _TRANSACTIONAL | _CONTROL):
        raise BatchError("attributes", f"known ones, not 0x{attributes & 0xFFFF:04x}", 21)
    if count < 0 or (compression is Compression.NONE and count * RECORD_BYTES_MIN > size - HEADER_BYTES):
        raise BatchError("count", f"a number of records that the batch has room for, not {count}", 57)
    if last_offset_delta != count - 1 and not max(count, 0) <= last_offset_delta < SPAN_MAX:
        raise BatchError("last offset delta", f"{count - 1}, or at most {SPAN_MAX - 1}, not {last_offset_delta}", 23)
    if last_offset_delta < 0:
        raise BatchError("count", f"a number of records that the batch has room for, not {count}", 57)
    if not 0 <= base_offset < OFFSET_MAX - last_offset_delta:
        most = OFFSET_MAX - last_offset_delta - 1
        raise BatchError("base offset", f"a number from 0 to {most}, not {base_offset}", 0)
    base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence = others
    return BatchHeader(
        base_offset,
        size,
        leader_epoch,
        crc,
        compression,
        TimestampType.LOG_APPEND_TIME if attributes & _LOG_APPEND_TIME else TimestampType.CREATE_TIME,
        bool(attributes & _TRANSACTIONAL),
        bool(attributes & _CONTROL),
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )


def iter_batches(data: bytes | memoryview, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the position and the header of each batch in a log, without reading records or checking CRCs.

    Args:
        data: A sequence of batches.
        position: Where to begin, in bytes.

    Yields:
        The position of a batch in bytes, and its header.

    Raises:
        BatchError: The data after the batches so far is not a whole batch. The offset of the error is relative to its
            position.
    """
    end = len(data)
    while position < end:
        header = read_header(data, position)
        check_whole(header, end - position)
        yield position, header
        position += header.size


def scan_batches(data: bytes | memoryview) -> list[tuple[int, BatchHeader]]:
    """Return what `iter_batches` yields."""
    return list(iter_batches(data))


def check_whole(header: BatchHeader, size: int) -> None:
    """Raise `BatchError` if a batch is larger than the available `size` bytes."""
    if header.size > size:
        raise BatchError("length", f"at most {size - _LENGTH_END}, not {header.size - _LENGTH_END}", 8)


def check_crc(data: bytes | memoryview, position: int = 0, *, may_be_compacted: bool = False) -> BatchHeader:
    """Check the CRC of a batch, as every node does once for each batch that enters it.

    Args:
        data: Bytes that contain the batch.
        position: Its position in bytes.
        may_be_compacted: Whether records can be missing in it, as in batches that stores keep and send.

    Returns:
        The header of the batch.

    Raises:
        BatchError: The batch is not whole, has a malformed header, is damaged, or is compacted and must not be.
    """
    header = read_header(data, position)
    if not may_be_compacted:
        header.check_not_compacted()
    check_whole(header, len(data) - position)
    # It takes microseconds. Reacquiring the GIL among busy threads would take longer.
    found = crc32c(memoryview(data)[position + _CRC_END : position + header.size], gil_release_mode=0)
    if found != header.crc:
        raise BatchError("crc", f"{found:08x}, not {header.crc:08x}", _CRC_AT)
    return header


def with_base_offset(data: bytes | memoryview, base_offset: int, *, leader_epoch: int | None = None) -> bytes:
    """Return a batch with another base offset, and another leader epoch if one is given. The CRC covers neither.

    Args:
        data: One batch.
        base_offset: The offset of its first record.
        leader_epoch: Kafka's partition leader epoch.

    Returns:
        The same batch with these numbers.
    """
    view = memoryview(data)
    epoch = view[_LENGTH_END:_EPOCH_END] if leader_epoch is None else _EPOCH.pack(leader_epoch)
    return b"".join((base_offset.to_bytes(8, "big"), view[8:_LENGTH_END], epoch, view[_EPOCH_END:]))


def move_in_place(data: memoryview, difference: int, leader_epoch: int) -> None:
    """Add to the base offsets of consecutive whole batches, and set their leader epochs. The CRCs cover neither.

    Args:
        data: The batches, in memory that can be changed.
        difference: What is added to each base offset.
        leader_epoch: Kafka's partition leader epoch.
    """
    position, end = 0, len(data)
    while position < end:
        base_offset, length = _PLACE.unpack_from(data, position)
        _PLACE.pack_into(data, position, base_offset + difference, length)
        _EPOCH.pack_into(data, position + _LENGTH_END, leader_epoch)
        position += _LENGTH_END + length


def with_producer(
    header: BatchHeader, data: bytes | memoryview, producer_id: int, producer_epoch: int, base_sequence: int
) -> tuple[BatchHeader, bytes]:
    """Return a batch with the fields of an idempotent producer, and its header."""
    changed = attrs.evolve(header, producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=base_sequence)
    joined = join_batch(changed, bytes(data[HEADER_BYTES:]))
    return read_header(joined), joined


def with_timestamp_type(
    header: BatchHeader, data: bytes | memoryview, kind: TimestampType, time_ms: int | None = None
) -> tuple[BatchHeader, bytes]:
    """Return a batch whose timestamps have another meaning, and its header.

    Args:
        header: The header of the batch.
        data: The batch.
        kind: The meaning of its timestamps.
        time_ms: Its new `max_timestamp`, in milliseconds since 1970 UTC; None to keep it.

    Returns:
        The header and the batch, with a new CRC.
    """
    latest = header.max_timestamp if time_ms is None else time_ms
    joined = join_batch(
        attrs.evolve(header, timestamp_type=kind, max_timestamp=latest), memoryview(data)[HEADER_BYTES:]
    )
    return read_header(joined), joined


def join_batch(header: BatchHeader, records: bytes | memoryview) -> bytes:
    """Return the batch that consists of a header and compressed records. Its size and its CRC are calculated."""
    packed = _HEADER.pack(
        header.base_offset,
        HEADER_BYTES + len(records) - _LENGTH_END,
        header.leader_epoch,
        MAGIC,
        0,
        header.attributes,
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.count,
    )
    crc = crc32c(records, crc32c(packed[_CRC_END:]))
    return b"".join((packed[:_CRC_AT], _CRC.pack(crc), packed[_CRC_END:], records))
