"""Which records expire, and that no replica drops a record before the start of its log says so."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import accumulate, product
from random import Random
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from dafka import wire
from dafka.broker.core.metadata.wall_clocks import DIFFERENCE_MS_MAX
from dafka.broker.core.positions import Offset, RecordSequence
from dafka.broker.log.expiry import find_retained_offset
from dafka.broker.log.reader import LogReader
from dafka.records import Partition, RecordBatch
from dafka.storage import RetentionPolicy
from dafka.storage.memory import MemoryStorage
from tests.broker.core.log.test_log_table import leading
from tests.broker.replication.virtual_cluster import VirtualCluster, open_virtual_cluster, wait_for

YEAR_S = 365 * 86400
RETENTION_S = 10


@asynccontextmanager
async def open_retaining(
    monkeypatch: pytest.MonkeyPatch, **ahead_s: float
) -> AsyncIterator[tuple[VirtualCluster, set[Partition]]]:
    """Run three brokers whose records expire, and check all the time that none drops what its log still has.

    Yield the partitions of the log, too.
    """
    settings: dict[str, Any] = {"store_retention_ms": RETENTION_S * 1000, "store_retention_interval_ms": 1000}
    async with open_virtual_cluster("ABC", "ABC", **settings) as cluster, trio.open_nursery() as nursery:
        monkeypatch.setattr(time, "time_ns", cluster.time_ns)
        cluster.ahead_s.update(ahead_s)
        await trio.sleep(2)  # the brokers tell each other the time
        partitions: set[Partition] = set()

        async def check() -> None:
            while True:
                leader = cluster.leader()
                if leader:
                    needed = cluster.log(leader).needed_from()
                    partitions.update(needed)
                    for name in cluster.brokers:
                        for partition, sequence in needed.items():
                            assert cluster.earliest(name, partition)[0] <= sequence, f"{name} lacks {partition}"
                await trio.sleep(0.05)

        nursery.start_soon(check)
        yield cluster, partitions
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("ahead_s", [0, YEAR_S, -YEAR_S, DIFFERENCE_MS_MAX / 2000])
async def test_records_expire_by_the_clock_of_the_leader_at_all_replicas(
    ahead_s: float, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_retaining(monkeypatch, C=ahead_s) as (cluster, partitions):
        native = cluster.produce(0, *[b"%d" % number for number in range(5)])
        await wait_for(lambda: cluster.log("A").high_watermark == 5)
        for number in range(5, 40):
            await cluster.append("A", b"%d" % number)
            await trio.sleep(RETENTION_S / 15)
        assert native in partitions
        log = cluster.log("A")
        await wait_for(lambda: all(cluster.earliest(each, log.leader_partition) == [35] for each in "ABC"))
        assert log.index.start_offset == 40
        assert {each: cluster.earliest("A", each) for each in partitions} == {
            each: cluster.earliest("C", each) for each in partitions
        }


async def test_nothing_expires_while_the_clock_of_the_leader_is_wrong(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_retaining(monkeypatch) as (cluster, _):
        await cluster.append("A", b"x", b"y")
        caplog.clear()
        for ahead_s in (YEAR_S, -YEAR_S):
            cluster.ahead_s["A"] = ahead_s
            await trio.sleep(RETENTION_S / 2.5)
        assert caplog.text.count("ten minutes") == 1
        assert cluster.log("A").index.start_offset == 0
        cluster.ahead_s.clear()
        await wait_for(lambda: all(cluster.earliest(each, cluster.log("A").leader_partition) == [2] for each in "ABC"))


async def test_a_start_that_replicas_have_applied_survives_a_leader_that_never_heard_of_it(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_virtual_cluster("ABC", "ACB", store_retention_interval_ms=1000) as cluster:
        await cluster.append("A", *[b"%d" % number for number in range(5)])
        await wait_for(lambda: cluster.log("A").high_watermark == 5 and cluster.in_sync() == "ABC")
        partition, index = cluster.log("A").leader_partition, cluster.log("A").index_partition
        sockets, before = cluster.sockets["C"], await cluster.disks["C"].find_partition(index)
        wants = sockets.wants

        def wants_other(message: wire.BatchedMessage) -> bool:
            is_of_index = isinstance(message, wire.RecordRun) and message.batch.partition == index
            return wants(message) and not is_of_index

        monkeypatch.setattr(sockets, "wants", wants_other)
        await cluster.brokers["A"].deletion.delete_before(cluster.log("A"), Offset(3))
        await wait_for(lambda: cluster.earliest("B", partition) == [3])
        await cluster.stop("A")
        assert await cluster.wait_leader("BC") == "C"
        assert await cluster.disks["C"].find_partition(index) == before, "it knows nothing of the start"
        assert cluster.log("C").next_start == 3
        await wait_for(lambda: cluster.log("C").index.start_offset == 3 and cluster.earliest("C", partition) == [3])


@pytest.mark.parametrize("has_new_leader", [False, True])
@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize(("stored", "kept"), list(product((0, 2), (0, 1))))
async def test_a_replica_that_was_away_drops_what_it_has_and_goes_on_where_the_others_begin(
    autojump_clock: MockClock, has_new_leader: bool, is_restarted: bool, stored: int, kept: int
) -> None:
    """It stores some records or none before the deleted ones, of an epoch that goes on or has ended."""
    values = [b"%d" % number for number in range(5)]
    async with open_virtual_cluster("ABC", "ABC", store_retention_interval_ms=1000) as cluster:
        if stored:
            await cluster.append("A", *values[:stored])
        await wait_for(lambda: cluster.in_sync() == "ABC")
        partition = cluster.log("A").leader_partition
        cluster.cut("C", "AB")
        await cluster.append("A", *values[stored:])
        start = len(values) - kept
        await cluster.brokers["A"].deletion.delete_before(cluster.log("A"), Offset(start))
        await wait_for(lambda: cluster.earliest("A", partition) == cluster.earliest("B", partition) == [start])
        if has_new_leader:
            await cluster.stop("A")
        if is_restarted:
            await cluster.stop("C")
        cluster.heal()
        if is_restarted:
            await cluster.start("C", store_retention_interval_ms=1000)
        await wait_for(lambda: cluster.leader() != "" and {*"BC"} <= {*cluster.in_sync()})
        leader = cluster.leader()
        await cluster.append(leader, b"5")
        followers = [cluster.replicated(each).replica.local_epochs for each in "BC"]
        await wait_for(lambda: all(each.log_end().end_offset == 6 for each in followers))
        await trio.sleep(3)  # then retention has dropped what it may
        for each in (partition, cluster.log(leader).leader_partition):
            assert await cluster.stored("C", each) == await cluster.stored("B", each)


async def test_a_new_replica_needs_no_records_that_the_others_have_forgotten(autojump_clock: MockClock) -> None:
    """Their leader is gone, and the partition of its deleted records was forgotten long ago."""
    settings: dict[str, Any] = {"store_retention_interval_ms": 1000, "store_forget_empty_after_ms": 10_000}
    async with open_virtual_cluster("ABCD", "ABC", **settings) as cluster:
        await cluster.append("A", b"0", b"1")
        await wait_for(lambda: cluster.in_sync() == "ABC")
        partition = cluster.log("A").leader_partition
        await cluster.stop("A")
        for name in "BC":  # then they have never heard the former leader
            await cluster.stop(name)
            await cluster.start(name, **settings)
        leader = await cluster.wait_leader("BC")
        await cluster.append(leader, b"2")
        await cluster.brokers[leader].deletion.delete_before(cluster.log(leader), Offset(2))
        await trio.sleep(20)
        assert [await cluster.disks[name].find_partition(partition) for name in "BC"] == [None, None]
        replicas = tuple(cluster.brokers[name].address for name in "BCD")
        await cluster.brokers[leader].admin.change_replicas(cluster.log(leader), replicas)
        await wait_for(lambda: cluster.in_sync() == "BCD")
        assert await cluster.read(cluster.leader(), offset=2) == [b"2"]
        for name in "BC":
            await cluster.stop(name)
            await cluster.start(name, **settings)
        await wait_for(lambda: cluster.in_sync() == "BCD")


def history(random: Random) -> Iterator[tuple[str, bytes, int]]:
    """Yield records of a log: the address of each one's partition, its value, and when it was stored."""
    stored_at = 0
    for _ in range(random.randrange(30)):
        stored_at += random.choice((0, 0, 10))
        address = random.choice(("", "P", "Q"))
        for _ in range(random.randrange(1, 4)):
            yield address, b"v" * random.randrange(5), stored_at


