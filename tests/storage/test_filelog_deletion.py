"""The files that a deleted partition of a file log leaves on disk, also if the process is killed meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from dafka.records import Partition, RecordBatch, new_address
from dafka.storage import DeletesPartitions, Storage, open_storage
from dafka.storage.filelog import recovery

FIRST, SECOND = Partition("orders", "A" * 32), Partition("orders", "B" * 32)


async def fill(storage: Storage, *partitions: Partition) -> DeletesPartitions:
    await storage.append([RecordBatch(each, 3, [b"%d" % number for number in range(10)]) for each in partitions])
    assert isinstance(storage, DeletesPartitions)
    return storage


@pytest.mark.parametrize("is_listed_between", [True, False])
async def test_another_process_reads_a_partition_that_began_again_in_the_same_segment(
    is_listed_between: bool, tmp_path: Path
) -> None:
    async with (
        open_storage(f"filelog:{tmp_path}/log") as storage,
        open_storage(f"filelog:{tmp_path}/log", read_only=True) as reader,
    ):
        deleting = await fill(storage, FIRST)
        assert await reader.read(FIRST, 3, 4) == RecordBatch(FIRST, 3, [b"0", b"1", b"2", b"3"])
        await deleting.delete_partitions([FIRST])
        if is_listed_between:
            assert await reader.read(FIRST, 3, 1) is None
        await storage.append([RecordBatch(FIRST, 3, [b"again %d" % number for number in range(10)])])
        assert await reader.read(FIRST, 7, 1) == RecordBatch(FIRST, 7, [b"again 4"])
        assert await reader.read(FIRST, 3, 1) == RecordBatch(FIRST, 3, [b"again 0"])


async def test_the_catalog_drops_names_of_deleted_partitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "VACANT_MAX", 5)
    url, names = f"filelog:{tmp_path}/log", tmp_path / "log" / "catalog.names"
    async with open_storage(url) as storage:
        deleting = await fill(storage, FIRST)
        size = names.stat().st_size
        partitions = [Partition("t", new_address()) for _ in range(20)]
        await fill(storage, *partitions)
        await deleting.delete_partitions(partitions)
        await fill(storage, SECOND)
    assert names.stat().st_size > 20 * 32
    async with open_storage(url) as storage:
        assert set(await storage.partitions()) == {FIRST, SECOND}
        await storage.append([RecordBatch(SECOND, 13, [b"more"])])
    assert names.stat().st_size == 2 * size
    async with open_storage(url) as storage:
        assert {each: info.end_sequence for each, info in (await storage.partitions()).items()} == {
            FIRST: 13,
            SECOND: 14,
        }
        assert await storage.find_damage() == []
