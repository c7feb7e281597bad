"""Other people's code reads what this package writes, and the reverse: `kafka-python` and `aiokafka`."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import cramjam
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from aiokafka.record.memory_records import MemoryRecords as AioRecords

from dafka.batches import Compression, check_crc, decode_batch, scan_batches, with_base_offset
from tests.batches.samples import BYTES_MAX, COMPRESSIONS, SHAPES, Records

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # importing kafka-python uses what Python deprecates
    from kafka.record.default_records import DefaultRecordBatchBuilder
    from kafka.record.memory_records import MemoryRecords

Rows = list[tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]]

# Their readers decode names of headers as UTF-8 alone.
NAMES = [name for name in SHAPES if name != "foreign header name"]


def rows(records: Records, base_offset: int) -> Rows:
    """Return what a reader must find: offset, time, key, value, headers."""
    count = len(records.values)
    keys, headers = records.keys or [None] * count, records.headers or [()] * count
    offsets = range(base_offset, base_offset + count)
    return [
        (offset, time, key, value, list(pairs))
        for offset, time, key, value, pairs in zip(offsets, records.times, keys, records.values, headers, strict=True)
    ]


def foreign_batches(reader: type[Any], data: bytes) -> Iterator[Any]:
    found = reader(data)
    while found.has_next():
        yield found.next_batch()


@pytest.mark.parametrize("reader", [MemoryRecords, AioRecords])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_log_of_ours_is_read_by_others(compression: Compression, reader: type[Any]) -> None:
    log, expected, offset = b"", [], 5
    for name in NAMES:
        log += SHAPES[name].encode(offset, compression=compression)
        expected += rows(SHAPES[name], offset)
        offset = len(expected) + 5
    read: Rows = []
    for batch in foreign_batches(reader, log):
        assert batch.validate_crc()
        read += [(each.offset, each.timestamp, each.key, each.value, list(each.headers)) for each in batch]
    assert read == expected


@pytest.mark.parametrize("builder", [DefaultRecordBatchBuilder, AioBuilder])
@pytest.mark.parametrize("name", NAMES)
def test_batches_of_others_are_read(name: str, builder: type[Any]) -> None:
    """Small shapes are tried with one compression each, and shapes of many records with every compression."""
    records = SHAPES[name]
    is_large = len(records.values) >= 300
    for compression in COMPRESSIONS if is_large else [COMPRESSIONS[NAMES.index(name) % len(COMPRESSIONS)]]:
        built = builder(2, compression.value, False, -1, -1, -1, 1 << 24)
        for offset, time, key, value, headers in rows(records, 0):
            built.append(offset, time, key, value, headers)
        batch = with_base_offset(bytes(built.build()), 40)
        header = check_crc(batch)
        assert (header.base_offset, header.count) == (40, len(records.values))
        assert header.compression is compression or not is_large
        assert [found for _, found in scan_batches(batch)] == [header]
        records.expect(decode_batch(batch, bytes_max=BYTES_MAX))


def reframe(batch: bytes, compress: Callable[[bytes], bytes]) -> bytes:
    """Return a batch with its records compressed in another way. The CRC is not adapted."""
    data = compress(batch[61:])
    return batch[:8] + (len(data) + 49).to_bytes(4, "big") + batch[12:61] + data


@pytest.mark.parametrize(
    ("compression", "compress"),
    [
        (Compression.SNAPPY, cramjam.snappy.compress_raw),
        (Compression.LZ4, cramjam.lz4.compress),
        (Compression.GZIP, lambda data: zlib.compress(data[:99], wbits=31) + zlib.compress(data[99:], wbits=31)),
        (Compression.ZSTD, lambda data: bytes(cramjam.zstd.compress(data[:9])) + cramjam.zstd.compress(data[9:])),
    ],
    ids=["raw snappy", "LZ4 with dependent blocks", "gzip members", "zstd frames"],
)
def test_other_framings_are_read(compression: Compression, compress: Callable[[bytes], bytes]) -> None:
    records = SHAPES["growing"]
    batch = reframe(records.encode(), lambda data: bytes(compress(data)))
    batch = batch[:21] + compression.value.to_bytes(2, "big") + batch[23:]
    records.expect(decode_batch(batch, bytes_max=BYTES_MAX))


def test_lz4_blocks_are_independent_as_java_requires() -> None:
    flags = SHAPES["alike"].encode(compression=Compression.LZ4)[61 + 4]
    assert flags & 0x20
