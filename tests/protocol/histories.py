"""Random histories: messages that any peer could send, and drivers that give each machine everything that it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any

import attrs

from dafka import wire
from dafka.config import Config
from dafka.endpoints import PeerEndpoint
from dafka.protocol import (
    CommitQueue,
    ConsumerMachine,
    DeletePartitions,
    ForgetPartitions,
    Machine,
    PeerJoined,
    PeerLeft,
    ProducerMachine,
    ReaderMachine,
    ResetPosition,
    StoreMachine,
    SurveyMachine,
)
from dafka.protocol.actions import Action, Append, Deliver, Publish
from dafka.protocol.groups import GroupReaderMachine
from dafka.records import SEQUENCE_MAX, Partition, RecordBatch
from dafka.wire import Command
from tests.protocol.helpers import contents, run

ME = "ME"
NAMES = ("A", "B", "C", "A/1", "Ø", "", ME)
TOPICS = ("hello", "hello", "hello2", "world", "")
PARTITIONS = tuple(Partition(topic, name) for topic in ("hello", "world") for name in ("A", "B", "C", ME))


EXTREMES = (SEQUENCE_MAX - 1, SEQUENCE_MAX, SEQUENCE_MAX + 1, wire.NUMBER_8_MAX)
PAUSES_S = (0.0, 0.0, 0.001, 0.03, 0.4, 1.0, 3.0, 11.0, 70.0)
KINDS: tuple[type[wire.Message], ...] = tuple(each for each in wire.MESSAGES if "content" not in dict(each.FIELDS))


class Draw(Random):
    """A source of random messages, subscriptions and numbers."""

    def sequence(self) -> int:
        return self.choice(EXTREMES) if self.random() < 0.03 else self.randrange(30)

    def _value(self, name: str) -> Any:
        if name in {"sequence", "end", "unrecoverable_end"}:
            return self.choice((self.sequence(), self.sequence(), wire.NUMBER_8_MAX))
        if name in {"count", "remaining", "partitions"}:
            return self.choice((0, 1, 9, wire.NUMBER_4_MAX))
        if name == "time":
            return self.randrange(3)
        if name == "subjects":
            return tuple(self.choices(TOPICS, k=self.randrange(3)))
        return self.choice(TOPICS if name in {"subject", "after"} else NAMES)

    def message(self) -> wire.BatchedMessage:
        if self.random() < 0.4:
            return self.records()
        kind: Any = self.choice(KINDS)
        message: wire.BatchedMessage = kind(**{each.name: self._value(each.name) for each in attrs.fields(kind)})
        return message

    def records(self) -> wire.RecordRun:
        first = self.sequence() if self.random() < 0.1 else self.randrange(30)
        found = run(first, first + self.randrange(1, 6), self.choice(PARTITIONS))
        return wire.RecordRun(found, self.choice((None, None, ME, ME, "A")))

    def messages(self) -> list[wire.BatchedMessage]:
        return [self.message() for _ in range(self.randrange(1, 6))]

    def subscriptions(self) -> list[wire.Subscription]:
        made = (self.choice(list(Command)), self.choice(NAMES + TOPICS), self.random() < 0.8)
        return [wire.Subscription(*made) for _ in range(self.randrange(1, 3))]


class Driver:
    """A machine, and the inputs that it takes.

    Attributes:
        inputs: Functions of the time that give the machine one random input.
    """

    inputs: Sequence[Callable[[float], object]]

    def __init__(self, draw: Draw) -> None:
        self.draw = draw

    def tick(self, now: float) -> None:
        raise NotImplementedError

    def deadline(self) -> float:
        raise NotImplementedError

    def check(self) -> None:
        """Assert what must hold now."""


class NodeDriver(Driver):
    """A driver of a node's machine: it checks that each message that the machine publishes can be sent."""

    machine: Machine

    def __init__(self, draw: Draw) -> None:
        super().__init__(draw)
        self.sent: list[wire.BatchedMessage] = []
        machine = self.machine
        self.inputs = [
            self.receive,
            self.receive,
            lambda now: self.act(machine.receive_subscriptions(draw.subscriptions(), now)),
            lambda now: self.act(machine.receive_subscriptions(draw.subscriptions(), now)),
            lambda now: self.act(machine.peer_joined(draw.choice(NAMES[:-1]), now)),
            lambda now: self.act(machine.peer_left(draw.choice(NAMES[:-1]), now)),
            lambda now: self.act(machine.node_settled(now)),
        ]
        self.act(machine.start(0.0))

    def receive(self, now: float) -> None:
        messages = self.draw.messages()
        self.note(messages)
        self.act(self.machine.receive(messages, now))

    def note(self, messages: Sequence[wire.BatchedMessage]) -> None:
        """Take notice of messages that the machine receives now."""

    def act(self, actions: Iterable[Action]) -> None:
        for action in actions:
            if isinstance(action, Publish):
                self.sent.append(action.message)
                if not isinstance(action.message, wire.RecordRun):
                    wire.encode(action.message, wire.Dialect.RFC46)
            self.other(action)

    def other(self, action: Action) -> None:
        """Carry an action out that is no message."""

    def tick(self, now: float) -> None:
        self.act(self.machine.tick(now))

    def deadline(self) -> float:
        return self.machine.deadline()


