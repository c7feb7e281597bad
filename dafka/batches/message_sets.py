"""Message sets: the formats 0 and 1 that Kafka's clients wrote before record batches, read and written for old clients.

    message set   messages, one after the other
    message       offset (8), size (4), CRC-32 of the rest (4), magic (1), attributes (1), timestamp (8, magic 1 only),
                  key and value, each a length (4; -1 for null) and as many bytes

A compressed message contains another message set in its value. In it, offsets of magic 1 count from the first message,
and the offset of the outer message is that of the last.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from typing import NamedTuple
from zlib import crc32

import attrs

from dafka.batches.columns import RecordColumns
from dafka.batches.compacted import decode_held
from dafka.batches.compression import decompress
from dafka.batches.decoding import decode_batch
from dafka.batches.encoding import encode_batch
from dafka.batches.header import Compression, TimestampType, read_header
from dafka.errors import BatchError, BatchTooLargeError, EncodingError
from dafka.records import BATCH_BYTES_LIMIT, NO_TIMESTAMP

MAGIC_POSITION = 16
"""The position of the magic in message sets and in record batches alike."""

_START = struct.Struct(">qiIbb")
_START_BYTES = _START.size
_SIZE_END = 12
_CRC_END = 16
_MAGIC_MAX = 1
_TIMESTAMP = struct.Struct(">q")
_LENGTH = struct.Struct(">i")
_SIZE_MIN = 14
_COMPRESSION_MASK = 0x07
_LOG_APPEND_TIME = 0x08

# The header of an LZ4 frame, and the numbers of xxHash, which is its checksum.
_LZ4_HEADER_BYTES_MAX = 19
_LZ4_HAS_SIZE = 0x08
_LZ4_HAS_DICTIONARY = 0x01
_MASK = 2**32 - 1
_PRIME_1, _PRIME_2, _PRIME_3, _PRIME_4, _PRIME_5 = 2654435761, 2246822519, 3266489917, 668265263, 374761393

_COMPRESSIONS = {0: Compression.NONE, 1: Compression.GZIP, 2: Compression.SNAPPY, 3: Compression.LZ4}


class _Message(NamedTuple):
    offset: int
    magic: int
    compression: Compression
    has_append_time: bool
    timestamp: int
    key: bytes | None
    value: bytes | None


@attrs.frozen
class MessageSet(RecordColumns):
    """The messages of a set, including those inside compressed messages, and the compression of the first one."""

    offsets: array[int]
    compression: Compression


def is_message_set(data: bytes | memoryview) -> bool:
    """Return whether a client's records are a message set rather than record batches. They can be malformed."""
    return len(data) > MAGIC_POSITION and data[MAGIC_POSITION] <= _MAGIC_MAX


def decode_message_set(data: bytes | memoryview, *, bytes_max: int) -> MessageSet:
    """Return the messages of a set, at least one. Everything is checked, CRCs included.

    `bytes_max` limits the size of the set, and of all its decompressed data together. Raise `BatchError` if the set is
    malformed, damaged, or larger.
    """
    if len(data) > bytes_max:
        raise BatchTooLargeError("message set", f"at most {bytes_max} bytes, not {len(data)}")
    messages: list[_Message] = []
    outermost = None
    left = bytes_max
    for outer in _iter_messages(bytes(data)):
        outermost = outermost or outer
        if outer.compression is Compression.NONE:
            messages.append(outer)
        else:
            inner_set = decompress(outer.compression, _compressed(outer), left)
            left -= len(inner_set)
            messages += _inner_messages(outer, inner_set)
    if outermost is None or not messages:
        raise BatchError("message set", "at least one message", 0)
    keys = [message.key for message in messages]
    return MessageSet(
        [message.value for message in messages],
        None if keys.count(None) == len(keys) else keys,
        None,
        array("q", [message.timestamp for message in messages]),
        array("q", [message.offset for message in messages]),
        outermost.compression,
    )


def convert_message_set(data: bytes | memoryview, *, bytes_max: int) -> bytes:
    """Return the messages of a set as a record batch with the base offset 0; see `decode_message_set`.

    It has the compression of the first message. The offsets of the messages are ignored.
    """
    found = decode_message_set(data, bytes_max=bytes_max)
    try:
        return encode_batch(
            0, found.values, keys=found.keys, timestamps=found.timestamps, compression=found.compression
        )
    except EncodingError as error:  # the differences of the timestamps do not fit
        raise BatchError(error.field, error.expected) from None


def encode_message_set(
    batch: bytes | memoryview, magic: int, *, first_offset: int = 0, bytes_max: int = BATCH_BYTES_LIMIT
) -> bytes:
    """Return the records of a record batch as an uncompressed message set of format 0, without timestamps, or 1.

    It has the offsets of the batch, from `first_offset` on, and no headers. Return nothing for a control batch, which
    old clients do not know. Raise `BatchError` if the batch is malformed, or its records have more than `bytes_max`
    bytes when decompressed.
    """
    header = read_header(batch)
    if header.is_control:
        return b""
    is_append_time = magic and header.timestamp_type is TimestampType.LOG_APPEND_TIME
    start = struct.pack(">bb", magic, _LOG_APPEND_TIME if is_append_time else 0)
    if header.is_compacted:
        runs = decode_held(header, batch, bytes_max=bytes_max)
    else:
        runs = [(header.base_offset, decode_batch(batch, bytes_max=bytes_max))]
    parts = ((max(first_offset - offset, 0), offset, columns) for offset, columns in runs)
    return b"".join(
        _encode_messages(start, offset + skipped, columns[skipped:] if skipped else columns, bool(magic))
        for skipped, offset, columns in parts
    )


