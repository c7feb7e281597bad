"""Records to record batches and back: between what travels and is stored, and `dafka.records.RecordBatch`."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from dafka.batches.columns import Repeated
from dafka.batches.decoding import decode_batch
from dafka.batches.encoding import RECORD_OVERHEAD_BYTES_MAX, encode_batch, encode_part
from dafka.batches.header import Compression, check_crc, read_header
from dafka.errors import EncodingError
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
        encoded += _encode_part(part, compression)
    return tuple(encoded)


def _encode_part(part: RecordBatch, compression: Compression) -> list[bytes]:
    """Return records as one record batch, or as several if their timestamps are too far apart for one."""
    try:
        encoded = encode_batch(
            part.first_sequence,
            part.values,
            keys=part.keys,
            headers=part.headers,
            timestamps=NO_TIMESTAMP if part.timestamps is None else part.timestamps,
            compression=compression,
        )
    except EncodingError as error:
        if error.field != "timestamps" or len(part) == 1:
            raise
        middle = part.first_sequence + len(part) // 2
        first, second = part.between(part.first_sequence, middle), part.between(middle, part.end_sequence)
        return _encode_part(first, compression) + _encode_part(second, compression)
    return [encoded]


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
        timestamps=None if _is_without_times(decoded.timestamps) else decoded.timestamps,
        stored_at=stored_at,
        encoded=(data,),
    )


def slice_records(batch: RecordBatch, first_sequence: int, end_sequence: int) -> RecordBatch:
    """Return some of the records of a record batch that `decode_records` returned, again with a record batch of them.

    Args:
        batch: The records of one record batch.
        first_sequence: The first sequence to keep.
        end_sequence: The sequence after the last one to keep.

    Returns:
        The records; the compression and the other fields of their record batch are kept. If the records have none,
        neither have those that are returned.
    """
    part = batch.between(first_sequence, end_sequence)
    if part is batch or not len(part) or not batch.encoded:
        return part
    (data,) = batch.encoded
    encoded = encode_part(
        read_header(data),
        part.first_sequence - batch.first_sequence,
        part.values,
        keys=part.keys,
        headers=part.headers,
        timestamps=NO_TIMESTAMP if part.timestamps is None else part.timestamps,
    )
    return attrs.evolve(part, encoded=(encoded,))


def _is_without_times(timestamps: Sequence[int]) -> bool:
    return isinstance(timestamps, Repeated) and timestamps.value == NO_TIMESTAMP
