"""A producer of confluent-kafka that goes on while brokers fail, and what must be in the logs in the end."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

TOPIC = "orders"

BURST = 20
"""How many records are sent to one log before the next one has its turn."""

PAUSE_S = 0.02
WAITING_MAX = 50_000
DEADLINE_S = 120.0

QUICK = {
    "socket.timeout.ms": 2000,
    "request.timeout.ms": 1500,
    "topic.metadata.refresh.interval.ms": 1000,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 50,
    "retry.backoff.max.ms": 200,
    "log_level": 3,
}
"""With these settings, a client notices soon that a broker is away, and asks another for the new leader."""

IDEMPOTENT = {**QUICK, "enable.idempotence": True, "message.timeout.ms": 0}
"""A producer that repeats its records until they are acknowledged."""

PLAIN = {"enable.idempotence": False, "request.timeout.ms": 300_000, "socket.timeout.ms": 300_000}
"""A producer that repeats a request when its connection has ended, and at no other time."""

Records = list[tuple[int, int]]
"""What a log contains: the offset and the number of each record."""


class Traffic:
    """A producer that sends numbered records to all logs in turn, until it is stopped."""

    def __init__(self, servers: str, logs: int, settings: dict[str, Any], *, can_diverge: bool = False) -> None:
        self.sent = [0] * logs
        self.offsets: list[dict[int, int | None]] = [{} for _ in range(logs)]
        self.failed: list[str] = []
        self.can_diverge = can_diverge
        self._settings = {"bootstrap.servers": servers, "acks": "all", "linger.ms": 5, **settings}
        self._is_stopped = False

    def run(self) -> None:
        producer = Producer(self._settings)
        while not self._is_stopped:
            for log, first in enumerate(self.sent):
                if len(producer) < WAITING_MAX:
                    self.sent[log] += BURST
                    for number in range(first, first + BURST):
                        producer.produce(TOPIC, b"%d" % number, partition=log, on_delivery=self._note)
                producer.poll(PAUSE_S)
        if left := producer.flush(DEADLINE_S):
            self.failed.append(f"{left} records are not acknowledged")

    def stop(self) -> None:
        self._is_stopped = True

    def is_more_acknowledged(self, before: list[int]) -> bool:
        return all(len(each) > count for each, count in zip(self.offsets, before, strict=True))

    def _note(self, error: KafkaError | None, message: Any) -> None:
        if error is None:
            self.offsets[message.partition()][int(message.value())] = message.offset()
        else:
            self.failed.append(str(error))


def find_problems(traffic: Traffic, logs: list[Records]) -> list[str]:
    problems = list(traffic.failed)
    for log, records in enumerate(logs):
        acknowledged, counts = traffic.offsets[log], Counter(number for _, number in records)
        wrong = {
            "lost": sorted(acknowledged.keys() - counts.keys()),
            "never sent": sorted(number for number in counts if number >= traffic.sent[log]),
            "doubled": sorted(number for number, count in counts.items() if count > 1),
        }
        if not traffic.can_diverge:
            offsets = {number: offset for offset, number in records}
            told = {number: offset for number, offset in acknowledged.items() if offset is not None}
            wrong["moved"] = sorted(each for each in told if offsets.get(each, told[each]) != told[each])
        problems += [
            f"log {log}: {len(each)} records are {how}, such as {each[0]}" for how, each in wrong.items() if each
        ]
    return problems


def read_logs(servers: str, logs: int) -> list[Records]:
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "look", "enable.auto.commit": False, "enable.partition.eof": True}
    )
    try:
        consumer.assign([TopicPartition(TOPIC, log, 0) for log in range(logs)])
        found: list[Records] = [[] for _ in range(logs)]
        ended: set[int] = set()
        deadline = time.monotonic() + DEADLINE_S
        while len(ended) < logs:
            assert time.monotonic() < deadline, f"{sorted(ended)} of {logs} logs were read to their ends"
            for message in consumer.consume(10_000, 0.2):
                error, records = message.error(), found[message.partition()]
                if error is None:
                    while records and records[-1][0] >= message.offset():
                        records.pop()  # the log goes on in another branch
                    records.append((message.offset(), int(message.value())))
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
        return found
    finally:
        consumer.close()


def read_settled(servers: str, logs: int) -> list[Records]:
    """Return the contents of all logs when they stay as they are: brokers may still merge what a split has divided."""
    deadline = time.monotonic() + DEADLINE_S
    found = read_logs(servers, logs)
    while (again := read_logs(servers, logs)) != found:
        assert time.monotonic() < deadline, "the logs go on changing"
        found = again
    return found
