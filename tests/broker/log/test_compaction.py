"""A compacted log is replicated: other brokers hold what is left, and lead it with the same offsets."""

from __future__ import annotations

import attrs
import pytest
from trio.testing import MockClock

from dafka.batches import check_crc, encode_batch, read_header
from dafka.broker.core.positions import Offset
from dafka.broker.log.compaction import LogCompaction, LogPolicy
from dafka.config import Config
from dafka.errors import StorageError
from dafka.records import Partition
from dafka.storage.capabilities import Compactable
from tests.broker.log.history import columns_of
from tests.broker.replication.virtual_cluster import VirtualCluster, open_virtual_cluster, wait_for

COUNT, KEYS = 200, 9


async def append(cluster: VirtualCluster, name: str, first: int, count: int) -> int:
    """Append records whose values are their offsets."""
    numbers = range(first, first + count)
    keys = [b"key %d" % (number % KEYS) for number in numbers]
    data = encode_batch(0, [b"%d" % number for number in numbers], keys=keys, timestamps=1000)
    return await cluster.brokers[name].writer.append(cluster.log(name), [(check_crc(data), data)]).wait_offset()


async def read_all(cluster: VirtualCluster, name: str) -> dict[int, bytes]:
    """Return the values of a log up to its high watermark, by their offsets."""
    found: dict[int, bytes] = {}
    end, log = 0, cluster.log(name)
    while end < log.high_watermark:
        for data in await cluster.brokers[name].reader.read(log, Offset(end), log.high_watermark, 2**20):
            assert read_header(data).base_offset == end
            end = read_header(data).end_offset
            found |= {offset: value or b"" for offset, (_, value, _) in columns_of(data)}
    return found


def is_right(found: dict[int, bytes], end: int) -> bool:
    """Return whether each offset has its own value, and the last record of each key is there."""
    return all(value == b"%d" % offset for offset, value in found.items()) and {*range(end - KEYS, end)} <= set(found)


async def compact(cluster: VirtualCluster, name: str) -> None:
    broker = cluster.brokers[name]
    parts = broker.log_table, broker.reader, cluster.disks[name], broker.store.compactor
    compaction = LogCompaction(*parts, Config(), broker.may_expire)
    await compaction.compact_log(cluster.log(name), LogPolicy(dirty_ratio=0))


async def test_brokers_that_come_late_lead_what_is_left(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster() as cluster:
        (first,) = await cluster.start("A")
        await first.admin.create_topic("orders", 1)
        for number in range(0, COUNT, 20):
            assert await append(cluster, "A", number, 20) == number
        await compact(cluster, "A")
        held = await read_all(cluster, "A")
        assert is_right(held, COUNT)
        assert len(held) <= KEYS + 1
        await cluster.start("B", "C")
        await wait_for(lambda: cluster.in_sync() == "ABC")
        await cluster.stop("A")
        leader = await cluster.wait_leader("BC")
        assert await read_all(cluster, leader) == held
        assert await append(cluster, leader, COUNT, 20) == COUNT
        await compact(cluster, leader)
        found = await read_all(cluster, leader)
        assert is_right(found, COUNT + 20)
        assert len(found) <= 2 * KEYS + 2
        await cluster.start("A")
        await wait_for(lambda: cluster.in_sync() == "ABC")


async def test_records_that_are_not_in_the_index_yet_are_not_taken_for_compacted(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_virtual_cluster("A", "A") as cluster:
        await append(cluster, "A", 0, COUNT)
        storage = cluster.disks["A"]
        find = storage.find_compactable

        async def find_more(partition: Partition, clean_end: int) -> Compactable | None:
            found = await find(partition, clean_end)
            return None if found is None else attrs.evolve(found, end_sequence=COUNT + 20)

        monkeypatch.setattr(storage, "find_compactable", find_more)
        await compact(cluster, "A")
        (clean_ends,) = [await storage.load_positions(each) for each in await storage.position_names()]
        assert list(clean_ends.values()) == [COUNT]


async def test_damaged_records_are_named_and_nothing_counts_as_compacted(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_virtual_cluster("A", "A") as cluster:
        await append(cluster, "A", 0, COUNT)
        reader = cluster.brokers["A"].reader
        (data,) = await reader.read(cluster.log("A"), Offset(0), Offset(COUNT), 2**20)

        async def read(*_arguments: object) -> list[bytes]:
            return [data[:61] + b"\xff" * (len(data) - 61)]

        monkeypatch.setattr(type(reader), "read", read)
        with pytest.raises(StorageError, match="log 0 of orders: "):
            await compact(cluster, "A")
        assert not await cluster.disks["A"].position_names()
