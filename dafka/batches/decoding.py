"""Decodes batches into columns."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import attrs

from dafka.batches import compression as sizes
from dafka.batches.codec import RecordsCodec, records_codec
from dafka.batches.columns import PackedHeaders, RecordColumns
from dafka.batches.compression import decompress
from dafka.batches.header import (
    HEADER_BYTES,
    RECORD_BYTES_MIN,
    BatchHeader,
    Compression,
    TimestampType,
    check_whole,
    read_header,
)
from dafka.batches.reading import RecordsPart
from dafka.errors import BatchError, BatchTooLargeError
from dafka.packed_bytes import Repeated
from dafka.records import BATCH_BYTES_LIMIT


@attrs.frozen
class DecodedBatch(RecordColumns):
    """The records of a batch, and its header.

    Attributes:
        header: The header of the batch.
    """

    header: BatchHeader


def decode_batch(
    data: bytes | memoryview,
    *,
    bytes_max: int = BATCH_BYTES_LIMIT,
    codec: RecordsCodec | None = None,
    header: BatchHeader | None = None,
) -> DecodedBatch:
    """Return the records of a batch. Everything is checked but the CRC, which `check_crc` checks.

    Args:
        data: One batch.
        bytes_max: The maximum size of the records when decompressed. Decoding takes a small multiple of it in memory,
            regardless of the sizes in the batch.
        codec: The code that reads the records; None for the compiled one, if it was built.
        header: The header of the batch, if it was read before.

    Returns:
        The records and the header.

    Raises:
        BatchError: The batch is malformed, larger than allowed, or compacted (see `dafka.batches.compacted`).
    """
    header = read_header(data) if header is None else header
    header.check_not_compacted()
    columns = decode_batches([(header, data)], bytes_max=bytes_max, codec=codec)
    return DecodedBatch(columns.values, columns.keys, columns.headers, columns.timestamps, header)


def decode_batches(
    batches: Sequence[tuple[BatchHeader, bytes | memoryview]],
    *,
    bytes_max: int = BATCH_BYTES_LIMIT,
    codec: RecordsCodec | None = None,
    is_lazy: bool = False,
) -> RecordColumns:
    """Return the records of consecutive batches in the same columns; see `decode_batch`.

    `bytes_max` limits each batch, and all compressed batches together. If `is_lazy`, values may only be checked, and
    read later when they are accessed.
    """
    parts = []
    left = bytes_max
    for header, data in batches:
        if header.compression is Compression.NONE:
            parts.append(open_part(header, data, bytes_max))
        else:
            parts.append(open_part(header, data, left))
            left -= len(parts[-1].data)
    codec = codec or records_codec()
    values, keys, blocks, timestamps = codec.check_records(parts) if is_lazy else codec.read_records(parts)
    if any(header.timestamp_type is TimestampType.LOG_APPEND_TIME for header, _ in batches):
        timestamps = _with_append_times(timestamps, [header for header, _ in batches])
    return RecordColumns(
        values,
        keys,
        None if blocks is None else PackedHeaders(blocks),
        Repeated(timestamps, len(values)) if isinstance(timestamps, int) else timestamps,
    )


def unpacked_bytes_max(header: BatchHeader, data: bytes | memoryview) -> int:
    """Return the maximum decompressed size of the records of a batch, without decompressing them.

    Args:
        header: The header of the batch.
        data: The batch.

    Returns:
        The size, which may be much too large, and is at most `BATCH_BYTES_LIMIT` for a compressed batch.
    """
    return sizes.unpacked_bytes_max(header.compression, memoryview(data)[HEADER_BYTES:])


def open_part(header: BatchHeader, data: bytes | memoryview, bytes_max: int) -> RecordsPart:
    """Return the records of a batch, decompressed."""
    check_whole(header, len(data))
    if len(data) > header.size:
        raise BatchError("batch", f"its end, {len(data) - header.size} bytes follow", header.size)
    position = HEADER_BYTES
    if header.compression is not Compression.NONE:
        data = decompress(header.compression, memoryview(data)[HEADER_BYTES:], bytes_max)
        position = 0
    elif len(data) - position > bytes_max:
        raise BatchTooLargeError("records", f"at most {bytes_max} bytes, not {len(data) - position}", position)
    if header.count * RECORD_BYTES_MIN > len(data) - position:
        raise BatchError("count", f"a number of records that the batch has room for, not {header.count}", 57)
    return RecordsPart(data, position, header.count, header.base_timestamp)


def _with_append_times(timestamps: int | array[int], headers: Sequence[BatchHeader]) -> int | array[int]:
    """Return the time of each record; if a broker has set the time of a batch, that time."""
    if len(headers) == 1:
        return headers[0].max_timestamp
    count = sum(header.count for header in headers)
    times = array("q", [timestamps]) * count if isinstance(timestamps, int) else timestamps
    start = 0
    for header in headers:
        if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
            times[start : start + header.count] = array("q", [header.max_timestamp]) * header.count
        start += header.count
    return times