@pytest.mark.parametrize("seed", range(100))
async def test_the_oldest_records_expire_until_the_log_is_within_all_limits(seed: int) -> None:
    random = Random(seed)
    records, storage, table = list(history(random)), MemoryStorage(), leading().table
    (log,) = table.logs("orders")
    ends = {"": 0, "P": 0, "Q": 0}
    for address, value, stored_at in records:
        partition = log.partition_of(address)
        await storage.append([RecordBatch(partition, ends[address], [value], stored_at=[stored_at])])
        log.index.append(address, RecordSequence(ends[address]), 1, is_open=False)
        ends[address] += 1
    start = random.randrange(len(records) + 1)
    log.high_watermark = Offset(random.randrange(start, len(records) + 1))
    log.index.drop_before(Offset(start))
    for partition, sequence in log.needed_from().items():
        await storage.trim(partition, sequence)
    now = records[-1][2] if records else 0
    sizes = [0, *accumulate(len(value) for _, value, _ in records)]
    limits = {
        "age_ms": random.choice((None, 0, 15, 50)),
        "bytes_max": random.choice((None, 0, 10, 40)),
        "records_max": random.choice((None, 0, 5, 20)),
    }
    expected = start
    for offset in range(start, log.high_watermark):
        _, _, stored_at = records[offset]
        is_old = limits["age_ms"] is not None and stored_at < now - limits["age_ms"]
        is_large = limits["bytes_max"] is not None and sizes[-1] - sizes[offset] > limits["bytes_max"]
        is_many = limits["records_max"] is not None and log.high_watermark - offset > limits["records_max"]
        if not (is_old or is_large or is_many):
            break
        expected = offset + 1
    infos = await storage.partitions("orders")
    policy = RetentionPolicy(**limits)
    assert await find_retained_offset(storage, LogReader(storage), log, infos, policy, now) == expected


async def test_records_that_the_leader_lacks_expire_no_sooner_than_the_next_one() -> None:
    storage, table = MemoryStorage(), leading().table
    (log,) = table.logs("orders")
    await storage.append([RecordBatch(log.leader_partition, 0, [b"v"] * 6, stored_at=[0, 0, 0, 0, 5, 5])])
    log.index.append("", RecordSequence(0), 6, is_open=False)
    log.high_watermark = Offset(6)
    await storage.trim(log.leader_partition, 2)

    async def find(now: int) -> int:
        infos = await storage.partitions()
        return await find_retained_offset(storage, LogReader(storage), log, infos, RetentionPolicy(age_ms=10), now)

    assert [await find(now) for now in (10, 11, 15, 16)] == [0, 4, 4, 6]
