"""Converts between record batches, as sent and stored, and `dafka.records.RecordBatch`."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from dafka.batches.compacted import decode_sparse, encode_rest, encode_sparse
from dafka.batches.decoding import decode_batches
from dafka.batches.encoding import encode_batches, encode_part
from dafka.batches.header import BatchHeader, Compression, check_crc, read_header, with_base_offset
from dafka.packed_bytes import Repeated
from dafka.records import BATCH_BYTES_LIMIT, NO_TIMESTAMP, Partition, RecordBatch, join

ENCODED_BYTES_MAX = 2**16
"""The maximum size of the records in one record batch, in bytes, unless a single record is larger."""

COMPRESSED_BYTES_MAX = 2**19
"""The same for compressed records: compression is better the more records are compressed together."""

PART_BYTES_MAX = 2**28
"""The maximum size of the records that one call encodes, in bytes, unless a single record is larger."""


def encode_records(
    batch: RecordBatch, compression: Compression = Compression.NONE, bytes_max: int = ENCODED_BYTES_MAX
) -> tuple[bytes, ...]:
    """Return records as record batches of limited size.

    Args:
        batch: The records. If they have their received record batches, these are returned unchanged.
        compression: The compression of new batches.
        bytes_max: The maximum size of the values, keys and headers in a batch, and the maximum size of its other bytes,
            unless a single record is larger.

    Returns:
        The record batches, in order; each begins at the sequence of its first record.
    """
    if batch.encoded:
        return batch.encoded
    if batch.compacted is not None:
        return tuple(encode_sparse(batch, compression, bytes_max))
    parts = batch.parts(PART_BYTES_MAX) if len(batch) else ()
    return tuple([data for part in parts for data in encode_batches(part, compression, bytes_max)])


def decode_records(
    partition: Partition,
    data: bytes,
    *,
    bytes_max: int = BATCH_BYTES_LIMIT,
    stored_at: Sequence[int] | None = None,
) -> RecordBatch:
    """Return the records of one record batch, after checking its CRC.

    Args:
        partition: The partition of the records.
        data: The record batch.
        bytes_max: The maximum size of the records when decompressed.
        stored_at: When each record was stored, in milliseconds since 1970 UTC; None if it is not needed.

    Returns:
        The records with their record batch.

    Raises:
        BatchError: The batch is malformed or damaged, or larger than allowed.
    """
    header = check_crc(data, may_be_compacted=True)
    return decode_run(partition, [(header, data)], bytes_max=bytes_max, stored_at=stored_at)


def decode_run(
    partition: Partition,
    batches: Sequence[tuple[BatchHeader, bytes | memoryview]],
    *,
    bytes_max: int = BATCH_BYTES_LIMIT,
    stored_at: Sequence[int] | None = None,
    is_kept: bool = True,
) -> RecordBatch:
    """Return the records of consecutive record batches with checked CRCs.

    Args:
        partition: The partition of the records.
        batches: The header of each record batch, and the record batch.
        bytes_max: The maximum decompressed size of the records of each batch.
        stored_at: See `decode_records`.
        is_kept: Whether the records keep the record batches. Then, values can be read from them later.

    Returns:
        The records.

    Raises:
        BatchError: A batch is malformed, or larger than allowed.
    """
    if any(header.is_compacted for header, _ in batches):
        records = join([_decode_one(partition, header, data, bytes_max, is_kept) for header, data in batches])
        return records if stored_at is None else attrs.evolve(records, stored_at=stored_at)
    is_plain = all(header.compression is Compression.NONE for header, _ in batches)
    columns = decode_batches(batches, bytes_max=bytes_max, is_lazy=is_kept and is_plain)
    times = columns.timestamps
    return RecordBatch(
        partition,
        batches[0][0].base_offset,
        columns.values,
        keys=columns.keys,
        headers=columns.headers,
        timestamps=None if isinstance(times, Repeated) and times.value == NO_TIMESTAMP else times,
        stored_at=stored_at,
        encoded=tuple([bytes(data) for _, data in batches]) if is_kept else (),
    )


def _decode_one(
    partition: Partition, header: BatchHeader, data: bytes | memoryview, bytes_max: int, is_kept: bool
) -> RecordBatch:
    if not header.is_compacted:
        return decode_run(partition, [(header, data)], bytes_max=bytes_max, is_kept=is_kept)
    columns, compacted = decode_sparse(header, data, bytes_max)
    return RecordBatch(
        partition,
        header.base_offset,
        columns.values,
        keys=columns.keys,
        headers=columns.headers,
        timestamps=columns.timestamps,
        encoded=(bytes(data),) if is_kept else (),
        compacted=compacted,
    )


def move_records(batch: RecordBatch, partition: Partition, first_sequence: int) -> RecordBatch:
    """Return the same records in another partition or at another sequence, with their record batches adapted."""
    difference = first_sequence - batch.first_sequence
    encoded = tuple(with_base_offset(each, read_header(each).base_offset + difference) for each in batch.encoded)
    return attrs.evolve(batch, partition=partition, first_sequence=first_sequence, encoded=encoded)


def slice_records(batch: RecordBatch, first_sequence: int, end_sequence: int) -> RecordBatch:
    """Return some of the records that `decode_records` returned, with a new record batch.

    Args:
        batch: The records of one record batch.
        first_sequence: The first sequence to keep.
        end_sequence: The sequence after the last one to keep.

    Returns:
        The records. The compression and the other fields of the record batch are kept. If there is no record batch, the
        result has none.
    """
    part = batch.between(first_sequence, end_sequence)
    if part is batch or not len(part) or not batch.encoded:
        return part
    (data,) = batch.encoded
    if batch.compacted is not None:
        return attrs.evolve(part, encoded=(encode_rest(data, part),))
    encoded = encode_part(read_header(data), part.first_sequence - batch.first_sequence, part)
    return attrs.evolve(part, encoded=(encoded,))
