from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio

from dafka.errors import StorageError, StorageUnsupportedError
from dafka.packed_bytes import count_bytes
from dafka.records import Partition, RecordBatch, new_address
from dafka.storage import (
    READ_BYTES,
    PartitionInfo,
    RetentionPolicy,
    Storage,
    StorageStatistics,
    open_storage,
    read_range,
)
from dafka.storage.memory import MemoryStorage
from dafka.storage.plugin_helpers import require_only_values
from dafka.testing import check_storage

_ALL = 2**63

THIRD_PARTY = Path(__file__).with_name("third_party") / "dafka_pickle.py"


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the plugin as pip would: a module, and metadata with its entry point."""
    site = tmp_path / "site"
    metadata = site / "dafka_pickle-1.0.dist-info"
    metadata.mkdir(parents=True)
    shutil.copy(THIRD_PARTY, site)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: dafka-pickle\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[dafka.storage]\npickle = dafka_pickle:open_pickle\n")
    monkeypatch.syspath_prepend(site)


@pytest.mark.usefixtures("third_party")
@pytest.mark.parametrize("url", ["memory:", "sqlite:{}/store.db", "filelog:{}/log", "pickle:{}/pickles"])
async def test_every_storage_keeps_the_contract(url: str, tmp_path: Path) -> None:
    await check_storage(lambda: open_storage(url.format(tmp_path)), reopens=url != "memory:")


@pytest.mark.usefixtures("third_party")
def test_unknown_scheme_lists_the_installed_ones() -> None:
    with pytest.raises(
        StorageError, match=r"^unknown storage 'nope': installed are filelog, .*, pickle, sqlite, tiered$"
    ):
        open_storage("nope:x")


@pytest.mark.parametrize("url", ["", "dafka.db", "sqlite"])
def test_url_without_a_scheme_is_refused(url: str) -> None:
    with pytest.raises(StorageError, match=r"expected SCHEME:LOCATION, such as sqlite:dafka\.db$"):
        open_storage(url)


async def test_memory_takes_no_path() -> None:
    with pytest.raises(StorageError, match="'memory:' takes no path"):
        async with open_storage("memory:here"):
            pass


class _WritesValidBatches(MemoryStorage):
    async def append(self, batches: Sequence[RecordBatch]) -> None:
        await trio.lowlevel.checkpoint()
        for batch in batches:
            await super().append([batch])


class _AcceptsGaps(MemoryStorage):
    async def append(self, batches: Sequence[RecordBatch]) -> None:
        joined = []
        for batch in batches:
            end = (await self.partitions()).get(batch.partition, PartitionInfo()).end_sequence
            is_gap = end and batch.first_sequence > end and len(batches) == 1
            joined.append(attrs.evolve(batch, first_sequence=end if is_gap else batch.first_sequence))
        await super().append(joined)


class _ReadsEverything(MemoryStorage):
    async def read(
        self,
        partition: Partition,
        first_sequence: int,
        count: int,
        bytes_max: int = READ_BYTES,
        *,
        with_times: bool = False,
    ) -> RecordBatch | None:
        return await super().read(partition, first_sequence, count, 2**40, with_times=with_times)


class _ReadsOneTooMany(MemoryStorage):
    async def read(
        self,
        partition: Partition,
        first_sequence: int,
        count: int,
        bytes_max: int = READ_BYTES,
        *,
        with_times: bool = False,
    ) -> RecordBatch | None:
        return await super().read(partition, first_sequence, count + 1, bytes_max, with_times=with_times)


class _ReadsFromTheEarliest(MemoryStorage):
    async def read(
        self,
        partition: Partition,
        first_sequence: int,
        count: int,
        bytes_max: int = READ_BYTES,
        *,
        with_times: bool = False,
    ) -> RecordBatch | None:
        earliest = (await self.partitions()).get(partition, PartitionInfo()).earliest_sequence
        return await super().read(partition, max(first_sequence, earliest), count, bytes_max, with_times=with_times)


class _MixesTopics(MemoryStorage):
    async def partitions(self, topic: str | None = None) -> dict[Partition, PartitionInfo]:
        found = await super().partitions()
        return {partition: info for partition, info in found.items() if partition.topic.startswith(topic or "")}


class _FindsOnlyHeldRecords(MemoryStorage):
    async def find_partition(self, partition: Partition) -> PartitionInfo | None:
        found = await super().find_partition(partition)
        return found if found is not None and found.count else None


class _DropsTrimmedPartitions(MemoryStorage):
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


class _SplitsCancelledAppends(MemoryStorage):
    async def append(self, batches: Sequence[RecordBatch]) -> None:
        if not batches or len(batches[0]) < 500:
            await super().append(batches)
            return
        with trio.CancelScope(shield=True):
            await super().append(batches[:1])
        await trio.sleep_forever()


class _NeverYields(MemoryStorage):
    async def load_positions(self, name: str) -> dict[Partition, int]:
        return {}


class _ResetsBack(MemoryStorage):
    async def reset_to(self, partition: Partition, next_sequence: int) -> None:
        await super().trim(partition, _ALL)
        self._logs.pop(partition, None)
        await super().reset_to(partition, next_sequence)


class _KeepsRecordsOnReset(MemoryStorage):
    async def reset_to(self, partition: Partition, next_sequence: int) -> None:
        await trio.lowlevel.checkpoint()
        log = self._logs.get(partition)
        if log is None or next_sequence < log.end_sequence:
            await super().reset_to(partition, next_sequence)
        else:
            log.end_sequence = next_sequence


class _NeverAppliesRetention(MemoryStorage):
    async def apply_retention(self, retention: RetentionPolicy, topic: str | None = None) -> dict[Partition, int]:
        await trio.lowlevel.checkpoint()
        return {}


class _KeepsOneTooFew(MemoryStorage):
    async def apply_retention(self, retention: RetentionPolicy, topic: str | None = None) -> dict[Partition, int]:
        moved = await super().apply_retention(retention, topic)
        for partition, earliest in moved.items():
            await self.trim(partition, earliest + 1)
        infos = await self.partitions(topic)
        return {partition: infos[partition].earliest_sequence for partition in moved}


class _AppliesRetentionToEveryTopic(MemoryStorage):
    async def apply_retention(self, retention: RetentionPolicy, topic: str | None = None) -> dict[Partition, int]:
        moved = await super().apply_retention(retention)
        return {partition: end for partition, end in moved.items() if topic in {None, partition.topic}}


class _ReturnsEveryPartition(MemoryStorage):
    async def apply_retention(self, retention: RetentionPolicy, topic: str | None = None) -> dict[Partition, int]:
        await super().apply_retention(retention, topic)
        return {partition: info.earliest_sequence for partition, info in (await self.partitions(topic)).items()}


class _ReplacesTimes(MemoryStorage):
    async def append(self, batches: Sequence[RecordBatch]) -> None:
        await super().append([attrs.evolve(batch, stored_at=None) for batch in batches])


class _LetsTimesDecrease(MemoryStorage):
    async def append(self, batches: Sequence[RecordBatch]) -> None:
        for batch in batches:
            log = self._logs.get(batch.partition)
            if log is not None:
                log.latest_stored_at = 0
        await super().append(batches)


class _AlwaysReturnsTimes(MemoryStorage):
    async def read(
        self,
        partition: Partition,
        first_sequence: int,
        count: int,
        bytes_max: int = READ_BYTES,
        *,
        with_times: bool = False,
    ) -> RecordBatch | None:
        return await super().read(partition, first_sequence, count, bytes_max, with_times=True)


class _FindsLaterTimes(MemoryStorage):
    async def find_sequence_by_time(self, partition: Partition, stored_at: int) -> int:
        return await super().find_sequence_by_time(partition, stored_at + 1)


class _DropsKeys(MemoryStorage):
    async def append(self, batches: Sequence[RecordBatch]) -> None:
        await super().append([attrs.evolve(batch, keys=None) for batch in batches])


class _SortsHeaders(MemoryStorage):
    async def append(self, batches: Sequence[RecordBatch]) -> None:
        await super().append(
            [
                attrs.evolve(batch, headers=[tuple(dict(each).items()) for each in batch.headers])
                if batch.headers
                else batch
                for batch in batches
            ]
        )


class _StoresNullAsEmpty(MemoryStorage):
    async def append(self, batches: Sequence[RecordBatch]) -> None:
        await super().append([attrs.evolve(batch, values=[each or b"" for each in batch.values]) for batch in batches])


class _DropsTimestamps(MemoryStorage):
    async def append(self, batches: Sequence[RecordBatch]) -> None:
        await super().append([attrs.evolve(batch, timestamps=None) for batch in batches])


class _RefusesLate(MemoryStorage):
    async def append(self, batches: Sequence[RecordBatch]) -> None:
        await super().append(batches)
        require_only_values(batches, "it")


class _RefusesKeysOnly(MemoryStorage):
    async def append(self, batches: Sequence[RecordBatch]) -> None:
        require_only_values([attrs.evolve(batch, headers=None) for batch in batches], "it")
        await super().append(batches)


class _RefusesEmptyColumns(MemoryStorage):
    async def append(self, batches: Sequence[RecordBatch]) -> None:
        if any(batch.keys is not None for batch in batches):
            raise StorageUnsupportedError("no keys")
        require_only_values(batches, "it")
        await super().append(batches)


class _CountsValuesOnly(MemoryStorage):
    async def partitions(self, topic: str | None = None) -> dict[Partition, PartitionInfo]:
        infos = await super().partitions(topic)
        for partition, info in infos.items():
            batches = [batch async for batch in read_range(self, partition, info.earliest_sequence, info.end_sequence)]
            size = sum(count_bytes(batch.values) for batch in batches)
            infos[partition] = attrs.evolve(info, content_bytes=size)
        return infos


class _CountsTrimmedRecords(MemoryStorage):
    async def statistics(self) -> StorageStatistics:
        records = sum(info.end_sequence for info in (await self.partitions()).values())
        return attrs.evolve(await super().statistics(), records=records)


class _DeletesRecordsOnly(MemoryStorage):
    async def delete_partitions(self, partitions: Collection[Partition]) -> None:
        for partition in partitions:
            await self.trim(partition, _ALL)


class _DeletesPositions(MemoryStorage):
    async def delete_partitions(self, partitions: Collection[Partition]) -> None:
        await super().delete_partitions(partitions)
        self._positions.clear()


class _DeletesTopics(MemoryStorage):
    async def delete_partitions(self, partitions: Collection[Partition]) -> None:
        topics = {partition.topic for partition in partitions}
        await super().delete_partitions([each for each in self._logs if each.topic in topics])


class _ReadsDeletedRecords(MemoryStorage):
    """Keeps the rest of a read, to return it in the next one."""

    def __init__(self) -> None:
        super().__init__()
        self._rest: dict[tuple[Partition, int], RecordBatch] = {}

    async def read(
        self,
        partition: Partition,
        first_sequence: int,
        count: int,
        bytes_max: int = READ_BYTES,
        *,
        with_times: bool = False,
    ) -> RecordBatch | None:
        rest = self._rest.pop((partition, first_sequence), None)
        if rest is not None and count == 1 and not with_times:
            await trio.lowlevel.checkpoint()
            return rest
        found = await super().read(partition, first_sequence, count, bytes_max, with_times=with_times)
        after = None if found is None else await super().read(partition, found.end_sequence, 1)
        if found is not None and after is not None and count == 3:
            self._rest[partition, found.end_sequence] = after
        return found


class _InventsLastAppend(MemoryStorage):
    async def partitions(self, topic: str | None = None) -> dict[Partition, PartitionInfo]:
        return {each: attrs.evolve(info, last_append_at=1) for each, info in (await super().partitions(topic)).items()}


class _ListsNoNames(MemoryStorage):
    async def position_names(self) -> list[str]:
        await trio.lowlevel.checkpoint()
        return []


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (_WritesValidBatches, "a refused append wrote the valid batches of the list"),
        (_AcceptsGaps, "append with a gap did not raise StorageSequenceError"),
        (_ReadsEverything, "read of about 10000 bytes returned 300000"),
        (_ReadsOneTooMany, "read of at most 3 records returned 4"),
        (_ReadsFromTheEarliest, "read from sequence 0 returned|which is not held"),
        (_MixesTopics, "returned partitions of another topic"),
        (_DropsTrimmedPartitions, "which holds records"),
        (_NeverTrims, r"after trim\(5\) expected"),
        (_SharesPositions, "positions of 'alice|a name never used has positions"),
        (_ReplacesPositions, "positions of 'alice"),
        (_SplitsCancelledAppends, "a cancelled append of 500 to 0 left ends"),
        (_NeverYields, "did not yield"),
        (_ResetsBack, r"reset_to\(0\) of a partition that ends at 10 did not raise"),
        (_KeepsRecordsOnReset, r"after reset_to\(50\) it is listed as"),
        (_NeverAppliesRetention, "expected 25 for each of three"),
        (_KeepsOneTooFew, "left 29 of 40 records, 30 are within the limits"),
        (_AppliesRetentionToEveryTopic, "read returned None for sequence 0"),
        (_ReturnsEveryPartition, "and returned|returned partitions"),
        (_ReplacesTimes, "returned {}, expected 25|records are within"),
        (_LetsTimesDecrease, "times that go back are read as"),
        (_AlwaysReturnsTimes, "returned times that were not requested"),
        (_FindsLaterTimes, r"find_sequence_by_time\("),
        (_CountsTrimmedRecords, "50 records in 2 partitions are counted as"),
        (_ListsNoNames, "position_names lacks"),
        (_DropsKeys, "its key is read as None, was appended as"),
        (_SortsHeaders, "its headers is read as"),
        (_StoresNullAsEmpty, "its value is read as b'', was appended as None"),
        (_DropsTimestamps, "its timestamp is read as None, was appended as"),
        (_RefusesLate, "an append that raised StorageUnsupportedError created"),
        (_RefusesKeysOnly, "a storage that refuses some records accepts"),
        (_RefusesEmptyColumns, "no keys"),
        (_CountsValuesOnly, "bytes are listed as"),
        (_DeletesRecordsOnly, "after delete_partitions of the others, found"),
        (_DeletesTopics, "after delete_partitions of the others, found"),
        (_DeletesPositions, "changed a consumer's positions"),
        (_ReadsDeletedRecords, "of a partition that was deleted and began again is read as"),
        (_FindsOnlyHeldRecords, "find_partition returned None, partitions lists"),
        (_InventsLastAppend, "were last appended at 1"),
    ],
)
async def test_check_storage_detects(broken: Callable[[], Storage], message: str) -> None:
    @asynccontextmanager
    async def open_broken() -> AsyncIterator[Storage]:
        yield broken()

    with pytest.raises((AssertionError, StorageUnsupportedError), match=message):
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
async def test_check_storage_detects_what_is_lost_when_closed(
    open_broken: Callable[[], AbstractAsyncContextManager[Storage]], message: str
) -> None:
    with pytest.raises(AssertionError, match=message):
        await check_storage(open_broken, reopens=True)
