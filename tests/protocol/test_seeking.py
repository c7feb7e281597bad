"""Seeking, pausing and reading up to an end: the consumer's machine and its buffer, without sockets."""

from __future__ import annotations

from random import Random

import pytest

from dafka import wire
from dafka.config import Config
from dafka.protocol import ConsumerMachine, DeliveryBuffer
from dafka.protocol.actions import Action, Deliver
from dafka.records import Partition, RecordBatch
from tests.protocol.helpers import HELLO, asked, contents, direct, head, live, published, run, sequences
from tests.seeds import each_seed

ME = "CONSUMER"
OTHER = Partition("hello", "ANOTHER")
WORLD = Partition("world", "PRODUCER")


class Consumer:
    """A machine with its buffer, and a store that holds the first `held` records of each partition."""

    def __init__(self, held: int = 100, **settings: object) -> None:
        config = Config().with_consumer(**{"offset_reset": "earliest", **settings})  # type: ignore[arg-type]
        self.machine = ConsumerMachine(ME, config)
        self.delivery = DeliveryBuffer(self.machine)
        self.held = held
        self.now = 0.0
        self.fetched: list[tuple[Partition, int, int]] = []
        self.machine.start(0.0)
        for topic in ("hello", "world"):
            self.act(self.machine.subscribe(topic, 0.0))

    def act(self, actions: list[Action]) -> None:
        """Carry actions out, and answer FETCHes at once."""
        for action in actions:
            if isinstance(action, Deliver):
                self.delivery.put_records(action.batch)
        for fetch in published(actions, wire.Fetch):
            partition = Partition(fetch.subject, fetch.partition)
            end = min(fetch.sequence + fetch.count, self.held)
            self.fetched.append((partition, fetch.sequence, end))
            if fetch.sequence < end:
                self.receive(direct(fetch.sequence, end, ME, partition))

    def receive(self, *messages: wire.BatchedMessage) -> None:
        self.now += 0.01
        self.act(self.machine.receive(messages, self.now))

    def take(self, records_max: int | None = None, ends: dict[Partition, int] | None = None) -> RecordBatch | None:
        """Take what is there, as a program does."""
        taken = self.delivery.take_run(self.now, ends)
        if taken is None:
            return None
        batch, actions = taken
        given = self.delivery.hand_over(batch, records_max)
        self.act(actions)
        return given

    def take_all(self, ends: dict[Partition, int] | None = None) -> dict[Partition, list[int]]:
        found: dict[Partition, list[int]] = {}
        while (batch := self.take(ends=ends)) is not None:
            found.setdefault(batch.partition, []).extend(sequences([batch]))
        return found

    def seek(self, partition: Partition, sequence: int) -> None:
        self.act(self.delivery.seek(partition, sequence, self.now))

    def pause(self, *selected: Partition | str) -> None:
        self.act(self.delivery.pause(selected, self.now))

    def resume(self, *selected: Partition | str) -> None:
        self.act(self.machine.resume(selected, self.now))


def test_an_unknown_partition_begins_where_it_was_sought_and_the_heads_are_asked_for() -> None:
    consumer = Consumer(offset_reset="latest")
    actions = consumer.delivery.seek(HELLO, 95, 5.0)
    assert published(actions, wire.GetHeads) == [wire.GetHeads("hello", ME)]
    assert consumer.delivery.positions == {HELLO: 95}
    consumer.receive(head(99))
    assert consumer.take_all() == {HELLO: [*range(95, 100)]}


@pytest.mark.parametrize("selected", [HELLO, "hello"])
def test_a_paused_partition_is_neither_received_nor_fetched(selected: Partition | str) -> None:
    consumer = Consumer()
    consumer.receive(head(49), head(9, WORLD))
    consumer.take(10)
    consumer.pause(selected)
    consumer.fetched.clear()
    assert consumer.take_all() == {WORLD: [*range(10)]}
    consumer.receive(live(50, 60), head(79), live(10, 12, WORLD))
    assert consumer.take_all() == {WORLD: [10, 11]}
    consumer.act(consumer.machine.tick(100.0))
    assert consumer.fetched == []
    assert consumer.machine.reassembler.cursors[HELLO].known_end == 80
    consumer.resume(selected)
    assert consumer.take_all() == {HELLO: [*range(10, 80)]}


def test_a_bounded_read_ends_and_leaves_the_rest() -> None:
    consumer = Consumer()
    consumer.receive(head(59), head(19, OTHER), live(0, 5, WORLD))
    ends = {HELLO: 50, OTHER: 20}
    consumer.take(3, ends)
    found = consumer.take_all(ends)
    assert found == {HELLO: [*range(3, 50)], OTHER: [*range(20)]}
    assert consumer.delivery.is_complete(ends)
    assert ends == {}
    assert consumer.take_all() == {HELLO: [*range(50, 60)], WORLD: [*range(5)]}
    assert (consumer.machine.capacity.buffered_bytes, consumer.delivery.records) == (0, 85)


