"""Clients of Kafka get Kafka's errors for what their user is not permitted; `tests/kafka/apis` has all APIs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from dafka.broker.access.permissions import Permissions
from dafka.testing import RunningKafka
from tests.kafka.server.secured import EVERYTHING, PASSWORD, run_secured, write_user_file

DEADLINE_S = 60

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKafka]:
    path = tmp_path_factory.mktemp("users") / "users"
    write_user_file(
        path,
        root=EVERYTHING,
        reader=Permissions(read=("open-*",), groups=("reader-*",)),
        writer=Permissions(write=("open-*",), transactions=("writer-*",)),
    )
    with run_secured(path.parent, users=str(path)) as found:
        root = Producer(settings("root", found))
        for topic in ("open-1", "secret-1"):
            root.produce(topic, b"value")
        assert root.flush(DEADLINE_S) == 0
        yield found


def settings(user: str, running: RunningKafka, **others: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": running.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": PASSWORD,
        "log_level": 0,
        **{name.replace("_", "."): value for name, value in others.items()},
    }


def write(user: str, running: RunningKafka, topic: str, **others: Any) -> str:
    results: list[str] = []
    producer = Producer(settings(user, running, **others))
    producer.produce(topic, b"value", on_delivery=lambda error, _: results.append(error.name() if error else ""))
    assert producer.flush(DEADLINE_S) == 0
    return results[0]


def read(user: str, running: RunningKafka, topic: str, group: str) -> bytes | str:
    consumer = Consumer(settings(user, running, group_id=group, auto_offset_reset="earliest"))
    consumer.subscribe([topic])
    try:
        for _ in range(DEADLINE_S):
            message = consumer.poll(1)
            if message is not None:
                error: Any = message.error()
                return bytes(message.value() or b"") if error is None else str(error.name())
        return "nothing"
    finally:
        consumer.close()


def test_writers_write_and_do_not_read(running: RunningKafka) -> None:
    assert write("writer", running, "open-1") == ""
    assert write("writer", running, "secret-1") == "TOPIC_AUTHORIZATION_FAILED"
    assert read("writer", running, "open-1", "reader-1") == "GROUP_AUTHORIZATION_FAILED"


def test_readers_read_and_do_not_write(running: RunningKafka) -> None:
    assert read("reader", running, "open-1", "reader-1") == b"value"
    assert read("reader", running, "secret-1", "reader-2") == "TOPIC_AUTHORIZATION_FAILED"
    assert read("reader", running, "open-1", "others") == "GROUP_AUTHORIZATION_FAILED"
    assert write("reader", running, "open-1") == "TOPIC_AUTHORIZATION_FAILED"
