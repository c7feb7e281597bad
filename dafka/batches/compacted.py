"""Compacted batches, in which records are missing: the offset deltas increase, and the header has the last one.

They are part of Kafka's format, and its clients read them. If all records were removed, the batch is empty. Only stores
and brokers write compacted batches. They are read and written in Python, since they contain few records.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import compress, repeat
from operator import not_
from typing import NamedTuple

import attrs

from dafka.batches.columns import NO_HEADERS, PackedHeaders, RecordColumns, pack_headers
from dafka.batches.decoding import open_part
from dafka.batches.encoding import PLAIN, compress_batch, encode_batches, template_from
from dafka.batches.header import SPAN_MAX, BatchHeader, Compression, TimestampType, read_header
from dafka.batches.reading import read_sparse_records
from dafka.batches.varints import write_natural, write_varint
from dafka.packed_bytes import Repeated, pack
from dafka.records import BATCH_BYTES_LIMIT, NO_TIMESTAMP, RecordBatch, find_held

_NULL = write_varint(-1)


class SparseColumns(NamedTuple):
    """The records of a compacted batch: an item for each offset that it spans, which is empty where one is missing.

    `compacted` has a byte for each offset: 1 where a record is missing.
    """

    columns: RecordColumns
    compacted: bytes


def decode_sparse(header: BatchHeader, data: bytes | memoryview, bytes_max: int) -> SparseColumns:
    """Return the records of a compacted batch; raise `BatchError` if it is malformed, or decompressed too large."""
    span = header.last_offset_delta + 1
    found = read_sparse_records(open_part(header, data, bytes_max), span)
    values: list[bytes | None] = [None] * span
    mask = bytearray(b"\1" * span)
    timestamps = array("q", [NO_TIMESTAMP]) * span
    is_append_time = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    for delta, value, timestamp in zip(found.deltas, found.values, found.timestamps, strict=True):
        values[delta] = value
        mask[delta] = 0
        timestamps[delta] = header.max_timestamp if is_append_time else timestamp
    keys = list(map(found.keys.get, range(span))) if found.keys else None
    blocks = [found.blocks.get(delta, NO_HEADERS) for delta in range(span)]
    headers = PackedHeaders(pack(blocks)) if found.blocks else None
    return SparseColumns(RecordColumns(values, keys, headers, timestamps), bytes(mask))


def decode_held(
    header: BatchHeader, data: bytes | memoryview, *, bytes_max: int = BATCH_BYTES_LIMIT
) -> list[tuple[int, RecordColumns]]:
    """Return the records of a compacted batch without items for missing ones.

    Args:
        header: The header of the batch.
        data: The batch.
        bytes_max: The maximum size of the records when decompressed.

    Returns:
        Columns of consecutive records, each with the offset of its first record.

    Raises:
        BatchError: The batch is malformed, or larger than allowed.
    """
    columns, compacted = decode_sparse(header, data, bytes_max)
    return [(header.base_offset + start, columns[start:stop]) for start, stop in find_held(compacted)]


def encode_rest(data: bytes, rest: RecordBatch) -> bytes:
    """Return a part of the records of a record batch, some of which may be missing, with its transaction and producer.

    `data` is the record batch. Raise `EncodingError` if a record batch cannot contain the records.
    """
    header = read_header(data)
    template = template_from(header, rest.first_sequence - header.base_offset)
    template = attrs.evolve(template, timestamp_type=TimestampType.CREATE_TIME)
    return _encode_part(rest, rest.compacted or bytes(len(rest)), template)


def encode_sparse(batch: RecordBatch, compression: Compression, bytes_max: int) -> list[bytes]:
    """Return compacted records as batches of limited size, which together span the sequences of the records.

    They belong to no transaction. See `encode_batches`.
    """
    encoded: list[bytes] = []
    sequence = batch.first_sequence
    while sequence < batch.end_sequence:
        part = batch.between(sequence, sequence + SPAN_MAX).within(bytes_max)
        sequence = part.end_sequence
        if part.compacted is None:
            encoded += encode_batches(part, compression, bytes_max)
        else:
            encoded.append(_encode_part(part, part.compacted, attrs.evolve(PLAIN, compression=compression)))
    return encoded


def _encode_part(part: RecordBatch, compacted: bytes, template: BatchHeader) -> bytes:
    held = bytes(map(not_, compacted))
    times = Repeated(NO_TIMESTAMP, len(part)) if part.timestamps is None else part.timestamps
    timestamps = list(compress(times, held))
    base = timestamps[0] if timestamps else NO_TIMESTAMP
    columns = zip(
        range(len(part)),
        part.values,
        repeat(None) if part.keys is None else part.keys,
        repeat(NO_HEADERS) if part.headers is None else pack_headers(part.headers).blocks,
        times,
        strict=False,
    )
    records = []
    for delta, value, key, block, timestamp in compress(columns, held):
        body = b"".join(
            (
                b"\0",
                write_varint(timestamp - base),
                write_natural(delta),
                _NULL if key is None else write_varint(len(key)) + key,
                _NULL if value is None else write_varint(len(value)) + value,
                block,
            )
        )
        records.append(write_varint(len(body)) + body)
    latest = max(timestamps, default=NO_TIMESTAMP)
    return compress_batch(template, part.first_sequence, len(part), len(timestamps), base, latest, b"".join(records))


def compression_of(batches: Sequence[bytes]) -> Compression:
    """Return the compression of the first record batch."""
    return read_header(batches[0]).compression if batches else Compression.NONE
