"""Records to record batches and back: between what travels and is stored, and `dafka.records.RecordBatch`."""

from __future__ import annotations

from collections.abc import Sequence

from dafka.batches.decoding import decode_batch
from dafka.batches.encoding import RECORD_OVERHEAD_BYTES_MAX, encode_batch
from dafka.batches.header import Compression, check_crc
from dafka.records import NO_TIMESTAMP, Partition, RecordBatch

ENCODED_BYTES_MAX = 2**16
"""The size of the records in one record batch, in bytes, unless a single record is larger."""


def encode_records(
    batch: RecordBatch, compression: Compression = Compression.NONE, bytes_max: int = ENCODED_BYTES_MAX
) -> tuple[bytes, ...]:
    """Return records as record batches of limited size.

    Args:
        batch: The records. If they came as record batches, these are returned as they are.
        compression: The compression of batches that are made here.
        bytes_max: The maximum size of the values, keys and headers in a batch, and of what it takes beside them, in
            bytes each, unless a single record is larger.

    Returns:
        The record batches, in order; each begins at the sequence of its first record.
    """
    if batch.encoded:
        return batch.encoded
    encoded, rest = [], batch
    count_max = max(bytes_max // RECORD_OVERHEAD_BYTES_MAX, 1)
    while len(rest):
        part = rest.between(rest.first_sequence, rest.first_sequence + count_max).within(bytes_max)
        rest = rest.between(part.end_sequence, rest.end_sequence)
        encoded.append(
            encode_batch(
                part.first_sequence,
                part.values,
                keys=part.keys,
                headers=part.headers,
                timestamps=NO_TIMESTAMP if part.timestamps is None else part.timestamps,
                compression=compression,
            )
        )
    return tuple(encoded)


def decode_records(
    partition: Partition, data: bytes, *, bytes_max: int, stored_at: Sequence[int] | None = None
) -> RecordBatch:
    """Return the records of one record batch, whose CRC is checked.

    Args:
        partition: The partition of the records.
        data: The record batch.
        bytes_max: The maximum size of the records when decompressed.
        stored_at: When each record was stored, in milliseconds since 1970 UTC; None if that was not asked for.

    Returns:
        The records, and the record batch as they came in it.

    Raises:
        BatchError: The batch is malformed or damaged, or larger than allowed.
    """
    check_crc(data)
    decoded = decode_batch(data, bytes_max=bytes_max)
    return RecordBatch(
        partition,
        decoded.header.base_offset,
        decoded.values,
        keys=decoded.keys,
        headers=decoded.headers,
        timestamps=decoded.timestamps,
        stored_at=stored_at,
        encoded=(data,),
    )
