"""Message sets of clients from before record batches: those of other libraries are read, and they read ours."""

from __future__ import annotations

import struct
import tracemalloc
import warnings
import zlib
from random import Random
from typing import Any

import pytest
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder as AioBuilder
from aiokafka.record.memory_records import MemoryRecords as AioRecords

from dafka.batches import Compression, TimestampType, check_crc, decode_batch, encode_batch
from dafka.batches.message_sets import (
    convert_message_set,
    decode_message_set,
    encode_message_set,
    is_message_set,
)
from dafka.errors import BatchError
from tests.batches.samples import BYTES_MAX, SHAPES, TIME

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # importing kafka-python uses what Python deprecates
    from kafka.record.legacy_records import LegacyRecordBatchBuilder
    from kafka.record.memory_records import MemoryRecords

VALUES = [b"value 0", None, b"", b"x" * 5_000]
KEYS = [None, b"key", b"", None]
TIMES = [TIME, TIME + 5, TIME - 7, TIME]

# What kafka-python writes for brokers of version 0.8: in magic 0, the header of an LZ4 frame has a wrong checksum.
OLD_LZ4 = bytes.fromhex(
    "000000000000000000000067da470cf10003ffffffff0000005904224d1860401a4a000000160001005118ccc570c80f00f100036b6579"
    "0000000776616c756520301400b000000100000018bbc2405e0d000b2400113114003000000224004022cb11e40d00072400506c7565203200"
    "000000"
)


def message(
    value: bytes | None, *, key: bytes | None = None, magic: int = 0, attributes: int = 0, offset: int = 0
) -> bytes:
    """Return a message, written field by field."""
    body = struct.pack(">bb", magic, attributes) + (struct.pack(">q", TIME) if magic else b"")
    for content in (key, value):
        body += struct.pack(">i", -1 if content is None else len(content)) + (content or b"")
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def built(builder: type[Any], magic: int, compression: Compression) -> bytes:
    """Return a message set of another library."""
    batch = builder(magic, compression.value, 1 << 20)
    for offset, (value, key, time) in enumerate(zip(VALUES, KEYS, TIMES, strict=True)):
        batch.append(offset, timestamp=time if magic else None, key=key, value=value)
    return bytes(batch.build())


CASES = [
    (builder, magic, compression)
    for builder in (LegacyRecordBatchBuilder, AioBuilder)
    for magic in (0, 1)
    for compression in (Compression.NONE, Compression.GZIP, Compression.SNAPPY, Compression.LZ4)
    if (magic, compression) != (0, Compression.LZ4)  # the libraries need another package for it: see OLD_LZ4
]


@pytest.mark.parametrize(("builder", "magic", "compression"), CASES)
def test_sets_of_others_are_converted(builder: type[Any], magic: int, compression: Compression) -> None:
    data = built(builder, magic, compression)
    assert is_message_set(data)
    batch = convert_message_set(memoryview(data), bytes_max=BYTES_MAX)
    assert not is_message_set(batch)
    header = check_crc(batch)
    assert (header.base_offset, header.count, header.compression) == (0, 4, compression)
    decoded = decode_batch(batch, bytes_max=BYTES_MAX)
    assert decoded.values == VALUES
    assert decoded.keys == KEYS
    assert list(decoded.timestamps) == (TIMES if magic else [-1] * 4)


def test_old_frames_of_lz4() -> None:
    found = decode_message_set(OLD_LZ4, bytes_max=BYTES_MAX)
    assert found.values == [b"value 0", b"value 1", b"value 2"]
    assert found.keys == [b"key"] * 3
    assert found.compression is Compression.LZ4


@pytest.mark.parametrize("reader", [MemoryRecords, AioRecords])
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("name", ["one", "tombstone", "mixed", "times", "headers"])
def test_others_read_our_sets(name: str, magic: int, reader: type[Any]) -> None:
    records = SHAPES[name]
    data = encode_message_set(records.encode(40, compression=Compression.GZIP), magic, bytes_max=BYTES_MAX)
    read, found = reader(data), []
    while read.has_next():
        batch = read.next_batch()
        assert batch.validate_crc()
        found += [(each.offset, each.timestamp if magic else None, each.key, each.value) for each in batch]
    keys = records.keys or [None] * len(records.values)
    times = records.times if magic else [None] * len(records.values)
    assert found == list(zip(range(40, 40 + len(keys)), times, keys, records.values, strict=True))


