"""kafka-python."""

from __future__ import annotations

import time

from kafka import KafkaConsumer, KafkaProducer

from tests.kafka.server.matrix.drivers.arguments import DEADLINE_S, run
from tests.kafka.server.matrix.record_files import Record


def write(servers: str, topic: str, compression: str, records: list[Record]) -> None:
    kind = None if compression == "none" else compression
    producer = KafkaProducer(bootstrap_servers=servers, compression_type=kind, linger_ms=20, acks="all")
    futures = [
        producer.send(topic, each.value, each.key, headers=list(each.headers), timestamp_ms=each.timestamp)
        for each in records
    ]
    producer.flush(DEADLINE_S)
    for future in futures:
        future.get(0)
    producer.close()


def read(servers: str, topic: str, count: int) -> list[Record]:
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=servers,
        group_id=f"kafka-python-{time.time_ns()}",
        auto_offset_reset="earliest",
        consumer_timeout_ms=int(DEADLINE_S * 1000),
    )
    found: list[Record] = []
    for each in consumer:
        found.append(Record(each.timestamp, each.key, each.value, tuple(each.headers)))
        if len(found) == count:
            break
    consumer.close()
    return found


if __name__ == "__main__":
    run(write, read)
