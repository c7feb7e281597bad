"""Producers whose topic is deleted and made again go on with the new one."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.kafka.server.running_cluster import run_cluster

TOPIC = "orders"
GO_ON_S = 30.0
"""How long a producer may take to go on; it takes a second or two on a quiet machine."""


class Writing:
    """A producer that writes until it is stopped, and counts acknowledged records."""

    def __init__(self, run: Callable[[Writing], None]) -> None:
        self.acknowledged = 0
        self.is_stopping = False
        self._thread = threading.Thread(target=run, args=(self,))
        self._thread.start()

    def wait_further(self) -> None:
        before, deadline = self.acknowledged, time.monotonic() + GO_ON_S
        while self.acknowledged < before + 3:
            assert time.monotonic() < deadline, "the producer does not go on"
            time.sleep(0.02)

    def stop(self) -> None:
        self.is_stopping = True
        self._thread.join()


def write_with_confluent(servers: str, **settings: Any) -> Callable[[Writing], None]:
    def write(writing: Writing) -> None:
        producer = Producer(
            {"bootstrap.servers": servers, "allow.auto.create.topics": False, "log_level": 0, **settings}
        )

        def count(error: object, _message: object) -> None:
            writing.acknowledged += error is None

        while not writing.is_stopping:
            with suppress(KafkaException):  # the topic is away
                producer.produce(TOPIC, b"x", on_delivery=count)
            producer.poll(0.02)
        producer.purge()
        producer.flush(5)

    return write


def write_with_aiokafka(servers: str) -> Callable[[Writing], None]:
    async def write(writing: Writing) -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=servers, acks="all", request_timeout_ms=5000, metadata_max_age_ms=2000
        )
        await producer.start()
        try:
            while not writing.is_stopping:
                try:
                    await producer.send_and_wait(TOPIC, b"x")
                    writing.acknowledged += 1
                except AioKafkaError:
                    await asyncio.sleep(0.1)
        finally:
            await producer.stop()

    return lambda writing: asyncio.run(write(writing))


def create(admin: AdminClient, replicas: int) -> None:
    try:
        admin.create_topics([NewTopic(TOPIC, 2, replicas)])[TOPIC].result(30)
    except KafkaException as error:  # aiokafka's requests create topics, too
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


@pytest.mark.parametrize(
    ("count", "rounds"),
    [(1, 2), *(pytest.param(each, 50, marks=[pytest.mark.long, pytest.mark.timeout(1800)]) for each in (1, 3))],
)
def test_producers_go_on_when_their_topic_is_made_again(tmp_path: Path, count: int, rounds: int) -> None:
    with run_cluster(tmp_path, *("a", "b", "c")[:count]) as cluster:
        cluster.wait_members()
        servers = cluster.servers
        admin = AdminClient({"bootstrap.servers": servers})
        create(admin, count)
        writers = [
            Writing(write_with_confluent(servers)),
            Writing(write_with_confluent(servers, **{"enable.idempotence": True})),
            Writing(write_with_aiokafka(servers)),
        ]
        try:
            for _ in range(rounds):
                for each in writers:
                    each.wait_further()
                admin.delete_topics([TOPIC])[TOPIC].result(30)
                create(admin, count)
            for each in writers:
                each.wait_further()
        finally:
            for each in writers:
                each.stop()

        def is_same() -> bool:
            topics = [each.node.find_topic(TOPIC) for each in cluster.running()]
            return None not in topics and len({topic.topic_id for topic in topics if topic is not None}) == 1

        cluster.wait_until(is_same)
