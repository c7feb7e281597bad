"""Topics of several brokers: created, deleted and made again, while brokers restart or are away."""

from __future__ import annotations

from contextlib import suppress

import pytest
import trio
from trio.testing import MockClock

from dafka.broker.core.log.log_table import leader_partition
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.partition_address import INDEX_TOPIC
from dafka.errors import NotLeaderError, TopicDeletedError
from dafka.records import Partition, RecordBatch
from tests.broker.replication.virtual_cluster import PATIENCE_S, VirtualCluster, batch, open_virtual_cluster, wait_for


async def delete(cluster: VirtualCluster, name: str, topic: str = "orders") -> None:
    """Delete a topic at a broker, and wait until no broker has it or its records."""
    await cluster.brokers[name].admin.delete_topic(topic)
    brokers = cluster.brokers.values()
    await wait_for(lambda: not any(topic in each.log_table.topics or each.storage.ends(topic) for each in brokers))


async def test_a_topic_can_be_created_while_the_former_one_of_its_name_is_deleted(autojump_clock: MockClock) -> None:
    """A client whose deletion took too long asks another broker, and must not hear that the topic exists."""
    async with open_virtual_cluster("ABC", "ABC") as cluster, trio.open_nursery() as nursery:
        first, second = cluster.brokers["A"], cluster.brokers["B"]
        former = second.tables.state.topics["orders"].topic_id
        cluster.cut("C", "AB")  # it is asked how far it has the records
        nursery.start_soon(first.admin.delete_topic, "orders")
        await wait_for(lambda: "orders" in second.tables.state.deleting)
        with trio.fail_after(PATIENCE_S):
            await second.admin.create_topic("orders", 1)
        assert second.tables.state.topics["orders"].topic_id != former


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


async def test_partitions_that_no_topic_names_are_kept_through_restarts(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("A", "A") as cluster:
        await cluster.append("A", b"own")
        await cluster.stop("A")
        unknown = Topic("orders", "1D" * 16)
        orphan = leader_partition("A" * 32, unknown, 0)
        index = Partition(INDEX_TOPIC, orphan.address)
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