class ProducerDriver(NodeDriver):
    """A producer, and what it should count as acknowledged by the ACKs that it has received."""

    def __init__(self, draw: Draw) -> None:
        self.stores_min = draw.randrange(3)
        config = Config().with_producer(min_stores=self.stores_min, unacknowledged_records_max=30)
        self.machine = self.producer = ProducerMachine(PARTITIONS[3], config.producer, 10, stranded_after_s=5.0)
        self.published_end = 0
        self.ends: dict[str, int] = {}
        self.acknowledged_end = 0
        super().__init__(draw)
        self.producer.watch_listeners(lambda: draw.random() < 0.2)
        receive = [self.acknowledge] * 3
        self.inputs = [*self.inputs, *receive, self.publish, self.publish, self.producer.begin_leaving]

    def publish(self, now: float) -> None:
        first = self.producer.next_sequence
        if self.producer.has_capacity():
            values = contents(first, first + self.draw.randrange(4))
            self.act(self.producer.publish(RecordBatch(PARTITIONS[3], first, values), now))

    def acknowledge(self, now: float) -> None:
        ack = wire.Ack(ME, "hello", self.draw.randrange(self.published_end + 2), self.draw.choice("ABC"))
        self.note([ack])
        self.act(self.producer.receive([ack], now))

    def note(self, messages: Sequence[wire.BatchedMessage]) -> None:
        for each in messages:
            is_own = isinstance(each, wire.Ack) and (each.partition, each.subject) == (ME, "hello")
            if isinstance(each, wire.Ack) and is_own and each.sequence < self.published_end:
                self.ends[each.address] = max(self.ends.get(each.address, 0), each.sequence + 1)

    def other(self, action: Action) -> None:
        if isinstance(action, Publish) and isinstance(action.message, wire.RecordRun):
            batch = action.message.batch
            assert (batch.first_sequence, action.message.requestor) == (self.published_end, None)
            assert list(batch.values) == contents(batch.first_sequence, batch.end_sequence)
            self.published_end = batch.end_sequence

    def check(self) -> None:
        producer = self.producer
        held = producer.readable_range(producer.partition)
        assert held.stop == self.published_end <= producer.next_sequence
        assert producer.ends_by_store == self.ends
        if self.stores_min:
            enough = sorted(self.ends.values(), reverse=True)[self.stores_min - 1 : self.stores_min]
            self.acknowledged_end = max(self.acknowledged_end, *enough, 0)
            assert held.start == self.acknowledged_end, "no record is dropped before its ACKs"
        else:
            self.acknowledged_end = producer.next_sequence
        assert producer.acknowledged_end == self.acknowledged_end
        assert producer.unacknowledged == producer.next_sequence - self.acknowledged_end


class ConsumerDriver(NodeDriver):
    """A consumer, whose program takes records at random. It checks their order."""

    def __init__(self, draw: Draw) -> None:
        config = Config().with_consumer(offset_reset=draw.choice(["earliest", "latest"]), buffer_bytes_max=2000)
        start_ms = draw.choice([None, None, 1])
        self.machine = self.consumer = ConsumerMachine(ME, config, {PARTITIONS[1]: 4}, start_ms)
        self.waiting: list[int] = []
        self.next: dict[Partition, int] = {}
        super().__init__(draw)
        self.inputs = [*self.inputs, self.subscribe, self.subscribe, self.unsubscribe, self.seek, self.take, self.take]

    def subscribe(self, now: float) -> None:
        self.act(self.consumer.subscribe(self.draw.choice(TOPICS[:4]), now))

    def unsubscribe(self, now: float) -> None:
        topic = self.draw.choice(TOPICS)
        self.act(self.consumer.unsubscribe(topic))
        self.next = {partition: end for partition, end in self.next.items() if partition.topic != topic}

    def seek(self, now: float) -> None:
        partition, sequence = self.draw.choice(PARTITIONS), self.draw.randrange(30)
        if partition.topic in self.consumer.topics:
            self.next.pop(partition, None)
            self.act(self.consumer.seek(partition, sequence, now))

    def take(self, now: float) -> None:
        if self.waiting:
            self.act(self.consumer.records_taken(self.waiting.pop(0), now))

    def other(self, action: Action) -> None:
        if isinstance(action, Deliver):
            batch = action.batch
            assert batch.partition.topic in self.consumer.topics
            assert list(batch.values) == contents(batch.first_sequence, batch.end_sequence)
            assert batch.first_sequence >= self.next.get(batch.partition, 0), "a record comes once"
            self.next[batch.partition] = batch.end_sequence
            self.consumer.records_buffered(batch.memory_bytes)
            self.waiting.append(batch.memory_bytes)

    def check(self) -> None:
        assert self.consumer.capacity.held_bytes >= sum(self.waiting) == self.consumer.capacity.buffered_bytes