@pytest.mark.parametrize("size", [0, 1, 255, 256, 70_000])
def test_old_frames_of_lz4_that_have_their_size(size: int) -> None:
    """The decompressor refuses a frame whose header has a wrong checksum."""
    inner = message(b"v" * size)
    header = struct.pack("<IBBQ", 0x184D2204, 0x68, 0x70, len(inner))
    frame = header + b"?" + struct.pack("<I", 2**31 | len(inner)) + inner + bytes(4)
    found = decode_message_set(message(frame, attributes=3), bytes_max=BYTES_MAX)
    assert found.values == [b"v" * size]
    with pytest.raises(BatchError):  # since magic 1, it must be right
        decode_message_set(message(frame, attributes=3, magic=1), bytes_max=BYTES_MAX)


def test_layout() -> None:
    """The bytes as Kafka's documentation describes them."""
    written = encode_message_set(encode_batch(7, [b"v"], keys=[b"k"], timestamps=TIME), 0, bytes_max=BYTES_MAX)
    body = bytes.fromhex("00 00 00000001 6b 00000001 76")
    assert written == bytes.fromhex("0000000000000007 00000010") + struct.pack(">I", zlib.crc32(body)) + body
    assert written == message(b"v", key=b"k", offset=7)


@pytest.mark.parametrize("magic", [0, 1])
def test_offsets_in_a_stored_set(magic: int) -> None:
    """A broker stores a compressed message with the offset of its last message, and relative offsets in magic 1."""
    data = built(LegacyRecordBatchBuilder, magic, Compression.GZIP)
    data = struct.pack(">q", 43) + data[8:]
    assert list(decode_message_set(data, bytes_max=BYTES_MAX).offsets) == ([40, 41, 42, 43] if magic else [0, 1, 2, 3])


def test_offsets_reach_the_largest() -> None:
    for offset, first, expected in ((2**63 - 1, 6, 2**63 - 2), (-(2**63), 8, 1 - 2**63)):
        found = decode_message_set(wrapped(offset, first), bytes_max=BYTES_MAX)
        assert list(found.offsets) == [expected, offset]


def test_time_of_a_broker() -> None:
    inner = message(b"a", magic=1) + message(b"b", magic=1, offset=1)
    body = struct.pack(">bbqi", 1, 0x08 | 1, 99, -1)
    compressed = zlib.compress(inner, wbits=31)
    body += struct.pack(">i", len(compressed)) + compressed
    data = struct.pack(">qiI", 1, len(body) + 4, zlib.crc32(body)) + body
    assert list(decode_message_set(data, bytes_max=BYTES_MAX).timestamps) == [99, 99]
    batch = encode_batch(0, [b"a"], timestamps=99, timestamp_type=TimestampType.LOG_APPEND_TIME)
    assert encode_message_set(batch, 1, bytes_max=BYTES_MAX)[17] == 0x08
    assert encode_message_set(batch, 0, bytes_max=BYTES_MAX)[17] == 0


def test_control_batches_are_left_out() -> None:
    batch = encode_batch(0, [b"\0\0\0\0\0\0"], keys=[b"\0\0\0\1"], timestamps=TIME, is_control=True)
    assert encode_message_set(batch, 1, bytes_max=BYTES_MAX) == b""


GZIPPED = zlib.compress(message(b"b"), wbits=31)


def with_body(body: bytes) -> bytes:
    """Return a message with a right CRC and this content from the magic on."""
    return struct.pack(">qiI", 0, len(body) + 4, zlib.crc32(body)) + body


def wrapped(offset: int, first: int) -> bytes:
    """Return a compressed message with this offset, and the offset of the first one of two inside; the last has 7."""
    inner = message(b"a", magic=1, offset=first) + message(b"b", magic=1, offset=7)
    return message(zlib.compress(inner, wbits=31), attributes=1, magic=1, offset=offset)


