"""Reads of SQLite storages: many records at once, and never more than was asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dafka.packed_bytes import PackedContents
from dafka.records import Partition, RecordBatch
from dafka.storage import Storage, open_storage

PARTITION = Partition("orders", "A")


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[Storage]:
    async with open_storage(f"sqlite:{tmp_path}/store.db") as opened:
        yield opened


@pytest.mark.parametrize("with_times", [True, False])
@pytest.mark.parametrize("lengths", [[3] * 100, [sequence % 7 for sequence in range(100)], [0] * 100])
async def test_many_records_are_read_as_one_row(storage: Storage, lengths: list[int], with_times: bool) -> None:
    """Row by row, a store next to a busy event loop would read a few thousand records a second."""
    contents = [b"x" * length for length in lengths]
    times = [1000 + sequence // 10 for sequence in range(100)]
    await storage.append([RecordBatch(PARTITION, 0, contents, stored_at=times)])
    for first, count, expected in ((0, 100, 100), (0, 1000, 100), (50, 40, 40), (68, 100, 32)):
        batch = await storage.read(PARTITION, first, count, with_times=with_times)
        assert batch is not None
        assert isinstance(batch.values, PackedContents), (first, count)
        assert list(batch.values) == contents[first : first + expected]
        assert batch.stored_at == (times[first : first + expected] if with_times else None)


async def test_records_larger_than_the_average_are_read_within_the_limit(storage: Storage) -> None:
    large = [b"%03d" % number * 400 for number in range(100)]
    await storage.append([RecordBatch(PARTITION, 0, [b"1"] * 1000), RecordBatch(PARTITION, 1000, large)])
    for bytes_max, expected in ((60_000, 50), (60_000 - 1, 49), (1200, 1), (1, 1)):
        batch = await storage.read(PARTITION, 1000, 500, bytes_max)
        assert batch is not None
        assert list(batch.values) == large[:expected], bytes_max
    mixed = [b"x" * (1200 + number % 3) for number in range(100)]
    await storage.append([RecordBatch(PARTITION, 1100, mixed)])
    for kept in (60, 33, 2):
        for bytes_max, expected in ((sum(map(len, mixed[:kept])), kept), (sum(map(len, mixed[:kept])) - 1, kept - 1)):
            batch = await storage.read(PARTITION, 1100, 500, bytes_max)
            assert batch is not None
            assert list(batch.values) == mixed[:expected]
