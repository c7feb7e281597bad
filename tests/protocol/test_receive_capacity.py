"""What a node that hands records to a program keeps in memory has one limit, whatever arrives in whatever order."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dafka import wire
from dafka.config import Config
from dafka.protocol import ConsumerMachine, DeliveryBuffer, ReaderMachine
from dafka.protocol.actions import Action, Deliver, Publish
from dafka.protocol.ordering import buffers
from dafka.protocol.ordering.buffers import BatchBuffer
from dafka.records import Partition, RecordBatch
from dafka.wire import Command
from tests.protocol.helpers import head, subscription

ME = "NODE"
END = 40
LIMIT = 5000
PARTITIONS = [Partition("hello", "A"), Partition("hello", "B")]
CONFIG = Config().with_consumer(buffer_bytes_max=LIMIT, offset_reset="earliest")

_arrivals = st.tuples(
    st.sampled_from(PARTITIONS),
    st.integers(0, END - 1),
    st.integers(1, 8),
    st.sampled_from([0, 10, 300, 900]),
    st.booleans(),
)
_steps = st.lists(st.one_of(st.none(), st.lists(_arrivals, min_size=1, max_size=6)), max_size=60)
"""Each is the batches that arrive together, or None if the program takes a batch."""


def run_of(partition: Partition, first: int, count: int, size: int, *, is_live: bool) -> wire.RecordRun:
    end = min(first + count, END)
    return wire.RecordRun(RecordBatch(partition, first, [bytes(size)] * (end - first)), None if is_live else ME)


class Node:
    """A node, and what its program received."""

    def __init__(self, machine: ConsumerMachine | ReaderMachine, take: Callable[[], RecordBatch | None]) -> None:
        self.machine = machine
        self.take = take
        self.taken: dict[Partition, int] = dict.fromkeys(PARTITIONS, 0)
        self.fetches: list[wire.Fetch] = []
        self.deliver: Callable[[RecordBatch], None]

    def act(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Deliver):
                self.deliver(action.batch)
            elif isinstance(action, Publish) and isinstance(action.message, wire.Fetch):
                self.fetches.append(action.message)

    def take_one(self) -> None:
        batch = self.take()
        if batch is not None:
            assert batch.first_sequence == self.taken[batch.partition]
            self.taken[batch.partition] = batch.end_sequence


def open_consumer() -> Node:
    machine = ConsumerMachine(ME, CONFIG)
    machine.start(0.0)
    machine.subscribe("hello", 0.0)
    delivery = DeliveryBuffer(machine)

    def take() -> RecordBatch | None:
        found = delivery.take_run(1.0)
        if found is None:
            return None
        node.act(found[1])
        return delivery.hand_over(found[0])

    node = Node(machine, take)
    node.deliver = delivery.put_records
    node.act(machine.receive([head(END - 1, partition) for partition in PARTITIONS], 0.1))
    return node


def open_reader() -> Node:
    machine = ReaderMachine(ME, CONFIG)
    machine.start(0.0)
    waiting = BatchBuffer()

    def take() -> RecordBatch | None:
        if not waiting:
            return None
        before = waiting.memory_bytes
        batch = waiting.take_batch()
        node.act(machine.records_taken(before - waiting.memory_bytes, 1.0))
        return batch

    def deliver(batch: RecordBatch) -> None:
        machine.records_buffered(batch.memory_bytes)
        waiting.add_batch(batch)

    node = Node(machine, take)
    node.deliver = deliver
    for partition in PARTITIONS:
        node.act(machine.fetch_range(partition, 0, END, 0.1))
    return node


@pytest.mark.parametrize("opened", [open_consumer, open_reader])
@settings(max_examples=30)
@given(steps=_steps)
def test_what_is_held_never_exceeds_the_limit_by_more_than_one_batch(
    opened: Callable[[], Node], steps: list[list[tuple[Partition, int, int, int, bool]] | None]
) -> None:
    node = opened()
    capacity = node.machine.capacity
    largest = 0
    for step in steps:
        if step is None:
            node.take_one()
            continue
        runs = [run_of(*each, is_live=is_live) for each, is_live in ((one[:4], one[4]) for one in step)]
        largest = max(largest, *(run.batch.memory_bytes for run in runs))
        node.act(node.machine.receive(runs, 1.0))
        assert 0 <= capacity.buffered_bytes <= capacity.held_bytes <= LIMIT + largest
    # Whatever was dropped, the rest comes in when the program goes on.
    for attempt in range(200):
        if set(node.taken.values()) == {END}:
            break
        node.take_one()
        now = 2.0 + 10 * attempt
        node.act(node.machine.tick(now))
        node.act(node.machine.receive_subscriptions(subscription(Command.FETCH), now))
        fetches, node.fetches = node.fetches, []
        for fetch in fetches:
            partition = Partition(fetch.subject, fetch.partition)
            count = min(fetch.count, 3)
            node.act(node.machine.receive([run_of(partition, fetch.sequence, count, 300, is_live=False)], now))
            assert capacity.held_bytes <= LIMIT + max(largest, 3 * 400)
    assert node.taken == dict.fromkeys(PARTITIONS, END)
    assert capacity.held_bytes == 0


def test_large_records_are_taken_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "TAKE_BYTES_MAX", 1000)
    waiting = BatchBuffer()
    for first in range(6):
        waiting.add_batch(RecordBatch(PARTITIONS[0], first, [bytes(300 if first != 4 else 5000)]))
    taken = []
    while waiting:
        taken.append([*range((batch := waiting.take_batch()).first_sequence, batch.end_sequence)])
    assert taken == [[0, 1], [2, 3], [4], [5]]
    assert waiting.memory_bytes == 0
