"""The store of a broker: it keeps the logs that are placed on it, and hears what other brokers acknowledge."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping

import attrs

from dafka import wire
from dafka.config import Config
from dafka.protocol.actions import Action, Publish, Subscribe
from dafka.protocol.machines.store import StoreMachine
from dafka.protocol.presence.identity import owner_of
from dafka.records import Partition
from dafka.wire import Command

ROUNDS_TOPIC = "$rounds"
"""What ACKs name that ask who hears a broker, and that answer: no topic of records."""

UNWRITABLE = f"{ROUNDS_TOPIC}/unwritable"
"""What ACKs name that ask who hears a broker whose storage takes no records."""


@attrs.frozen
class BrokerTopics:
    """The topics that brokers write for each other.

    Attributes:
        brokers: Where brokers describe themselves. HEADs of it are signs of life.
        index: The indexes of logs.
        rewritten: The topics whose partitions are written again from time to time, so that what was before says nothing
            any more; the index is one of them.
    """

    brokers: str
    index: str
    rewritten: frozenset[str]


@attrs.define
class ClusterSigns:
    """What was heard of other brokers since it was last asked for.

    Attributes:
        heard: The brokers that have given a sign of life.
        acknowledgements: By partition of an index and by broker, the sequence after the last acknowledged record.
        repeats: The partitions of indexes whose leaders may have missed acknowledgements.
        rounds: The brokers that have asked who hears them, each with the number of its round and whether its storage
            takes records.
        answers: The brokers that have answered such a round of this broker, each with the number of the round and the
            sequences after its last records of leaderships and of topics.
    """

    heard: set[str] = attrs.field(factory=set)
    acknowledgements: dict[tuple[Partition, str], int] = attrs.field(factory=dict)
    repeats: set[Partition] = attrs.field(factory=set)
    rounds: dict[str, tuple[int, bool]] = attrs.field(factory=dict)
    answers: dict[str, tuple[int, int, int]] = attrs.field(factory=dict)

    def __bool__(self) -> bool:
        return bool(self.heard or self.acknowledgements or self.repeats or self.rounds or self.answers)


def ask_round(broker: str, number: int, *, can_write: bool) -> wire.Ack:
    """Return the message that asks the other brokers whether they hear this one.

    Args:
        broker: The address of this broker.
        number: The number of the round.
        can_write: Whether its storage takes records.

    Returns:
        The message.
    """
    return wire.Ack(ROUNDS_TOPIC if can_write else UNWRITABLE, ROUNDS_TOPIC, number, broker)


def answer_round(asker: str, broker: str, number: int, control_end: int, topics_end: int) -> wire.Ack:
    """Return the message that answers `ask_round`.

    Args:
        asker: The address of the broker that has asked.
        broker: The address of this broker.
        number: The number of the round.
        control_end: The sequence after its last record of leaderships.
        topics_end: The sequence after its last record of topics.

    Returns:
        The message.
    """
    return wire.Ack(f"{asker}{BRANCH_MARK}{control_end}{BRANCH_MARK}{topics_end}", ROUNDS_TOPIC, number, broker)


BRANCH_MARK = "/"
"""What the addresses of the partitions that brokers write for a log contain."""

LEFT_FETCHES_MAX = 10_000
"""FETCHes that are remembered because they were left to a leader: one for each requestor and partition."""


class DelegatedFetches:
    """The FETCHes that a broker has left to the leaders of logs. Nodes repeat those that are not answered."""

    def __init__(self) -> None:
        self._sequences: OrderedDict[tuple[str, Partition], int] = OrderedDict()

    def leave(self, fetch: wire.Fetch) -> bool:
        """Return whether a FETCH asks for more than the one before it, so that it may be left to the leader."""
        key = fetch.address, Partition(fetch.subject, fetch.partition)
        before = self._sequences.pop(key, -1)
        self._sequences[key] = fetch.sequence
        if len(self._sequences) > LEFT_FETCHES_MAX:
            self._sequences.popitem(last=False)
        return fetch.sequence > before


class BrokerMachine(StoreMachine):
    """The state machine of a broker's store.

    Args:
        address: The node's address.
        config: The configuration.
        ends: By partition, the sequence after the last record in the storage.
        earliest: By partition, the sequence of the first record in the storage, if it is not 0.
        idle_s: By partition, the seconds since its last record was appended.
        hidden: Partitions of this node's own in the storage that other nodes do not know of yet.
        topics: The topics that brokers write for each other.
        is_own: Returns whether a partition is this node's own.
        keeps: Returns whether this broker keeps a partition; None if it is one of a producer, for which the limits of
            peers count.
        has_index: Returns whether a partition is the index of a replicated log, which is acknowledged by `acknowledge`.
        is_joining: Returns whether a partition is fetched only so that this broker becomes a further replica of a log.
        leader_of: Returns the living leader of the replicated log that a partition belongs to; empty if there is none.

    Attributes:
        signs: What was heard of other brokers.
    """

    def __init__(
        self,
        address: str,
        config: Config,
        ends: Mapping[Partition, int],
        earliest: Mapping[Partition, int],
        idle_s: Mapping[Partition, float],
        hidden: Iterable[Partition],
        topics: BrokerTopics,
        is_own: Callable[[Partition], bool],
        keeps: Callable[[Partition], bool | None],
        has_index: Callable[[Partition], bool],
        is_joining: Callable[[Partition], bool],
        leader_of: Callable[[Partition], str],
    ) -> None:
        super().__init__(address, config, ends, earliest, idle_s, is_own)
        self.reassembler.limit_rate(is_joining, config.broker.copy_rate_bytes)
        self.signs = ClusterSigns()
        self._topics = topics
        self._keeps = keeps
        self._has_index = has_index
        self._leader_of = leader_of
        self._left_fetches = DelegatedFetches()
        self._hidden = set(hidden)
        self._returning: set[Partition] = set()

    def take_signs(self) -> ClusterSigns:
        """Return what was heard of other brokers since the last call."""
        signs, self.signs = self.signs, ClusterSigns()
        return signs

    def start(self, now: float) -> list[Action]:
        """Subscribe as a store does, and to the acknowledgements of this broker's indexes."""
        prefixes = (f"{self.address}{BRANCH_MARK}", ROUNDS_TOPIC)
        return [
            *super().start(now),
            *(Subscribe(wire.subscription_prefix(Command.ACK, each)) for each in prefixes),
        ]

    def receive(self, messages: Iterable[wire.BatchedMessage], now: float) -> list[Action]:
        """Take what a store listens to, acknowledgements, and signs of life."""
        taken = [each for each in messages if not self._is_sign(each) and not self._is_left_to_leader(each)]
        return super().receive(taken, now)

    def expect_records(self, ends: Mapping[Partition, int], now: float) -> list[Action]:
        """Fetch records of partitions that other brokers are known to have.

        Args:
            ends: For each partition the sequence after the last one; 0 if all that is known is that there are more than
                here.
            now: The time.

        Returns:
            The actions.
        """
        for partition, end in ends.items():
            self._expect(partition, end, now)
        return self._due_fetches(now)

    def _expect(self, partition: Partition, end: int, now: float) -> None:
        is_of_log = BRANCH_MARK in partition.address
        if is_of_log and self._is_own(partition) and (not end or end > self.next_sequence(partition)):
            self._returning.add(partition)  # it was deleted here, and is not back yet
        if self._is_written_here(partition) or not self._follow_partition(partition, now, is_live=False):
            return
        if end:
            self.reassembler.note_known_end(partition, end)
        elif self.next_sequence(partition) == self.stored.durable_end(partition):  # else more is about to be stored
            self.reassembler.expect_more(partition)

    def store_own(self, partition: Partition, end: int) -> None:
        """Note that records of a partition of this node's own are durable that were not appended by `append_own`."""
        if partition not in self.reassembler.cursors:
            self.reassembler.follow_partition(partition, end)
        else:
            self.reassembler.reset_to(partition, end)
        self._set_durable(partition, end)

    def forget_own(self, partition: Partition) -> None:
        """Forget a partition of this node's own, whose records are deleted."""
        self._hidden.discard(partition)
        super().forget_own(partition)

    def partitions_of(self, topic_id: str) -> list[Partition]:
        """Return the partitions that brokers have written of a topic and that are stored or on their way."""
        mark = f"{BRANCH_MARK}{topic_id}{BRANCH_MARK}"
        return [each for each in (*self.reassembler.cursors, *self._hidden) if mark in each.address]

    def ask_heads(self, topics: Iterable[str]) -> list[Action]:
        """Ask for the heads of topics whose partitions this broker keeps from now on."""
        return [Publish(wire.GetHeads(topic, self.address)) for topic in topics]

    def _is_sign(self, message: wire.BatchedMessage) -> bool:
        """Note a sign of another broker, and return whether a message is nothing more."""
        if isinstance(message, wire.RecordRun):
            # While there is much to receive, what a broker sends to show that it lives waits behind its records.
            address = message.batch.partition.address
            if message.requestor is None and BRANCH_MARK in address:
                self.signs.heard.add(owner_of(address))
            return False
        if isinstance(message, wire.Ack):
            if message.subject == ROUNDS_TOPIC and message.address != self.address:
                self._note_round(message)
            elif message.subject == self._topics.index and message.address:
                key = Partition(message.subject, message.partition), message.address
                self.signs.acknowledgements[key] = max(message.sequence + 1, self.signs.acknowledgements.get(key, 0))
            return True
        if isinstance(message, wire.Head):
            if message.subject == self._topics.brokers:
                self.signs.heard.add(message.address)
            elif message.subject == self._topics.index:
                self.signs.repeats.add(Partition(message.subject, message.address))
        return False

    def _note_round(self, message: wire.Ack) -> None:
        asker, *ends = message.partition.split(BRANCH_MARK)
        if message.partition in {ROUNDS_TOPIC, UNWRITABLE}:
            self.signs.rounds[message.address] = message.sequence, message.partition == ROUNDS_TOPIC
        elif asker == self.address and len(ends) == 2 and all(map(str.isdecimal, ends)):
            control_end, topics_end = map(int, ends)
            self.signs.answers[message.address] = message.sequence, control_end, topics_end

    def _is_left_to_leader(self, message: wire.BatchedMessage) -> bool:
        """Return whether a message asks for records that the leader of their log has like this broker, and sends.

        All brokers hear a FETCH, and all replicas have the records. If it is repeated, each of them sends them.
        """
        if not isinstance(message, wire.Fetch):
            return False
        partition = Partition(message.subject, message.partition)
        if not self.stored.earliest.get(partition, 0) <= message.sequence < self.stored.durable_end(partition):
            return False
        leader = self._leader_of(partition)
        return leader not in {"", self.address, message.address} and self._left_fetches.leave(message)

    def _report_unrecoverable(self, partition: Partition, first_sequence: int, end_sequence: int) -> list[Action]:
        """Return nothing for what was written again: nobody misses what was before."""
        if partition.topic in self._topics.rewritten:
            return []
        return super()._report_unrecoverable(partition, first_sequence, end_sequence)

    def _must_keep(self, partition: Partition) -> bool:
        return partition.topic not in self._topics.rewritten and super()._must_keep(partition)

    def _acknowledge(self, partition: Partition) -> list[Action]:
        if partition.topic == self._topics.index and self._has_index(partition):
            return []
        return super()._acknowledge(partition)

    def _is_written_here(self, partition: Partition) -> bool:
        """Return whether this broker has all records of a partition before any other one.

        It has not if it has led a log, and was no replica for a while: then it has deleted what it has written itself,
        and gets it from the others. If it is restarted meanwhile, indexes tell what it lacks: see `expect_records`.
        """
        if not super()._is_written_here(partition) or partition in self._returning:
            return False
        is_of_log = BRANCH_MARK in partition.address
        is_held = partition in self.reassembler.cursors or partition in self._hidden
        if not is_of_log or is_held or not self._keeps(partition):
            return True
        self._returning.add(partition)
        return False

    def _follow_partition(self, partition: Partition, now: float, *, is_live: bool) -> bool:
        if partition in self.reassembler.cursors:
            return super()._follow_partition(partition, now, is_live=is_live)
        is_kept = self._keeps(partition)
        if is_kept is None:
            return super()._follow_partition(partition, now, is_live=is_live)
        if is_kept:
            self.reassembler.follow_partition(partition, 0, now)
            self._ended.note_heard(partition, now)
        return is_kept
