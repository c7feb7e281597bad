"""Take batches apart into columns."""

from __future__ import annotations

import attrs

from dafka.batches.codec import RecordsCodec, records_codec
from dafka.batches.columns import PackedHeaders, RecordColumns, Repeated
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
from dafka.errors import BatchError


@attrs.frozen
class DecodedBatch(RecordColumns):
    """The records of a batch, and its header.

    Attributes:
        header: The header of the batch.
    """

    header: BatchHeader


def decode_batch(data: bytes | memoryview, *, bytes_max: int, codec: RecordsCodec | None = None) -> DecodedBatch:
    """Return the records of a batch. Everything is checked but the CRC, which `check_crc` checks.

    Args:
        data: One batch.
        bytes_max: The maximum size of the records when decompressed. Decoding takes a small multiple of it in memory,
            whatever the batch claims.
        codec: The code to read the records with; None for the compiled one, if it was built.

    Returns:
        The records and the header.

    Raises:
        BatchError: The batch is malformed, larger than allowed, or uses what dafka does not read, such as a compacted
            batch, in which offsets are missing.
    """
    header = read_header(data)
    check_whole(header, len(data))
    if len(data) > header.size:
        raise BatchError("batch", f"its end, {len(data) - header.size} bytes follow", header.size)
    position = HEADER_BYTES
    if header.compression is not Compression.NONE:
        data = decompress(header.compression, memoryview(data)[HEADER_BYTES:], bytes_max)
        position = 0
    elif len(data) - position > bytes_max:
        raise BatchError("records", f"at most {bytes_max} bytes, not {len(data) - position}", position)
    if header.count * RECORD_BYTES_MIN > len(data) - position:
        raise BatchError("count", f"a number of records that the batch has room for, not {header.count}", 57)
    codec = codec or records_codec()
    values, keys, blocks, timestamps = codec.read_records(data, position, header.count, header.base_timestamp)
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        timestamps = header.max_timestamp
    return DecodedBatch(
        values,
        keys,
        None if blocks is None else PackedHeaders(blocks),
        Repeated(timestamps, header.count) if isinstance(timestamps, int) else timestamps,
        header,
    )
