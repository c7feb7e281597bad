"""A member of a group, in a process of its own: it handles records one by one, and commits each.

    python -m tests.kafka.server.group_member CLIENT SERVERS TOPIC GROUP STRATEGY INSTANCE

It prints `started 0 0` first, `handled LOG OFFSET` before it commits a record, and `committed LOG OFFSET` when that has
succeeded. SIGTERM makes it leave the group. INSTANCE is the name of a static member, or empty.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_is_leaving = False


def _leave(_number: int, _frame: object) -> None:
    global _is_leaving  # noqa: PLW0603
    _is_leaving = True


def say(what: str, log: int, offset: int) -> None:
    print(f"{what} {log} {offset}", flush=True)


def _settings(servers: str, group: str, instance: str) -> dict[str, Any]:
    return {
        "bootstrap_servers": servers,
        "group_id": group,
        "group_instance_id": instance or None,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "session_timeout_ms": 6000,
        "heartbeat_interval_ms": 200,
    }


def with_confluent_kafka(servers: str, topic: str, group: str, strategy: str, instance: str) -> None:
    from confluent_kafka import Consumer, KafkaException

    settings = {name.replace("_", "."): value for name, value in _settings(servers, group, instance).items() if value}
    consumer = Consumer({**settings, "enable.auto.commit": False, "partition.assignment.strategy": strategy})
    consumer.subscribe([topic])
    while not _is_leaving:
        message = consumer.poll(0.2)
        if message is None or message.error():
            continue
        say("handled", message.partition(), message.offset())
        with suppress(KafkaException):  # the log may belong to another member by then
            (committed,) = consumer.commit(message, asynchronous=False)
            if committed.error is None:
                say("committed", message.partition(), message.offset())
    consumer.close()


def with_aiokafka(servers: str, topic: str, group: str, _strategy: str, instance: str) -> None:
    from aiokafka import AIOKafkaConsumer, TopicPartition
    from aiokafka.errors import KafkaError

    async def run() -> None:
        consumer = AIOKafkaConsumer(topic, **_settings(servers, group, instance))
        await consumer.start()
        while not _is_leaving:
            for log, records in (await consumer.getmany(timeout_ms=200, max_records=1)).items():
                for record in records:
                    say("handled", log.partition, record.offset)
                    with suppress(KafkaError):
                        await consumer.commit({TopicPartition(topic, log.partition): record.offset + 1})
                        say("committed", log.partition, record.offset)
        await consumer.stop()

    asyncio.run(run())


def with_kafka_python(servers: str, topic: str, group: str, _strategy: str, instance: str) -> None:
    from kafka import KafkaConsumer
    from kafka.errors import KafkaError
    from kafka.structs import OffsetAndMetadata

    consumer = KafkaConsumer(topic, **_settings(servers, group, instance))
    while not _is_leaving:
        for log, records in consumer.poll(timeout_ms=200, max_records=1).items():
            for record in records:
                say("handled", log.partition, record.offset)
                with suppress(KafkaError):
                    consumer.commit({log: OffsetAndMetadata(record.offset + 1, "", -1)})
                    say("committed", log.partition, record.offset)
    consumer.close()


CLIENTS: dict[str, Callable[[str, str, str, str, str], None]] = {
    "confluent-kafka": with_confluent_kafka,
    "aiokafka": with_aiokafka,
    "kafka-python": with_kafka_python,
}

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _leave)
    say("started", 0, 0)
    CLIENTS[sys.argv[1]](*sys.argv[2:])
