"""Producers of confluent-kafka that go on while brokers fail, and what must be in the logs in the end."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from tests.leftovers import STUCK_CLIENT

TOPIC = "orders"

BURST = 10
"""How many records are sent to one log before the next one has its turn."""

PAUSE_S = 0.05
PAUSE_NOTED_S = 3.0
WAITING_MAX = 50_000
DEADLINE_S = 120.0
CLOSING_S = 20.0

QUICK = {
    "socket.timeout.ms": 2000,
    "topic.metadata.refresh.interval.ms": 1000,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 50,
    "log_level": 2,
}
"""With these settings, a client notices soon that a broker is away, and asks another for the new leader."""

PRODUCER = {**QUICK, "acks": "all", "linger.ms": 5, "request.timeout.ms": 1500, "retry.backoff.max.ms": 200}

IDEMPOTENT = {**PRODUCER, "enable.idempotence": True, "message.timeout.ms": 0}
"""A producer that repeats its records until they are acknowledged."""

REPEATING = {**PRODUCER, "enable.idempotence": False, "message.timeout.ms": 0}
"""The same, whose records can be in the log twice."""

PLAIN = {"enable.idempotence": False, "acks": "all", "request.timeout.ms": 300_000, "socket.timeout.ms": 300_000}
"""A producer that repeats a request when its connection has ended, and at no other time."""

Records = list[tuple[int, bytes]]
"""What a log contains: the offset and the value of each record."""


class Client(ABC):
    """Work with a client of Kafka in a thread, until it is stopped.

    Attributes:
        problems: What it has seen that must never be.
        waits_for: What it is doing, with the last error. The report of a client that does not go on has it.
        is_stopped: Set when it is to end.
    """

    def __init__(self, servers: str) -> None:
        self.problems: list[str] = []
        self.waits_for = ""
        self.is_stopped = threading.Event()
        self.servers = {"bootstrap.servers": servers}

    @abstractmethod
    def run(self) -> None:
        """Work until it is stopped."""


class Traffic(Client):
    """A producer that sends numbered records to all logs of a topic in turn.

    Attributes:
        sent: How many records were sent to each log.
        offsets: The offset in the acknowledgement of each record, by its number, in each log.
        pauses: The times in seconds in which no record of a log was acknowledged, of those longer than `PAUSE_NOTED_S`,
            and when each ended, by `time.monotonic`.
    """

    def __init__(
        self, servers: str, logs: int, settings: dict[str, Any], topic: str = TOPIC, *, can_diverge: bool = False
    ) -> None:
        super().__init__(servers)
        self.topic = topic
        self.sent = [0] * logs
        self.offsets: list[dict[int, int | None]] = [{} for _ in range(logs)]
        self.pauses: list[tuple[float, float]] = []
        self.can_diverge = can_diverge
        self.can_double = not settings.get("enable.idempotence")
        self._heard_at: dict[int, float] = {}
        self._settings = settings

    def run(self) -> None:
        producer = Producer({**self.servers, **self._settings})
        while not self.is_stopped.is_set():
            for log, first in enumerate(self.sent):
                if len(producer) < WAITING_MAX:
                    self.sent[log] += BURST
                    for number in range(first, first + BURST):
                        producer.produce(self.topic, b"%d" % number, partition=log, on_delivery=self._note)
                producer.poll(PAUSE_S)
        if left := producer.flush(DEADLINE_S):
            self.problems.append(f"{left} records of {self.topic} are not acknowledged")

    def is_more_acknowledged(self, before: list[int]) -> bool:
        return all(len(each) > count for each, count in zip(self.offsets, before, strict=True))

    def _note(self, error: KafkaError | None, message: Any) -> None:
        log, now = message.partition(), time.monotonic()
        if error is None:
            self.offsets[log][int(message.value())] = message.offset()
        else:
            self.problems.append(str(error))
        if (pause := now - self._heard_at.get(log, now)) > PAUSE_NOTED_S:
            self.pauses.append((pause, now))
        self._heard_at[log] = now


def find_problems(traffic: Traffic, logs: list[Records]) -> list[str]:
    """Return what is wrong with the logs of a topic to which only this producer has sent records."""
    problems = list(traffic.problems)
    for log, records in enumerate(logs):
        acknowledged, counts = traffic.offsets[log], Counter(int(value) for _, value in records)
        wrong = {
            "lost": sorted(acknowledged.keys() - counts.keys()),
            "never sent": sorted(number for number in counts if number >= traffic.sent[log]),
        }
        if not traffic.can_double:
            wrong["doubled"] = sorted(number for number, count in counts.items() if count > 1)
        if not traffic.can_diverge:
            found = set(records)
            told = [each for each in acknowledged.items() if each[1] is not None and each[0] in counts]
            wrong["moved"] = [number for number, offset in told if (offset, b"%d" % number) not in found]
        problems += [
            f"log {log} of {traffic.topic}: {len(each)} records are {how}, such as {each[0]}"
            for how, each in wrong.items()
            if each
        ]
    return problems


def close(consumer: Consumer) -> None:
    """Close a consumer, or leave it to a thread of its own."""
    await_client(consumer.close)


def await_client(call: Callable[[], Any], wait_s: float = CLOSING_S) -> Any:
    """Return what a call of a client returns; None if it takes too long, and is left to a thread of its own.

    While a broker is away, threads of librdkafka can wait for each other without end: when a consumer is closed, or
    looks for the leader of a log.
    """
    found: list[Any] = []
    calling = threading.Thread(target=lambda: found.append(call()), name=STUCK_CLIENT, daemon=True)
    calling.start()
    calling.join(wait_s)
    return found[0] if found else None


def read_logs(servers: str, topic: str, logs: int, isolation: str = "read_committed") -> list[Records]:
    settings = {"group.id": "look", "enable.auto.commit": False, "enable.partition.eof": True, **QUICK}
    consumer = Consumer({"bootstrap.servers": servers, "isolation.level": isolation, **settings})
    try:
        consumer.assign([TopicPartition(topic, log, 0) for log in range(logs)])
        found: list[Records] = [[] for _ in range(logs)]
        ended: set[int] = set()
        deadline = time.monotonic() + DEADLINE_S
        while len(ended) < logs:
            assert time.monotonic() < deadline, f"only the logs {sorted(ended)} of {topic} were read to their ends"
            for message in consumer.consume(10_000, 0.2):
                error, records = message.error(), found[message.partition()]
                if error is None:
                    while records and records[-1][0] >= message.offset():
                        records.pop()  # the log goes on in another branch
                    records.append((message.offset(), message.value()))
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
        return found
    finally:
        close(consumer)


def read_settled(servers: str, topic: str, logs: int) -> list[Records]:
    """Return the contents of all logs when they stay as they are: brokers may still merge what a split has divided."""
    deadline = time.monotonic() + DEADLINE_S
    found = read_logs(servers, topic, logs)
    while (again := read_logs(servers, topic, logs)) != found:
        assert time.monotonic() < deadline, f"the logs of {topic} go on changing"
        found = again
    return found