class ReaderDriver(NodeDriver):
    """A reader, with ranges that are fetched and partitions that are asked about."""

    def __init__(self, draw: Draw) -> None:
        self.ranges: dict[Partition, range] = {}
        self.asked: set[Partition] = set()
        self.machine = self.reader = ReaderMachine(ME, Config(), draw.choice([(), ("hello",)]))
        super().__init__(draw)
        self.inputs = [*self.inputs, self.fetch, self.fetch, self.ask, self.find]

    def fetch(self, now: float) -> None:
        partition = self.draw.choice(PARTITIONS)
        if partition in self.ranges:
            del self.ranges[partition]
            self.reader.forget_range(partition)
        else:
            first = self.draw.randrange(20)
            self.ranges[partition] = range(first, first + self.draw.randrange(1, 20))
            self.act(self.reader.fetch_range(partition, first, self.ranges[partition].stop, now))

    def ask(self, now: float) -> None:
        partition = self.draw.choice(PARTITIONS)
        if partition in self.asked:
            self.asked.remove(partition)
            self.act(self.reader.held_ends.remove_partition(partition))
        else:
            self.asked.add(partition)
            self.act(self.reader.held_ends.add_partition(partition, now))

    def find(self, now: float) -> None:
        partition = self.draw.choice(PARTITIONS)
        if self.draw.random() < 0.5:
            self.act(self.reader.query_positions([partition], self.draw.randrange(3), now))
        else:
            self.reader.end_positions_query([partition])

    def other(self, action: Action) -> None:
        if isinstance(action, Deliver):
            batch, expected = action.batch, self.ranges[action.batch.partition]
            assert list(batch.values) == contents(batch.first_sequence, batch.end_sequence)
            assert expected.start <= batch.first_sequence < batch.end_sequence <= expected.stop
            self.ranges[batch.partition] = range(batch.end_sequence, expected.stop)


