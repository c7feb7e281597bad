"""Clients of Kafka in a common shape: each writes records to a topic, and reads a number of records from its start.

Clients are imported where they are used: the matrix of clients runs them in environments of their own.
"""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

DEADLINE_S = 60


class Message(NamedTuple):
    """A record as a client writes and reads it."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int = 1000


class Client(Protocol):
    """A client of Kafka."""

    def write(self, servers: str, topic: str, messages: Sequence[Message], compression: str) -> list[int]:
        """Write records, and return their offsets when all are acknowledged."""

    def read(self, servers: str, topic: str, count: int, group: str | None = None) -> list[Message]:
        """Return records, from the start of a topic or from where a group has committed to, and commit."""


class Confluent:
    """confluent-kafka, which is librdkafka."""

    def __init__(self, **settings: Any) -> None:
        self._settings = {name.replace("_", "."): value for name, value in settings.items()}

    def write(self, servers: str, topic: str, messages: Sequence[Message], compression: str) -> list[int]:
        from confluent_kafka import Producer

        offsets: list[int] = []

        def delivered(error: Any, message: Any) -> None:
            assert error is None, error
            offsets.append(message.offset())

        producer = Producer(
            {"bootstrap.servers": servers, "compression.type": compression, "linger.ms": 5, **self._settings}
        )
        for each in messages:
            producer.produce(
                topic, each.value, each.key, headers=list(each.headers), timestamp=each.timestamp, on_delivery=delivered
            )
            producer.poll(0)
        assert producer.flush(DEADLINE_S) == 0
        return offsets

    def read(self, servers: str, topic: str, count: int, group: str | None = None) -> list[Message]:
        from confluent_kafka import Consumer

        consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": group or f"confluent-{time.time_ns()}",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **self._settings,
            }
        )
        consumer.subscribe([topic])
        found: list[Message] = []
        deadline = time.monotonic() + DEADLINE_S
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count}"
            for message in consumer.consume(count - len(found), timeout=0.5):
                assert message.error() is None, message.error()
                pairs: Any = message.headers() or ()
                headers = tuple((name, value) for name, value in pairs)
                found.append(Message(message.value(), message.key(), headers, message.timestamp()[1]))
        if group:
            consumer.commit(asynchronous=False)
        consumer.close()
        return found


def read_log(servers: str, topic: str, **settings: Any) -> dict[int, tuple[bytes, bytes | None]]:
    """Return the keys and values of the only log of a topic up to its end, by their offsets, in this order."""
    from confluent_kafka import Consumer, TopicPartition

    others = {name.replace("_", "."): value for name, value in settings.items()}
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "unused", "enable.partition.eof": True, **others}
        | {"auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: dict[int, tuple[bytes, bytes | None]] = {}
    deadline = time.monotonic() + DEADLINE_S
    while True:
        assert time.monotonic() < deadline, len(found)
        message: Any = consumer.poll(1)
        if message is not None and message.error():
            assert message.error().name() == "_PARTITION_EOF", message.error()
            break
        if message is not None:
            found[message.offset()] = message.key(), message.value()
    consumer.close()
    return dict(sorted(found.items()))


class AioKafka:
    """aiokafka."""

    def __init__(self, **settings: Any) -> None:
        self._settings = settings

    def write(self, servers: str, topic: str, messages: Sequence[Message], compression: str) -> list[int]:
        from aiokafka import AIOKafkaProducer

        async def write() -> list[int]:
            kind = None if compression == "none" else compression
            producer = AIOKafkaProducer(
                bootstrap_servers=servers, compression_type=kind, enable_idempotence=True, **self._settings
            )
            await producer.start()
            try:
                futures = [
                    await producer.send(
                        topic, each.value, each.key, headers=list(each.headers), timestamp_ms=each.timestamp
                    )
                    for each in messages
                ]
                return [(await future).offset for future in futures]
            finally:
                await producer.stop()

        return asyncio.run(asyncio.wait_for(write(), DEADLINE_S))

    def read(self, servers: str, topic: str, count: int, group: str | None = None) -> list[Message]:
        from aiokafka import AIOKafkaConsumer

        async def read() -> list[Message]:
            consumer = AIOKafkaConsumer(
                topic,
                bootstrap_servers=servers,
                group_id=group,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                **self._settings,
            )
            await consumer.start()
            try:
                found: list[Message] = []
                while len(found) < count:
                    each = await consumer.getone()
                    found.append(Message(each.value, each.key, tuple(each.headers), each.timestamp))
                if group:
                    await consumer.commit()
                return found
            finally:
                await consumer.stop()

        return asyncio.run(asyncio.wait_for(read(), DEADLINE_S))


class KafkaPython:
    """kafka-python."""

    def __init__(self, **settings: Any) -> None:
        self._settings = settings

    def write(self, servers: str, topic: str, messages: Sequence[Message], compression: str) -> list[int]:
        kafka = import_kafka()
        kind = None if compression == "none" else compression
        producer = kafka.KafkaProducer(bootstrap_servers=servers, compression_type=kind, linger_ms=5, **self._settings)
        futures = [
            producer.send(topic, each.value, each.key, headers=list(each.headers), timestamp_ms=each.timestamp)
            for each in messages
        ]
        offsets = [future.get(DEADLINE_S).offset for future in futures]
        producer.close()
        return offsets

    def read(self, servers: str, topic: str, count: int, group: str | None = None) -> list[Message]:
        kafka = import_kafka()
        consumer = kafka.KafkaConsumer(
            topic,
            bootstrap_servers=servers,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            consumer_timeout_ms=DEADLINE_S * 1000,
            **self._settings,
        )
        found: list[Message] = []
        for each in consumer:
            found.append(Message(each.value, each.key, tuple(each.headers), each.timestamp))
            if len(found) == count:
                break
        if group:
            consumer.commit()
        consumer.close()
        return found


def import_kafka() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import kafka
    return kafka


CLIENTS: dict[str, Client] = {
    "confluent-kafka": Confluent(),
    "idempotent confluent-kafka": Confluent(enable_idempotence=True),
    "aiokafka": AioKafka(),
    "kafka-python": KafkaPython(),
}
