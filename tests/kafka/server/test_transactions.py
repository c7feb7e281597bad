"""Transactions: readers of committed records see all of one or nothing; idempotent producers write each record once."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio
from confluent_kafka import Consumer, Producer, TopicPartition

from dafka import Config, Record, open_consumer
from dafka.kafka.protocol.tables import Response
from tests.kafka.server.clients import Confluent, Message
from tests.kafka.server.fixtures import run_broker

DEADLINE_S = 60

R = TypeVar("R", bound=Response)


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


def test_committed_records_are_read_and_aborted_ones_are_not(storage: str) -> None:
    with run_broker(storage) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "t"})
        producer.init_transactions(DEADLINE_S)
        expected = []
        for number in range(6):
            producer.begin_transaction()
            values = [b"%d-%d" % (number, each) for each in range(5)]
            for value in values:
                producer.produce("orders", value)
            if number % 2:
                producer.flush(DEADLINE_S)  # otherwise they may never be sent
                producer.abort_transaction(DEADLINE_S)
            else:
                producer.commit_transaction(DEADLINE_S)
                expected += values
        assert read_committed(broker.bootstrap_servers, "orders", len(expected)) == expected
        producer.begin_transaction()
        producer.produce("orders", b"open")
        producer.flush(DEADLINE_S)
        assert read_committed(broker.bootstrap_servers, "orders", len(expected)) == expected
        native = read_natively(broker.config, "orders", 31)
        assert [record.sequence for record in native] == list(range(31))
        assert native[30].value == b"open"  # no record is the end of a transaction
        assert sum(len(record.value or b"") == 3 for record in native) == 30
    with run_broker(storage) as broker:
        again = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "t"})
        again.init_transactions(DEADLINE_S)  # aborts what was open
        again.begin_transaction()
        again.produce("orders", b"after")
        again.commit_transaction(DEADLINE_S)
        assert read_committed(broker.bootstrap_servers, "orders", len(expected) + 1) == [*expected, b"after"]


def test_transactions_of_several_producers_are_told_apart_in_memory() -> None:
    with run_broker("memory:") as broker:
        producers = [
            Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": name}) for name in "ab"
        ]
        for producer in producers:
            producer.init_transactions(DEADLINE_S)
        expected = []
        for number in range(5):
            for producer in producers:
                producer.begin_transaction()
            for each in range(10):
                for name, producer in zip("ab", producers, strict=True):
                    producer.produce("orders", f"{name}{number}{each}".encode())
                    producer.flush(DEADLINE_S)
            producers[number % 2].commit_transaction(DEADLINE_S)
            producers[1 - number % 2].abort_transaction(DEADLINE_S)
            expected += [f"{'ab'[number % 2]}{number}{each}".encode() for each in range(10)]
        assert read_committed(broker.bootstrap_servers, "orders", len(expected)) == expected


def test_offsets_are_committed_with_a_transaction(tmp_path: Path) -> None:
    with run_broker(f"filelog:{tmp_path}/log") as broker:
        servers = broker.bootstrap_servers
        Confluent().write(servers, "in", [Message(b"x")], "none")
        producer = Producer({"bootstrap.servers": servers, "transactional.id": "t"})
        producer.init_transactions(DEADLINE_S)
        consumer = Consumer({"bootstrap.servers": servers, "group.id": "g", "auto.offset.reset": "earliest"})
        for offset, is_committed in ((5, False), (7, True)):
            producer.begin_transaction()
            producer.send_offsets_to_transaction(
                [TopicPartition("in", 0, offset)], consumer.consumer_group_metadata(), DEADLINE_S
            )
            if is_committed:
                producer.commit_transaction(DEADLINE_S)
            else:
                producer.abort_transaction(DEADLINE_S)
        (committed,) = consumer.committed([TopicPartition("in", 0)], timeout=DEADLINE_S)
        assert committed.offset == 7
        consumer.close()
