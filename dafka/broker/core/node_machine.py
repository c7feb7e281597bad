"""The store of a broker: it stores the logs that it replicates, and receives heartbeats and acknowledgements."""

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
"""The subject of the ACKs that ask whether a broker is heard, and that answer. It is not a topic of records."""

UNWRITABLE = f"{ROUNDS_TOPIC}/unwritable"
"""The partition in these ACKs if the broker that asks cannot write."""


@attrs.frozen
class BrokerTopics:
    """The topics of messages between brokers.

    Attributes:
        brokers: The topic of registrations. HEADs of it are heartbeats.
        index: The indexes of logs.
        rewritten: The topics whose partitions are rewritten from time to time, so that earlier records become obsolete;
            the index is one of them.
    """

    brokers: str
    index: str
    rewritten: frozenset[str]


@attrs.define
class ClusterSigns:
    """The news from other brokers since the last call of `take_signs`.

    Attributes:
        heartbeats: The brokers that have sent a heartbeat.
        acknowledgements: By partition of an index and by broker, the sequence after the last acknowledged record.
        repeats: The partitions of indexes whose leaders can have missed acknowledgements.
        rounds: The brokers that have asked whether they are heard, each with the number of its round and whether it can
            write.
        answers: The brokers that have answered a round of this broker, each with the number of the round and the
            sequences after its last control record and its last topic record.
    """

    heartbeats: set[str] = attrs.field(factory=set)
    acknowledgements: dict[tuple[Partition, str], int] = attrs.field(factory=dict)
    repeats: set[Partition] = attrs.field(factory=set)
    rounds: dict[str, tuple[int, bool]] = attrs.field(factory=dict)
    answers: dict[str, tuple[int, int, int]] = attrs.field(factory=dict)

    def __bool__(self) -> bool:
        return bool(self.heartbeats or self.acknowledgements or self.repeats or self.rounds or self.answers)


def ask_round(broker: str, number: int, *, can_write: bool) -> wire.Ack:
    """Return the message that asks the other brokers whether they hear this one.

    Args:
        broker: The address of this broker.
        number: The number of the round.
        can_write: Whether it can write.

    Returns:
        The message.
    """
    return wire.Ack(ROUNDS_TOPIC if can_write else UNWRITABLE, ROUNDS_TOPIC, number, broker)


def answer_round(requester: str, broker: str, number: int, control_end: int, topics_end: int) -> wire.Ack:
    """Return the message that answers `ask_round`.

    Args:
        requester: The address of the broker that has asked.
        broker: The address of this broker.
        number: The number of the round.
        control_end: The sequence after its last control record.
        topics_end: The sequence after its last topic record.

    Returns:
        The message.
    """
    return wire.Ack(f"{requester}{SEPARATOR}{control_end}{SEPARATOR}{topics_end}", ROUNDS_TOPIC, number, broker)


SEPARATOR = "/"
"""The separator in the addresses of the partitions that brokers write for a log. Other addresses do not have it."""

DELEGATED_FETCHES_MAX = 10_000
"""The number of delegated FETCHes that are remembered: one for each requester and partition."""


