"""The store of a broker: it stores the logs that it replicates, and receives heartbeats and acknowledgements."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping

import attrs

from dafka import wire
from dafka.broker.core.broker_news import BrokerNews
from dafka.broker.core.metadata.cluster_state import METADATA_TOPIC
from dafka.broker.core.partition_address import INDEX_TOPIC
from dafka.broker.core.partition_policy import CONTROL_TOPICS, PartitionPolicy
from dafka.broker.core.rounds import (
    CHECKS_TOPIC,
    ROUNDS_TOPIC,
    SEPARATOR,
)
from dafka.config import Config
from dafka.protocol.actions import Action, Append, Effect, Publish, Subscribe
from dafka.protocol.machines.store import StoreMachine
from dafka.protocol.machines.stored_partitions import StoredPartitions
from dafka.protocol.presence.identity import owner_of
from dafka.records import Partition
from dafka.wire import Command


@attrs.frozen
class TopicMissing(Effect):
    """A producer writes to a topic that this broker must create."""

    topic: str


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
        news = BrokerNews(self.address)
        messages = list(messages)
        if self._held is None and (met := self.unchecked.intersection(map(_sender, messages))):
            self.hold()
            news.met |= met
        if self._held is None:
            taken = [each for each in messages if not news.record(each) and not self._is_delegated(each)]
            return [*self._with_effects(super().receive(taken, now)), *news.effects()]
        for each in messages:
            if isinstance(each, wire.Ack) and each.subject.startswith((ROUNDS_TOPIC, CHECKS_TOPIC)):
                news.record(each)
            elif not isinstance(each, wire.RecordRun | wire.BrokerMessage):  # these come again
                self._held.append(each)
        return [*news.effects()]

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
