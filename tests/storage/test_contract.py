from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from dafka.errors import StorageError
from dafka.records import Partition, RecordBatch, new_address
from dafka.storage import PartitionInfo, Storage, open_storage
from dafka.storage.memory import MemoryStorage
from dafka.testing import check_storage

THIRD_PARTY = '''
"""A storage plugin of somebody else: keeps a whole storage in a pickle, and writes it anew after each change."""

import os
import pickle
from contextlib import asynccontextmanager
from dafka.storage.memory import MemoryStorage


class PickleStorage(MemoryStorage):
    def __init__(self, path):
        super().__init__()
        self._path = path
        if os.path.exists(path):
            with open(path, "rb") as file:
                self.__dict__.update(pickle.load(file))

    def save(self):
        with open(self._path, "wb") as file:
            pickle.dump(self.__dict__, file)


@asynccontextmanager
async def open_pickle(place, *, read_only=False):
    storage = PickleStorage(place)
    try:
        yield storage
    finally:
        storage.save()
'''


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installs the plugin as pip would: a module, and metadata that names its entry point."""
    site = tmp_path / "site"
    metadata = site / "dafka_pickle-1.0.dist-info"
    metadata.mkdir(parents=True)
    (site / "dafka_pickle.py").write_text(THIRD_PARTY)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: dafka-pickle\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[dafka.storage]\npickle = dafka_pickle:open_pickle\n")
    monkeypatch.syspath_prepend(site)


async def test_sqlite_keeps_the_contract(tmp_path: Path) -> None:
    await check_storage(lambda: open_storage(f"sqlite:{tmp_path}/store.db"), reopens=True)


async def test_memory_keeps_the_contract() -> None:
    await check_storage(lambda: open_storage("memory:"), reopens=False)


@pytest.mark.usefixtures("third_party")
async def test_installed_plugin_keeps_the_contract(tmp_path: Path) -> None:
    await check_storage(lambda: open_storage(f"pickle:{tmp_path}/store.pickle"), reopens=True)


@pytest.mark.usefixtures("third_party")
def test_unknown_scheme_names_the_installed_ones() -> None:
    with pytest.raises(StorageError, match=r"^unknown storage 'nope': installed are memory, pickle, sqlite$"):
        open_storage("nope:x")


@pytest.mark.parametrize("url", ["", "dafka.db", "sqlite"])
def test_url_without_a_scheme_is_refused(url: str) -> None:
    with pytest.raises(StorageError, match=r"expected SCHEME:PLACE, such as sqlite:dafka\.db$"):
        open_storage(url)


async def test_memory_takes_no_place() -> None:
    with pytest.raises(StorageError, match="'memory:' has no place"):
        async with open_storage("memory:here"):
            pass


class _WritesGoodBatches(MemoryStorage):
    async def append(self, batches: Sequence[RecordBatch]) -> None:
        await trio.lowlevel.checkpoint()
        for batch in batches:
            await super().append([batch])


class _TakesGaps(MemoryStorage):
    async def append(self, batches: Sequence[RecordBatch]) -> None:
        joined = []
        for batch in batches:
            end = (await self.partitions()).get(batch.partition, PartitionInfo()).end_sequence
            is_gap = end and batch.first_sequence > end and len(batches) == 1
            joined.append(RecordBatch(batch.partition, end if is_gap else batch.first_sequence, batch.contents))
        await super().append(joined)


class _ReadsEverything(MemoryStorage):
    async def read(
        self, partition: Partition, first_sequence: int, count: int, bytes_max: int = 0
    ) -> RecordBatch | None:
        return await super().read(partition, first_sequence, count, 2**40)


class _ReadsOneTooMany(MemoryStorage):
    async def read(
        self, partition: Partition, first_sequence: int, count: int, bytes_max: int = 0
    ) -> RecordBatch | None:
        return await super().read(partition, first_sequence, count + 1, bytes_max)


class _ReadsFromTheEarliest(MemoryStorage):
    async def read(
        self, partition: Partition, first_sequence: int, count: int, bytes_max: int = 0
    ) -> RecordBatch | None:
        earliest = (await self.partitions()).get(partition, PartitionInfo()).earliest_sequence
        return await super().read(partition, max(first_sequence, earliest), count, bytes_max)


class _MixesTopics(MemoryStorage):
    async def partitions(self, topic: str | None = None) -> dict[Partition, PartitionInfo]:
        found = await super().partitions()
        return {partition: info for partition, info in found.items() if partition.topic.startswith(topic or "")}


class _ForgetsTrimmed(MemoryStorage):
    async def partitions(self, topic: str | None = None) -> dict[Partition, PartitionInfo]:
        return {partition: info for partition, info in (await super().partitions(topic)).items() if info.count}


class _NeverTrims(MemoryStorage):
    async def trim(self, partition: Partition, earliest_sequence: int) -> None:
        await trio.lowlevel.checkpoint()


class _SharesPositions(MemoryStorage):
    async def save_positions(self, name: str, positions: Mapping[Partition, int]) -> None:
        await super().save_positions("", positions)

    async def load_positions(self, name: str) -> dict[Partition, int]:
        return await super().load_positions("")


class _ReplacesPositions(MemoryStorage):
    async def save_positions(self, name: str, positions: Mapping[Partition, int]) -> None:
        self._positions[name] = {}
        await super().save_positions(name, positions)


class _TearsWhenCancelled(MemoryStorage):
    async def append(self, batches: Sequence[RecordBatch]) -> None:
        if not batches or len(batches[0]) < 500:
            await super().append(batches)
            return
        for batch in batches:
            await super().append([batch])
            await trio.sleep(0.002)


class _NeverWaits(MemoryStorage):
    async def load_positions(self, name: str) -> dict[Partition, int]:
        return {}


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (_WritesGoodBatches, "a refused append wrote the list's good batches"),
        (_TakesGaps, "append with a gap did not raise StorageSequenceError"),
        (_ReadsEverything, "read of about 10000 octets gives 300000"),
        (_ReadsOneTooMany, "read of at most 3 records gives 4"),
        (_ReadsFromTheEarliest, "read from sequence 0 gives|which is not held"),
        (_MixesTopics, "gives partitions of another topic"),
        (_ForgetsTrimmed, "which holds records"),
        (_NeverTrims, r"after trim\(5\) expected"),
        (_SharesPositions, "positions of 'alice|a name never used has positions"),
        (_ReplacesPositions, "positions of 'alice"),
        (_TearsWhenCancelled, "a cancelled append of 500 to 0 left ends"),
        (_NeverWaits, "did not yield"),
    ],
)
async def test_check_storage_notices(broken: Callable[[], Storage], message: str) -> None:
    @asynccontextmanager
    async def open_broken() -> AsyncIterator[Storage]:
        yield broken()

    with pytest.raises(AssertionError, match=message):
        await check_storage(open_broken, reopens=False)


@asynccontextmanager
async def _open_forgetful() -> AsyncIterator[Storage]:
    yield MemoryStorage()


@asynccontextmanager
async def _open_renamed(kept: MemoryStorage) -> AsyncIterator[Storage]:
    kept.identity = new_address()
    yield kept


@pytest.mark.parametrize(
    ("open_broken", "message"),
    [
        (_open_forgetful, "opened again, expected"),
        (partial(_open_renamed, MemoryStorage()), "opened three times, the storage had the identities"),
    ],
)
async def test_check_storage_notices_what_does_not_outlive_the_block(
    open_broken: Callable[[], AbstractAsyncContextManager[Storage]], message: str
) -> None:
    with pytest.raises(AssertionError, match=message):
        await check_storage(open_broken, reopens=True)
