"""Live roles under a small flood of every attack: honest records before and after it arrive complete."""

from __future__ import annotations

from itertools import islice

import pytest
import trio
import zmq

from dafka import Config, Consumer, Producer, Store
from dafka.testing.cluster import Cluster, open_cluster
from dafka.transport import Socket, open_context
from tests.adversarial import NODE_ATTACKS, TOWER_ATTACKS, Target, generate
from tests.roles.helpers import DEADLINE_S, contents, open_unverified_peer, receive_partition, wait_subscribed
from tests.waiting import wait_until

TOPIC = "orders"
MESSAGES = 300


def flood(role: str, address: str, partition: str, seed: int = 11) -> list[list[bytes]]:
    target = Target(address, TOPIC, partition, role)
    attacks = TOWER_ATTACKS if role == "tower" else NODE_ATTACKS
    return [
        message
        for attack in attacks
        for message in islice(generate(attack, target, seed), 5 if attack == "hellos" else MESSAGES)
    ]


async def check_honest(cluster: Cluster) -> None:
    """Check that a new producer and a new consumer are served."""
    async with cluster.producer(TOPIC) as producer, cluster.consumer([TOPIC]) as consumer:
        await producer.send_many(contents(0, 500))
        with trio.fail_after(DEADLINE_S):
            await producer.wait_stored()
            while consumer.positions().get(producer.partition) != 500:
                await consumer.next_batch()


@pytest.mark.parametrize("role", ["store", "producer", "consumer"])
async def test_a_flooded_node_keeps_serving(role: str) -> None:
    async with (
        open_cluster(Config()) as cluster,
        cluster.producer(TOPIC) as producer,
        cluster.consumer([TOPIC]) as consumer,
        open_unverified_peer(cluster.config) as attacker,
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
        await wait_subscribed(attacker, prefix.encode())
        messages = flood(role, address, partition)
        for start in range(0, len(messages), 200):
            attacker.send_many(messages[start : start + 200])
            await trio.sleep(0.001)
        await wait_until(lambda: sum(node.statistics().discarded.values()) > 500)
        await producer.send_many(contents(100, 600))
        with trio.fail_after(DEADLINE_S):
            while producer.statistics().unacknowledged:  # noqa: ASYNC110
                await trio.sleep(0.01)
            while consumer.positions()[producer.partition] < 600:
                batch = await consumer.next_batch()
                if batch.partition == producer.partition:
                    assert list(batch.values) == contents(batch.first_sequence, batch.end_sequence)
        if role != "consumer":
            await check_honest(cluster)


async def test_a_flooded_tower_keeps_introducing_nodes() -> None:
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
