"""The store of a broker: it stores the logs that it replicates, and receives heartbeats and acknowledgements."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs

from dafka import wire
from dafka.broker.core.metadata.brokers import BROKERS_TOPIC
from dafka.broker.core.metadata.cluster_state import METADATA_TOPIC
from dafka.broker.core.partition_address import INDEX_TOPIC
from dafka.broker.core.partition_policy import CONTROL_TOPICS, PartitionPolicy
from dafka.broker.core.rounds import (
    CHECKS_TOPIC,
    ROUNDS_TOPIC,
    SEPARATOR,
    CheckAnswer,
    Round,
    RoundReply,
    read_check,
    read_round,
)
from dafka.config import Config
from dafka.protocol.actions import Action, Append, Effect, Publish, Subscribe
from dafka.protocol.machines.store import StoreMachine
from dafka.protocol.machines.stored_partitions import StoredPartitions
from dafka.protocol.presence.identity import owner_of
from dafka.records import Partition
from dafka.wire import Command


@attrs.frozen
class HeartbeatsReceived(Effect):
    """Brokers have sent heartbeats, or records, which count as heartbeats."""

    brokers: frozenset[str]


@attrs.frozen
class IndexesAcknowledged(Effect):
    """Other replicas have acknowledged index records of this broker.

    `ends` has the sequence after the last acknowledged record, by partition of an index and by broker.
    """

    ends: Mapping[tuple[Partition, str], int]


@attrs.frozen
class IndexesAnnounced(Effect):
    """Leaders have announced partitions of indexes, as they can have missed the acknowledgements of this broker."""

    partitions: frozenset[Partition]


@attrs.frozen
class RoundsReceived(Effect):
    """Messages of lease rounds have arrived, each with the address of its sender.

    Several brokers have the same address if the disk of one of them was cloned.
    """

    asked: Sequence[tuple[str, Round]]
    answers: Sequence[tuple[str, RoundReply]]


@attrs.frozen
class StoreChecked(Effect):
    """Other brokers tell what they remember of the store of this one.

    Attributes:
        met: Brokers that are heard, and have not checked the store. The machine is held.
        answers: The answers of brokers that check it, each with the address of its sender.
        ends: How far others have partitions that this broker has written.
    """

    met: frozenset[str]
    answers: Sequence[tuple[str, CheckAnswer]]
    ends: Mapping[Partition, int]


@attrs.frozen
class HighWatermarksAnnounced(Effect):
    """Leaders have announced the high watermarks of logs that others observe, by the partition of their index."""

    offsets: Mapping[Partition, int]


@attrs.frozen
class MessagesReceived(Effect):
    """Other brokers have sent messages, each with the address of its sender; see `BrokerMessenger`."""

    messages: Sequence[tuple[str, bytes]]


@attrs.frozen
class TopicMissing(Effect):
    """A producer writes to a topic that this broker must create."""

    topic: str


@attrs.define
class _Received:
    """The news in the messages of one call of `BrokerMachine.receive`."""

    met: set[str] = attrs.field(factory=set)
    heartbeats: set[str] = attrs.field(factory=set)
    acknowledgements: dict[tuple[Partition, str], int] = attrs.field(factory=dict)
    announced: set[Partition] = attrs.field(factory=set)
    rounds: dict[tuple[str, str], Round] = attrs.field(factory=dict)  # by broker and start
    answers: dict[str, RoundReply] = attrs.field(factory=dict)
    checks: list[tuple[str, CheckAnswer]] = attrs.field(factory=list)
    ends: dict[Partition, int] = attrs.field(factory=dict)
    high_watermarks: dict[Partition, int] = attrs.field(factory=dict)
    messages: list[tuple[str, bytes]] = attrs.field(factory=list)

    def effects(self) -> Iterator[Effect]:
        """Yield the effects, in the order in which they are executed."""
        if self.heartbeats:
            yield HeartbeatsReceived(frozenset(self.heartbeats))
        if self.acknowledgements:
            yield IndexesAcknowledged(self.acknowledgements)
        if self.announced:
            yield IndexesAnnounced(frozenset(self.announced))
        if self.rounds or self.answers:
            yield RoundsReceived([(each[0], found) for each, found in self.rounds.items()], [*self.answers.items()])
        if self.met or self.checks or self.ends:
            yield StoreChecked(frozenset(self.met), self.checks, self.ends)
        if self.high_watermarks:
            yield HighWatermarksAnnounced(self.high_watermarks)
        if self.messages:
            yield MessagesReceived(self.messages)


def announce_high_watermark(broker: str, index: Partition, offset: int) -> wire.Ack:
    """Return the message with which a leader announces the high watermark of the log with this index partition."""
    return wire.Ack(f"{METADATA_TOPIC}{SEPARATOR}{index.address}", METADATA_TOPIC, offset, broker)


_REWRITTEN = frozenset((INDEX_TOPIC, *CONTROL_TOPICS))
"""The topics whose partitions are rewritten from time to time, so that earlier records become obsolete."""

POSTPONED_TOPICS_MAX = 1000
"""The number of topics that are remembered until a broker is registered. Heads of all topics come again and again."""

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


def _sender(message: wire.BatchedMessage) -> str:
    """Return the address of the node that has sent a message; empty if it does not say."""
    if isinstance(message, wire.RecordRun):
        return owner_of(message.batch.partition.address) if message.requestor is None else ""
    is_told = isinstance(message, wire.Ack | wire.Head | wire.Fetch | wire.GetHeads | wire.BrokerMessage)
    return owner_of(message.address) if is_told else ""


class BrokerMachine(StoreMachine):
    """The state machine of a broker's store.

    `ends` and `idle_s` have the sequence after the last record of each stored partition, and its age in seconds.
    `hidden` are this node's own partitions that other nodes do not know of yet.

    `unchecked` brokers have not checked this store yet. When one is heard, nothing but rounds is processed until
    `release`.
    """

    def __init__(
        self,
        address: str,
        config: Config,
        ends: Mapping[Partition, int],
        idle_s: Mapping[Partition, float],
        hidden: Iterable[Partition],
        stored: StoredPartitions,
        policy: PartitionPolicy,
    ) -> None:
        super().__init__(address, config, ends, idle_s=idle_s, is_own=policy.owns, stored=stored)
        self.reassembler.limit_rate(policy.is_background_copy, config.broker.copy_rate_bytes)
        self._policy = policy
        self._received = _Received()
        self._delegated_fetches = DelegatedFetches()
        self._hidden = set(hidden)
        self._held: list[wire.BatchedMessage] | None = None
        self.unchecked: frozenset[str] = frozenset()
        self._returning: set[Partition] = set()
        self._is_full = False
        self._is_joining = not policy.is_registered
        self._postponed: set[str] = set()
        self._hold_some()

    def start(self, now: float) -> list[Action]:
        """Subscribe as a store does, to messages of brokers, and to the acknowledgements of this broker's indexes."""
        prefixes = (f"{self.address}{SEPARATOR}", ROUNDS_TOPIC, f"{METADATA_TOPIC}{SEPARATOR}")
        return [
            *super().start(now),
            Subscribe(wire.subscription_prefix(Command.BROKER_MESSAGE, self.address)),
            *(Subscribe(wire.subscription_prefix(Command.ACK, each)) for each in prefixes),
        ]

    def receive(self, messages: Iterable[wire.BatchedMessage], now: float) -> list[Action]:
        """Process the messages of a store, acknowledgements, heartbeats and lease rounds."""
        self._received = _Received()
        messages = list(messages)
        if self._held is None and (met := self.unchecked.intersection(map(_sender, messages))):
            self.hold()
            self._received.met |= met
        if self._held is None:
            taken = [each for each in messages if not self._is_report(each) and not self._is_delegated(each)]
            return [*self._with_effects(super().receive(taken, now)), *self._received.effects()]
        for each in messages:
            if isinstance(each, wire.Ack) and each.subject.startswith((ROUNDS_TOPIC, CHECKS_TOPIC)):
                self._record_ack(each)
            elif not isinstance(each, wire.RecordRun | wire.BrokerMessage):  # these come again
                self._held.append(each)
        return [*self._received.effects()]

    def hold(self) -> None:
        """Process nothing but rounds until `release`, because the store is checked."""
        self._held = []

    def release(self, now: float) -> list[Action]:
        """Process what has arrived since `hold`."""
        held, self._held = self._held or [], None
        return self.receive(held, now)

    def node_settled(self, now: float) -> list[Action]:
        """See `StoreMachine.node_settled`."""
        return self._with_effects(super().node_settled(now))

    def tick(self, now: float) -> list[Action]:
        """See `StoreMachine.tick`."""
        return self._with_effects(super().tick(now))

    def _with_effects(self, actions: list[Action]) -> list[Action]:
        """Return actions with the effects of the records among them: topics to create."""
        effects: list[Effect] = []
        for action in actions:
            if isinstance(action, Append):
                partition = action.batch.partition
                if self._policy.misses_topic_of(partition):
                    effects.append(TopicMissing(partition.topic))
        return [*actions, *effects] if effects else actions

    def expect_records(self, ends: Mapping[Partition, int], now: float) -> list[Action]:
        """Fetch records of partitions that other brokers are known to have.

        An end is the sequence after the last record; 0 if this broker only knows that records are missing.
        """
        for partition, end in ends.items():
            self._expect(partition, end, now)
        return self._due_fetches(now)

    def _expect(self, partition: Partition, end: int, now: float) -> None:
        is_of_log = SEPARATOR in partition.address
        if is_of_log and self._policy.owns(partition) and (not end or end > self.next_sequence(partition)):
            self._returning.add(partition)  # it was deleted here, and is not back yet
        if self._is_written_here(partition) or not self._follow_partition(partition, now, is_live=False):
            return
        if end:
            self.reassembler.record_known_end(partition, end)
        elif self.next_sequence(partition) == self.stored.durable_end(partition):  # more is about to be stored
            self.reassembler.expect_more(partition)

    def hold_client_data(self, now: float, *, is_held: bool) -> list[Action]:
        """Stop or continue to receive records of clients. Records of brokers, such as control records, go on."""
        self._is_full = is_held
        self._hold_some()
        return self._due_fetches(now)

    def apply_registration(self, now: float) -> list[Action]:
        """Receive more than what describes the cluster, once this broker is registered.

        Ask for the heads of topics of which nothing was taken before.
        """
        if not self._is_joining or not self._policy.is_registered:
            return []
        self._is_joining = False
        self._hold_some()
        return [*self.ask_heads(sorted(self._postponed)), *self._due_fetches(now)]

    def _hold_some(self) -> None:
        self.reassembler.hold(self._is_held if self._is_full or self._is_joining else None)

    def _is_held(self, partition: Partition) -> bool:
        if self._is_joining and not self._policy.describes_cluster(partition):
            return True
        return self._is_full and self._policy.is_client_data(partition)

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
                self._received.heartbeats.add(owner_of(address))
            return False
        if isinstance(message, wire.Ack):
            self._record_ack(message)
            return True
        if isinstance(message, wire.BrokerMessage):
            self._received.messages.append((message.address, message.content))
            return True
        if isinstance(message, wire.Head):
            if message.subject == BROKERS_TOPIC:
                self._received.heartbeats.add(message.address)
            elif message.subject == INDEX_TOPIC:
                self._received.announced.add(Partition(message.subject, message.address))
        return False

    def _record_ack(self, message: wire.Ack) -> None:
        if message.subject == ROUNDS_TOPIC:
            self._record_round(message)
        elif message.subject.startswith(CHECKS_TOPIC):
            self._record_check(message)
        elif message.subject == METADATA_TOPIC and message.address != self.address:
            index = Partition(INDEX_TOPIC, message.partition.removeprefix(f"{METADATA_TOPIC}{SEPARATOR}"))
            self._received.high_watermarks[index] = max(message.sequence, self._received.high_watermarks.get(index, 0))
        elif message.subject == INDEX_TOPIC and message.address:
            key = Partition(message.subject, message.partition), message.address
            self._received.acknowledgements[key] = max(
                message.sequence + 1, self._received.acknowledgements.get(key, 0)
            )

    def _record_round(self, message: wire.Ack) -> None:
        found = read_round(message)
        if isinstance(found, Round):
            self._received.rounds[message.address, found.claim.start] = found
        elif found is not None and message.address != self.address and owner_of(message.partition) == self.address:
            self._received.answers[message.address] = found

    def _record_check(self, message: wire.Ack) -> None:
        found = read_check(message)
        if message.address == self.address or owner_of(message.partition) != self.address:
            return
        if isinstance(found, CheckAnswer):
            self._received.checks.append((message.address, found))
        elif found is not None:
            self._received.ends[found[0]] = max(found[1], self._received.ends.get(found[0], 0))

    def _is_delegated(self, message: wire.BatchedMessage) -> bool:
        """Return whether a message requests records that the leader of their log has, too, and will send.

        All brokers hear a FETCH, and all replicas have the records. If it is repeated, each replica sends them.
        """
        if not isinstance(message, wire.Fetch):
            return False
        partition = Partition(message.subject, message.partition)
        if not self.stored.earliest.get(partition, 0) <= message.sequence < self.stored.durable_end(partition):
            return False
        leader = self._policy.fetch_leader(partition)
        return leader not in {"", self.address, message.address} and self._delegated_fetches.delegate(message)

    def _report_unrecoverable(self, partition: Partition, first_sequence: int, end_sequence: int) -> list[Action]:
        """Return nothing for partitions that are rewritten: nobody needs their earlier records."""
        if partition.topic in _REWRITTEN:
            return []
        return super()._report_unrecoverable(partition, first_sequence, end_sequence)

    def _report_halted(self, partition: Partition, first_sequence: int, end_sequence: int) -> list[Action]:
        """Return nothing: the start of the log tells which earlier records may be dropped; see `LogTrimmer`."""
        return []

    def _is_over(self, partition: Partition, end_sequence: int) -> bool:
        """Return whether nobody needs a position in a partition: the index of a log may name records before it."""
        return not self._policy.keeps(partition) and super()._is_over(partition, end_sequence)

    def _must_keep(self, partition: Partition) -> bool:
        return partition.topic not in _REWRITTEN and super()._must_keep(partition)

    def _acknowledge(self, partition: Partition) -> list[Action]:
        return super()._acknowledge(partition) if self._policy.acknowledges(partition) else []

    def _is_written_here(self, partition: Partition) -> bool:
        """Return whether this broker has all records of a partition before any other one.

        It does not if it has led a log and was no replica for a while: then it has deleted its own records, and gets
        them from the others. After a restart, indexes tell which records are missing: see `expect_records`.
        """
        if not super()._is_written_here(partition) or partition in self._returning:
            return False
        is_of_log = SEPARATOR in partition.address
        is_known = partition in self.reassembler.cursors or partition in self._hidden
        if not is_of_log or is_known or not self._policy.keeps(partition):
            return True
        self._returning.add(partition)
        return False

    def _follow_partition(self, partition: Partition, now: float, *, is_live: bool) -> bool:
        if partition in self.reassembler.cursors:
            return super()._follow_partition(partition, now, is_live=is_live)
        is_kept = self._policy.keeps(partition)
        if is_kept is None and not self._is_joining:
            return super()._follow_partition(partition, now, is_live=is_live)
        if is_kept:
            self.reassembler.follow_partition(partition, 0, now)
            self._ended.record_heard(partition, now)
        elif self._is_joining and len(self._postponed) < POSTPONED_TOPICS_MAX:
            self._postponed.add(partition.topic)
        return bool(is_kept)
