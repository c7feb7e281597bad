"""Topics with `cleanup.policy=compact`: Kafka's clients read the last committed record of each key, at its offset."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from dafka import Config
from tests.kafka.server.clients import AioKafka, Confluent, KafkaPython, Message
from tests.kafka.server.fixtures import run_broker
from tests.kafka.server.test_transactions import read_natively
from tests.waiting import poll_until

DEADLINE_S = 60

KEYS = 20

STORAGES = ["filelog:{}/log?segment_bytes=300", "sqlite:{}/broker.db", "memory:"]


@pytest.fixture(params=[STORAGES[0], *(pytest.param(each, marks=pytest.mark.long) for each in STORAGES[1:])])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(request.param).format(tmp_path)


COMPACTING = Config().with_store(compaction_interval_ms=20, compaction_rate_bytes=0)


def create_topic(servers: str, name: str) -> None:
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(name, 1, config=config)])[name].result(DEADLINE_S)


def make_messages(first: int, count: int) -> list[Message]:
    return [Message(b"%d" % number, b"key %d" % (number % KEYS)) for number in range(first, first + count)]


def write_all(servers: str, topic: str, count: int) -> None:
    """Write records in many small batches, one append after the other."""
    for first in range(0, count, KEYS):
        Confluent().write(servers, topic, make_messages(first, KEYS), "none")


def read_all(servers: str, topic: str) -> dict[int, tuple[bytes, bytes | None]]:
    """Return the records up to the end of the topic, by their offsets."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "all",
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = {}
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        message: Any = consumer.poll(1)
        if message is None:
            continue
        if message.error():
            assert message.error().name() == "_PARTITION_EOF", message.error()
            break
        found[message.offset()] = message.key(), message.value()
    consumer.close()
    return found


def last_values(found: dict[int, tuple[bytes, bytes | None]]) -> dict[bytes, bytes | None]:
    return dict(found[offset] for offset in sorted(found))


def test_clients_read_the_last_record_of_each_key_at_its_offset(storage: str) -> None:
    count = 8 * KEYS
    with run_broker(storage, COMPACTING) as broker:
        servers = broker.bootstrap_servers
        create_topic(servers, "prices")
        write_all(servers, "prices", count)
        poll_until(lambda: len(read_all(servers, "prices")) <= 3 * KEYS)
        found = read_all(servers, "prices")
        assert last_values(found) == {b"key %d" % (n % KEYS): b"%d" % n for n in range(count - KEYS, count)}
        assert all(value == b"%d" % offset for offset, (_, value) in found.items())
        for client in (AioKafka(), KafkaPython()):
            assert [each.value for each in client.read(servers, "prices", len(found))] == [
                value for _, (_, value) in sorted(found.items())
            ]
        native = read_natively(broker.config, "prices", len(found))
        assert [(record.sequence, record.value) for record in native] == [
            (offset, value) for offset, (_, value) in sorted(found.items())
        ]
        # Further records get the next offsets.
        assert Confluent().write(servers, "prices", [Message(b"more", b"key 1")], "none") == [count]
    if storage != "memory:":
        with run_broker(storage, COMPACTING) as broker:
            again = read_all(broker.bootstrap_servers, "prices")
            assert again[count] == (b"key 1", b"more")
            assert set(again) <= {*found, count}
