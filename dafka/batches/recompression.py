"""Changes the compression of batches without decoding their records."""

from __future__ import annotations

import attrs

from dafka.batches.compression import compress, decompress
from dafka.batches.header import HEADER_BYTES, BatchHeader, Compression, check_whole, join_batch, read_header


def decompress_batch(
    header: BatchHeader, data: bytes | memoryview, bytes_max: int
) -> tuple[BatchHeader, bytes | memoryview]:
    """Return a batch without compression, and its header.

    Args:
        header: The header of the batch.
        data: The batch.
        bytes_max: The maximum size of its records when decompressed.

    Returns:
        The header and the batch; the same ones if it is not compressed.

    Raises:
        BatchError: The records are malformed, or larger than allowed.
    """
    check_whole(header, len(data))
    if header.compression is Compression.NONE:
        return header, data
    records = decompress(header.compression, memoryview(data)[HEADER_BYTES:], bytes_max)
    joined = join_batch(attrs.evolve(header, compression=Compression.NONE), records)
    return read_header(joined), joined


def compress_whole(
    header: BatchHeader, data: bytes | memoryview, compression: Compression, level: int | None = None
) -> tuple[BatchHeader, bytes]:
    """Return a batch that was not compressed with a compression, even if that makes it larger, and its header.

    Args:
        header: The header of the batch.
        data: The batch.
        compression: The new compression.
        level: The level of the compression; None for its default.

    Returns:
        The header and the batch.
    """
    records = compress(compression, bytes(memoryview(data)[HEADER_BYTES:]), level)
    joined = join_batch(attrs.evolve(header, compression=compression), records)
    return read_header(joined), joined