class DelegatedFetches:
    """The FETCHes that a broker has left to the leaders of logs. Nodes repeat FETCHes that are not answered."""

    def __init__(self) -> None:
        self._sequences: OrderedDict[tuple[str, Partition], int] = OrderedDict()

    def delegate(self, fetch: wire.Fetch) -> bool:
        """Return whether a FETCH asks for more than the previous one, so that the leader can answer it."""
        key = fetch.address, Partition(fetch.subject, fetch.partition)
        before = self._sequences.pop(key, -1)
        self._sequences[key] = fetch.sequence
        if len(self._sequences) > DELEGATED_FETCHES_MAX:
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
        hidden: This node's own partitions in the storage that other nodes do not know of yet.
        topics: The topics of messages between brokers.
        is_own: Returns whether a partition is this node's own.
        keeps: Returns whether this broker is a replica of a partition; None for a producer partition, to which the
            limits of peers apply.
        has_index: Returns whether a partition is the index of a replicated log, which is acknowledged by `acknowledge`.
        is_joining: Returns whether a partition is fetched only so that this broker becomes an additional replica.
        leader_of: Returns the living leader of the replicated log of a partition; empty if there is none.

    Attributes:
        signs: The news from other brokers.
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
        self._delegated_fetches = DelegatedFetches()
        self._hidden = set(hidden)
        self._returning: set[Partition] = set()

    def take_signs(self) -> ClusterSigns:
        """Return the news from other brokers since the last call."""
        signs, self.signs = self.signs, ClusterSigns()
        return signs

    def start(self, now: float) -> list[Action]:
        """Subscribe as a store does, and to the acknowledgements of this broker's indexes."""
        prefixes = (f"{self.address}{SEPARATOR}", ROUNDS_TOPIC)
        return [
            *super().start(now),
            *(Subscribe(wire.subscription_prefix(Command.ACK, each)) for each in prefixes),
        ]

    def receive(self, messages: Iterable[wire.BatchedMessage], now: float) -> list[Action]:
        """Process the messages of a store, acknowledgements and heartbeats."""
        taken = [each for each in messages if not self._is_report(each) and not self._is_delegated(each)]
        return super().receive(taken, now)

    def expect_records(self, ends: Mapping[Partition, int], now: float) -> list[Action]:
        """Fetch records of partitions that other brokers are known to have.

        Args:
            ends: By partition, the sequence after the last record; 0 if this broker only knows that records are
                missing.
            now: The time.

        Returns:
            The actions.
        """
        for partition, end in ends.items():
            self._expect(partition, end, now)
        return self._due_fetches(now)

    def _expect(self, partition: Partition, end: int, now: float) -> None:
        is_of_log = SEPARATOR in partition.address
        if is_of_log and self._is_own(partition) and (not end or end > self.next_sequence(partition)):
            self._returning.add(partition)  # it was deleted here, and is not back yet
        if self._is_written_here(partition) or not self._follow_partition(partition, now, is_live=False):
            return
        if end:
            self.reassembler.note_known_end(partition, end)
        elif self.next_sequence(partition) == self.stored.durable_end(partition):  # more is about to be stored
            self.reassembler.expect_more(partition)

    def store_own(self, partition: Partition, end: int) -> None:
        """Record that records of this node's own partition are durable that were not appended by `append_own`."""
        if partition not in self.reassembler.cursors:
            self.reassembler.follow_partition(partition, end)
        else:
            self.reassembler.reset_to(partition, end)
        self._set_durable(partition, end)

    def forget_own(self, partition: Partition) -> None:
        """Forget one of this node's own partitions, whose records are deleted."""
        self._hidden.discard(partition)
        super().forget_own(partition)

    def partitions_of(self, topic_id: str) -> list[Partition]:
        """Return the partitions that brokers have written for a topic, if they are stored or being fetched."""
        mark = f"{SEPARATOR}{topic_id}{SEPARATOR}"
        return [each for each in (*self.reassembler.cursors, *self._hidden) if mark in each.address]

    def ask_heads(self, topics: Iterable[str]) -> list[Action]:
        """Ask for the heads of topics of which this broker becomes a replica."""
        return [Publish(wire.GetHeads(topic, self.address)) for topic in topics]

    def _is_report(self, message: wire.BatchedMessage) -> bool:
        """Record the news in a message, and return whether it has nothing else."""
        if isinstance(message, wire.RecordRun):
            # Under load, the explicit heartbeats of a broker wait behind its records, so these are heartbeats, too.
            address = message.batch.partition.address
            if message.requestor is None and SEPARATOR in address:
                self.signs.heartbeats.add(owner_of(address))
            return False
        if isinstance(message, wire.Ack):
            if message.subject == ROUNDS_TOPIC and message.address != self.address:
                self._record_round(message)
            elif message.subject == self._topics.index and message.address:
                key = Partition(message.subject, message.partition), message.address
                self.signs.acknowledgements[key] = max(message.sequence + 1, self.signs.acknowledgements.get(key, 0))
            return True
        if isinstance(message, wire.Head):
            if message.subject == self._topics.brokers:
                self.signs.heartbeats.add(message.address)
            elif message.subject == self._topics.index:
                self.signs.repeats.add(Partition(message.subject, message.address))
        return False

    def _record_round(self, message: wire.Ack) -> None:
        requester, *ends = message.partition.split(SEPARATOR)
        if message.partition in {ROUNDS_TOPIC, UNWRITABLE}:
            self.signs.rounds[message.address] = message.sequence, message.partition == ROUNDS_TOPIC
        elif requester == self.address and len(ends) == 2 and all(map(str.isdecimal, ends)):
            control_end, topics_end = map(int, ends)
            self.signs.answers[message.address] = message.sequence, control_end, topics_end

    def _is_delegated(self, message: wire.BatchedMessage) -> bool:
        """Return whether a message requests records that the leader of their log has, too, and will send.

        All brokers hear a FETCH, and all replicas have the records. If it is repeated, each replica sends them.
        """
        if not isinstance(message, wire.Fetch):
            return False
        partition = Partition(message.subject, message.partition)
        if not self.stored.earliest.get(partition, 0) <= message.sequence < self.stored.durable_end(partition):
            return False
        leader = self._leader_of(partition)
        return leader not in {"", self.address, message.address} and self._delegated_fetches.delegate(message)

    def _report_unrecoverable(self, partition: Partition, first_sequence: int, end_sequence: int) -> list[Action]:
        """Return nothing for partitions that are rewritten: nobody needs their earlier records."""
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

        It does not if it has led a log and was no replica for a while: then it has deleted its own records, and gets
        them from the others. After a restart, indexes tell which records are missing: see `expect_records`.
        """
        if not super()._is_written_here(partition) or partition in self._returning:
            return False
        is_of_log = SEPARATOR in partition.address
        is_known = partition in self.reassembler.cursors or partition in self._hidden
        if not is_of_log or is_known or not self._keeps(partition):
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
