"""The reader's state machine: reads ranges of records from a running cluster, without following a partition.

RFC 46 has no such role; to its peers a reader is a consumer. For the topics that it surveys, it learns the ends of the
partitions in the stores: it greets stores as a consumer does, they answer with their heads, and it receives their ACKs
to producers. Therefore it never reports records that no store has on disk. It does not subscribe to the RECORDs and
HEADs of producers. Ranges are fetched as consumers fetch missed records. `HeldEndQuery` asks the stores for the end of
one partition, of any topic; `PositionQuery` asks for the positions of partitions at a time.

A greeted store sends its heads, or nothing if it has none. A FETCH sent after the greeting, for a partition that no
node can hold (the store's own address), is answered in either case, and shows that all heads have been sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from dafka import wire
from dafka.config import Config
from dafka.protocol.actions import Action, Deliver, Notify, Publish, Subscribe
from dafka.protocol.machines.consumer import OWN_COMMANDS
from dafka.protocol.ordering.gap_resolver import HOLDS_NOTHING, STORES_MAX
from dafka.protocol.ordering.held_end import HeldEndQuery
from dafka.protocol.ordering.position_query import PositionQuery
from dafka.protocol.ordering.reassembler import Reassembler, ReceiveCapacity
from dafka.protocol.polling import PendingPeers, StorePoll
from dafka.protocol.presence.peer_limits import ABSURD_SEQUENCE, MANY_PARTITIONS, TOO_OFTEN, PeerLimits
from dafka.records import SEQUENCE_MAX, Partition
from dafka.wire import Command

GREETING_INTERVAL_S = 0.25
"""Seconds until a store that has not sent its heads is greeted again."""

REFRESH_INTERVAL_S = 5.0
"""Seconds until a ready reader asks all stores for their heads again, because an ACK may be lost on its way here."""

PATIENCE_S = 1.0
"""Seconds to wait for a new store to answer, and for discovered nodes to connect; libdafka's stores never answer."""

SLOW_STORES_S = 4.0
"""Additional seconds to wait for slow stores that are known to answer."""


