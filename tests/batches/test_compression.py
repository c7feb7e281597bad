"""Decompression takes bounded memory, whatever a batch claims."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from collections.abc import Callable
from itertools import product
from pathlib import Path

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka.batches import Compression, decode_batch, encode_batch, read_header
from dafka.batches.compression import compress, decompress, unpacked_bytes_max
from dafka.batches.decoding import decode_batches
from dafka.batches.header import BatchHeader, TimestampType, join_batch
from dafka.errors import BatchError, BatchTooLargeError

COMPRESSED = [kind for kind in Compression if kind is not Compression.NONE]
BYTES_MAX = 1 << 20
BOMB_BYTES = 32 << 20


@pytest.mark.parametrize("kind", list(Compression))
@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 32 * 1024, 256 * 1024 + 1, BYTES_MAX])
def test_data_of_any_size_comes_back_up_to_the_limit(kind: Compression, size: int) -> None:
    for data in (bytes(size), bytes(range(256)) * (size // 256)):
        compressed = compress(kind, data)
        assert decompress(kind, compressed, max(len(data), 1)) == data
        assert decompress(kind, memoryview(compressed), BYTES_MAX) == data
        if len(data) > 1:
            with pytest.raises(BatchTooLargeError, match=f"of at most {len(data) - 1} bytes when decompressed"):
                decompress(kind, compressed, len(data) - 1)


def gzip_bomb() -> bytes:
    return zlib.compress(bytes(BOMB_BYTES), 9, wbits=31)


def raw_snappy_bomb() -> bytes:
    return bytes(cramjam.snappy.compress_raw(bytes(BOMB_BYTES)))


def xerial_bomb() -> bytes:
    """Return blocks each of which is within the limit."""
    block = bytes(cramjam.snappy.compress_raw(bytes(BYTES_MAX)))
    return b"\x82SNAPPY\0\0\0\0\1\0\0\0\1" + (struct.pack(">i", len(block)) + block) * (BOMB_BYTES // BYTES_MAX)


def lz4_bomb() -> bytes:
    return bytes(cramjam.lz4.compress(bytes(BOMB_BYTES)))


def zstd_bomb() -> bytes:
    return bytes(cramjam.zstd.compress(bytes(BOMB_BYTES)))


def silent_zstd_bomb() -> bytes:
    """Return a frame that does not say how large it is, with a window of 128 MiB: blocks that repeat one byte."""
    block = (128 * 1024 << 3 | 1 << 1).to_bytes(3, "little") + b"\0"
    return b"\x28\xb5\x2f\xfd\x00\x88" + block * (BOMB_BYTES >> 17) + b"\1\0\0"


def lying_snappy() -> bytes:
    """Return a block of 10 bytes that claims to have 4 GiB."""
    return b"\xff\xff\xff\xff\x0f" + bytes(5)


def lying_zstd() -> bytes:
    """Return a frame that claims to have 2^62 bytes, in one piece."""
    return b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 2**62) + b"\1\0\0"


BOMBS: dict[str, tuple[Compression, Callable[[], bytes]]] = {
    "gzip": (Compression.GZIP, gzip_bomb),
    "raw snappy": (Compression.SNAPPY, raw_snappy_bomb),
    "xerial": (Compression.SNAPPY, xerial_bomb),
    "snappy that lies": (Compression.SNAPPY, lying_snappy),
    "lz4": (Compression.LZ4, lz4_bomb),
    "zstd": (Compression.ZSTD, zstd_bomb),
    "zstd of unknown size": (Compression.ZSTD, silent_zstd_bomb),
    "zstd that lies": (Compression.ZSTD, lying_zstd),
}


def resident_bytes(field: str) -> int:
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("needs /proc")
    (line,) = [line for line in status.read_text().splitlines() if line.startswith(f"{field}:")]
    return int(line.split()[1]) * 1024


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_in_bounded_memory(name: str) -> None:
    kind, make = BOMBS[name]
    data = make()
    header = BatchHeader(0, 0, -1, 0, kind, TimestampType.CREATE_TIME, False, False, 99_999, 0, 0, -1, -1, -1, 100_000)
    batch = join_batch(header, data)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = resident_bytes("VmRSS")
    tracemalloc.start()
    try:
        with pytest.raises(BatchError, match=f"records .* data of at most {BYTES_MAX} bytes when decompressed"):
            decode_batch(batch, bytes_max=BYTES_MAX)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * BYTES_MAX
    assert resident_bytes("VmHWM") - before < 16 * BYTES_MAX


@pytest.mark.parametrize("kind", COMPRESSED)
def test_malformed_data_is_refused(kind: Compression) -> None:
    data = compress(kind, bytes(range(256)) * 100)
    for broken in (b"", data[:-7], data[: len(data) // 2], data + b"junk", b"junk" + data):
        with pytest.raises(BatchError, match="records") as failed:
            decode_batch(
                join_batch(
                    BatchHeader(0, 0, -1, 0, kind, TimestampType.CREATE_TIME, False, False, 0, 0, 0, -1, -1, -1, 1),
                    broken or b"\0" * 7,
                ),
                bytes_max=BYTES_MAX,
            )
        assert not isinstance(failed.value, BatchTooLargeError)


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 4, 6, 2**31 - 1])
def test_a_block_of_snappy_has_the_length_that_is_before_it(length: int) -> None:
    data = compress(Compression.SNAPPY, b"abc")
    before, block = data[:16], data[20:]
    assert data[16:20] == struct.pack(">i", len(block)) == b"\0\0\0\5"
    with pytest.raises(BatchError):
        decompress(Compression.SNAPPY, before + struct.pack(">i", length) + block, BYTES_MAX)


@pytest.mark.parametrize("kind", COMPRESSED)
def test_error_does_not_keep_what_was_unpacked(kind: Compression) -> None:
    data = compress(kind, bytes(2 * BYTES_MAX))
    tracemalloc.start()
    try:
        with pytest.raises(BatchTooLargeError) as refused:
            decompress(kind, data, BYTES_MAX)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < BYTES_MAX // 2
    assert refused.value.field == "records"


@pytest.mark.parametrize("kind", list(Compression))
@given(data=st.one_of(st.binary(max_size=1000), st.binary(min_size=1, max_size=10).map(lambda part: part * 50_000)))
def test_size_of_unpacked_records_is_never_underestimated(kind: Compression, data: bytes) -> None:
    compressed = compress(kind, data)
    assert len(data) <= unpacked_bytes_max(kind, compressed)
    if kind in {Compression.GZIP, Compression.LZ4, Compression.ZSTD}:  # the decompressors join what is concatenated
        assert decompress(kind, compressed + compressed, BYTES_MAX) == data + data
        assert 2 * len(data) <= unpacked_bytes_max(kind, compressed + compressed)


def test_size_of_unpacked_records_has_all_frames_of_zstd() -> None:
    content = bytes(200_000)
    plain = bytes(cramjam.zstd.compress(content))
    for count in (0, 3, 2**24 + 1):
        skipped = b"\x50\x2a\x4d\x18" + struct.pack("<I", count) + b"\xff" * count
        for data in (skipped + plain, plain + skipped + plain, plain + plain):
            unpacked = decompress(Compression.ZSTD, data, BYTES_MAX)
            assert len(unpacked) <= unpacked_bytes_max(Compression.ZSTD, data)


def zstd_frame(content: bytes, size_code: int, dictionary_code: int, *, is_single: bool, is_checked: bool) -> bytes:
    """Return content as it is, in one frame with some of the optional fields (RFC 8878). Its checksum is wrong."""
    descriptor = size_code << 6 | is_single << 5 | is_checked << 2 | dictionary_code
    size = len(content) - (256 if size_code == 1 else 0)
    fields = b"" if is_single else b"\x50"
    fields += bytes((0, 1, 2, 4)[dictionary_code]) + size.to_bytes(8, "little")[: (is_single, 2, 4, 8)[size_code]]
    block = (len(content) << 3 | 1).to_bytes(3, "little") + content
    return b"\x28\xb5\x2f\xfd%c%b%b%b" % (descriptor, fields, block, b"\xff" * 4 * is_checked)


def test_size_of_unpacked_records_is_exact_for_zstd_frames_that_are_not_compressed() -> None:
    for size_code, dictionary_code, is_single, is_checked in product(range(4), range(4), (False, True), (False, True)):
        content = b"x" * (300 if size_code else 200)
        frame = zstd_frame(content, size_code, dictionary_code, is_single=is_single, is_checked=is_checked)
        assert is_checked or decompress(Compression.ZSTD, 3 * frame, BYTES_MAX) == 3 * content
        assert unpacked_bytes_max(Compression.ZSTD, 3 * frame) == 3 * len(content)


@pytest.mark.parametrize("kind", COMPRESSED)
def test_compressed_batches_are_limited_together(kind: Compression) -> None:
    """The size of each of them says nothing about that of many: a request of a megabyte may have a thousand."""
    batches = []
    for number in range(3):
        data = encode_batch(number, [bytes(100_000)], timestamps=1, compression=kind)
        batches.append((read_header(data), data))
    assert len(decode_batches(batches, bytes_max=400_000).values) == 3
    with pytest.raises(BatchTooLargeError):
        decode_batches(batches, bytes_max=250_000)
