"""Verifying reads everything, reports damage, missing records and wrong totals, and ignores what changes meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import pytest

from dafka.errors import StorageCorruptError
from dafka.records import Partition, RecordBatch
from dafka.storage import Damage, PartitionInfo, StorageStatistics
from dafka.storage.memory import MemoryStorage
from dafka.storage.tools.verify import Verification, verify_storage

ORDERS, BILLS, OTHER = Partition("orders", "A"), Partition("bills", "B"), Partition("orders", "B")


def batch(first_sequence: int, end_sequence: int, partition: Partition = ORDERS) -> RecordBatch:
    return RecordBatch(partition, first_sequence, [b"%d" % number for number in range(first_sequence, end_sequence)])


class DamagedStorage(MemoryStorage):
    """A storage with missing sequences, damaged sequences, and wrong totals."""

    def __init__(self) -> None:
        super().__init__()
        self.missing: set[int] = set()
        self.corrupt: dict[int, int] = {}
        """The sequence after the damage, for each damaged sequence."""
        self.message = "orders/A, sequences 1 to 2: the CRC is wrong (0.log at byte 7)"
        self.found: list[Damage] = []
        self.listed: dict[Partition, PartitionInfo] = {}
        self.lost: int = 0
        self.times: dict[int, Sequence[int]] = {}
        """For each sequence, the times of the five records from it on."""
        self.dropping: dict[int, dict[Partition, int]] = {}
        """For each key: reading this sequence drops everything before the values."""
        self.growing: list[RecordBatch] = []
        """What is appended when the totals are asked for."""
        self.reads: list[tuple[Partition, int]] = []

    async def read(
        self, partition: Partition, first_sequence: int, count: int, *rest: Any, **options: Any
    ) -> RecordBatch | None:
        self.reads.append((partition, first_sequence))
        for dropped, earliest in self.dropping.pop(first_sequence, {}).items():
            await self.trim(dropped, earliest)
        if partition != ORDERS:
            return await super().read(partition, first_sequence, count, *rest, **options)
        if first_sequence in self.times:
            return attrs.evolve(batch(first_sequence, first_sequence + 5), stored_at=self.times[first_sequence])
        if first_sequence in self.corrupt:
            raise StorageCorruptError(self.message, self.corrupt[first_sequence])
        if first_sequence in self.missing:
            return None
        end = min({first_sequence + count, *self.missing, *self.corrupt} - set(range(first_sequence + 1)))
        return await super().read(partition, first_sequence, end - first_sequence, *rest, **options)

    async def partitions(self, topic: str | None = None) -> dict[Partition, PartitionInfo]:
        return {**await super().partitions(topic), **self.listed}

    async def statistics(self) -> StorageStatistics:
        await self.append(self.growing)
        statistics = await super().statistics()
        return attrs.evolve(statistics, records=statistics.records - self.lost)

    async def find_damage(self) -> list[Damage]:
        return self.found


@pytest.fixture
async def storage() -> DamagedStorage:
    storage = DamagedStorage()
    await storage.append([batch(0, 10), batch(5, 8, BILLS)])
    return storage


def ranges(found: Verification) -> list[tuple[int, int]]:
    return [(damage.first_sequence, damage.end_sequence) for damage in found.damages]


async def test_an_undamaged_storage(storage: DamagedStorage) -> None:
    shown: list[tuple[int, int | None]] = []
    found = await verify_storage(storage, progress=lambda done, total: shown.append((done, total)))
    assert found == Verification(2, 13, 13, (), ())
    assert shown[-1] == (13, 13)
    assert await verify_storage(MemoryStorage()) == Verification(0, 0, 0, (), ())


@pytest.mark.parametrize(
    ("corrupt", "missing", "expected"),
    [
        ({1: 3, 7: 8}, set(), [(1, 3), (7, 8)]),
        ({each: each + 1 for each in range(2, 9)}, set(), [(2, 9)]),
        ({1: 2, 5: 6, 6: 7}, set(), [(1, 2), (5, 7)]),
        ({3: 3, 4: 0, 9: 1000}, set(), [(3, 5), (9, 10)]),
        ({}, {0}, [(0, 1)]),
        ({}, {9}, [(9, 10)]),
        ({}, {3, 5, 8}, [(3, 4), (5, 6), (8, 9)]),
        ({}, set(range(10)), [(0, 10)]),
        ({}, set(range(1, 9)), [(1, 9)]),
        ({4: 6}, {2, 3}, [(2, 6)]),
    ],
)
async def test_damaged_and_missing_records_are_reported_and_skipped(
    storage: DamagedStorage, corrupt: dict[int, int], missing: set[int], expected: list[tuple[int, int]]
) -> None:
    """Neighboring damage is joined, and wrong ends of damage are limited."""
    storage.corrupt, storage.missing = corrupt, missing
    found = await verify_storage(storage)
    assert ranges(found) == expected
    assert found.records == 13 - sum(end - first for first, end in expected)
    if not corrupt:
        assert {damage.reason for damage in found.damages} == {"missing"}


async def test_a_reason_does_not_repeat_the_partition(storage: DamagedStorage) -> None:
    storage.corrupt = {1: 2}
    for message, reason in (
        (storage.message, "the CRC is wrong (0.log at byte 7)"),
        ("orders/A: bad", "bad"),
        ("orders/A, sequence 3: bad", "bad"),
        ("orders/A: sequence 3 is damaged in 0.log", "damaged in 0.log"),
        ("orders/A: sequences 3 to 10 are lost, 0.log is missing", "lost, 0.log is missing"),
        ("a bad CRC", "a bad CRC"),
    ):
        storage.message = message
        (damage,) = (await verify_storage(storage)).damages
        assert str(damage) == f"orders/A, sequence 1: {reason} (found by reading)"


async def test_a_long_gap_takes_few_reads(storage: DamagedStorage) -> None:
    await storage.append([batch(10, 50_000)])
    storage.missing = set(range(100, 49_000))
    assert ranges(await verify_storage(storage)) == [(100, 49_000)]
    assert len(storage.reads) < 200


@pytest.fixture
async def timed() -> DamagedStorage:
    storage = DamagedStorage()
    await storage.append([attrs.evolve(batch(0, 10), stored_at=[7] * 10)])
    return storage


async def test_totals_that_are_wrong(timed: DamagedStorage, storage: DamagedStorage) -> None:
    for name, listed, what, read in (
        ("content_bytes", 11, "bytes of content", 10),
        ("earliest_stored_at", 1, "time of the first record", 7),
        ("latest_stored_at", 1, "time of the last record", 7),
    ):
        timed.listed = {ORDERS: attrs.evolve(PartitionInfo(0, 10, 10, 7, 7), **{name: listed})}
        damages = (await verify_storage(timed)).damages
        reasons = [each.reason for each in damages if each.location == "found by comparing totals"]
        assert reasons == [f"{what}: listed as {listed}, but reading gave {read}"]
    storage.lost = 3
    (damage,) = (await verify_storage(storage)).damages
    assert str(damage) == "statistics: 10 records, but the partitions add up to 13"


async def test_times_that_decrease(timed: DamagedStorage) -> None:
    even, odd, higher = [7] * 5, [7, 8, 6, 7, 7], [7, 7, 7, 7, 8]
    for times in ((odd, even), (even, odd), (higher, even), (higher, [7, 8, 8, 8, 9])):
        timed.times = dict(zip((0, 5), times, strict=True))
        (damage,) = (await verify_storage(timed)).damages
        assert damage.reason == "the times of its records decrease"
    timed.times = {0: even, 5: even}
    assert (await verify_storage(timed)).damages == ()


async def test_records_dropped_meanwhile_are_not_damage(storage: DamagedStorage) -> None:
    """Retention runs in all partitions of a topic at the same time; they are read from where they begin then."""
    await storage.append([batch(10, 12), batch(0, 10, OTHER)])
    storage.dropping = {0: {ORDERS: 4, OTHER: 6}}
    assert await verify_storage(storage) == Verification(3, 3 + 8 + 4, 3 + 10 + 4, (), ())
    assert storage.reads == [(BILLS, 5), (ORDERS, 0), (ORDERS, 4), (ORDERS, 10), (OTHER, 6)]
    storage.dropping = {4: {ORDERS: 100}}
    found = await verify_storage(storage)
    assert (found.records, found.damages) == (3 + 4, ())


async def test_records_appended_meanwhile_are_not_damage(storage: DamagedStorage) -> None:
    storage.growing = [batch(10, 12)]
    assert await verify_storage(storage) == Verification(2, 15, 17, (), ())


async def test_only_the_records_that_are_listed_are_read() -> None:
    """Records that are appended after the listing are not a difference from it."""
    storage = DamagedStorage()
    await storage.append([RecordBatch(ORDERS, 5, [b"x"] * 7, stored_at=[7] * 7)])
    storage.listed = {ORDERS: PartitionInfo(5, 10, 5, 7, 7)}
    found = await verify_storage(storage)
    assert found.records == 5
    assert not [damage for damage in found.damages if damage.partition is not None]


async def test_damage_that_the_storage_finds_is_reported_unless_reading_has_found_it(storage: DamagedStorage) -> None:
    storage.corrupt = {4: 6}
    edges = ((2, 4), (3, 5), (5, 7), (6, 8))
    before, first, last, after = (Damage("0.log", "again", ORDERS, begin, end) for begin, end in edges)
    index, torn = Damage("0.index", "out of order"), Damage("1.log", "cut", BILLS, 8, 9)
    storage.found = [before, first, last, after, index]
    storage.repairs = [first, torn]
    found = await verify_storage(storage)
    assert found.damages[1:] == (before, after, index)
    assert found.repairs == (torn,)
