"""Changing the compression or the times of a batch keeps its records, and everything else that its header says."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import product

import attrs
import pytest

from dafka.batches import (
    BatchHeader,
    Compression,
    TimestampType,
    check_crc,
    compress_whole,
    decode_batch,
    decompress_batch,
    encode_batch,
    with_timestamp_type,
)
from dafka.errors import BatchTooLargeError

LEVELS: dict[Compression, list[int | None]] = {
    Compression.GZIP: [None, 1, 6, 9],
    Compression.SNAPPY: [None],
    Compression.LZ4: [None, *range(1, 18)],
    Compression.ZSTD: [None, -131072, -1, 1, 3, 22],
}
_DRAW = random.Random(1)
VALUES = [b"%d:%s" % (_DRAW.randrange(5000), _DRAW.choice([b"alpha", b"beta"]) * (each % 3)) for each in range(9000)]


def make_batch(compression: Compression, values: Sequence[bytes] = VALUES) -> tuple[BatchHeader, bytes]:
    data = encode_batch(
        7,
        values,
        keys=[None if number % 3 else b"%d" % number for number in range(len(values))],
        headers=[[("h", b"%d" % number)] for number in range(len(values))],
        timestamps=[1_000_000 + number * 37 % 501 for number in range(len(values))],
        compression=compression,
        leader_epoch=3,
        producer_id=4,
        producer_epoch=5,
        base_sequence=6,
        is_transactional=True,
    )
    return check_crc(data), data


def facts(header: BatchHeader) -> BatchHeader:
    """Return what must stay of a header when its records are compressed in another way."""
    return attrs.evolve(header, size=0, crc=0, compression=Compression.NONE)


@pytest.mark.parametrize("before", list(Compression))
def test_records_are_the_same_after_any_other_compression(before: Compression) -> None:
    header, data = make_batch(before)
    assert header.compression is before
    records = decode_batch(data)
    plain_header, plain = decompress_batch(header, memoryview(data), 2**20)
    assert check_crc(plain) == plain_header
    assert plain_header.compression is Compression.NONE
    sizes: dict[Compression, list[int]] = {}
    for compression, levels in LEVELS.items():
        for level in levels:
            changed_header, changed = compress_whole(plain_header, plain, compression, level)
            assert check_crc(changed) == changed_header
            assert (changed_header.compression, facts(changed_header)) == (compression, facts(header))
            found = decode_batch(changed)
            assert attrs.evolve(found, header=header) == records
            sizes.setdefault(compression, []).append(len(changed))
    for compression in (Compression.GZIP, Compression.LZ4, Compression.ZSTD):
        assert len({*sizes[compression]}) > 2, "levels make a difference"


def test_a_batch_is_compressed_even_if_that_makes_it_larger_and_decompressed_within_a_limit() -> None:
    tiny_header, tiny = make_batch(Compression.NONE, [b"x"])
    for compression in LEVELS:
        header, data = compress_whole(tiny_header, tiny, compression)
        assert header.compression is compression
        assert decode_batch(data).values == [b"x"]
    header, data = make_batch(Compression.ZSTD)
    size = decompress_batch(header, data, 2**20)[0].size - 61
    decompress_batch(header, data, size)
    with pytest.raises(BatchTooLargeError):
        decompress_batch(header, data, size - 1)


def test_a_batch_with_append_times_has_one_time_and_may_lose_it_again() -> None:
    for compression, time_ms in product(Compression, (0, 1_700_000_000_000, 2**62)):
        header, data = make_batch(compression)
        stamped_header, stamped = with_timestamp_type(header, data, TimestampType.LOG_APPEND_TIME, time_ms)
        assert check_crc(stamped) == stamped_header
        assert list(decode_batch(stamped).timestamps) == [time_ms] * len(VALUES)
        expected = attrs.evolve(
            header, crc=stamped_header.crc, timestamp_type=TimestampType.LOG_APPEND_TIME, max_timestamp=time_ms
        )
        assert stamped_header == expected
        assert with_timestamp_type(stamped_header, stamped, TimestampType.LOG_APPEND_TIME) == (stamped_header, stamped)
        _, again = with_timestamp_type(stamped_header, stamped, TimestampType.CREATE_TIME, header.max_timestamp)
        assert again == data
