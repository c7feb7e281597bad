"""The record batches of the companion specification: their commands, and a codec of their content.

The suite has its own codec, so that a fault in this project's codec cannot hide a fault of a target. It reads
everything that a sender may write, and names the clause that a batch violates. It writes the batches of scripted peers.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType

import attrs
import cramjam

from dafka_conformance.grammar.formats import Formats
from dafka_conformance.grammar.rules import read_rules

BATCH_GRAMMAR_PATH = Path(__file__).with_name("record-batches.abnf")

ENVELOPE_MAGIC = b"\xda\xfc\xa5\x01"
"""The first bytes of an envelope."""

BATCH_OF: Mapping[str, str] = MappingProxyType({"RECORD": "RECORD-BATCH", "DIRECT-RECORD": "DIRECT-RECORD-BATCH"})
"""The command that carries batches, by the command of RFC 46 that carries single records."""

HEADER_BYTES = 61
"""The number of bytes before the records of a batch."""

_HEADER = struct.Struct(">qiibIhiqqqhii")
_LENGTH_END = 12
_CRC_AT = 17
_CHECKED_FROM = 21
_MAGIC = 2
_COMPRESSION_MASK = 0x07
_KNOWN_ATTRIBUTES = 0x3F
_TRANSACTIONAL, _CONTROL = 0x10, 0x20
_CRC_POLYNOMIAL = 0x82F63B78
_XERIAL_MAGIC = b"\x82SNAPPY\0"
_XERIAL_HEADER_BYTES = 16


class BatchFormatError(Exception):
    """A batch violates the specification.

    Attributes:
        clause: The id of the clause that it violates.

    Args:
        clause: The id of the clause that it violates.
        text: A description of the fault.
    """

    def __init__(self, clause: str, text: str) -> None:
        super().__init__(text)
        self.clause = clause


@attrs.frozen
class BatchRecord:
    """A record in a batch.

    Attributes:
        value: The value; None for a tombstone.
        key: The key; None for none.
        headers: The names and values of its headers, in order.
        timestamp: The time at which it was made, in milliseconds since 1970 UTC; -1 if that is unknown.
    """

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()
    timestamp: int = -1

    @property
    def has_only_value(self) -> bool:
        """Whether it can be sent without an envelope, as far as its value allows."""
        return self.value is not None and self.key is None and not self.headers


@attrs.frozen
class DecodedBatch:
    """A batch.

    Attributes:
        base_offset: The sequence of its first record.
        records: Its records.
        compression: The number of its compression; 0 for none.
        records_bytes: The size of its records without compression.
    """

    base_offset: int
    records: tuple[BatchRecord, ...]
    compression: int
    records_bytes: int


@cache
def batch_formats() -> Formats:
    """Return the formats of RECORD-BATCH and DIRECT-RECORD-BATCH."""
    return Formats.compile(read_rules(BATCH_GRAMMAR_PATH))


def read_batch(data: bytes) -> DecodedBatch:
    """Decode a batch. Raise `BatchFormatError` if it is malformed."""
    if len(data) < HEADER_BYTES:
        raise BatchFormatError("batch.format", f"the batch has {len(data)} bytes, fewer than its header")
    fields = _HEADER.unpack_from(data)
    base_offset, length, _, magic, crc, attributes, last_delta, base_time, max_time, *_, count = fields
    if magic != _MAGIC:
        raise BatchFormatError("batch.format", f"the magic of the batch is {magic}, not {_MAGIC}")
    if length != len(data) - _LENGTH_END:
        raise BatchFormatError("batch.format", f"the length of the batch is {length}, not {len(data) - _LENGTH_END}")
    if crc != (found := crc_32c(data[_CHECKED_FROM:])):
        raise BatchFormatError("batch.crc", f"the CRC of the batch is {crc:08X}, not {found:08X}")
    if attributes & ~_KNOWN_ATTRIBUTES or attributes & (_TRANSACTIONAL | _CONTROL):
        raise BatchFormatError("batch.format", f"the attributes of the batch are {attributes & 0xFFFF:04X}")
    if count < 1:
        raise BatchFormatError("batch.format", f"the batch has {count} records: expected at least one")
    if base_offset < 0:
        raise BatchFormatError("batch.base-offset", f"the base offset of the batch is {base_offset}")
    compression = attributes & _COMPRESSION_MASK
    records = _decompress(compression, data[HEADER_BYTES:])
    reader = _RecordReader(records, base_time, max_time if attributes & 0x08 else None)
    decoded = tuple(reader.read_record(index) for index in range(count))
    if reader.position != len(records):
        raise BatchFormatError(
            "batch.format", f"{len(records) - reader.position} bytes follow the last record of the batch"
        )
    if last_delta != count - 1:
        raise BatchFormatError("batch.deltas", f"the last offset delta of {count} records is {last_delta}")
    return DecodedBatch(base_offset, decoded, compression, len(records))


def read_envelope(content: bytes) -> BatchRecord | None:
    """Return the record in an envelope; None if a content is no well-formed envelope, but a value."""
    if not content.startswith(ENVELOPE_MAGIC):
        return None
    try:
        batch = read_batch(content[len(ENVELOPE_MAGIC) :])
    except BatchFormatError:
        return None
    return batch.records[0] if len(batch.records) == 1 and not batch.compression else None


def read_content(content: bytes) -> BatchRecord:
    """Return the record that a content means to a node that reads envelopes."""
    return read_envelope(content) or BatchRecord(content)


def write_batch(first: int, records: Sequence[BatchRecord], compression: int = 0) -> bytes:
    """Return a batch of these records, whose first sequence is `first`."""
    times = [record.timestamp for record in records]
    last = len(records) - 1
    header = _HEADER.pack(
        first, 0, -1, _MAGIC, 0, compression, last, times[0], max(times), -1, -1, -1, len(records)
    )  # fmt: skip
    written = b"".join(_write_record(record, index, times[0]) for index, record in enumerate(records))
    return seal_batch(header + _COMPRESS[compression](written))


def _write_record(record: BatchRecord, index: int, base_time: int) -> bytes:
    parts = [b"\0", _write_varint(record.timestamp - base_time), _write_varint(index)]
    parts += [_write_bytes(record.key), _write_bytes(record.value), _write_varint(len(record.headers))]
    parts += [_write_bytes(part) for header in record.headers for part in header]
    written = b"".join(parts)
    return _write_varint(len(written)) + written


def _write_bytes(value: bytes | None) -> bytes:
    return _write_varint(-1) if value is None else _write_varint(len(value)) + value


def _write_varint(number: int) -> bytes:
    left = number * 2 if number >= 0 else -number * 2 - 1
    written = bytearray()
    while left >= 0x80:
        written.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*written, left])


def write_content(record: BatchRecord) -> bytes:
    """Return the content of a RECORD that carries a record: its value, or an envelope."""
    value = record.value
    if value is not None and record.has_only_value and not value.startswith(ENVELOPE_MAGIC):
        return value
    return ENVELOPE_MAGIC + write_batch(0, [record])


def seal_batch(data: bytes, *, length: int | None = None) -> bytes:
    """Return a batch with the right CRC, and with the right length or another one."""
    length = len(data) - _LENGTH_END if length is None else length
    crc = crc_32c(data[_CHECKED_FROM:])
    head = data[:8] + length.to_bytes(4, "big", signed=True) + data[_LENGTH_END:_CRC_AT]
    return head + crc.to_bytes(4, "big") + data[_CHECKED_FROM:]


def crc_32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli) of bytes."""
    table, crc = _crc_table(), 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


