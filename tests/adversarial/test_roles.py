"""Live roles and small floods of every family: honest traffic before and after is whole."""

from __future__ import annotations

from itertools import islice

import pytest
import trio
import zmq

from dafka import Config, Consumer, Producer, Store
from dafka.testing.cluster import Cluster, open_cluster
from dafka.transport import Socket, open_context
from tests.adversarial import BEACON_FAMILIES, FAMILIES, Aim, generate
from tests.roles.helpers import DEADLINE_S, contents, open_stranger, receive_partition, wait_subscribed, wait_until

TOPIC = "orders"
MESSAGES = 300


def flood(role: str, address: str, partition: str, seed: int = 11) -> list[list[bytes]]:
    """Some of each family."""
    aim = Aim(address, TOPIC, partition, role)
    families = BEACON_FAMILIES if role == "tower" else FAMILIES
    return [
        message
        for family in families
        for message in islice(generate(family, aim, seed), 5 if family == "hellos" else MESSAGES)
    ]


async def check_honest(cluster: Cluster) -> None:
    """A producer and a consumer that come now are served."""
    async with cluster.producer(TOPIC) as producer, cluster.consumer([TOPIC]) as consumer:
        await producer.send_many(contents(0, 500))
        with trio.fail_after(DEADLINE_S):
            await producer.wait_stored()
            while consumer.positions().get(producer.partition) != 500:
                await consumer.next_batch()


@pytest.mark.parametrize("role", ["store", "producer", "consumer"])
async def test_a_node_is_flooded_and_serves_on(role: str) -> None:
    async with (
        open_cluster(Config()) as cluster,
        cluster.producer(TOPIC) as producer,
        cluster.consumer([TOPIC]) as consumer,
        open_stranger(cluster.config) as stranger,
    ):
        assert cluster.store is not None
        await producer.send_many(contents(0, 100))
        await receive_partition(consumer, 0, 100)
        partition = producer.partition.address
        node: Store | Producer | Consumer = consumer
        address = consumer.address
        if role == "store":
            node, address = cluster.store, cluster.store.address
        elif role == "producer":
            node, address = producer, partition
        prefix = {"store": "D", "producer": "K", "consumer": "D"}[role] + address
        await wait_subscribed(stranger, prefix.encode())
        messages = flood(role, address, partition)
        for start in range(0, len(messages), 200):
            stranger.send_many(messages[start : start + 200])
            await trio.sleep(0.001)
        await wait_until(lambda: sum(node.statistics().discarded.values()) > 500)
        await producer.send_many(contents(100, 600))
        with trio.fail_after(DEADLINE_S):
            while producer.statistics().unacknowledged:  # noqa: ASYNC110
                await trio.sleep(0.01)
            while consumer.positions()[producer.partition] < 600:
                batch = await consumer.next_batch()
                if batch.partition == producer.partition:
                    assert list(batch.contents) == contents(batch.first_sequence, batch.end_sequence)
        if role != "consumer":
            await check_honest(cluster)


async def test_a_tower_is_flooded_and_introduces_on() -> None:
    async with open_cluster(Config()) as cluster, open_context(0) as context:
        publisher = Socket(context.socket(zmq.SocketType.XPUB))
        try:
            publisher.connect(cluster.tower.sub_endpoint)
            with trio.fail_after(DEADLINE_S):
                await publisher.receive_many()
            publisher.send_many(flood("tower", "", "B" * 32))
            await wait_until(lambda: cluster.tower.statistics().discarded > 200)
            await check_honest(cluster)
            assert cluster.tower.statistics().nodes < 100
        finally:
            publisher.close(0)