class ReaderMachine:
    """The state machine of one reader, which surveys `topics`."""

    def __init__(self, address: str, config: Config, topics: Iterable[str] = ()) -> None:
        self.address = address
        self.ends: dict[Partition, int] = {}
        """By partition of the surveyed topics, the sequence after the last record that a store has made durable."""
        self.positions: dict[Partition, int] = {}
        """By partition, the answers to `query_positions` so far."""
        self.is_ready = False
        """Whether there is a store, and every store that was there has sent its heads. It stays true from then on."""
        self.discarded: Counter[str] = Counter()
        self._topics = tuple(dict.fromkeys(topics))
        self._reassembler = Reassembler(address, config.fetch)
        self.capacity = ReceiveCapacity(config.consumer.buffer_bytes_max, self._reassembler)
        self._gap_resolver = self._reassembler.gap_resolver
        self._limits = PeerLimits(config.node)
        self._pending_peers = PendingPeers(config.node.peers_max)
        self.held_ends = HeldEndQuery(address, config, self._gap_resolver, self._pending_peers)
        self._position_query = PositionQuery(address, self._gap_resolver, self._pending_peers)
        self._heads_poll = StorePoll(patience_s=PATIENCE_S, retry_s=GREETING_INTERVAL_S)
        self._ranges: dict[Partition, tuple[int, int]] = {}
        self._partitions_max = config.node.partitions_max
        self._arriving_from: set[str] = set()

    @property
    def stores(self) -> int:
        """The number of connected stores."""
        return len(self._gap_resolver.stores)

    @property
    def answering_stores(self) -> int:
        """The number of connected stores that answer `query_positions`."""
        return len(self._position_query.stores)

    def start(self, now: float) -> list[Action]:
        """Subscribe to messages to this node, and if it surveys topics, to all ACKs, which name the topic."""
        prefixes = [wire.subscription_prefix(command, self.address) for command in OWN_COMMANDS]
        if self._topics:
            self._heads_poll.record_asked(now)
            prefixes.append(wire.subscription_prefix(Command.ACK))
        return [Subscribe(prefix) for prefix in prefixes]

    def fetch_range(self, partition: Partition, first_sequence: int, end_sequence: int, now: float) -> list[Action]:
        """Begin to fetch records that are known to exist; one range of a partition at a time."""
        self._ranges[partition] = first_sequence, end_sequence
        self._reassembler.follow_partition(partition, first_sequence)
        self._reassembler.record_known_end(partition, end_sequence)
        return self._fetches(now)

    def forget_range(self, partition: Partition) -> None:
        """Stop fetching the range of a partition, complete or not."""
        del self._ranges[partition]
        self._reassembler.forget_partition(partition)

    def position(self, partition: Partition) -> int:
        """Return the next sequence of a range: all records before it were delivered, or are unrecoverable."""
        return self._reassembler.cursors[partition].next_sequence

    def query_positions(self, partitions: Iterable[Partition], time_ms: int, now: float) -> list[Action]:
        """Begin to ask the stores for the positions of partitions at a time, in milliseconds since 1970."""
        for partition in partitions:
            self.positions.pop(partition, None)
            self._position_query.add_partition(partition, time_ms)
        return self._find_positions(now)

    def end_positions_query(self, partitions: Iterable[Partition]) -> None:
        """Stop asking for the positions of partitions."""
        for partition in partitions:
            self._position_query.remove_partition(partition)

    def records_buffered(self, memory_bytes: int) -> None:
        """Record that records wait for the program."""
        self.capacity.record_buffered(memory_bytes)

    def records_taken(self, memory_bytes: int, now: float) -> list[Action]:
        """Record that the program took records that waited, or dropped them, and fetch more if that makes room."""
        return self._fetches(now) if self.capacity.record_taken(memory_bytes) else []

    def receive(self, messages: Iterable[wire.BatchedMessage], now: float) -> list[Action]:
        """Process fetched records and the answers of stores; discard and count everything else."""
        actions: list[Action] = []
        for message in messages:
            if isinstance(message, wire.RecordRun):
                actions += self._receive_run(message, now)
            elif isinstance(message, wire.Ack):
                partition = Partition(message.subject, message.partition)
                self._record_end(partition, message.address, message.sequence + 1, now)
            elif isinstance(message, wire.DirectHead):
                if self._is_addressed(message.requestor):
                    self._record_end(Partition(message.subject, message.address), "", message.sequence + 1, now)
            elif isinstance(message, wire.StoreHello):
                actions += self._receive_hello(message, now)
            elif isinstance(message, wire.DirectEarliest):
                self._receive_earliest(message, now)
            elif isinstance(message, wire.DirectPosition):
                reason = self._position_query.receive(message)
                self.discarded.update([reason] if reason else [])
            else:
                self.discarded["unexpected command"] += 1
        actions += self._find_positions(now)
        actions += self._reassembler.skip_unrecoverable(only_new=True) + self._fetches(now)
        self.capacity.end_arrival()
        return actions

    def receive_subscriptions(self, subscriptions: Iterable[wire.Subscription], now: float) -> list[Action]:
        """Greet a store that has connected, and repeat unanswered questions."""
        actions: list[Action] = []
        is_asking_again = False
        for subscription in subscriptions:
            stores = self.stores
            self._gap_resolver.record_subscription(subscription, self.address)
            self._position_query.record_subscription(subscription)
            if not subscription.active:
                continue
            self._pending_peers.record_subscription(subscription.topic)
            is_new_store = self.stores > stores
            is_asking_again |= is_new_store or subscription.command is Command.FETCH
            if is_new_store and self._may_greet(subscription.topic, now):
                self._heads_poll.restart_patience(now)
                self._heads_poll.forget_answers(subscription.topic)
                actions += self._greet(subscription.topic)
            elif subscription.command is Command.FETCH:
                self._reassembler.refetch_unanswered(subscription, now)
        self._update_ready(now)
        actions += self._find_positions(now)
        return actions + (self.held_ends.ask_again(now) if is_asking_again else []) + self._fetches(now)

    def peer_joined(self, address: str, now: float) -> list[Action]:
        """Record that discovery found a node. Whether it is a store shows when it has connected."""
        self._gap_resolver.add_node(address)
        self._limits.peer_joined(address)
        self._pending_peers.add_node(address)
        return []

    def peer_left(self, address: str, now: float) -> list[Action]:
        """Record that discovery lost a node."""
        self._gap_resolver.remove_node(address)
        self._limits.peer_left(address)
        self._pending_peers.remove_node(address)
        self._arriving_from.discard(address)
        return self._find_positions(now) + self._reassembler.skip_unrecoverable()

    def node_settled(self, now: float) -> list[Action]:
        """Start waiting for answers: the nodes that were running before are connected."""
        self._gap_resolver.node_settled()
        self._heads_poll.restart_patience(now)
        self._update_ready(now)
        self._position_query.node_settled(now)
        return self.held_ends.node_settled(now) + self._find_positions(now) + self._reassembler.skip_unrecoverable()

    def tick(self, now: float) -> list[Action]:
        """Repeat unanswered FETCHes, greetings and questions."""
        actions: list[Action] = [Notify(event) for event in self._reassembler.tick(now)]
        actions += self._reassembler.skip_unrecoverable() + self.held_ends.tick(now)
        self._update_ready(now)
        self._position_query.tick(now)
        actions += self._find_positions(now)
        if self._heads_poll.take_retry(now):
            stores = self._gap_resolver.stores
            for store in sorted(stores if self.is_ready else self._heads_poll.unanswered(stores)):
                actions += self._greet(store)
            self._heads_poll.record_asked(now, REFRESH_INTERVAL_S if self.is_ready else None)
        return actions + self._fetches(now)

    def deadline(self) -> float:
        """Return when to call `tick`."""
        due = min(self._reassembler.deadline(), self._heads_poll.deadline())
        return min(due, self.held_ends.deadline(), self._position_query.deadline())

    def _receive_run(self, run: wire.RecordRun, now: float) -> list[Action]:
        batch = run.batch
        if run.requestor != self.address:
            self.discarded["another requestor"] += len(batch)
            return []
        if batch.partition not in self._ranges:
            if batch.partition not in self.held_ends:  # else the end query fetched it, and an ACK gives the end
                self.discarded["not asked for"] += len(batch)
            return []
        self._reassembler.record_answer(now)
        batch = batch.between(*self._ranges[batch.partition])
        if not len(batch):
            return []
        if not self.capacity.has_capacity(is_live=False):
            self._reassembler.drop_batch(batch)
            return []
        found = self._reassembler.add_batch(batch)
        self.capacity.record_arriving(sum(ready.memory_bytes for ready in found))
        return [Deliver(ready) for ready in found]

    def _receive_hello(self, message: wire.StoreHello, now: float) -> list[Action]:
        """Ask a store again: only this shows that its messages arrive here."""
        store = message.address
        if not self._is_addressed(message.consumer) or not self._may_greet(store, now):
            return []
        if len(self._arriving_from) < STORES_MAX:
            self._arriving_from.add(store)
        self._reassembler.refetch_unanswered(wire.Subscription(Command.FETCH, ""), now)
        self._position_query.ask_again()
        return self._greet(store) + self.held_ends.ask_again(now)

    def _receive_earliest(self, message: wire.DirectEarliest, now: float) -> None:
        is_store = message.address in self._gap_resolver.stores
        if is_store and message.address == message.partition:
            if self._is_addressed(message.requestor):
                self._heads_poll.add_answer(message.address)
                self._update_ready(now)
            return
        partition = Partition(message.subject, message.partition)
        is_answer = message.requestor == self.address and partition in self.held_ends
        if is_answer and is_store and message.sequence == HOLDS_NOTHING:
            self.held_ends.add_answer(partition, message.address, 0, now)
        if is_answer and partition not in self._ranges:
            return
        reason = self._reassembler.receive_earliest(message)
        self.discarded.update([reason] if reason else [])

    def _record_end(self, partition: Partition, store: str, end_sequence: int, now: float) -> None:
        if end_sequence > SEQUENCE_MAX:
            self.discarded[ABSURD_SEQUENCE] += 1
            return
        self.held_ends.add_answer(partition, store, end_sequence, now)
        if partition.topic not in self._topics:
            return
        if partition not in self.ends and len(self.ends) >= self._partitions_max:
            self.discarded[MANY_PARTITIONS] += 1
            return
        self.ends[partition] = max(self.ends.get(partition, 0), end_sequence)

    def _may_greet(self, store: str, now: float) -> bool:
        is_allowed = self._limits.allow_request(store, now)
        self.discarded.update([] if is_allowed else [TOO_OFTEN])
        return is_allowed

    def _is_addressed(self, requestor: str) -> bool:
        """Return whether a message is for this node; count it as discarded if not."""
        if requestor != self.address:
            self.discarded["another requestor"] += 1
        return requestor == self.address

    def _greet(self, store: str) -> list[Action]:
        if not self._topics:
            return []
        hello = Publish(wire.ConsumerHello(store, self.address, self._topics))
        if store not in self._arriving_from:  # its heads may get lost although the answer after them arrives
            return [hello]
        return [hello, Publish(wire.Fetch(store, self.address, self._topics[0], 0, 1))]

    def _find_positions(self, now: float) -> list[Action]:
        """Record the positions that have become certain, and ask about the others."""
        found = self._position_query.take_positions(now)
        self.positions.update((partition, each.sequence) for partition, each in found.items())
        return self._position_query.due_questions(now)

    def _update_ready(self, now: float) -> None:
        stores, is_pending = self._gap_resolver.stores, bool(self._pending_peers.addresses)
        if not stores or not self._gap_resolver.is_settled:
            return
        is_slow = self._topics and self._heads_poll.unanswered(self._position_query.stores)
        if is_slow and now < self._heads_poll.patience_until + SLOW_STORES_S:
            return
        if self._heads_poll.is_answered(stores, now, is_pending=is_pending):
            self.is_ready = True

    def _fetches(self, now: float) -> list[Action]:
        return [Publish(fetch) for fetch in self._reassembler.due_fetches(now)] if self.capacity.has_half else []
