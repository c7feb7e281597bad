"""Topics that the cluster does not know become topics again, with all their committed records in their order."""

from __future__ import annotations

from itertools import product
from typing import Any

import attrs
import pytest
from trio.testing import MockClock

from dafka.broker.adoption import UnnamedTopic, _continue, adopt, find_unnamed
from dafka.broker.core.metadata.state_records import REPLICAS, TOPIC
from dafka.broker.core.metadata.store_record import CLUSTER_TOPIC
from dafka.broker.local_state import LocalStatePartition
from dafka.errors import ConfigError
from dafka.records import Partition, RecordBatch
from tests.broker.replication.virtual_cluster import Disk, VirtualCluster, open_virtual_cluster, wait_for


async def forget_topics(disk: Disk) -> None:
    """Make a disk forget which topics there are, as if the cluster had been recovered without them."""
    state = LocalStatePartition(Partition(CLUSTER_TOPIC, disk.identity))
    await state.load(disk)
    state.put([(key, None) for key in state.values if key.startswith((TOPIC.encode(), REPLICAS.encode()))])
    changes = state.begin_write(1)
    assert changes is not None
    await disk.append([changes])


def copy_of(disk: Disk) -> Disk:
    """Return what `dafka storage copy` makes of a disk: a storage with another identity."""
    copied = disk.copy()
    copied.identity = "Z" * 32
    return copied


def interrupt(done: int, _total: int | None) -> None:
    if done >= 3:
        raise InterruptedError


def test_a_partition_gets_the_records_of_a_batch_that_it_does_not_have() -> None:
    own, adopted = Partition("orders", "own"), Partition("again", "Z")
    values, keys, times = [b"w", b"x", b"y", b"z"], [b"a", None, b"c", b"d"], [5, 6, 7, 8]
    headers = [((name, b"h"),) for name in "abcd"]
    for first, stored, has_columns in product((0, 4), range(9), (True, False)):
        if stored >= first + 4:
            continue
        columns: dict[str, Any] = {"keys": keys, "headers": headers, "timestamps": times} if has_columns else {}
        found = _continue(RecordBatch(own, 7, values, **columns), adopted, first, stored)
        assert found.partition == adopted
        expected = RecordBatch(own, first, values, **columns).between(max(first, stored), first + 4)
        assert list(map(repr, found)) == [repr(attrs.evolve(each, partition=adopted)) for each in expected]


async def append(cluster: VirtualCluster, values: list[bytes], number: int = 0) -> None:
    for each in values:
        await cluster.append(await cluster.wait_leader("ABC", number=number), each, number=number)


async def test_the_logs_of_a_topic_are_adopted_across_leader_epochs(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("ABC", "ABC", "BCA", replicas=3) as cluster:
        topic_id = cluster.brokers["A"].topics["orders"].topic_id
        await append(cluster, [b"0", b"1"])
        former = cluster.leader()
        await cluster.stop(former)
        await append(cluster, [b"2", b"3"])
        await append(cluster, [b"other"], number=1)
        await cluster.start(former, replicas=3)
        await append(cluster, [b"4"])
        await wait_for(lambda: cluster.in_sync() == cluster.in_sync("orders", 1) == "ABC")
        await cluster.stop("A", "B", "C")
        for name, disk in cluster.disks.items():
            copy = copy_of(disk)
            assert await find_unnamed(disk) == []
            with pytest.raises(ConfigError, match="the storage has no partitions of an unnamed topic"):
                await adopt(disk, topic_id, "again")
            await forget_topics(disk)
            assert await find_unnamed(disk) == await find_unnamed(copy) == [UnnamedTopic(topic_id, "orders", 2)]
            with pytest.raises(InterruptedError):
                await adopt(copy, topic_id, "again", progress=interrupt)
            half = sum(info.end_sequence for info in (await copy.partitions("again")).values())
            assert await adopt(disk, topic_id, "again") == half + await adopt(copy, topic_id, "again") == 6
            assert half > 2
            assert await adopt(disk, topic_id, "again") == 0
            for cluster.disks[name] in (copy, disk):
                values = [await cluster.stored(name, each) for each in await cluster.disks[name].partitions("again")]
                assert sorted(values) == [[b"0", b"1", b"2", b"3", b"4"], [b"other"]]


async def test_a_log_is_adopted_whose_first_leader_never_led_it(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("ABC", replicas=3) as cluster:
        await cluster.stop("C")
        await cluster.brokers["A"].admin.create_topic("orders", placement=[["C" * 32, "A" * 32, "B" * 32]])
        await wait_for(lambda: all("orders" in each.topics for each in cluster.brokers.values()))
        await append(cluster, [b"0", b"1"])
        topic_id = cluster.brokers["A"].topics["orders"].topic_id
        await wait_for(lambda: cluster.in_sync() == "AB")
        await cluster.stop("A", "B")
        await forget_topics(cluster.disks["A"])
        assert await adopt(cluster.disks["A"], topic_id, "again") == 2


async def test_an_adopted_topic_is_served_when_the_broker_starts(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("A") as cluster:
        await cluster.create("orders")
        values = [b"%d" % each for each in range(50)]
        for each in values:
            await cluster.append("A", each)
        topic_id = cluster.brokers["A"].topics["orders"].topic_id
        await cluster.stop("A")
        assert await adopt(copy_of(cluster.disks["A"]), topic_id, "orders") == len(values)
        await forget_topics(cluster.disks["A"])
        assert await adopt(cluster.disks["A"], topic_id, "orders") == len(values)
        await cluster.start("A")
        await wait_for(lambda: cluster.leader() == "A" and cluster.log("A").high_watermark == len(values))
        assert await cluster.read("A") == values
        assert topic_id not in {each.topic_id for each in cluster.brokers["A"].topics.values()}
