"""A storage whose files are removed or replaced while it is open raises, and acknowledges nothing more."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dafka.errors import StorageLostError
from dafka.storage import DetectsRemoval, open_storage
from tests.storage.records import PARTITION, batch


def remove_all(path: Path) -> None:
    for each in path.parent.glob(f"{path.name}*"):
        shutil.rmtree(each) if each.is_dir() else each.unlink()


def remove_segment(path: Path) -> None:
    (segment,) = path.rglob("*.log")
    segment.unlink()


def remove_partition(path: Path) -> None:
    (segment,) = path.rglob("*.log")
    shutil.rmtree(segment.parent)


def move(path: Path) -> None:
    path.rename(path.with_name("moved"))


def put_another_in_place(path: Path) -> None:
    move(path)
    path.mkdir() if path.with_name("moved").is_dir() else path.touch()


LOSSES: dict[str, list[Callable[[Path], object]]] = {
    "sqlite": [Path.unlink, remove_all, move, put_another_in_place],
    "filelog": [shutil.rmtree, remove_segment, remove_partition, move, put_another_in_place],
}


@pytest.mark.parametrize(("scheme", "lose"), [(scheme, lose) for scheme, several in LOSSES.items() for lose in several])
async def test_lost_storage_refuses_changes_and_can_be_opened_again(
    scheme: str, lose: Callable[[Path], object], tmp_path: Path
) -> None:
    url, path = f"{scheme}:{tmp_path}/store", tmp_path / "store"
    async with open_storage(url) as storage:
        assert isinstance(storage, DetectsRemoval)
        identity = storage.identity
        await storage.append([batch(0, 10)])
        await storage.check_not_removed()
        lose(path)
        with pytest.raises(StorageLostError, match=str(path)):
            await storage.check_not_removed()
        for _ in range(2):
            with pytest.raises(StorageLostError, match=str(path)):
                await storage.append([batch(10, 20)])
    async with open_storage(url) as storage:
        end = (await storage.partitions()).get(PARTITION)
        assert end is None or end.end_sequence == 0
        await storage.append([batch(0, 30)])
        assert isinstance(storage, DetectsRemoval)
        await storage.check_not_removed()
        is_new = lose not in (remove_segment, remove_partition)
        assert (storage.identity != identity) == is_new
    async with open_storage(url, read_only=True) as storage:
        assert await storage.read(PARTITION, 0, 100) == batch(0, 30)


@pytest.mark.parametrize("read_only", [False, True])
async def test_a_file_log_is_lost_when_another_takes_its_place_and_its_inode(
    *, read_only: bool, tmp_path: Path
) -> None:
    url, marker = f"filelog:{tmp_path}/store", tmp_path / "store" / "filelog.json"
    async with open_storage(url) as storage:
        await storage.append([batch(0, 10)])
    async with open_storage(url, read_only=read_only) as storage:
        assert isinstance(storage, DetectsRemoval)
        await storage.check_not_removed()
        marker.unlink()
        marker.write_bytes(b"{}")  # most file systems give it the inode of the file before, unless that is open
        with pytest.raises(StorageLostError, match=r"filelog\.json was removed or replaced"):
            await (storage.check_not_removed() if read_only else storage.append([batch(10, 20)]))


async def test_replaced_database_gets_nothing_from_the_log_of_the_previous_one(tmp_path: Path) -> None:
    url, path, copy = f"sqlite:{tmp_path}/store", tmp_path / "store", tmp_path / "copy"
    async with open_storage(url) as storage:
        await storage.append([batch(0, 10)])
    shutil.copyfile(path, copy)
    async with open_storage(url) as storage:
        assert isinstance(storage, DetectsRemoval)
        identity = storage.identity
        await storage.append([batch(10, 1010)])
        copy.rename(path)
        with pytest.raises(StorageLostError, match="was removed or replaced"):
            await storage.check_not_removed()
    async with open_storage(url) as storage:
        assert storage.identity == identity
        assert (await storage.partitions())[PARTITION].end_sequence == 10
        assert await storage.read(PARTITION, 0, 100) == batch(0, 10)
        assert await storage.find_damage() == []


@pytest.mark.parametrize("scheme", ["sqlite", "filelog"])
async def test_segments_removed_by_trimming_do_not_count_as_lost(scheme: str, tmp_path: Path) -> None:
    options = "?segment_bytes=2000" if scheme == "filelog" else ""
    async with open_storage(f"{scheme}:{tmp_path}/store{options}") as storage:
        assert isinstance(storage, DetectsRemoval)
        for first in range(0, 1000, 50):
            await storage.append([batch(first, first + 50)])
            assert await storage.read(PARTITION, first, 200) is not None
            await storage.trim(PARTITION, first)
            await storage.check_not_removed()
        await storage.trim(PARTITION, 1000)
        await storage.check_not_removed()
        await storage.append([batch(1000, 1005)])
