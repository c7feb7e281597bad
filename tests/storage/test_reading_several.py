"""Ranges of many partitions, which a storage may read at once: the same records as one partition after the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from dafka.records import Partition, RecordBatch
from dafka.storage import open_storage, read_range
from dafka.storage.opening import SEVERAL, SEVERAL_BYTES, read_ranges


@pytest.mark.parametrize("url", ["memory:", "sqlite:{}/store.db", "filelog:{}/log"])
async def test_ranges_of_many_partitions(tmp_path: Path, url: str) -> None:
    async with open_storage(url.format(tmp_path)) as storage:
        partitions = [Partition("orders", f"{number}") for number in range(SEVERAL + 10)]
        for part in range(3):
            batches = [
                RecordBatch(each, 4 * part, [b"%d %d" % (number, part)] * 4) for number, each in enumerate(partitions)
            ]
            await storage.append(batches)
        large = [b"x" * (SEVERAL_BYTES // 2)] * 5
        await storage.append([RecordBatch(partitions[3], 12, large)])
        await storage.trim(partitions[5], 6)
        ranges = {each: (number % 7, 12 - number % 3) for number, each in enumerate(partitions)}
        ranges[partitions[3]] = (2, 17)
        ranges[partitions[9]] = (4, 4)
        ranges[Partition("orders", "unknown")] = (0, 5)
        found: dict[Partition, list[tuple[int, bytes | None]]] = {}
        async for batch in read_ranges(storage, ranges):
            found.setdefault(batch.partition, []).extend(enumerate(batch.values, batch.first_sequence))
        wanted: dict[Partition, list[tuple[int, bytes | None]]] = {}
        for partition, (first, end) in ranges.items():
            async for batch in read_range(storage, partition, first, end):
                wanted.setdefault(partition, []).extend(enumerate(batch.values, batch.first_sequence))
        assert found == wanted
