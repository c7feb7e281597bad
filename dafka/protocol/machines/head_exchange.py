"""The exchange of heads between one store and other nodes.

Requests for heads are answered to every node. Stores also learn from each other, so that a store that was down catches
up with partitions whose producer has left:

- A store that connects, or that discovery finds again, is sent all heads at once.
- Each store repeatedly sends the others the heads of all its partitions, a few in each round.
- A libdafka store, which sends no heads by itself, is repeatedly asked for all of them.
- When a producer leaves, the connected stores are asked for the heads of its topics, and the store announces its own
  heads of them to all subscribers.
- Records that become durable only after their producer has left are announced by the store to all subscribers.
- Stores of libdafka, which take no DIRECT-HEADs, get HEADs of producers that have left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice

import attrs

from dafka import wire
from dafka.protocol.actions import Action, Publish
from dafka.protocol.answering.announced_heads import HeadRounds, OrphanHeads
from dafka.protocol.answering.head_responder import HeadResponder
from dafka.protocol.machines.stored_partitions import EndedPartitions, StoredPartitions
from dafka.protocol.ordering.cursor import Cursor
from dafka.protocol.ordering.gap_resolver import GapResolver
from dafka.protocol.polling import LASTING_INTERVAL_S, LastingQuestion, RetrySchedule
from dafka.protocol.presence.identity import owner_of
from dafka.protocol.presence.peer_limits import MANY_QUESTIONS, TOO_OFTEN, PeerLimits
from dafka.protocol.presence.subscribers import EarliestResponder, SubscriberSet
from dafka.protocol.token_bucket import TokenBucket
from dafka.records import Partition
from dafka.wire import Command

ALL_TOPICS = ""
"""The topic that asks a libdafka store for all heads, since it takes a prefix. Our stores have no such topic."""

TOPICS_MAX = 64
"""Partitions of a node that has left whose heads are announced and requested, at most. A producer has one."""

REFUSED_TOPICS_MAX = 1000
"""The maximum number of topics whose heads are requested again because a partition was refused."""

ALL_HEADS_WAITS_S = (1.0, 4.0, 15.0)
"""Seconds after which a libdafka store is asked for all heads again: its answer is lost if it comes before the store
knows of this node's subscription."""

ALL_HEADS_PER_S = 1000
"""Heads per second that are requested from libdafka stores in the long run."""

FAREWELL_HEADS_PER_S = 1000.0
"""Heads of leaving producers that are announced per second in the long run. Beyond that, nodes learn of them later."""

FAREWELL_HEADS_BURST = 10_000.0
"""Heads of leaving producers that are announced at once."""


class StorePeers:
    """The connected peers of one store, as their subscriptions show them; at most `peers_max` of each kind."""

    def __init__(self, address: str, peers_max: int, gap_resolver: GapResolver) -> None:
        self.head_subscribers = SubscriberSet(Command.DIRECT_HEAD, peers_max)
        self.record_subscribers = SubscriberSet(Command.DIRECT_RECORD, peers_max)
        self.topics_subscribers = SubscriberSet(Command.DIRECT_TOPICS, peers_max)
        self.position_subscribers = SubscriberSet(Command.DIRECT_POSITION, peers_max)
        self.earliest_responder = EarliestResponder(peers_max)
        self._address = address
        self._peers_max = peers_max
        self._gap_resolver = gap_resolver
        self._producers: set[str] = set()

    def record_subscription(self, subscription: wire.Subscription) -> None:
        """Record the kind of a peer: a producer subscribes to ACKs; a node that takes heads, to DIRECT-HEADs."""
        self.earliest_responder.record_subscription(subscription)
        if subscription.command is Command.ACK:
            if not subscription.active:
                self._producers.discard(subscription.topic)
            elif len(self._producers) < self._peers_max:
                self._producers.add(subscription.topic)
        elif subscription.topic != self._address:
            self.head_subscribers.record_subscription(subscription)
            self.record_subscribers.record_subscription(subscription)
            self.topics_subscribers.record_subscription(subscription)
            self.position_subscribers.record_subscription(subscription)

    def is_store(self, address: str) -> bool:
        """Return whether a node is a connected store."""
        return address in self._gap_resolver.stores

    def stores_taking_heads(self) -> list[str]:
        """Return the connected stores that take DIRECT-HEADs, sorted."""
        return sorted(set(self.head_subscribers) & self._gap_resolver.stores)

    def has_foreign_stores(self) -> bool:
        """Return whether a connected store is not one of this project, so that it may not take DIRECT-HEADs."""
        return not self._gap_resolver.stores <= self._gap_resolver.answering

    def takes_earliest(self, address: str) -> bool:
        """Return whether a connected node is one of this project, which takes DIRECT-EARLIEST."""
        return address in self._gap_resolver.answering

    def is_orphaned(self, partition: Partition) -> bool:
        """Return whether the partition's producer has left, so that only stores can announce its records."""
        names = partition.address, f"{owner_of(partition.address)}/"  # a broker takes the ACKs of all its partitions
        return self._producers.isdisjoint(names) and len(self._producers) < self._peers_max

    def has_producer(self, partition: Partition) -> bool:
        """Return whether the partition's producer is connected, or known to discovery."""
        return not self.is_orphaned(partition) or self._gap_resolver.has_node(partition.address)


