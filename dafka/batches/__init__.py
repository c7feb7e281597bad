"""Kafka's record batches, version 2: records with keys, headers and times, compressed or not. Bytes in, values out."""

from dafka.batches.codec import records_codec
from dafka.batches.columns import Headers, PackedHeaders, RecordColumns, pack_headers
from dafka.batches.compacted import compression_of, decode_held
from dafka.batches.decoding import DecodedBatch, decode_batch, unpacked_bytes_max
from dafka.batches.encoding import batch_bytes_max, encode_batch, encode_marker
from dafka.batches.header import (
    HEADER_BYTES,
    SPAN_MAX,
    BatchHeader,
    Compression,
    TimestampType,
    check_crc,
    iter_batches,
    move_in_place,
    read_header,
    scan_batches,
    with_base_offset,
    with_timestamp_type,
)
from dafka.batches.recompression import compress_whole, decompress_batch
from dafka.batches.records import (
    COMPRESSED_BYTES_MAX,
    ENCODED_BYTES_MAX,
    decode_records,
    decode_run,
    encode_records,
    move_records,
    slice_records,
)

__all__ = [
    "COMPRESSED_BYTES_MAX",
    "ENCODED_BYTES_MAX",
    "HEADER_BYTES",
    "SPAN_MAX",
    "BatchHeader",
    "Compression",
    "DecodedBatch",
    "Headers",
    "PackedHeaders",
    "RecordColumns",
    "TimestampType",
    "batch_bytes_max",
    "check_crc",
    "compress_whole",
    "compression_of",
    "decode_batch",
    "decode_held",
    "decode_records",
    "decode_run",
    "decompress_batch",
    "encode_batch",
    "encode_marker",
    "encode_records",
    "iter_batches",
    "move_in_place",
    "move_records",
    "pack_headers",
    "read_header",
    "records_codec",
    "scan_batches",
    "slice_records",
    "unpacked_bytes_max",
    "with_base_offset",
    "with_timestamp_type",
]
