"""Makes batches of records, batches of parts of other batches, and the control batches that end transactions."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence

import attrs

from dafka.batches.codec import records_codec
from dafka.batches.columns import PackedHeaders, column_bytes, pack_headers
from dafka.batches.compression import compress
from dafka.batches.header import (
    HEADER_BYTES,
    OFFSET_MAX,
    BatchHeader,
    Compression,
    TimestampType,
    join_batch,
)
from dafka.errors import EncodingError
from dafka.packed_bytes import Repeated
from dafka.records import BATCH_BYTES_LIMIT, NO_TIMESTAMP, RecordBatch

RECORD_OVERHEAD_BYTES_MAX = 36
"""The maximum size of a record in a batch without its value, its key and its headers, in bytes."""

_SEQUENCES = 2**31
"""Kafka's base sequence continues with 0 after the largest number of 31 bits."""

PLAIN = BatchHeader(0, 0, -1, 0, Compression.NONE, TimestampType.CREATE_TIME, False, False, 0, 0, 0, -1, -1, -1, 0)
"""The fields of a batch's header that do not depend on its records."""

_MARKER_KEY = struct.Struct(">hh")
_MARKER_VALUE = struct.Struct(">hi")
_ABORT, _COMMIT = 0, 1


def encode_batch(
    base_offset: int,
    values: Sequence[bytes | None],
    *,
    timestamps: int | Sequence[int],
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Iterable[tuple[str, bytes | None]]] | None = None,
    compression: Compression = Compression.NONE,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    is_transactional: bool = False,
    is_control: bool = False,
) -> bytes:
    """Return a batch of records.

    Args:
        base_offset: The offset of the first record. In dafka: its sequence.
        values: The values of the records, at least one; None for a tombstone.
        timestamps: When the records were made, in milliseconds since 1970 UTC: one number for all, or one for each.
        keys: The key of each record; None for a record without one, or if no record has one.
        headers: For each record, pairs of a name and a value; None if no record has any.
        compression: The compression of the records. Records that would not become smaller are not compressed.
        timestamp_type: The meaning of the timestamps.
        leader_epoch: Kafka's partition leader epoch.
        producer_id: The number that a broker gave the producer.
        producer_epoch: The epoch of that producer, which counts its incarnations.
        base_sequence: The producer's sequence number of the first record.
        is_transactional: Whether the batch is part of a transaction.
        is_control: Whether the records are Kafka's own control records.

    Returns:
        The batch.

    Raises:
        EncodingError: A batch cannot contain one of the arguments.
    """
    template = BatchHeader(
        0,
        0,
        leader_epoch,
        0,
        compression,
        timestamp_type,
        is_transactional,
        is_control,
        0,
        0,
        0,
        producer_id,
        producer_epoch,
        base_sequence,
        0,
    )
    (batch,) = _encode(template, base_offset, values, keys, headers, timestamps)
    return batch


def encode_batches(records: RecordBatch, compression: Compression, bytes_max: int) -> list[bytes]:
    """Return records as batches of limited size; raise `EncodingError` if a batch cannot contain one.

    The values, keys and headers in a batch have at most `bytes_max` bytes, and so have its other bytes, unless a single
    record is larger. A new batch also begins where timestamps are too far apart for one.
    """
    template = PLAIN if compression is PLAIN.compression else attrs.evolve(PLAIN, compression=compression)
    return _encode_columns(template, records.first_sequence, records, bytes_max)


def encode_part(header: BatchHeader, start: int, records: RecordBatch) -> bytes:
    """Return a batch with some of the records of another, decoded one, of which they are those from `start` on.

    It has the compression and the other fields of the other one. Raise `EncodingError` if it cannot contain a record.
    """
    (batch,) = _encode_columns(template_from(header, start), header.base_offset + start, records)
    return batch


def template_from(header: BatchHeader, start: int) -> BatchHeader:
    """Return the header of a batch with the base sequence of a part of it, whose records are those from `start` on."""
    sequence = header.base_sequence
    return attrs.evolve(header, base_sequence=sequence if sequence < 0 else (sequence + start) % _SEQUENCES)


def encode_marker(
    producer_id: int,
    producer_epoch: int,
    timestamp_ms: int,
    *,
    is_commit: bool,
    base_offset: int = 0,
    coordinator_epoch: int = 0,
) -> bytes:
    """Return the control batch that ends a transaction in a log.

    It has one record. Its key is a version (16 bits, 0) and a type (16 bits: 0 abort, 1 commit). Its value is a version
    (16 bits, 0) and the epoch of the coordinator (32 bits).

    Args:
        producer_id: The producer.
        producer_epoch: The epoch of the producer.
        timestamp_ms: The time.
        is_commit: Whether the transaction is committed; otherwise it is aborted.
        base_offset: The offset of the batch in the log.
        coordinator_epoch: The epoch of the transaction's coordinator.

    Returns:
        A record batch.
    """
    return encode_batch(
        base_offset,
        [_MARKER_VALUE.pack(0, coordinator_epoch)],
        keys=[_MARKER_KEY.pack(0, _COMMIT if is_commit else _ABORT)],
        timestamps=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
    )


