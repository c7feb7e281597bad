"""Unmodified clients of Kafka, and Dafka's own nodes, read what each other writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from dafka import ProducerRecord, open_consumer, open_producer
from tests.kafka.server.clients import CLIENTS, Confluent, Message
from tests.kafka.server.fixtures import RunningBroker, run_broker

COUNT = 100

WRITTEN = [
    ("confluent-kafka", "none", "aiokafka"),
    ("confluent-kafka", "zstd", "kafka-python"),
    ("idempotent confluent-kafka", "gzip", "confluent-kafka"),
    ("aiokafka", "lz4", "kafka-python"),
    ("kafka-python", "snappy", "aiokafka"),
]
"""Who writes, with which compression, and who reads as a member of a group. Dafka's consumer reads everything."""

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def messages(count: int = COUNT) -> list[Message]:
    return [
        Message(
            b"value %d" % n * (n % 7),
            None if n % 3 else b"key %d" % n,
            (("name", b"%d" % n), ("empty", b"")) if n % 2 else (),
            1_700_000_000_000 + n,
        )
        for n in range(count)
    ]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with run_broker(f"filelog:{tmp_path_factory.mktemp('broker')}/log") as running:
        yield running


@pytest.mark.parametrize(("writer", "compression", "reader"), WRITTEN)
def test_clients_and_native_consumers_read_what_clients_write(
    broker: RunningBroker, writer: str, compression: str, reader: str
) -> None:
    topic = f"{writer}-{compression}".replace(" ", "-")
    offsets = CLIENTS[writer].write(broker.bootstrap_servers, topic, messages(), compression)
    assert sorted(offsets) == list(range(COUNT))
    assert CLIENTS[reader].read(broker.bootstrap_servers, topic, COUNT, topic) == messages()

    async def read() -> list[Message]:
        found: list[Message] = []
        config = broker.config.with_consumer(offset_reset="earliest")
        async with open_consumer([topic], config) as consumer:
            with trio.fail_after(30):
                while len(found) < COUNT:
                    batch = await consumer.next_batch()
                    found += [Message(each.value, each.key, each.headers, each.timestamp or 0) for each in batch]
        return found

    assert trio.run(read) == messages()


def test_clients_read_what_native_producers_write(broker: RunningBroker) -> None:
    async def write() -> None:
        async with open_producer("native", broker.config) as producer:
            records = [ProducerRecord(each.value, each.key, each.headers, each.timestamp) for each in messages()]
            await producer.send_many(records)
            await producer.wait_acknowledged()

    trio.run(write)
    assert Confluent().read(broker.bootstrap_servers, "native", COUNT) == messages()


def test_groups_continue_after_a_restart(tmp_path: Path) -> None:
    client, storage = Confluent(), f"filelog:{tmp_path}/log"
    with run_broker(storage) as broker:
        client.write(broker.bootstrap_servers, "orders", messages(100), "none")
        assert client.read(broker.bootstrap_servers, "orders", 40, "group") == messages(100)[:40]
    with run_broker(storage) as broker:
        assert client.write(broker.bootstrap_servers, "orders", messages(1), "none") == [100]
        rest = client.read(broker.bootstrap_servers, "orders", 61, "group")
        assert rest[:60] == messages(100)[40:]
