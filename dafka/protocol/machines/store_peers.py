"""The peers of one store: their roles, and the messages that they take."""

from __future__ import annotations

from dafka import wire
from dafka.protocol.ordering.gap_resolver import GapResolver
from dafka.protocol.presence.identity import owner_of
from dafka.protocol.presence.subscribers import EarliestResponder, SubscriberSet
from dafka.records import Partition
from dafka.wire import Command


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