MALFORMED: list[tuple[bytes, str]] = [
    (b"", "message set at byte 0: expected at least one message"),
    (message(zlib.compress(b"", wbits=31), attributes=1), "expected at least one message"),
    (message(b"a")[:17], "message at byte 0: expected at least 18 bytes, 17 are left"),
    (message(b"a", magic=2), "magic at byte 16: expected 0 or 1, not 2"),
    (message(b"a", attributes=4), "attributes at byte 17: expected a known compression, not 0x04"),
    (message(b"a")[:-1] + b"b", "crc at byte 12"),
    (message(b"a")[:-1], "message size at byte 8: expected 14 to 14, not 15"),
    (message(b"a") + message(b"a")[:-1], "message size at byte 35"),
    (struct.pack(">qi", 0, 13) + message(b"a")[12:], "message size at byte 8: expected 14 to 15, not 13"),
    (struct.pack(">qi", 0, -1) + message(b"a")[12:], "message size at byte 8"),
    (message(message(zlib.compress(GZIPPED), attributes=1), attributes=1), "expected gzip data"),
    (
        message(zlib.compress(message(GZIPPED, attributes=1), wbits=31), attributes=1),
        "an uncompressed message in a",
    ),
    (message(GZIPPED, attributes=1, magic=1), "magic: expected 1 as in the outer message, not 0"),
    (message(None, attributes=1), "expected gzip data"),
    (with_body(bytes(2) + b"\xff" * 8 + b"x"), "message size at byte 8: expected 14, not 15"),
    (with_body(b"\1\0" + bytes(8)), "key length at byte 26: expected 4 bytes, 0 are left"),
    (with_body(bytes(5) + b"\1k" + bytes(3)), "value length at byte 23: expected 4 bytes, 3 are left"),
    *(
        (wrapped(offset, first), "offset: expected a number of 64 bits")
        for offset, first in ((2**63 - 1, 8), (-(2**63), 6))
    ),
]


def test_malformed() -> None:
    for data, error in MALFORMED:
        with pytest.raises(BatchError, match=error):
            decode_message_set(data, bytes_max=BYTES_MAX)


def with_crc(data: bytes) -> bytes:
    """Return a message with its CRC corrected."""
    return data[:12] + struct.pack(">I", zlib.crc32(data[16:])) + data[16:]


@pytest.mark.parametrize("length", [-2, 2, 2**31 - 1])
def test_claimed_length(length: int) -> None:
    data = message(b"a", key=b"k")
    for place in (18, 23):
        with pytest.raises(BatchError, match="length"):
            decode_message_set(with_crc(data[:place] + struct.pack(">i", length) + data[place + 4 :]), bytes_max=999)


def test_times_too_far_apart() -> None:
    times = struct.pack(">q", -(2**62)), struct.pack(">q", 2**62)
    data = b"".join(with_crc(message(b"a", magic=1)[:18] + time + message(b"a", magic=1)[26:]) for time in times)
    with pytest.raises(BatchError, match="timestamps"):
        convert_message_set(struct.pack(">q", 0) + data[8:], bytes_max=BYTES_MAX)


def test_sizes_are_limited() -> None:
    half = message(b"x" * 60)
    assert decode_message_set(half, bytes_max=len(half)).values == [b"x" * 60]
    with pytest.raises(BatchError, match="at most"):
        decode_message_set(half, bytes_max=len(half) - 1)
    wrapped = message(zlib.compress(half, wbits=31), attributes=1)
    assert decode_message_set(wrapped, bytes_max=len(half)).values == [b"x" * 60]
    with pytest.raises(BatchError, match="gzip data"):
        decode_message_set(wrapped * 2, bytes_max=2 * len(half) - 1)


def test_memory_of_a_bomb() -> None:
    bomb = message(zlib.compress(bytes(2**26), wbits=31), attributes=1)
    tracemalloc.start()
    try:
        with pytest.raises(BatchError, match="at most 100000 bytes when decompressed"):
            decode_message_set(bomb, bytes_max=100_000)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def test_hostile_sets() -> None:
    """Whatever changes in a set, there is a message set or a `BatchError`."""
    random, outcomes = Random(1), set()
    for builder, magic, compression in CASES:
        data = built(builder, magic, compression)
        for end in (*range(33), len(data) - 1):
            with pytest.raises(BatchError):
                decode_message_set(data[:end], bytes_max=BYTES_MAX)
        for _ in range(300):
            changed = bytearray(data)
            for _ in range(random.choice([1, 2, 4])):
                changed[random.randrange(min(len(data), 120))] = random.choice([0, 1, 0x7F, 0x80, 0xFF])
            try:
                convert_message_set(with_crc(bytes(changed)), bytes_max=BYTES_MAX)
                outcomes.add("converted")
            except BatchError as error:
                outcomes.add(error.field)
    assert {"converted", "message size", "magic", "key length", "value length", "records", "crc"} <= outcomes
