"""Transactions: readers of committed records see all of one or nothing; idempotent producers write each record once."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import trio
from confluent_kafka import Consumer, Producer, TopicPartition

from dafka import Config, Record, open_consumer
from tests.kafka.server.fixtures import run_broker

DEADLINE_S = 60


def read_committed(servers: str, topic: str, count: int, group: str = "committed") -> list[bytes]:
    """Return the committed values of a topic, which are `count`, up to its end."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        message: Any = consumer.poll(1)
        if message is not None and message.error():
            if len(found) >= count:
                break
        elif message is not None:
            found.append(message.value())
    consumer.close()
    return found


@pytest.fixture(params=["filelog:{}/log", pytest.param("sqlite:{}/broker.db", marks=pytest.mark.long)])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(request.param).format(tmp_path)


def read_natively(config: Config, topic: str, count: int) -> list[Record]:
    """Return what a consumer of Dafka gets, up to a number of records."""

    async def read() -> list[Record]:
        found: list[Record] = []
        with trio.fail_after(DEADLINE_S):
            async with open_consumer([topic], config.with_consumer(offset_reset="earliest")) as consumer:
                while len(found) < count:
                    found += await consumer.next_batch()
        return found

    return trio.run(read)


def open_producers(servers: str) -> list[Producer]:
    """Return two producers with transactions."""
    producers = [Producer({"bootstrap.servers": servers, "transactional.id": name}) for name in "ab"]
    for producer in producers:
        producer.init_transactions(DEADLINE_S)
    return producers


def test_committed_records_are_read_and_aborted_ones_are_not(storage: str) -> None:
    """Transactions of two producers are open at the same time; one of them is committed, and the other one aborted."""
    with run_broker(storage) as broker:
        servers, expected = broker.bootstrap_servers, []
        producers = open_producers(servers)
        for number in range(5):
            for producer in producers:
                producer.begin_transaction()
            for each in range(5):
                for name, producer in zip("ab", producers, strict=True):
                    producer.produce("orders", f"{name}{number}{each}".encode())
                    producer.flush(DEADLINE_S)
            producers[number % 2].commit_transaction(DEADLINE_S)
            producers[1 - number % 2].abort_transaction(DEADLINE_S)
            expected += [f"{'ab'[number % 2]}{number}{each}".encode() for each in range(5)]
        assert read_committed(servers, "orders", len(expected)) == expected
        producers[0].begin_transaction()
        producers[0].produce("orders", b"open")
        producers[0].flush(DEADLINE_S)
        assert read_committed(servers, "orders", len(expected)) == expected
        native = read_natively(broker.config, "orders", 51)
        assert [record.sequence for record in native] == list(range(51))
        assert native[50].value == b"open"  # no record is the end of a transaction
        assert sum(len(record.value or b"") == 3 for record in native) == 50
    with run_broker(storage) as broker:
        producer, _ = open_producers(broker.bootstrap_servers)  # aborts what was open
        producer.begin_transaction()
        producer.produce("orders", b"after")
        producer.commit_transaction(DEADLINE_S)
        assert read_committed(broker.bootstrap_servers, "orders", len(expected) + 1) == [*expected, b"after"]