def _encode_columns(
    template: BatchHeader, base_offset: int, records: RecordBatch, bytes_max: int | None = None
) -> list[bytes]:
    timestamps = NO_TIMESTAMP if records.timestamps is None else records.timestamps
    return _encode(template, base_offset, records.values, records.keys, records.headers, timestamps, bytes_max)


def _encode(
    template: BatchHeader,
    base_offset: int,
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None,
    headers: Sequence[Iterable[tuple[str, bytes | None]]] | None,
    timestamps: int | Sequence[int],
    bytes_max: int | None = None,
) -> list[bytes]:
    """Return batches of limited size, or one batch if there is no limit.

    The template has the fields that do not depend on the records.
    """
    count = len(values)
    blocks = None if headers is None else pack_headers(headers)
    times = _as_column(timestamps, count)
    _check_sizes(count, values, keys, blocks)
    if not 0 <= base_offset <= OFFSET_MAX - count:
        raise EncodingError("base offset", f"a number from 0 to {OFFSET_MAX - count}, not {base_offset}")
    try:
        written = records_codec().write_records(
            values,
            keys,
            blocks.blocks if blocks is not None and blocks.has_any() else None,
            None if isinstance(times, Repeated) else times,
            BATCH_BYTES_LIMIT if bytes_max is None else bytes_max,
            count if bytes_max is None else max(bytes_max // RECORD_OVERHEAD_BYTES_MAX, 1),
        )
    except TypeError:
        raise EncodingError("values and keys", "bytes or None") from None
    if bytes_max is None and len(written) > 1:
        raise EncodingError("timestamps", "numbers whose differences have 64 bits")
    batches = []
    for part in written:
        base, latest = (times.value,) * 2 if isinstance(times, Repeated) else (part.base_time, part.max_time)
        span = part.record_count
        batches.append(compress_batch(template, base_offset, span, part.record_count, base, latest, part.data))
        base_offset += part.record_count
    return batches


def compress_batch(
    template: BatchHeader,
    base_offset: int,
    span: int,
    count: int,
    base_timestamp: int,
    max_timestamp: int,
    records: bytes,
) -> bytes:
    """Return the batch of encoded records, compressed as the template has it if that makes it smaller.

    It spans `span` offsets: more than it has records if it is compacted.
    """
    if len(records) > BATCH_BYTES_LIMIT:
        raise EncodingError("batch", f"records of at most {BATCH_BYTES_LIMIT} bytes, not {len(records)}")
    compression = template.compression
    if compression is not Compression.NONE:
        compressed = compress(compression, records)
        if len(compressed) < len(records):
            records = compressed
        else:
            compression = Compression.NONE
    header = BatchHeader(
        base_offset,
        HEADER_BYTES + len(records),
        template.leader_epoch,
        0,
        compression,
        template.timestamp_type,
        template.is_transactional,
        template.is_control,
        span - 1,
        base_timestamp,
        max_timestamp,
        template.producer_id,
        template.producer_epoch,
        template.base_sequence,
        count,
    )
    return join_batch(header, records)


def batch_bytes_max(
    values: Sequence[bytes | None],
    *,
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Iterable[tuple[str, bytes | None]]] | None = None,
) -> int:
    """Return an upper bound of the size of a batch with these records, in bytes."""
    blocks = None if headers is None else pack_headers(headers).blocks
    sizes = column_bytes(values) + column_bytes(keys) + column_bytes(blocks)
    return HEADER_BYTES + len(values) * RECORD_OVERHEAD_BYTES_MAX + sizes


def _check_sizes(
    count: int,
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None,
    headers: PackedHeaders | None,
) -> None:
    if not count:
        raise EncodingError("values", "at least one")
    for name, column in (("keys", keys), ("headers", headers)):
        if column is not None and len(column) != count:
            raise EncodingError(name, f"as many as values, {count}, not {len(column)}")
    try:
        size = column_bytes(values) + column_bytes(keys) + column_bytes(headers.blocks if headers else None)
    except TypeError:
        raise EncodingError("values and keys", "bytes or None") from None
    if size > BATCH_BYTES_LIMIT:
        raise EncodingError("batch", f"values, keys and headers of at most {BATCH_BYTES_LIMIT} bytes, not {size}")


def _as_column(timestamps: int | Sequence[int], count: int) -> Repeated | array[int]:
    """Return timestamps as a checked column."""
    column: Repeated | array[int]
    try:
        if isinstance(timestamps, (int, Repeated)):
            column = timestamps if isinstance(timestamps, Repeated) else Repeated(timestamps, count)
            array("q", [column.value])
        else:
            column = timestamps if isinstance(timestamps, array) else array("q", timestamps)
    except (OverflowError, TypeError):
        raise EncodingError("timestamps", "numbers of 64 bits") from None
    if len(column) != count:
        raise EncodingError("timestamps", f"as many as values, {count}, not {len(column)}")
    return column