@cache
def _crc_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        entry = byte
        for _ in range(8):
            entry = (entry >> 1) ^ (_CRC_POLYNOMIAL if entry & 1 else 0)
        table.append(entry)
    return tuple(table)


class _RecordReader:
    """Reads the records of a batch one after the other."""

    def __init__(self, data: bytes, base_time: int, stamped: int | None) -> None:
        self.position = 0
        self._data = data
        self._base_time = base_time
        self._stamped = stamped

    def read_record(self, index: int) -> BatchRecord:
        """Return the next record, whose offset delta must be `index`."""
        length = self._read_varint("the length of a record")
        end = self.position + length
        if length < 0 or end > len(self._data):
            raise BatchFormatError("batch.format", f"the length of record {index} of the batch is {length}")
        if attributes := self._take(1, "the attributes of a record")[0]:
            raise BatchFormatError("batch.format", f"the attributes of record {index} of the batch are {attributes}")
        timestamp = self._base_time + self._read_varint("a timestamp delta")
        if (delta := self._read_varint("an offset delta")) != index:
            raise BatchFormatError("batch.deltas", f"the offset delta of record {index} of the batch is {delta}")
        key, value = self._read_bytes("a key"), self._read_bytes("a value")
        header_count = self._read_varint("the number of headers")
        if not 0 <= header_count <= len(self._data):
            raise BatchFormatError("batch.format", f"record {index} of the batch has {header_count} headers")
        headers = tuple(self._read_header() for _ in range(header_count))
        if self.position != end:
            raise BatchFormatError(
                "batch.format", f"record {index} of the batch has another size than its length {length}"
            )
        return BatchRecord(value, key, headers, timestamp if self._stamped is None else self._stamped)

    def _read_header(self) -> tuple[bytes, bytes | None]:
        name = self._read_bytes("a header's name")
        if name is None:
            raise BatchFormatError("batch.format", "a header in the batch has no name")
        return name, self._read_bytes("a header's value")

    def _read_bytes(self, what: str) -> bytes | None:
        length = self._read_varint(what)
        if length < -1:
            raise BatchFormatError("batch.format", f"the length of {what} in the batch is {length}")
        return None if length < 0 else self._take(length, what)

    def _read_varint(self, what: str) -> int:
        number = shift = 0
        while True:
            (byte,) = self._take(1, what)
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return (number >> 1) ^ -(number & 1)

    def _take(self, count: int, what: str) -> bytes:
        taken = self._data[self.position : self.position + count]
        if len(taken) < count:
            raise BatchFormatError("batch.format", f"the batch ends within {what}")
        self.position += count
        return taken