def _encode_messages(start: bytes, base_offset: int, columns: RecordColumns, has_times: bool) -> bytes:
    keys = [None] * len(columns) if columns.keys is None else columns.keys
    parts: list[bytes] = []
    rows = zip(columns.values, keys, columns.timestamps, strict=True)
    for offset, (value, key, timestamp) in enumerate(rows, base_offset):
        time = _TIMESTAMP.pack(timestamp) if has_times else b""
        body = b"".join((start, time, *_with_length(key), *_with_length(value)))
        parts += (struct.pack(">qiI", offset, len(body) + 4, crc32(body)), body)
    return b"".join(parts)


def _compressed(message: _Message) -> bytes:
    """Return the value of a compressed message. In LZ4 of magic 0, the checksum of the frame's header is corrected.

    Before magic 1, Kafka calculated it from too many bytes.
    """
    value = message.value or b""
    if message.magic or message.compression is not Compression.LZ4 or len(value) < _LZ4_HEADER_BYTES_MAX:
        return value
    end = 6 + 8 * bool(value[4] & _LZ4_HAS_SIZE) + 4 * (value[4] & _LZ4_HAS_DICTIONARY)
    checksum = _xxh32(value[4:end]) >> 8 & 0xFF
    return value[:end] + bytes((checksum,)) + value[end + 1 :]


def _xxh32(data: bytes) -> int:
    """Return xxHash of less than 16 bytes, with 32 bits and the seed 0."""
    found = _PRIME_5 + len(data)
    words = len(data) // 4 * 4
    for (word,) in struct.iter_unpack("<I", data[:words]):
        found = _rotate(found + word * _PRIME_3, 17) * _PRIME_4
    for byte in data[words:]:
        found = _rotate(found + byte * _PRIME_5, 11) * _PRIME_1
    found &= _MASK
    found = (found ^ found >> 15) * _PRIME_2 & _MASK
    found = (found ^ found >> 13) * _PRIME_3 & _MASK
    return found ^ found >> 16


def _rotate(number: int, bits: int) -> int:
    number &= _MASK
    return (number << bits | number >> 32 - bits) & _MASK


def _with_length(content: bytes | None) -> tuple[bytes, bytes]:
    return (_LENGTH.pack(-1), b"") if content is None else (_LENGTH.pack(len(content)), content)


def _inner_messages(outer: _Message, data: bytes) -> list[_Message]:
    """Return the messages in a compressed message."""
    messages = list(_iter_messages(data))
    for message in messages:
        if message.compression is not Compression.NONE:
            raise BatchError("attributes", "an uncompressed message in a compressed one")
        if message.magic != outer.magic:
            raise BatchError("magic", f"{outer.magic} as in the outer message, not {message.magic}")
    if not messages or not outer.magic:
        return messages
    base_offset = outer.offset - messages[-1].offset
    if not all(-(2**63) <= base_offset + message.offset < 2**63 for message in messages):
        raise BatchError("offset", "a number of 64 bits")
    return [
        message._replace(
            offset=base_offset + message.offset,
            timestamp=outer.timestamp if outer.has_append_time else message.timestamp,
        )
        for message in messages
    ]


def _iter_messages(data: bytes) -> Iterator[_Message]:
    """Yield the messages of a set, without decompressing any."""
    position, total = 0, len(data)
    while position < total:
        if total - position < _START_BYTES:
            raise BatchError("message", f"at least {_START_BYTES} bytes, {total - position} are left", position)
        offset, size, crc, magic, attributes = _START.unpack_from(data, position)
        end = position + _SIZE_END + size
        if not 0 <= magic <= _MAGIC_MAX:
            raise BatchError("magic", f"0 or 1, not {magic}", position + MAGIC_POSITION)
        if not _SIZE_MIN <= size <= total - position - _SIZE_END:
            raise BatchError("message size", f"{_SIZE_MIN} to {total - position - _SIZE_END}, not {size}", position + 8)
        compression = _COMPRESSIONS.get(attributes & _COMPRESSION_MASK)
        if compression is None:
            raise BatchError("attributes", f"a known compression, not 0x{attributes & 0xFF:02x}", position + 17)
        found = crc32(memoryview(data)[position + _CRC_END : end])
        if found != crc:
            raise BatchError("crc", f"{found:08x}, not {crc:08x}", position + _SIZE_END)
        place, timestamp = position + _START_BYTES, NO_TIMESTAMP
        if magic:
            (timestamp,) = _TIMESTAMP.unpack_from(data, place)
            place += _TIMESTAMP.size  # the least size has room for it
        key, place = _read_content(data, place, end, "key length")
        value, place = _read_content(data, place, end, "value length")
        if place != end:
            raise BatchError("message size", f"{place - position - _SIZE_END}, not {size}", position + 8)
        yield _Message(offset, magic, compression, bool(attributes & _LOG_APPEND_TIME), timestamp, key, value)
        position = end


def _read_content(data: bytes, place: int, end: int, field: str) -> tuple[bytes | None, int]:
    if end - place < _LENGTH.size:
        raise BatchError(field, f"{_LENGTH.size} bytes, {end - place} are left", place)
    (length,) = _LENGTH.unpack_from(data, place)
    start = place + _LENGTH.size
    if not -1 <= length <= end - start:
        raise BatchError(field, f"a length from -1 to {end - start}, not {length}", place)
    return (None, start) if length < 0 else (data[start : start + length], start + length)
