"""confluent-kafka, which is librdkafka."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import Consumer, Producer

from tests.kafka.server.matrix.drivers.arguments import DEADLINE_S, run
from tests.kafka.server.matrix.record_files import Record


def write(servers: str, topic: str, compression: str, records: list[Record]) -> None:
    errors: list[Any] = []
    producer = Producer({"bootstrap.servers": servers, "compression.type": compression, "linger.ms": 20})

    def delivered(error: Any, _: Any) -> None:
        if error is not None:
            errors.append(error)

    for each in records:
        while True:
            try:
                producer.produce(
                    topic,
                    each.value,
                    each.key,
                    headers=list(each.headers),
                    timestamp=each.timestamp,
                    on_delivery=delivered,
                )
                break
            except BufferError:
                producer.poll(0.1)
    left = producer.flush(DEADLINE_S)
    assert not left, f"{left} records are not acknowledged"
    assert not errors, errors[:3]


def read(servers: str, topic: str, count: int) -> list[Record]:
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": f"confluent-{time.time_ns()}", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    found: list[Record] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} records"
        for message in consumer.consume(min(count - len(found), 10_000), timeout=0.5):
            assert message.error() is None, message.error()
            headers: Any = message.headers() or ()
            found.append(Record(message.timestamp()[1], message.key(), message.value(), tuple(headers)))
    consumer.close()
    return found


if __name__ == "__main__":
    run(write, read)
