"""Consumers of confluent-kafka that go on while brokers fail: readers of logs, and members of a group."""

from __future__ import annotations

import threading
import time
from random import Random

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.broker.cluster.traffic import DEADLINE_S, QUICK, Client, Records, await_client, close

READER = {**QUICK, "enable.auto.commit": False, "fetch.wait.max.ms": 500, "fetch.error.backoff.ms": 50}

GROUP = "handlers"

MEMBER = {
    **READER,
    "group.id": GROUP,
    "auto.offset.reset": "earliest",
    "session.timeout.ms": 6000,
    "heartbeat.interval.ms": 500,
    "enable.partition.eof": True,
}
"""A member whose group begins at the first record, and would begin there again if its positions were lost."""

LIFE_S = (5.0, 30.0)
"""How long a member of the group lives."""

LOOK_S = 0.3
ANSWER_S = 20


class Reader(Client):
    """A reader of all logs of a topic from their first record on.

    Attributes:
        found: What it has read of each log.
    """

    def __init__(self, servers: str, topic: str, logs: int) -> None:
        super().__init__(servers)
        self.topic = topic
        self.found: list[Records] = [[] for _ in range(logs)]

    def run(self) -> None:
        settings = {**READER, "group.id": "readers", "auto.offset.reset": "error", "isolation.level": "read_committed"}
        consumer = Consumer({**self.servers, **settings})
        consumer.assign([TopicPartition(self.topic, log, 0) for log in range(len(self.found))])
        while not self.is_stopped.is_set():
            for message in consumer.consume(1000, LOOK_S):
                if message.error() is None:
                    self.found[message.partition()].append((message.offset(), message.value()))
                elif message.error().code() == KafkaError._AUTO_OFFSET_RESET:
                    self.problems.append(f"a reader of {self.topic} lost its place: {message.error()}")
        close(consumer)

    def find_problems(self, logs: list[Records]) -> list[str]:
        """Return whether it has missed records, read them twice, in another order, or others than there are now."""
        problems = list(self.problems)
        for log, (found, records) in enumerate(zip(self.found, logs, strict=True)):
            if found != records[: len(found)]:
                pairs = enumerate(zip(found, [*records, None], strict=False))
                at, (read, there) = next((at, pair) for at, pair in pairs if pair[0] != pair[1])
                problems.append(f"a reader of log {log} of {self.topic} read {read} at {at}, where {there} is")
        return problems


class Group(Client):
    """What the members of a group handle and commit, and a program that asks for the group's positions all the while.

    Attributes:
        committed: The highest position whose commit was acknowledged, by log.
        handled: The records that members have handled, by log and offset.
    """

    def __init__(self, servers: str, topic: str, logs: int) -> None:
        super().__init__(servers)
        self.topic = topic
        self.committed = dict.fromkeys(range(logs), 0)
        self.handled: list[dict[int, bytes]] = [{} for _ in range(logs)]
        self.lock = threading.Lock()

    def note_commit(self, log: int, position: int) -> None:
        with self.lock:
            self.committed[log] = max(self.committed[log], position)

    def run(self) -> None:
        highest = dict.fromkeys(self.committed, 0)
        consumer = self.open()
        while not self.is_stopped.wait(LOOK_S):
            with self.lock:
                floor = {log: max(each, highest[log]) for log, each in self.committed.items()}
            highest = floor | (found := self.ask_positions(consumer))
            self.problems += [
                f"the position of log {log} went from {floor[log]} back to {each}"
                for log, each in found.items()
                if each < floor[log]
            ]
        close(consumer)

    def open(self) -> Consumer:
        """Return a client that asks for positions, and is no member."""
        return Consumer({**self.servers, **MEMBER})

    def ask_positions(self, consumer: Consumer) -> dict[int, int]:
        asked = [TopicPartition(self.topic, log) for log in self.committed]
        try:
            found = consumer.committed(asked, timeout=ANSWER_S)
        except KafkaException:
            return {}
        return {each.partition: max(each.offset, 0) for each in found if each.error is None}

    def find_problems(self, logs: list[Records]) -> list[str]:
        """Return whether members have missed records, or have not got what is there now."""
        problems = list(self.problems)
        for log, (handled, records) in enumerate(zip(self.handled, logs, strict=True)):
            if missed := [offset for offset, value in records if handled.get(offset) != value]:
                problems.append(f"the group missed {len(missed)} records of log {log}, such as {missed[0]}")
            if more := handled.keys() - {offset for offset, _ in records}:
                problems.append(f"the group handled {len(more)} records of log {log} that are not there: {min(more)}")
        return problems


class Member(Client):
    """One member after another of a group, each of which commits the position after what it has handled.

    A member begins a log at the highest position whose commit was acknowledged before it was assigned the log, or after
    it, and gets each record once.
    """

    def __init__(self, group: Group, servers: str, draw: Random) -> None:
        super().__init__(servers)
        self._group = group
        self._draw = draw
        self._floors: dict[int, int] = {}

    def run(self) -> None:
        while not self.is_stopped.is_set():
            self._live(time.monotonic() + self._draw.uniform(*LIFE_S))

    def finish(self) -> None:
        """Handle the rest of all logs, as the last member of the group, and see that nothing is left then."""
        self._live(time.monotonic() + DEADLINE_S, until_end=True)

    def _live(self, until: float, *, until_end: bool = False) -> None:
        consumer = Consumer({**self._group.servers, **MEMBER})
        consumer.subscribe([self._group.topic], on_assign=self._assigned)
        ended: set[int] = set()
        while time.monotonic() < until and (until_end or not self.is_stopped.is_set()):
            positions = {}
            for message in consumer.consume(500, LOOK_S):
                if message.error() is None:
                    positions[message.partition()] = message.offset() + 1
                    self._handle(message.partition(), message.offset(), message.value())
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
            if positions:
                self._commit(consumer, positions)
            elif until_end and len(ended) == len(self._group.committed):
                break
        else:
            if until_end:
                self.problems.append(f"the group reached only the ends of the logs {sorted(ended)}")
        close(consumer)

    def _assigned(self, consumer: Consumer, logs: list[TopicPartition]) -> None:
        with self._group.lock:
            self._floors = {each.partition: self._group.committed[each.partition] for each in logs}
        consumer.assign(logs)

    def _handle(self, log: int, offset: int, value: bytes) -> None:
        if offset < self._floors.get(log, 0):
            self.problems.append(f"a member got {offset} of log {log} again, after {self._floors[log]}")
        self._floors[log] = offset + 1
        before = self._group.handled[log].setdefault(offset, value)
        if before != value:
            self.problems.append(f"a member got {value!r} at {offset} of log {log}, where {before!r} was")

    def _commit(self, consumer: Consumer, positions: dict[int, int]) -> None:
        offsets = [TopicPartition(self._group.topic, log, each) for log, each in positions.items()]

        def commit() -> list[TopicPartition]:
            try:
                answers: list[TopicPartition] = consumer.commit(offsets=offsets, asynchronous=False)
            except KafkaException:
                return []
            return answers

        for each in await_client(commit) or ():
            if each.error is None:
                self._group.note_commit(each.partition, each.offset)
