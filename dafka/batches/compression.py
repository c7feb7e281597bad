"""Compresses the records of a batch as Kafka does, and decompresses them within a limit that no batch can exceed."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from traceback import clear_frames
from typing import TYPE_CHECKING, TypeAlias

from dafka.batches.header import HEADER_BYTES, Compression
from dafka.errors import BatchError, BatchTooLargeError
from dafka.records import BATCH_BYTES_LIMIT

if TYPE_CHECKING:
    from cramjam import BufferInput

DecompressInto: TypeAlias = "Callable[[BufferInput, bytearray], int]"

_GZIP_LEVEL = 6
_ZSTD_LEVEL = 3
_LZ4_FAST_LEVEL = 9  # Kafka's default, which stands for the fast algorithm; other levels are those of the slow one

# The maximum number of bytes that a byte of compressed data can become. zstd has no such limit.
_RATIO_MAX = {Compression.GZIP: 1032, Compression.LZ4: 255, Compression.SNAPPY: 22}
_OUTPUT_BYTES_MIN = 4096

_DOES_NOT_FIT = "whole buffer"
"""A part of cramjam's error message if the buffer is too small, rather than the data malformed."""

_ZSTD_MAGIC = bytes.fromhex("28b52ffd")
_ZSTD_HEADER_BYTES_MAX = 18

# The maximum size of a decompressed block of zstd.
_ZSTD_BLOCK_BYTES = 2**17

# xerial's snappy, which Kafka's Java clients write: a header, and blocks with their lengths.
_XERIAL_MAGIC = b"\x82SNAPPY\0"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024
_XERIAL_LENGTH = struct.Struct(">i")

# The header of an LZ4 frame with independent blocks, the only kind that Kafka's Java clients read. Its optional
# checksums are off, since the batch has a CRC. The last byte is the checksum of the two before it.
_LZ4_HEADER = bytes.fromhex("04224d18 60 50 fb")
_LZ4_BLOCK_BYTES = 256 * 1024
_LZ4_SLOW_BLOCK_BYTES = 64 * 1024
_LZ4_LENGTH = struct.Struct("<I")
_LZ4_FRAME_START = len(_LZ4_HEADER) + _LZ4_LENGTH.size
_LZ4_UNCOMPRESSED = 0x80000000
_LZ4_END = bytes(4)


def compress(kind: Compression, records: bytes, level: int | None = None) -> bytes:
    """Return the records of a batch as the data after its header. Snappy has no levels."""
    import cramjam  # noqa: PLC0415 (few batches are compressed)

    if kind is Compression.GZIP:
        return bytes(cramjam.gzip.compress(records, _GZIP_LEVEL if level is None else level))
    if kind is Compression.SNAPPY:
        return _compress_xerial(records)
    if kind is Compression.LZ4:
        return _compress_lz4(records, _LZ4_FAST_LEVEL if level is None else level)
    if kind is Compression.ZSTD:
        return bytes(cramjam.zstd.compress(records, _ZSTD_LEVEL if level is None else level))
    return records


def decompress(kind: Compression, data: bytes | memoryview, bytes_max: int) -> bytes:
    """Return the decompressed records of the data after the header in a batch.

    `bytes_max`, or else `BATCH_BYTES_LIMIT`, limits the memory, regardless of the sizes in the data. Raise
    `BatchTooLargeError` if the records would be larger, and `BatchError` if the data is malformed.
    """
    import cramjam  # noqa: PLC0415 (few batches are compressed)

    bytes_max = min(bytes_max, BATCH_BYTES_LIMIT)
    if kind is Compression.NONE:
        if len(data) > bytes_max:
            raise _failure("records", bytes_max, BatchTooLargeError)
        return bytes(data)
    functions: dict[Compression, DecompressInto] = {
        Compression.GZIP: cramjam.gzip.decompress_into,
        Compression.LZ4: cramjam.lz4.decompress_into,
        Compression.ZSTD: cramjam.zstd.decompress_into,
    }
    try:
        if kind is Compression.SNAPPY:
            return _decompress_snappy(data, bytes_max)
        return _decompress_stream(functions[kind], kind, data, bytes_max)
    except BatchError as error:
        clear_frames(error.__traceback__)  # they hold the unpacked data
        raise


def unpacked_bytes_max(kind: Compression, data: bytes | memoryview) -> int:
    """Return the maximum decompressed size of the data after the header in a batch; see `dafka.batches`."""
    if kind is Compression.NONE:
        return len(data)
    if kind is Compression.ZSTD:
        return min(_zstd_bytes_max(data), BATCH_BYTES_LIMIT)
    return min(_RATIO_MAX[kind] * len(data) + _OUTPUT_BYTES_MIN, BATCH_BYTES_LIMIT)


def _failure(what: str, bytes_max: int, kind: type[BatchError] = BatchError) -> BatchError:
    return kind("records", f"{what} of at most {bytes_max} bytes when decompressed", HEADER_BYTES)