class StoreDriver(NodeDriver):
    """A store with its queue, and a storage as lists in memory that fails at random.

    It checks that each ACK names records that the storage has, and that the storage gets each record once, in order.
    """

    def __init__(self, draw: Draw) -> None:
        config = Config().with_store(
            retention_records=draw.choice([0, 5]),
            pending_bytes_max=2000,
            forget_empty_after_ms=draw.choice([0, 20_000]),
        )
        self.stored: dict[Partition, range] = {PARTITIONS[0]: range(2, 6), PARTITIONS[1]: range(3, 3)}
        ends = {partition: held.stop for partition, held in self.stored.items()}
        earliest = {partition: held.start for partition, held in self.stored.items()}
        own = PARTITIONS[3]
        self.machine = self.store = StoreMachine(ME, config, ends, earliest, is_own=own.__eq__)
        self.queue = CommitQueue(self.store)
        self.is_writing = False
        super().__init__(draw)
        self.inputs = [
            *self.inputs,
            self.work,
            self.work,
            self.work,
            self.trim,
            self.append_own,
            lambda now: self.queue.put_silent(self.store.silent_partitions(now)),
            self.store.drop_silent_unproven,
            lambda now: self.delete_own(),
            lambda now: self.answer(),
        ]

    def other(self, action: Action) -> None:
        if isinstance(action, Append):
            self.queue.put_records(action.batch)
        elif isinstance(action, ResetPosition):
            self.queue.put_reset(action)
        elif isinstance(action, Publish) and isinstance(action.message, wire.Ack):
            partition = Partition(action.message.subject, action.message.partition)
            assert action.message.sequence == self.stored[partition].stop - 1, "only durable records are acknowledged"

    def append_own(self, now: float) -> None:
        if not self.queue.is_deleting:
            first = self.store.next_sequence(PARTITIONS[3])
            self.act(self.store.append_own(run(first, first + 2, PARTITIONS[3]), now))

    def delete_own(self) -> None:
        if self.draw.random() < 0.3:
            self.queue.put_deleted([PARTITIONS[3]])

    def trim(self, now: float) -> None:
        partition = self.draw.choice(list(self.stored))
        held = self.stored[partition]
        if len(held) > 1 and not self.is_writing:
            first = self.draw.randrange(held.start, held.stop + 1)
            self.stored[partition] = range(first, held.stop)
            assert self.store.records_trimmed({partition: first}) == first - held.start

    def work(self, now: float) -> None:
        if not self.queue:
            return
        work = self.queue.begin_work()
        self.is_writing = True
        assert self.queue.begin_work() is work, "the same until it is done"
        if self.draw.random() < 0.2:
            self.act(self.queue.work_failed("full"))
            return
        if self.draw.random() < 0.5:
            self.act(self.store.receive(self.draw.messages(), now))
        if isinstance(work, ResetPosition):
            self.stored[work.partition] = range(work.next_sequence, work.next_sequence)
        elif isinstance(work, (ForgetPartitions, DeletePartitions)):
            for partition in work.partitions:
                held = self.stored.pop(partition, range(0))
                assert not len(held) or isinstance(work, DeletePartitions), "only empty partitions are forgotten"
        else:
            for batch in work:
                held = self.stored.get(batch.partition, range(batch.first_sequence))
                assert batch.first_sequence == held.stop, "neither a gap nor a duplicate"
                assert list(batch.values) == contents(batch.first_sequence, batch.end_sequence)
                self.stored[batch.partition] = range(held.start, batch.end_sequence)
        self.is_writing = False
        self.act(self.queue.work_done(now))

    def answer(self) -> None:
        while (request := self.store.responder.next_read()) is not None:
            held = self.stored.get(request.partition, range(0))
            assert request.first_sequence + request.count <= held.stop, "only durable records are sent"
            self.store.responder.complete_read(request, None)
        while (search := self.store.answers.positions.next_search()) is not None:
            found = self.store.answers.positions.complete(search, None)
            assert found.end == self.stored.get(search.partition, range(0)).stop

    def check(self) -> None:
        for partition, held in self.stored.items():
            assert self.store.stored.durable_end(partition) == held.stop
        assert self.store.pending_bytes >= 0
        if not self.queue:
            assert self.store.pending_bytes == 0, "nothing is pending in an empty queue"
        assert self.store.reassembler.ahead_bytes == sum(
            cursor.ahead_bytes for cursor in self.store.reassembler.cursors.values()
        )


class GroupReaderDriver(NodeDriver):
    """A reader of a group's topic."""

    def __init__(self, draw: Draw) -> None:
        self.machine = reader = GroupReaderMachine(ME, Config(), "hello")
        super().__init__(draw)
        members = [frozenset(draw.sample("ABC", 2)) for _ in range(3)]
        self.inputs = [
            *self.inputs,
            lambda now: self.act(reader.begin_survey(now)),
            lambda now: self.act(reader.watch(draw.choice(members))),
            lambda now: reader.surveyed(),
        ]


class SurveyDriver(NodeDriver):
    """An observer, with stores that answer it."""

    def __init__(self, draw: Draw) -> None:
        self.machine = survey = SurveyMachine(ME, Config().with_node(wire=draw.choice(["auto", "rfc46", "libdafka"])))
        super().__init__(draw)
        self.inputs = [
            *self.inputs,
            lambda now: self.act(survey.begin_round(now)),
            lambda now: survey.record_discovery(discovered(draw), now),
            lambda now: survey.record_discovery(discovered(draw), now),
            survey.store_connected,
            lambda now: self.act(survey.receive_from_store(draw.choice(NAMES), draw.messages(), now)),
            survey.survey,
        ]


def discovered(draw: Draw) -> PeerJoined | PeerLeft:
    endpoint = PeerEndpoint(f"tcp://10.0.0.1:{draw.randrange(4001, 4004)}")
    if draw.random() < 0.6:
        return PeerJoined(draw.choice(NAMES[:-1]), endpoint)
    return PeerLeft(draw.choice(NAMES[:-1]), endpoint, draw.random() < 0.3, draw.random() < 0.3)


DRIVERS: tuple[type[Driver], ...] = (
    ProducerDriver,
    ConsumerDriver,
    ReaderDriver,
    StoreDriver,
    GroupReaderDriver,
    SurveyDriver,
)
