"""Producers of transactions that go on while brokers fail, and which of their records must be in the logs."""

from __future__ import annotations

import enum
from collections import Counter
from typing import Any

from confluent_kafka import KafkaException, Producer

from tests.broker.cluster.traffic import PRODUCER, Client, Records

PARTS = 6
"""The records of a transaction, which are spread over all logs."""

PAUSE_S = 0.1
ANSWER_S = 30


class Outcome(enum.Enum):
    """How a transaction ended, as far as its producer knows: a commit that was requested may have happened."""

    COMMITTED = enum.auto()
    ABORTED = enum.auto()
    UNKNOWN = enum.auto()


class Transactions(Client):
    """A producer that commits one transaction and aborts the next one, with the same transactional id in all its lives.

    Attributes:
        outcomes: The outcome of each transaction, by its number.
    """

    def __init__(self, servers: str, name: str, topic: str, logs: int) -> None:
        super().__init__(servers)
        self.name = name
        self.topic = topic
        self.outcomes: dict[int, Outcome] = {}
        self._logs = logs
        self._former: list[Producer] = []  # librdkafka can crash when it deletes one that waits for an answer

    def run(self) -> None:
        while not self.is_stopped.is_set():
            try:
                producer = self.open()
                while not self.is_stopped.wait(PAUSE_S):
                    self._transact(producer, len(self.outcomes))
            except KafkaException as error:  # the next producer ends its transaction
                self.waits_for = str(error)
                self.is_stopped.wait(PAUSE_S)

    def open(self) -> Producer:
        """Return a producer when transactions of former ones have ended."""
        settings: dict[str, Any] = {**self.servers, **PRODUCER, "transactional.id": self.name}
        producer = Producer({**settings, "transaction.timeout.ms": 30_000, "message.timeout.ms": 30_000})
        self._former.append(producer)
        self._end(producer.init_transactions)
        return producer

    @property
    def committed(self) -> int:
        """How many transactions it knows to be committed."""
        return sum(each is Outcome.COMMITTED for each in list(self.outcomes.values()))

    def _transact(self, producer: Producer, number: int) -> None:
        self.outcomes[number] = Outcome.ABORTED
        producer.begin_transaction()
        for part in range(PARTS):
            producer.produce(self.topic, f"{self.name} {number} {part}".encode(), partition=part % self._logs)
        if number % 2:
            producer.flush(ANSWER_S)
            self._end(producer.abort_transaction)
            return
        self.outcomes[number] = Outcome.UNKNOWN
        try:
            self._end(producer.commit_transaction)
            self.outcomes[number] = Outcome.COMMITTED
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self.outcomes[number] = Outcome.ABORTED
            self._end(producer.abort_transaction)

    def _end(self, end: Any) -> None:
        while True:
            self.waits_for = end.__name__
            try:
                end(ANSWER_S)
            except KafkaException as error:
                self.waits_for += f": {error}"
                if error.args[0].retriable() and not self.is_stopped.is_set():
                    continue
                raise
            return


def find_problems(producers: list[Transactions], logs: list[Records]) -> list[str]:
    """Return which transactions are there in part, or were aborted and are there, or were committed and are not."""
    counts = Counter(value.rpartition(b" ")[0].decode() for records in logs for _, value in records)
    if doubled := [value for value, count in Counter(v for each in logs for _, v in each).items() if count > 1]:
        return [f"{len(doubled)} records of transactions are doubled, such as {doubled[0]!r}"]
    allowed = {Outcome.COMMITTED: (PARTS,), Outcome.ABORTED: (0,), Outcome.UNKNOWN: (0, PARTS)}
    problems = []
    for producer in producers:
        problems += producer.problems
        for number, outcome in producer.outcomes.items():
            found = counts.pop(name := f"{producer.name} {number}", 0)
            if found not in allowed[outcome]:
                problems.append(f"{found} of {PARTS} records of {name} are there, whose outcome is {outcome.name}")
    return problems + [f"{name} was never sent" for name in counts]
