"""Transactions: readers of committed records see all of one or nothing; idempotent producers write each record once."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio
from confluent_kafka import Consumer, Producer, TopicPartition

from dafka import Config, Record, open_consumer
from dafka.kafka.errors import ErrorCode
from dafka.kafka.protocol import Request, Response
from dafka.kafka.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from tests.listener.clients import Confluent, Message
from tests.listener.fixtures import run_broker
from tests.listener.test_connections import RawClient

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


@pytest.fixture(params=["filelog:{}/log", "sqlite:{}/broker.db"], ids=["filelog", "sqlite"])
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


def ask(servers: str, request: Request, version: int, response: type[R]) -> R:
    with closing(RawClient(servers)) as client:
        return client.ask(request, version, response)


def test_transactions_are_listed_and_described(tmp_path: Path) -> None:
    with run_broker(f"filelog:{tmp_path}/log") as broker:
        servers = broker.bootstrap_servers
        producer = Producer({"bootstrap.servers": servers, "transactional.id": "t"})
        producer.init_transactions(DEADLINE_S)
        producer.begin_transaction()
        producer.produce("orders", b"x")
        producer.flush(DEADLINE_S)
        everything = ListTransactionsRequest(state_filters=[], producer_id_filters=[])
        (listed,) = ask(servers, everything, 0, ListTransactionsResponse).transaction_states
        assert (listed.transactional_id, listed.transaction_state) == ("t", "Ongoing")
        completed = ListTransactionsRequest(state_filters=["CompleteCommit"], producer_id_filters=[])
        assert ask(servers, completed, 0, ListTransactionsResponse).transaction_states == []
        asked = DescribeTransactionsRequest(transactional_ids=["t", "unknown"])
        found, unknown = ask(servers, asked, 0, DescribeTransactionsResponse).transaction_states
        assert [(each.topic, each.partitions) for each in found.topics] == [("orders", [0])]
        assert unknown.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        producer.abort_transaction(DEADLINE_S)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_idempotent_producer_writes_each_record_once_though_the_broker_is_killed(tmp_path: Path) -> None:
    port = free_port()
    program = [sys.executable, "-m", "tests.listener.broker_process", f"filelog:{tmp_path}/log", str(port)]

    def start() -> subprocess.Popen[str]:
        process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        with process.stdout as output:
            assert output.readline().strip() == "ready"
        return process

    process = start()
    servers = f"127.0.0.1:{port}"
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "enable.idempotence": True,
            "linger.ms": 1,
            "batch.num.messages": 10,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 100,
        }
    )
    acknowledged: list[bytes] = []

    def delivered(error: Any, message: Any) -> None:
        assert error is None, error
        acknowledged.append(message.value())

    for number in range(6000):
        producer.produce("orders", b"%d" % number, on_delivery=delivered)
        producer.poll(0)
    for _ in range(3):
        target, deadline = len(acknowledged) + 500, time.monotonic() + DEADLINE_S
        while len(acknowledged) < target:
            assert time.monotonic() < deadline
            producer.poll(0.01)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process = start()
    assert producer.flush(DEADLINE_S) == 0
    assert sorted(map(int, acknowledged)) == list(range(6000))
    found = Confluent().read(servers, "orders", 6000)
    assert [each.value for each in found] == [b"%d" % number for number in range(6000)]
    process.kill()
    process.wait()


def test_fenced_producers_are_told_so_in_the_words_of_their_version(tmp_path: Path) -> None:
    with run_broker(f"filelog:{tmp_path}/log") as broker, closing(RawClient(broker.bootstrap_servers)) as client:
        begin = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=60_000)
        old = client.ask(begin, 4, InitProducerIdResponse)
        assert client.ask(begin, 4, InitProducerIdResponse).producer_epoch == old.producer_epoch + 1
        end = EndTxnRequest(
            transactional_id="t", producer_id=old.producer_id, producer_epoch=old.producer_epoch, committed=True
        )
        assert client.ask(end, 1, EndTxnResponse).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        assert client.ask(end, 2, EndTxnResponse).error_code == ErrorCode.PRODUCER_FENCED
        add = AddOffsetsToTxnRequest(
            transactional_id="t", producer_id=old.producer_id, producer_epoch=old.producer_epoch, group_id="g"
        )
        assert client.ask(add, 1, AddOffsetsToTxnResponse).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        assert client.ask(add, 2, AddOffsetsToTxnResponse).error_code == ErrorCode.PRODUCER_FENCED
