"""Topics of several brokers: created, deleted and made again, while brokers restart or are away."""

from __future__ import annotations

from contextlib import suppress

import pytest
import trio
from trio.testing import MockClock

from dafka.broker.core.log.log_table import index_partition, leader_partition
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.partition_address import INDEX_TOPIC
from dafka.errors import NotLeaderError, TopicDeletedError
from dafka.records import RecordBatch
from tests.broker.replication.virtual_cluster import PATIENCE_S, VirtualCluster, batch, open_virtual_cluster, wait_for


async def delete(cluster: VirtualCluster, name: str, topic: str = "orders") -> None:
    """Delete a topic at a broker, and wait until no broker has it or its records."""
    await cluster.brokers[name].delete_topic(topic)
    brokers = cluster.brokers.values()
    await wait_for(lambda: not any(topic in each.log_table.topics or each.storage.ends(topic) for each in brokers))


async def test_epochs_of_a_topic_are_later_than_those_of_a_deleted_one_of_its_name(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("ABC", "ABC") as cluster:
        await cluster.stop("A")
        leader = await cluster.wait_leader("BC")
        epoch = cluster.log(leader).leadership.epoch
        await cluster.start("A")
        await delete(cluster, "C")
        await cluster.create("orders", "ABC")
        assert cluster.log(cluster.leader()).leadership.epoch >= epoch + 8 * 1024
        assert await cluster.append(cluster.leader(), b"new") == 0


@pytest.mark.parametrize("names", ["A", "ABC"])
async def test_appends_that_wait_end_when_their_topic_is_deleted(autojump_clock: MockClock, names: str) -> None:
    async with open_virtual_cluster() as cluster:
        await cluster.start(*names)
        await cluster.create("orders", names)
        log, writer = cluster.log("A"), cluster.brokers["A"].writer
        appended = writer.append(log, batch(b"x"))
        await delete(cluster, "A")
        with trio.fail_after(PATIENCE_S), suppress(TopicDeletedError, NotLeaderError):  # or it was in time
            await appended.wait_offset()
        with trio.fail_after(PATIENCE_S):
            await cluster.brokers["A"].replicator.led_logs.wait_leadership(log)
        with pytest.raises(NotLeaderError):
            writer.append(log, batch(b"y"))
        topic = await cluster.brokers["A"].replicator.deleted_topics.receive()
        assert topic.name == "orders"


async def test_of_two_topics_with_one_name_the_first_counts_and_the_records_of_the_other_are_kept(
    autojump_clock: MockClock,
) -> None:
    async with open_virtual_cluster() as cluster:
        await cluster.start("A", "B")
        cluster.cut("A", "B")
        await wait_for(lambda: all(len(each.brokers.alive) == 1 for each in cluster.brokers.values()))
        for each in "AB":
            await cluster.brokers[each].create_topic("orders", placement=[[each * 32]]).wait()
        await wait_for(lambda: all(cluster.log(each).leadership.is_led for each in "AB"))
        for each in "AB":
            await cluster.append(each, each.encode())
        topics = [cluster.brokers[each].log_table.topics["orders"] for each in "AB"]
        first = min(topics, key=lambda topic: (topic.created_at, topic.topic_id))
        cluster.heal()
        await wait_for(
            lambda: {each.log_table.topics["orders"].topic_id for each in cluster.brokers.values()} == {first.topic_id}
        )
        winner, other = ("A", "B") if first is topics[0] else ("B", "A")
        assert await cluster.read(winner) == [winner.encode()]
        (orphan,) = cluster.brokers[other].inventory.orphans().items()
        assert (orphan[0].address[0], orphan[1]) == (other, 1)


async def test_partitions_that_no_topic_names_are_kept_through_restarts(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("A", "A") as cluster:
        await cluster.append("A", b"own")
        await cluster.stop("A")
        unknown = Topic("orders", "1D" * 16)
        orphan, index = leader_partition("A" * 32, unknown, 0), index_partition("A" * 32, unknown, 0)
        await cluster.disks["A"].append(
            [RecordBatch(each, 0, [b"o"] * 3, timestamps=[1] * 3) for each in (orphan, index)]
        )
        for _ in range(2):
            (broker,) = await cluster.start("A")
            assert await cluster.read("A") == [b"own"]
            assert broker.inventory.orphans() == {orphan: 3}
            await trio.sleep(60)
            await cluster.stop("A")
        stored = await cluster.disks["A"].partitions()
        assert (stored[orphan].count, stored[index].count) == (3, 3)


async def test_a_deletion_that_was_recorded_is_finished_at_the_next_start(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster() as cluster:
        (broker,) = await cluster.start("A")
        await cluster.create("orders", "A")
        await cluster.append("A", b"x")
        (topic,) = broker.replicator.topic_table.living("orders")
        own = cluster.log("A").leader_partition
        await delete(cluster, "A")
        await cluster.stop("A")
        await cluster.disks["A"].append(
            [RecordBatch(own, 0, [b"x"], timestamps=[1])]
        )  # as if it had been killed before
        (broker,) = await cluster.start("A")
        assert broker.find_topic("orders") is None
        await wait_for(lambda: not broker.storage.ends("orders"))
        stored = await cluster.disks["A"].partitions()
        assert not [each for each in stored if topic.topic_id in each.address]


async def test_a_topic_gets_more_logs_on_brokers_that_take_replicas(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("ABC", "ABC") as cluster:
        first = cluster.brokers["A"]
        await cluster.append("A", b"a")
        await first.change_topic("orders", log_count=3).wait()
        await wait_for(lambda: all(cluster.replicas("orders", number) == "ABC" for number in range(3)))
        for number in range(3):
            leader = cluster.leader("orders", number)
            assert await cluster.append(leader, b"b", number=number) == (number == 0)
        assert {each.log_table.topics["orders"].revision for each in cluster.brokers.values()} == {1}
        assert not [each for each in first.storage.ends(INDEX_TOPIC) if "//" in each.address]
