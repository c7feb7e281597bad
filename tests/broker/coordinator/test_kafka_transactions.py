"""Transactions of a real client of Kafka over several broker processes, of which one is killed."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
import trio
from confluent_kafka import Consumer, KafkaException, Producer

from tests.broker.cluster.brokers import open_cluster

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="needs /proc"),
    pytest.mark.timeout(600),
]

TOPIC = "orders"

LOGS = 6

TRANSACTIONS = 40

DEADLINE_S = 60


def run_transactions(servers: str) -> list[str]:
    """Commit two transactions of three, and return the records that are committed."""
    producer = Producer({"bootstrap.servers": servers, "transactional.id": "payments"})
    producer.init_transactions(DEADLINE_S)
    committed = []
    for number in range(TRANSACTIONS):
        values = [f"{number}-{log}" for log in range(LOGS)]
        try:
            producer.begin_transaction()
            for log, value in enumerate(values):
                producer.produce(TOPIC, value.encode(), partition=log)
            if number % 3 == 2:
                producer.abort_transaction(DEADLINE_S)
            else:
                producer.commit_transaction(DEADLINE_S)
                committed += values
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            producer.abort_transaction(DEADLINE_S)
    return committed


def read_committed(servers: str, count: int) -> list[str]:
    """Read what is committed: so many records, and what comes behind them within a second."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "readers",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe([TOPIC])
    found: list[str] = []
    end = time.monotonic() + DEADLINE_S
    while len(found) < count and time.monotonic() < end:
        for message in consumer.consume(1000, 0.2):
            assert message.error() is None
            found.append(message.value().decode())
    found += [message.value().decode() for message in consumer.consume(1000, 1.0)]
    consumer.close()
    return found


@pytest.mark.parametrize("victim", range(3))
async def test_transactions_are_whole_when_a_broker_is_killed(tmp_path: Path, victim: int) -> None:
    async with open_cluster(tmp_path, 3) as cluster:
        await cluster.create_topic(TOPIC, LOGS)
        servers = ",".join(each.servers for each in cluster.brokers.values())
        committed: list[str] = []

        async def run() -> None:
            committed.extend(await trio.to_thread.run_sync(run_transactions, servers))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await trio.sleep(2)
            broker = list(cluster.brokers.values())[victim]
            await cluster.kill(broker)
            await trio.sleep(3)
            await cluster.start(broker)
        found = await trio.to_thread.run_sync(read_committed, servers, len(committed))
        assert sorted(found) == sorted(committed)