def _decompress(compression: int, data: bytes) -> bytes:
    decompress = _DECOMPRESS.get(compression)
    if decompress is None:
        raise BatchFormatError("batch.format", f"the compression of the batch is {compression}: expected 0 to 4")
    try:
        return decompress(data)
    except (cramjam.DecompressionError, OSError, EOFError, zlib.error) as error:
        raise BatchFormatError("batch.format", f"the records of the batch cannot be decompressed: {error}") from None


def _decompress_snappy(data: bytes) -> bytes:
    if not data.startswith(_XERIAL_MAGIC):
        return bytes(cramjam.snappy.decompress_raw(data))
    parts, position = [], _XERIAL_HEADER_BYTES
    while position < len(data):
        end = position + 4 + int.from_bytes(data[position : position + 4], "big")
        parts.append(bytes(cramjam.snappy.decompress_raw(data[position + 4 : end])))
        position = end
    return b"".join(parts)


_DECOMPRESS: Mapping[int, Callable[[bytes], bytes]] = {
    0: bytes,
    1: gzip.decompress,
    2: _decompress_snappy,
    3: lambda data: bytes(cramjam.lz4.decompress(data)),
    4: lambda data: bytes(cramjam.zstd.decompress(data)),
}

_COMPRESS: Mapping[int, Callable[[bytes], bytes]] = {
    0: bytes,
    1: gzip.compress,
    2: lambda data: bytes(cramjam.snappy.compress_raw(data)),
    3: lambda data: bytes(cramjam.lz4.compress(data)),
    4: lambda data: bytes(cramjam.zstd.compress(data)),
}