@attrs.define(eq=False, slots=False)
class HeadExchange:
    """The heads that one store sends, and those that it asks for.

    Heads of ended partitions are not sent to other stores: the stores would keep each other from forgetting. Discarded
    requests are counted in `discarded`.
    """

    _address: str
    _followed: Mapping[Partition, Cursor]
    _stored: StoredPartitions
    _ended: EndedPartitions
    _peers: StorePeers
    _limits: PeerLimits
    _discarded: Counter[str]

    def __attrs_post_init__(self) -> None:
        self.responder = HeadResponder(self._stored.durable, self._direct_heads)
        self._responder_due = float("inf")
        self._rounds = HeadRounds(self._address)
        self._all_heads_question = LastingQuestion(self._address, ALL_HEADS_WAITS_S)
        self._get_heads_retries = RetrySchedule[str]()
        self._all_heads_retries = RetrySchedule[str]()
        self._farewell_retries = RetrySchedule[str]()
        self._farewells = TokenBucket(FAREWELL_HEADS_PER_S, FAREWELL_HEADS_BURST, 0.0)
        self._refused_topics: dict[str, None] = {}
        self._orphan_heads = OrphanHeads()

    def add_request(self, topics: Iterable[str], requestor: str, now: float) -> None:
        """Queue the heads of topics for a node, unless it asks too often."""
        is_verified = requestor in self._peers.head_subscribers
        if not self._limits.allow_heads_request(requestor, now):
            self._discarded[TOO_OFTEN] += 1
        elif not self.responder.add_request(requestor, topics, is_verified=is_verified):
            self._discarded[MANY_QUESTIONS] += 1

    def send_all_heads(self, store: str, now: float) -> None:
        """Queue all heads for another store, once more later, and a few in each round."""
        self.add_request(self._stored.durable, store, now)
        self._all_heads_retries.schedule(store, now)
        self._rounds.schedule(now)

    def ask_all_heads(self, now: float) -> list[Action]:
        """Ask libdafka stores for all heads, now and repeatedly."""
        self._all_heads_question.record_asked(now)
        return [Publish(wire.GetHeads(ALL_TOPICS, self._address))]

    def stop_asking_all_heads(self) -> None:
        """Stop asking for all heads: there is no store to answer."""
        self._all_heads_question.stop()

    def partition_refused(self, topic: str) -> None:
        """Record that a partition was refused: its topic's heads are requested again when there is room."""
        if len(self._refused_topics) < REFUSED_TOPICS_MAX:
            self._refused_topics[topic] = None

    def peer_left(self, address: str, now: float) -> list[Action]:
        """Record that discovery lost a node.

        If it was a producer, ask other stores for its last records, which this one may have missed, and announce this
        store's records, which other nodes may have missed.
        """
        self._all_heads_retries.cancel(address)
        topics = list(islice(self._stored.topics_of(address), TOPICS_MAX))
        for topic in topics:
            self._get_heads_retries.schedule(topic, now)
        if topics:
            self._farewell_retries.schedule(address, now)
        questions = [Publish(wire.GetHeads(topic, self._address)) for topic in topics]
        return questions + self._announce_producer(address, now)

    def head_received(self, head: wire.DirectHead, now: float) -> None:
        """Record the head of another store. If it may be libdafka's and has missed records, announce them to it."""
        partition = Partition(head.subject, head.address)
        if head.sequence + 1 < self._stored.durable_end(partition):
            self._announce_orphan(partition, now)

    def fetch_received(self, fetch: wire.Fetch, now: float) -> None:
        """Record that a node asks for records. If it may be libdafka's, announce the records after them."""
        partition = Partition(fetch.subject, fetch.partition)
        is_rest = fetch.sequence + fetch.count < self._stored.durable_end(partition)
        if is_rest and not self._peers.takes_earliest(fetch.address) and self._peers.is_orphaned(partition):
            self._orphan_heads.schedule(partition, now)

    def orphan_stored(self, partition: Partition, now: float) -> list[Action]:
        """Announce records that became durable after their producer had left."""
        self._announce_orphan(partition, now)
        return self.announce(partition)

    def announce(self, partition: Partition, nodes: Iterable[str] | None = None) -> list[Action]:
        """Return the actions that send nodes, or all subscribers, the head of a partition that has durable records."""
        head = self._stored.durable_end(partition) - 1
        receivers = self._peers.head_subscribers if nodes is None else nodes
        return [Publish(wire.DirectHead(node, partition.address, partition.topic, head)) for node in receivers]

    def due_heads(self, now: float) -> list[Action]:
        """Send some of the requested heads. The rest follows after incoming messages have been processed."""
        if now < self._responder_due < float("inf"):
            self._responder_due = min(self._responder_due, now + self.responder.pause_s)
            return []
        heads = self.responder.next_heads()
        self._responder_due = now + self.responder.pause_s
        return heads

    def tick(self, now: float, *, has_capacity: bool) -> list[Action]:
        """Repeat the heads and questions that other stores may have missed. `due_heads` comes after it.

        `has_capacity` says whether the store has room for partitions that were refused.
        """
        questions = self._get_heads_retries.take_due(now)
        actions: list[Action] = [Publish(wire.GetHeads(topic, self._address)) for topic in questions]
        for store in self._all_heads_retries.take_due(now):
            self.add_request(self._stored.durable, store, now)
        if self._refused_topics and has_capacity:
            refused, self._refused_topics = self._refused_topics, {}
            for topic in refused:
                self._get_heads_retries.schedule(topic, now)
        for partition in self._orphan_heads.take_due(now):
            if self._is_announced(partition) and not self._peers.has_producer(partition):
                head = self._stored.durable_end(partition) - 1
                actions.append(Publish(wire.Head(partition.address, partition.topic, head)))
        for producer in self._farewell_retries.take_due(now):
            actions += self._announce_producer(producer, now)
        if self._all_heads_question.take_due(now, max(LASTING_INTERVAL_S, len(self._followed) / ALL_HEADS_PER_S)):
            actions.append(Publish(wire.GetHeads(ALL_TOPICS, self._address)))
        return actions + self._next_round(now)

    def deadline(self) -> float:
        """Return when to call `tick` and `due_heads`."""
        retries = (self._get_heads_retries, self._all_heads_retries, self._farewell_retries)
        lasting = min(self._all_heads_question.deadline(), self._rounds.deadline(), self._orphan_heads.deadline())
        return min(lasting, self._responder_due, *(each.deadline() for each in retries))

    def _next_round(self, now: float) -> list[Action]:
        actions: list[Action] = []
        if now >= self._rounds.deadline():
            stores = self._peers.stores_taking_heads()
            for partition in self._rounds.take_due(now, self._followed, len(stores)):
                if self._is_announced(partition):
                    actions += self.announce(partition, stores)
        return actions

    def _is_announced(self, partition: Partition) -> bool:
        return self._stored.durable_end(partition) > 0 and partition not in self._ended

    def _announce_producer(self, address: str, now: float) -> list[Action]:
        """Send all subscribers the heads of a producer that has left, unless it has too many partitions."""
        topics = islice(self._stored.topics_of(address), TOPICS_MAX)
        held = [partition for topic in topics if self._is_announced(partition := Partition(topic, address))]
        actions: list[Action] = []
        if self._farewells.try_take(now, len(self._peers.head_subscribers) * len(held)):
            for partition in held:
                actions += self.announce(partition)
                self._announce_orphan(partition, now)
        return actions

    def _announce_orphan(self, partition: Partition, now: float) -> None:
        """Announce a partition instead of its producer, if that has left and there are stores of libdafka."""
        if self._peers.has_foreign_stores() and self._peers.is_orphaned(partition):
            self._orphan_heads.schedule(partition, now)

    def _direct_heads(self, topic: str, requestor: str, begin: int, count: int) -> list[Action]:
        heads = islice(self._stored.durable.get(topic, {}).items(), begin, begin + count)
        is_store = self._peers.is_store(requestor)
        return [
            Publish(wire.DirectHead(requestor, address, topic, end - 1))
            for address, end in heads
            if not (is_store and Partition(topic, address) in self._ended)
        ]