def test_a_bounded_read_is_complete_without_records() -> None:
    consumer = Consumer()
    assert consumer.delivery.is_complete({})
    assert consumer.delivery.is_complete({HELLO: 0})
    assert not consumer.delivery.is_complete({HELLO: 1})
    consumer.seek(HELLO, 5)
    consumer.receive(head(4))
    assert consumer.delivery.is_complete({HELLO: 5})


def test_a_bounded_read_is_complete_when_its_last_records_are_unrecoverable() -> None:
    consumer = Consumer(held=50)
    consumer.receive(head(99))
    assert consumer.take_all({HELLO: 100}) == {HELLO: [*range(50)]}
    assert not consumer.delivery.is_complete({HELLO: 100})
    consumer.machine.reassembler.reset_to(HELLO, 100)
    assert consumer.delivery.is_complete({HELLO: 100})


def test_an_unassigned_partition_stays_where_the_program_is() -> None:
    consumer = Consumer()
    consumer.delivery.assign_only()
    consumer.receive(head(99))
    assert consumer.take_all() == {}
    consumer.act(consumer.delivery.assign(HELLO, 20, consumer.now))
    assert consumer.take(5) == run(20, 25)
    consumer.act(consumer.delivery.unassign(HELLO, consumer.now))
    assert consumer.take_all() == {}
    assert consumer.delivery.positions == {HELLO: 25}
    assert consumer.machine.reassembler.cursors[HELLO].next_sequence == 25
    assert consumer.machine.capacity.held_bytes == 0
    consumer.act(consumer.delivery.assign(HELLO, 25, consumer.now))
    assert consumer.take_all() == {HELLO: [*range(25, 100)]}


class RandomProgram:
    """A program that does anything at random, and knows where each partition must continue."""

    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)
        self.consumer = Consumer(held=0, buffer_bytes_max=self.draw.choice([1500, 10**6]))
        self.ends = dict.fromkeys([HELLO, OTHER, WORLD], 0)
        self.expected = dict(self.ends)
        self.paused: set[Partition | str] = set()

    def do(self) -> None:
        partition = self.draw.choice([*self.ends])
        steps = [self.publish, self.publish, self.take, self.take_before, self.seek, self.pause, self.resume]
        self.draw.choice(steps)(partition)

    def check(self, batch: RecordBatch | None) -> None:
        if batch is not None:
            assert not {batch.partition, batch.partition.topic} & self.paused
            assert batch.first_sequence == self.expected[batch.partition]
            assert list(batch.values) == contents(batch.first_sequence, batch.end_sequence)
            self.expected[batch.partition] = batch.end_sequence

    def publish(self, partition: Partition) -> None:
        first = self.ends[partition]
        self.ends[partition] += self.draw.randrange(1, 20)
        self.consumer.held = max(self.ends.values())
        if self.draw.random() < 0.8:
            self.consumer.receive(live(first, self.ends[partition], partition))

    def take(self, _: Partition) -> None:
        self.check(self.consumer.take(self.draw.choice([None, 1, 5])))

    def take_before(self, _: Partition) -> None:
        limits = {each: self.draw.randrange(self.ends[each] + 1) for each in self.draw.sample([*self.ends], 2)}
        batch = self.consumer.take(ends=limits)
        self.check(batch)
        assert batch is None or batch.end_sequence <= limits[batch.partition]

    def seek(self, partition: Partition) -> None:
        self.expected[partition] = self.draw.randrange(self.ends[partition] + 1)
        self.consumer.seek(partition, self.expected[partition])

    def pause(self, partition: Partition) -> None:
        selected: list[Partition | str] = [partition, partition.topic]
        self.paused.add(self.draw.choice(selected))
        self.consumer.pause(*self.paused)

    def resume(self, _: Partition) -> None:
        self.consumer.resume(*self.paused)
        self.paused.clear()


@each_seed(50)
def test_at_random_no_record_is_left_out_or_comes_twice(seed: int) -> None:
    program = RandomProgram(seed)
    for _ in range(200):
        program.do()
    program.resume(HELLO)
    consumer = program.consumer
    for partition, end in program.ends.items():
        if end:
            consumer.receive(head(end - 1, partition))
    while (batch := consumer.take()) is not None:
        program.check(batch)
    assert program.expected == program.ends
    assert consumer.machine.capacity.buffered_bytes == 0
    assert asked(consumer.machine.tick(consumer.now)) == []
