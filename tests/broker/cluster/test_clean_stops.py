"""Brokers are restarted and drained, and logs get other leaders, under a producer without an id."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
import trio

from tests.broker.cluster import producer_client
from tests.broker.cluster.brokers import READY_S, BrokerNode, ProcessCluster, find_leaders, find_replicas, open_cluster
from tests.broker.cluster.checker import check
from tests.broker.cluster.histories import load
from tests.broker.cluster.run import TOPIC, read_contents, start_client, wait_in_sync
from tests.chaos.processes import Node

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="needs /proc"),
    pytest.mark.long,
    pytest.mark.timeout(900),
]

LOGS = 6

PLAIN = {"enable.idempotence": False, "request.timeout.ms": 300_000, "socket.timeout.ms": 300_000}
"""A producer that repeats a request when its connection has ended, and at no other time."""


async def start_producer(cluster: ProcessCluster) -> Node:
    options = {"servers": cluster.servers, "topic": TOPIC, "folder": str(cluster.folder), "logs": LOGS, "rate": 200}
    producer = await start_client(
        cluster, producer_client, "producer-0", {**options, "number": 0, "burst": 5, "settings": PLAIN}
    )
    await cluster.wait_ready(producer)
    return producer


async def check_contents(cluster: ProcessCluster, producer: Node) -> None:
    """End the producer, and check that each of its records is stored once, though perhaps in another order."""
    await producer.terminate(2 * READY_S)
    await wait_in_sync(cluster, LOGS, 3)
    await read_contents(cluster, LOGS, 2 * READY_S)
    assert cluster.timeline.problems == []
    assert [each for each in check(load(cluster.folder)) if each.kind != "reordered"] == []


async def test_each_record_is_stored_once_while_brokers_are_restarted(tmp_path: Path) -> None:
    async with open_cluster(tmp_path, 3) as cluster:
        await cluster.create_topic(TOPIC, LOGS)
        producer = await start_producer(cluster)
        for broker in cluster.brokers.values():
            await wait_leading(cluster, broker)
            await broker.node.terminate(READY_S)
            await cluster.start(broker)
            await cluster.wait_members()
            await wait_in_sync(cluster, LOGS, 3)
        await check_contents(cluster, producer)


async def test_each_record_is_stored_once_while_logs_get_other_leaders(tmp_path: Path) -> None:
    async with open_cluster(tmp_path, 5) as cluster:
        await cluster.create_topic(TOPIC, LOGS)
        producer = await start_producer(cluster)
        first, *others = cluster.brokers.values()
        kept = await trio.to_thread.run_sync(find_replicas, first.servers, TOPIC)
        for _ in range(3):
            kept = {log: [*brokers[1:], brokers[0]] for log, brokers in kept.items()}
            await prefer(cluster, first, kept)
        for broker in others[:2]:
            await cluster.set_draining(broker, is_draining=True)
            await wait_drained(cluster, first, broker)
            await broker.node.terminate(READY_S)
            await cluster.start(broker)
            await cluster.set_draining(broker, is_draining=False)
        await check_contents(cluster, producer)


async def wait_leading(cluster: ProcessCluster, broker: BrokerNode) -> None:
    """Wait until a broker leads a log."""

    def is_leading() -> bool:
        return broker.number in find_leaders(broker.servers, TOPIC).values()

    await cluster.wait_until(is_leading, f"{broker.name} leads no log")


async def wait_drained(cluster: ProcessCluster, asked: BrokerNode, broker: BrokerNode) -> None:
    """Wait until a broker keeps no log."""

    def is_drained() -> bool:
        found = find_replicas(asked.servers, TOPIC)
        return bool(found) and all(broker.number not in brokers for brokers in found.values())

    await cluster.wait_until(is_drained, f"{broker.name} keeps logs still", 2 * READY_S)


async def prefer(cluster: ProcessCluster, asked: BrokerNode, kept: dict[int, list[int]]) -> None:
    """Have brokers keep logs, the first of which is to lead, and wait until it does."""

    def ask() -> None:
        for log, brokers in kept.items():
            body, head = json.dumps({"replicas": brokers}).encode(), {"Content-Type": "application/json"}
            request = Request(f"{asked.url}/topics/{TOPIC}/logs/{log}/replicas", body, head, method="PUT")
            with urlopen(request, timeout=READY_S) as answer:
                answer.read()

    def are_leading() -> bool:
        return find_leaders(asked.servers, TOPIC) == {log: brokers[0] for log, brokers in kept.items()}

    await trio.to_thread.run_sync(ask)
    await cluster.wait_until(are_leading, "the preferred brokers do not lead")