def _decompress_stream(function: DecompressInto, kind: Compression, data: bytes | memoryview, bytes_max: int) -> bytes:
    """Decompress into a larger buffer until the result fits."""
    import cramjam  # noqa: PLC0415

    limit = bytes_max
    if kind in _RATIO_MAX:
        limit = min(limit, _RATIO_MAX[kind] * len(data) + _OUTPUT_BYTES_MIN)
    claimed = _zstd_header(data)[0] if kind is Compression.ZSTD else 0
    if claimed > bytes_max:
        raise _failure("zstd data", bytes_max, BatchTooLargeError)
    size = min(limit, max(claimed, 4 * len(data), _OUTPUT_BYTES_MIN))
    while True:
        output = bytearray(size)
        try:
            count = function(data, output)
        except cramjam.DecompressionError as error:  # the result does not fit, or the data is malformed
            if size >= limit:
                is_too_large = size == bytes_max and _DOES_NOT_FIT in str(error)
                failure = BatchTooLargeError if is_too_large else BatchError
                raise _failure(f"{kind.name.lower()} data", bytes_max, failure) from None
            size = min(4 * size, limit)
        else:
            return bytes(memoryview(output)[:count])


def _zstd_header(data: bytes | memoryview) -> tuple[int, int]:
    """Return the decompressed size in the header of a zstd frame, or 0, and the position of its blocks."""
    if len(data) < 5 or data[:4] != _ZSTD_MAGIC:
        return 0, len(data)
    descriptor = data[4]
    is_single_segment, code = descriptor & 0x20, descriptor >> 6
    start = 5 + (not is_single_segment) + (0, 1, 2, 4)[descriptor & 3]
    end = start + (1 if is_single_segment else 0, 2, 4, 8)[code]
    return int.from_bytes(data[start:end], "little") + (256 if code == 1 else 0), end


def _zstd_bytes_max(data: bytes | memoryview) -> int:
    """Return the maximum decompressed size of the blocks of zstd frames."""
    total, start = 0, 0
    while start + 5 <= len(data):
        if data[start] != _ZSTD_MAGIC[0]:  # a skippable frame
            start += 8 + int.from_bytes(data[start + 4 : start + 8], "little")
            continue
        position, is_last = start + _zstd_header(data[start : start + _ZSTD_HEADER_BYTES_MAX])[1], 0
        while not is_last and position + 3 <= len(data):
            header = int.from_bytes(data[position : position + 3], "little")
            is_last, kind, size = header & 1, header >> 1 & 3, header >> 3
            total += size if kind < 2 else _ZSTD_BLOCK_BYTES
            position += 3 + (1 if kind == 1 else size)
        has_checksum = data[start + 4] & 4
        start = position + (4 if has_checksum else 0)
    return total


def _compress_xerial(records: bytes) -> bytes:
    import cramjam  # noqa: PLC0415

    parts = [_XERIAL_HEADER]
    for chunk in _chunks(records, _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(chunk))
        parts += (_XERIAL_LENGTH.pack(len(block)), block)
    return b"".join(parts)


def _decompress_snappy(data: bytes | memoryview, bytes_max: int) -> bytes:
    if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _decompress_snappy_block(data, bytes_max, bytes_max)
    view = memoryview(data)
    position, left = len(_XERIAL_HEADER), bytes_max
    parts = []
    while position < len(view):
        if len(view) - position < _XERIAL_LENGTH.size:
            raise _failure("snappy data", bytes_max)
        (length,) = _XERIAL_LENGTH.unpack_from(view, position)
        position += _XERIAL_LENGTH.size
        if not 0 < length <= len(view) - position:
            raise _failure("snappy data", bytes_max)
        part = _decompress_snappy_block(view[position : position + length], left, bytes_max)
        parts.append(part)
        left -= len(part)
        position += length
    return b"".join(parts)


def _decompress_snappy_block(data: bytes | memoryview, left: int, bytes_max: int) -> bytes:
    """Decompress a block that begins with its decompressed size, if that is possible and within the limit."""
    import cramjam  # noqa: PLC0415

    try:
        size = cramjam.snappy.decompress_raw_len(data)
        if left < size <= _RATIO_MAX[Compression.SNAPPY] * len(data):
            raise _failure("snappy data", bytes_max, BatchTooLargeError)
        if size <= min(left, _RATIO_MAX[Compression.SNAPPY] * len(data)):
            output = bytearray(size)
            if cramjam.snappy.decompress_raw_into(data, output) == size:
                return bytes(output)
    except cramjam.DecompressionError:
        pass
    raise _failure("snappy data", bytes_max)


def _compress_lz4(records: bytes, level: int) -> bytes:
    import cramjam  # noqa: PLC0415

    parts = [_LZ4_HEADER]
    is_fast = level == _LZ4_FAST_LEVEL
    for chunk in _chunks(records, _LZ4_BLOCK_BYTES if is_fast else _LZ4_SLOW_BLOCK_BYTES):
        if is_fast:
            block = bytes(cramjam.lz4.compress_block(chunk, store_size=False))
        else:  # only frames have levels: a frame of one block
            frame = bytes(cramjam.lz4.compress(chunk, level))
            (length,) = _LZ4_LENGTH.unpack_from(frame, len(_LZ4_HEADER))
            block = frame[_LZ4_FRAME_START : _LZ4_FRAME_START + (length & ~_LZ4_UNCOMPRESSED)]
        if len(block) < len(chunk):
            parts += (_LZ4_LENGTH.pack(len(block)), block)
        else:
            parts += (_LZ4_LENGTH.pack(len(chunk) | _LZ4_UNCOMPRESSED), chunk)
    parts.append(_LZ4_END)
    return b"".join(parts)


def _chunks(data: bytes, size: int) -> Iterator[bytes]:
    return (data[start : start + size] for start in range(0, len(data), size))
