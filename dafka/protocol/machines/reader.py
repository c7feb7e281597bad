"""Reading what a running cluster holds, range by range, without following anything.

RFC 46 has no such role; to its peers a reader is a consumer. Of the topics that it is told to survey it learns how far
the stores have come: it greets them as a consumer does, and they tell their heads, and it hears the ACKs with which
they tell producers what is durable. So what it gives as a partition's end is never more than some store has on disk.
Producers' RECORDs and HEADs do not come to it. A range of a partition is fetched as consumers fetch what they missed.
How much is held of a single partition, whatever its topic, can be asked as well: see `inquiry`.

A store that is greeted tells its heads, or nothing where it has none. A FETCH behind the greeting, for a partition that
nobody can hold (the store's own address), is answered in either case, and so says that the heads have been told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from dafka import wire
from dafka.config import Config
from dafka.protocol.actions import Action, Deliver, Notify, Publish, Subscribe
from dafka.protocol.ordering.gap_resolver import HOLDS_NOTHING, SEQUENCE_MAX
from dafka.protocol.ordering.held_end import HeldEndQuery, Incomplete
from dafka.protocol.ordering.reassembler import Reassembler
from dafka.protocol.polling import PendingPeers
from dafka.protocol.presence.peer_limits import ABSURD_SEQUENCE, MANY_PARTITIONS, TOO_OFTEN, PeerLimits
from dafka.records import Partition
from dafka.wire import Command

GREETING_INTERVAL = 0.25
"""Seconds until a store that has not told its heads is greeted again."""

REFRESH_INTERVAL = 5.0
"""Seconds until all stores are asked for their heads again: an ACK may be lost on its way here, too."""

PATIENCE = 1.0
"""Seconds given to a store, or a node just found, that says nothing (libdafka's stores answer no FETCH in vain)."""

_OWN_COMMANDS = (Command.DIRECT_RECORD, Command.DIRECT_HEAD, Command.STORE_HELLO, Command.DIRECT_EARLIEST)


class ReaderMachine:
    """One reader.

    Attributes:
        ends: of the surveyed topics' partitions, the sequence after the last record that a store has made durable.
        buffered_bytes: Memory of the records that the program has not taken yet; see `records_buffered`.
        discarded: messages thrown away, by reason.
    """

    def __init__(self, address: str, config: Config, topics: Iterable[str] = ()) -> None:
        self.address = address
        self.ends: dict[Partition, int] = {}
        self.buffered_bytes = 0
        self.discarded: Counter[str] = Counter()
        self._topics = tuple(dict.fromkeys(topics))
        self._reassembler = Reassembler(address, config.fetch)
        self._limits = PeerLimits(config.node)
        self._pending_peers = PendingPeers(config.node.peers_max)
        self._inquiry = HeldEndQuery(address, config, self._reassembler.gap_resolver, self._pending_peers)
        self._wanted: dict[Partition, tuple[int, int]] = {}
        self._buffer_bytes_max = config.consumer.buffer_bytes_max
        self._partitions_max = config.node.partitions_max
        self._told: set[str] = set()
        self._patient_until = float("inf")
        self._greeting_due = float("inf")
        self._is_ready = False

    @property
    def is_ready(self) -> bool:
        """Has every store that was there told its heads, and was there any? Once so, for ever."""
        return self._is_ready

    @property
    def stores(self) -> int:
        """How many stores are connected."""
        return len(self._reassembler.gap_resolver.stores)

    def start(self, now: float) -> list[Action]:
        """The subscriptions for what is addressed to this node, and, to survey, to all ACKs: topics are in them."""
        self._greeting_due = now + GREETING_INTERVAL if self._topics else float("inf")
        prefixes = [wire.subscription_prefix(command, self.address) for command in _OWN_COMMANDS]
        prefixes += [wire.subscription_prefix(Command.ACK)] if self._topics else []
        return [Subscribe(prefix) for prefix in prefixes]

    def fetch(self, partition: Partition, first_sequence: int, end_sequence: int, now: float) -> list[Action]:
        """Begins to fetch records that are known to exist; of one partition, one range at a time."""
        self._wanted[partition] = first_sequence, end_sequence
        self._reassembler.follow_partition(partition, first_sequence)
        self._reassembler.note_known_end(partition, end_sequence)
        return self._fetches(now)

    def ask(self, partition: Partition, now: float) -> list[Action]:
        """Begins to ask how much stores hold of a partition; `held_end` tells what came of it so far."""
        return self._inquiry.ask(partition, now)

    def held_end(self, partition: Partition, min_stores: int, now: float) -> int | Incomplete:
        """The sequence after the last record that any store holds, or why that is not certain yet."""
        return self._inquiry.held_end(partition, min_stores, now)

    def drop(self, partition: Partition) -> list[Action]:
        """Ends asking about a partition."""
        return self._inquiry.drop(partition)

    def forget(self, partition: Partition) -> None:
        """Ends fetching a partition, finished or not."""
        del self._wanted[partition]
        self._reassembler.forget_partition(partition)

    def position(self, partition: Partition) -> int:
        """How far a range has come: what is before has been delivered, or is gone, held by nobody any more."""
        return self._reassembler.cursors[partition].next_sequence

    def receive(self, messages: Iterable[wire.BatchedMessage], now: float) -> list[Action]:
        """Records that were asked for, and what stores say of themselves; all else is discarded and counted."""
        actions: list[Action] = []
        for message in messages:
            if isinstance(message, wire.RecordRun):
                actions += self._receive_run(message, now)
            elif isinstance(message, wire.Ack):
                self._learn(Partition(message.subject, message.partition), message.address, message.sequence + 1, now)
            elif isinstance(message, wire.DirectHead):
                if self._is_mine(message.requestor):
                    self._learn(Partition(message.subject, message.address), "", message.sequence + 1, now)
            elif isinstance(message, wire.StoreHello):
                if self._is_mine(message.consumer) and self._may_greet(message.address, now):
                    # Only now is it certain that its answers arrive here.
                    self._reassembler.refetch_unanswered(wire.Subscription(Command.FETCH, ""), now)
                    actions += self._greet(message.address) + self._inquiry.probe(now)
            elif isinstance(message, wire.DirectEarliest):
                self._receive_earliest(message, now)
            else:
                self.discarded["unexpected command"] += 1
        return actions + self._give_up(only_news=True) + self._fetches(now)

    def subscribed(self, subscriptions: Iterable[wire.Subscription], now: float) -> list[Action]:
        """A peer has connected: greet it if it is a store, and ask again for what is unanswered."""
        actions: list[Action] = []
        is_heard = False
        for subscription in subscriptions:
            stores = self.stores
            self._reassembler.gap_resolver.note_subscription(subscription, self.address)
            if not subscription.active:
                continue
            self._pending_peers.note_subscription(subscription.topic)
            is_heard |= self.stores > stores or subscription.command is Command.FETCH
            if self.stores > stores and self._may_greet(subscription.topic, now):
                self._patient_until = now + PATIENCE
                self._told.discard(subscription.topic)
                actions += self._greet(subscription.topic)
            elif subscription.command is Command.FETCH:
                self._reassembler.refetch_unanswered(subscription, now)
        self._look(now)
        return actions + (self._inquiry.probe(now) if is_heard else []) + self._fetches(now)

    def peer_joined(self, address: str, now: float) -> list[Action]:
        """Discovery found a node. It may be a store: that is known when it has connected, and subscribed."""
        self._reassembler.gap_resolver.add_node(address)
        self._limits.peer_joined(address)
        self._pending_peers.add_node(address)
        return []

    def peer_left(self, address: str, now: float) -> list[Action]:
        """Discovery lost a node."""
        self._reassembler.gap_resolver.remove_node(address)
        self._limits.peer_left(address)
        self._pending_peers.remove_node(address)
        return self._give_up()

    def settled(self, now: float) -> list[Action]:
        """Discovery has found the nodes that were there before."""
        self._reassembler.gap_resolver.is_settled = True
        self._patient_until = now + PATIENCE
        self._look(now)
        return self._inquiry.settled(now) + self._give_up()

    def records_buffered(self, memory_bytes: int) -> None:
        """Note that records wait for the program."""
        self.buffered_bytes += memory_bytes

    def records_taken(self, memory_bytes: int, now: float) -> list[Action]:
        """Note that the program took records that waited, or dropped them, and fetch more if that makes room."""
        was_full = self.buffered_bytes >= self._buffer_bytes_max
        self.buffered_bytes -= memory_bytes
        return self._fetches(now) if was_full else []

    def tick(self, now: float) -> list[Action]:
        """Repeats FETCHes that went unanswered, greetings and questions."""
        actions: list[Action] = [Notify(event) for event in self._reassembler.tick(now)]
        actions += self._give_up() + self._inquiry.tick(now)
        self._look(now)
        if now >= self._greeting_due:
            self._greeting_due = now + (REFRESH_INTERVAL if self._is_ready else GREETING_INTERVAL)
            stores = self._reassembler.gap_resolver.stores
            for store in sorted(stores if self._is_ready else stores - self._told):
                actions += self._greet(store)
        return actions + self._fetches(now)

    def deadline(self) -> float:
        """When `tick` next has something to do."""
        return min(self._reassembler.deadline(), self._greeting_due, self._patient_until, self._inquiry.deadline())

    def _receive_run(self, run: wire.RecordRun, now: float) -> list[Action]:
        batch = run.batch
        if run.requestor != self.address:
            self.discarded["another requestor"] += len(batch)
            return []
        if batch.partition not in self._wanted:
            if batch.partition not in self._inquiry:  # an answer to its question, which an ACK answers better
                self.discarded["not asked for"] += len(batch)
            return []
        self._reassembler.note_answer(now)
        batch = batch.between(*self._wanted[batch.partition])
        if not len(batch):
            return []
        if self.buffered_bytes >= 2 * self._buffer_bytes_max:
            self._reassembler.drop_batch(batch)
            return []
        return [Deliver(ready) for ready in self._reassembler.add_batch(batch)]

    def _receive_earliest(self, message: wire.DirectEarliest, now: float) -> None:
        is_store = message.address in self._reassembler.gap_resolver.stores
        if is_store and message.address == message.partition:
            if self._is_mine(message.requestor):
                self._told.add(message.address)
                self._look(now)
            return
        partition = Partition(message.subject, message.partition)
        is_answer = message.requestor == self.address and partition in self._inquiry
        if is_answer and is_store and message.sequence == HOLDS_NOTHING:
            self._inquiry.learn(partition, message.address, 0, now)
        if is_answer and partition not in self._wanted:
            return
        reason = self._reassembler.receive_earliest(message)
        self.discarded.update([reason] if reason else [])

    def _give_up(self, *, only_news: bool = False) -> list[Action]:
        """Goes on after records that nobody holds any more."""
        actions: list[Action] = []
        for partition, _, end_sequence in self._reassembler.unrecoverable_ranges(only_news=only_news):
            actions += [Deliver(run) for run in self._reassembler.reset_to(partition, end_sequence)]
        return actions

    def _learn(self, partition: Partition, store: str, end_sequence: int, now: float) -> None:
        if end_sequence > SEQUENCE_MAX:
            self.discarded[ABSURD_SEQUENCE] += 1
            return
        self._inquiry.learn(partition, store, end_sequence, now)
        if partition.topic not in self._topics:
            return
        if partition not in self.ends and len(self.ends) >= self._partitions_max:
            self.discarded[MANY_PARTITIONS] += 1
            return
        self.ends[partition] = max(self.ends.get(partition, 0), end_sequence)

    def _may_greet(self, store: str, now: float) -> bool:
        may = self._limits.allow_request(store, now)
        self.discarded.update([] if may else [TOO_OFTEN])
        return may

    def _is_mine(self, requestor: str) -> bool:
        if requestor != self.address:
            self.discarded["another requestor"] += 1
        return requestor == self.address

    def _greet(self, store: str) -> list[Action]:
        if not self._topics:
            return []
        hello = wire.ConsumerHello(store, self.address, self._topics)
        return [Publish(hello), Publish(wire.Fetch(store, self.address, self._topics[0], 0, 1))]

    def _look(self, now: float) -> None:
        """Is it known by now what there is?"""
        stores = self._reassembler.gap_resolver.stores
        is_enough = now >= self._patient_until or (not self._pending_peers.awaited and stores <= self._told)
        if stores and self._reassembler.gap_resolver.is_settled and is_enough:
            self._is_ready = True
        if now >= self._patient_until:
            self._patient_until = float("inf")

    def _fetches(self, now: float) -> list[Action]:
        if self.buffered_bytes >= self._buffer_bytes_max:
            return []
        return [Publish(fetch) for fetch in self._reassembler.due_fetches(now)]
