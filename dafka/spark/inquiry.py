"""Asks the stores how much of a partition they hold, and reads it: the rules. `dafka.spark.asking` runs them.

RFC 46 has no question for one partition's head. Two things together answer it. A store that holds records of a
partition sends its ACK to whoever subscribes to the partition's ACKs, as to a producer that has come back; so each
store's end is known, and stays known. A store that holds nothing of it says so in answer to a FETCH (erratum 26).
The C implementation's stores do not; their heads are asked for, and their silence has to do for a no.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import attrs

from dafka import wire
from dafka.config import Config
from dafka.protocol import Action, Deliver, Notify, Publish, RecordsGone, Subscribe
from dafka.protocol.assembly import Assembly
from dafka.protocol.holders import HOLDS_NOTHING
from dafka.records import Partition
from dafka.wire import Command, Dialect

PROBE_S = 0.5
"""An unanswered question is asked again after so long."""

PATIENCE_S = 2.0
"""Nodes that were found and have not connected, and stores that have not answered, are waited for so long: a store
that holds records and has connected sends its ACK at once."""

QUIET_S = 1.0
"""Where something is held, nothing may have been added for so long: what an attempt that died had sent may still be on
its way to a disk, and one that lives goes on adding."""


@attrs.define
class _Question:
    since: float
    moved_at: float
    ends: dict[str, int] = attrs.field(factory=dict)


class InquiryMachine:
    """Attributes:
    address: the node's own.
    assembly: where the partition that is being read stands; it knows the stores, too.
    discarded: messages thrown away, by reason.
    """

    def __init__(self, address: str, config: Config) -> None:
        self.address = address
        self.assembly = Assembly(address, config.fetch)
        self.discarded: Counter[str] = Counter()
        self._min_stores = config.producer.min_stores
        self._is_libdafka = config.node.wire == Dialect.LIBDAFKA.value
        self._questions: dict[Partition, _Question] = {}
        self._open: set[Partition] = set()
        self._reading: dict[Partition, int] = {}
        self._unseen: set[str] = set()
        self._seen: set[str] = set()
        self._settled_at = float("inf")
        self._probe_due = float("inf")
        self._looks: list[float] = []

    @property
    def stores(self) -> int:
        """How many stores are connected."""
        return len(self.assembly.holders.stores)

    def start(self, now: float) -> list[Action]:
        """The subscriptions for what is addressed to this node."""
        commands = (Command.DIRECT_RECORD, Command.DIRECT_HEAD, Command.DIRECT_EARLIEST)
        return [Subscribe(wire.subscription_prefix(command, self.address)) for command in commands]

    def ask(self, partition: Partition, now: float) -> list[Action]:
        """Begins to ask about a partition; `held_end` tells what came of it."""
        if partition in self._questions:
            return []
        self._questions[partition] = _Question(now, now)
        self._open.add(partition)
        prefix = wire.subscription_prefix(Command.ACK, partition.address)
        return [Subscribe(prefix), *self._probe(partition, now)]

    def held_end(self, partition: Partition, now: float) -> int | None:
        """The sequence after the last record that any store holds; None while that is not known."""
        question = self._questions[partition]
        holders = self.assembly.holders
        patient_until = max(question.since, self._settled_at) + PATIENCE_S
        if not holders.is_settled or self.stores < self._min_stores:
            return None
        if now < patient_until and (self._unseen or not question.ends.keys() >= holders.stores):
            self._look_again(patient_until)
            return None
        end = max(question.ends.values(), default=0)
        if end and now < question.moved_at + QUIET_S:
            self._look_again(question.moved_at + QUIET_S)
            return None
        self._open.discard(partition)
        return end

    def read(self, partition: Partition, first_sequence: int, end_sequence: int, now: float) -> list[Action]:
        """Fetches these records, which stores have said that they hold: they come in order, those that are gone left
        out."""
        self.assembly.follow(partition, first_sequence)
        self.assembly.learn(partition, end_sequence)
        self._reading[partition] = end_sequence
        return self._fetches(now)

    def receive(self, messages: Iterable[wire.Inbound], now: float) -> list[Action]:
        """Answers; all else is discarded and counted."""
        actions: list[Action] = []
        for message in messages:
            if isinstance(message, wire.RecordRun) and message.requestor == self.address:
                actions += self._receive_run(message, now)
            elif isinstance(message, wire.Ack):
                self._learn(Partition(message.subject, message.partition), message.address, message.sequence + 1, now)
            elif isinstance(message, wire.DirectHead) and message.requestor == self.address:
                self._learn(Partition(message.subject, message.address), "", message.sequence + 1, now)
            elif isinstance(message, wire.DirectEarliest) and message.requestor == self.address:
                actions += self._receive_earliest(message, now)
            else:
                self.discarded["unexpected command"] += 1
        return actions + self._fetches(now)

    def subscribed(self, subscriptions: Iterable[wire.Subscription], now: float) -> list[Action]:
        """A peer has connected: one that answers FETCHes is asked what is open."""
        is_new = False
        for subscription in subscriptions:
            self.assembly.holders.subscribed(subscription, self.address)
            if subscription.active:
                self._seen.add(subscription.topic)
                self._unseen.discard(subscription.topic)
            if subscription.active and subscription.command is Command.FETCH:
                self.assembly.renew(subscription)
                is_new = True
        return (self._probe_all(now) if is_new else []) + self._fetches(now)

    def peer_joined(self, address: str, now: float) -> list[Action]:
        """Discovery found a node. It may be a store: that is known when it has connected, and subscribed."""
        self.assembly.holders.joined(address)
        if address and address not in self._seen:
            self._unseen.add(address)
        return []

    def peer_left(self, address: str, now: float) -> list[Action]:
        """Discovery lost a node, which answers nothing any more."""
        self.assembly.holders.left(address)
        self._unseen.discard(address)
        return []

    def settled(self, now: float) -> list[Action]:
        """The nodes that were there before have been found."""
        self.assembly.holders.is_settled = True
        self._settled_at = now
        return self._probe_all(now)

    def tick(self, now: float) -> list[Action]:
        """Asks again, and fetches again, what was not answered."""
        self._looks = [look for look in self._looks if look > now]
        actions: list[Action] = [Notify(event) for event in self.assembly.tick(now)]
        if now >= self._probe_due:
            actions += self._probe_all(now)
        return actions + self._give_up() + self._fetches(now)

    def deadline(self) -> float:
        """When `tick` next has something to do, or `held_end` may tell more."""
        return min(self.assembly.deadline(), self._probe_due, *self._looks, float("inf"))

    def _look_again(self, at: float) -> None:
        if at not in self._looks:
            self._looks.append(at)

    def _probe_all(self, now: float) -> list[Action]:
        self._probe_due = float("inf")
        return [action for partition in self._open for action in self._probe(partition, now)]

    def _probe(self, partition: Partition, now: float) -> list[Action]:
        self._probe_due = now + PROBE_S
        actions: list[Action] = [Publish(wire.Fetch(partition.address, self.address, partition.topic, 0, 1))]
        if self._is_libdafka:
            actions.append(Publish(wire.GetHeads(partition.topic, self.address)))
        return actions

    def _learn(self, partition: Partition, store: str, end_sequence: int, now: float) -> None:
        question = self._questions.get(partition)
        if question is None:
            self.discarded["not asked for"] += 1
            return
        if end_sequence > max(question.ends.values(), default=0):
            question.moved_at = now
        question.ends[store] = max(question.ends.get(store, 0), end_sequence)

    def _receive_earliest(self, message: wire.DirectEarliest, now: float) -> list[Action]:
        partition = Partition(message.subject, message.partition)
        if message.sequence == HOLDS_NOTHING and message.address in self.assembly.holders.stores:
            self._learn(partition, message.address, 0, now)
        if partition not in self._reading:
            return []
        self.assembly.receive_earliest(message)
        return self._give_up()

    def _receive_run(self, run: wire.RecordRun, now: float) -> list[Action]:
        end_sequence = self._reading.get(run.batch.partition)
        batch = run.batch if end_sequence is None else run.batch.between(0, end_sequence)
        if end_sequence is None or not len(batch):
            return []  # the answer to a probe: its ACK says it, too
        self.assembly.answered(now)
        return [Deliver(ready) for ready in self.assembly.take(batch)]

    def _give_up(self) -> list[Action]:
        """Goes on after records that nobody holds any more."""
        actions: list[Action] = []
        for partition, first_sequence, end_sequence in self.assembly.gone():
            end_sequence = min(end_sequence, self._reading[partition])  # noqa: PLW2901
            actions.append(Notify(RecordsGone(partition, first_sequence, end_sequence)))
            actions += [Deliver(run) for run in self.assembly.skip(partition, end_sequence)]
        return actions

    def _fetches(self, now: float) -> list[Action]:
        return [Publish(fetch) for fetch in self.assembly.fetches(now)]
