"""Builders of runs whose contents name their sequence, and selectors of machines' actions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from dafka import wire
from dafka.protocol import ProducerMachine
from dafka.protocol.actions import Action, Publish
from dafka.records import Partition, RecordBatch

HELLO = Partition("hello", "PRODUCER")

_Message = TypeVar("_Message")


def contents(first: int, end: int) -> list[bytes]:
    return [b"%d" % sequence for sequence in range(first, end)]


def run(first: int, end: int, partition: Partition = HELLO) -> RecordBatch:
    return RecordBatch(partition, first, contents(first, end))


def live(first: int, end: int, partition: Partition = HELLO) -> wire.RecordRun:
    return wire.RecordRun(run(first, end, partition))


def direct(first: int, end: int, requestor: str, partition: Partition = HELLO) -> wire.RecordRun:
    return wire.RecordRun(run(first, end, partition), requestor)


def head(sequence: int, partition: Partition = HELLO) -> wire.Head:
    return wire.Head(partition.address, partition.topic, sequence)


def subscription(command: wire.Command, topic: str = "", *, active: bool = True) -> list[wire.Subscription]:
    return [wire.Subscription(command, topic, active)]


def published(actions: Iterable[Action], kind: type[_Message]) -> list[_Message]:
    messages: list[Any] = [action.message for action in actions if isinstance(action, Publish)]
    return [message for message in messages if isinstance(message, kind)]


def asked(actions: Iterable[Action]) -> list[tuple[int, int]]:
    """Return the FETCHes among the actions, as (first sequence, count)."""
    return [(fetch.sequence, fetch.count) for fetch in published(actions, wire.Fetch)]


def sequences(runs: Iterable[RecordBatch]) -> list[int]:
    """Return the runs' sequences, and check that every content names its own."""
    records = [record for batch in runs for record in batch]
    assert [record.value for record in records] == [b"%d" % record.sequence for record in records]
    return [record.sequence for record in records]


def next_batch(producer: ProducerMachine, values: Sequence[bytes]) -> RecordBatch:
    """Return the batch that a producer publishes next."""
    return RecordBatch(producer.partition, producer.next_sequence, values)
