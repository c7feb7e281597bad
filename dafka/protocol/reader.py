"""Reading what a running cluster holds, range by range, without following anything.

RFC 46 has no such role; to its peers a reader is a consumer. Of the topics that it is told to survey it learns how far
the stores have come: it greets them as a consumer does, and they tell their heads, and it hears the ACKs with which
they tell producers what is durable. So what it gives as a partition's end is never more than some store has on disk.
Producers' RECORDs and HEADs do not come to it. A range of a partition is fetched as consumers fetch what they missed.

A store that is greeted tells its heads, or nothing where it has none. A FETCH behind the greeting, for a partition that
nobody can hold (the store's own address), is answered in either case, and so says that the heads have been told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from dafka import wire
from dafka.config import Config
from dafka.protocol.actions import Action, Deliver, Notify, Publish, Subscribe
from dafka.protocol.assembly import Assembly
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
        buffered_bytes: what the program has not taken yet; whoever drives the machine keeps it.
        discarded: messages thrown away, by reason.
    """

    def __init__(self, address: str, config: Config, topics: Iterable[str] = ()) -> None:
        self.address = address
        self.ends: dict[Partition, int] = {}
        self.buffered_bytes = 0
        self.discarded: Counter[str] = Counter()
        self._topics = tuple(dict.fromkeys(topics))
        self._assembly = Assembly(address, config.fetch)
        self._wanted: dict[Partition, tuple[int, int]] = {}
        self._buffer_bytes_max = config.consumer.buffer_bytes_max
        self._partitions_max = config.node.partitions_max
        self._told: set[str] = set()
        self._awaited: set[str] = set()
        self._connected: dict[str, None] = {}
        self._peers_max = config.node.peers_max
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
        return len(self._assembly.holders.stores)

    def start(self, now: float) -> list[Action]:
        """The subscriptions for what is addressed to this node, and, to survey, to all ACKs: topics are in them."""
        self._greeting_due = now + GREETING_INTERVAL if self._topics else float("inf")
        prefixes = [wire.subscription_prefix(command, self.address) for command in _OWN_COMMANDS]
        prefixes += [wire.subscription_prefix(Command.ACK)] if self._topics else []
        return [Subscribe(prefix) for prefix in prefixes]

    def fetch(self, partition: Partition, first_sequence: int, end_sequence: int, now: float) -> list[Action]:
        """Begins to fetch records that are known to exist; of one partition, one range at a time."""
        self._wanted[partition] = first_sequence, end_sequence
        self._assembly.follow(partition, first_sequence)
        self._assembly.learn(partition, end_sequence)
        return self._fetches(now)

    def forget(self, partition: Partition) -> None:
        """Ends fetching a partition, finished or not."""
        del self._wanted[partition]
        self._assembly.forget(partition)

    def position(self, partition: Partition) -> int:
        """How far a range has come: what is before has been delivered, or is gone, held by nobody any more."""
        return self._assembly.cursors[partition].next_sequence

    def receive(self, messages: Iterable[wire.Inbound], now: float) -> list[Action]:
        """Records that were asked for, and what stores say of themselves; all else is discarded and counted."""
        actions: list[Action] = []
        for message in messages:
            if isinstance(message, wire.RecordRun):
                actions += self._receive_run(message, now)
            elif isinstance(message, wire.Ack):
                self._learn(Partition(message.subject, message.partition), message.sequence + 1)
            elif isinstance(message, wire.DirectHead):
                if self._is_mine(message.requestor):
                    self._learn(Partition(message.subject, message.address), message.sequence + 1)
            elif isinstance(message, wire.StoreHello):
                if self._is_mine(message.consumer):
                    # Only now is it certain that its answers arrive here.
                    self._assembly.renew(wire.Subscription(Command.FETCH, ""))
                    actions += self._greet(message.address)
            elif isinstance(message, wire.DirectEarliest):
                actions += self._receive_earliest(message, now)
            else:
                self.discarded["unexpected command"] += 1
        return actions + self._fetches(now)

    def subscribed(self, subscriptions: Iterable[wire.Subscription], now: float) -> list[Action]:
        """A peer has connected: greet it if it is a store, and ask again for what is unanswered."""
        actions: list[Action] = []
        for subscription in subscriptions:
            stores = self.stores
            self._assembly.holders.subscribed(subscription, self.address)
            if not subscription.active:
                continue
            self._note_connected(subscription.topic)
            if self.stores > stores:
                self._patient_until = now + PATIENCE
                self._told.discard(subscription.topic)
                actions += self._greet(subscription.topic)
            elif subscription.command is Command.FETCH:
                self._assembly.renew(subscription)
        self._look(now)
        return actions + self._fetches(now)

    def peer_joined(self, address: str, now: float) -> list[Action]:
        """Discovery found a node, which will subscribe to something with its address; then it shows what it is."""
        self._assembly.holders.joined(address)
        if address and address not in self._connected and not self._is_ready:
            self._awaited.add(address)
        return []

    def peer_left(self, address: str, now: float) -> list[Action]:
        """Discovery lost a node."""
        self._assembly.holders.left(address)
        self._awaited.discard(address)
        self._connected.pop(address, None)
        return self._give_up()

    def settled(self, now: float) -> list[Action]:
        """Discovery has found the nodes that were there before."""
        self._assembly.holders.is_settled = True
        self._patient_until = now + PATIENCE
        self._look(now)
        return self._give_up()

    def taken(self, now: float) -> list[Action]:
        """The program took records (`buffered_bytes` went down): there may be room to fetch more."""
        return self._fetches(now)

    def tick(self, now: float) -> list[Action]:
        """Repeats FETCHes that went unanswered, and greetings."""
        actions: list[Action] = [Notify(event) for event in self._assembly.tick(now)]
        actions += self._give_up()
        self._look(now)
        if now >= self._greeting_due:
            self._greeting_due = now + (REFRESH_INTERVAL if self._is_ready else GREETING_INTERVAL)
            stores = self._assembly.holders.stores
            for store in sorted(stores if self._is_ready else stores - self._told):
                actions += self._greet(store)
        return actions + self._fetches(now)

    def deadline(self) -> float:
        """When `tick` next has something to do."""
        return min(self._assembly.deadline(), self._greeting_due, self._patient_until)

    def _receive_run(self, run: wire.RecordRun, now: float) -> list[Action]:
        batch = run.batch
        if run.requestor != self.address:
            self.discarded["another requestor"] += len(batch)
            return []
        if batch.partition not in self._wanted:
            self.discarded["not asked for"] += len(batch)
            return []
        self._assembly.answered(now)
        batch = batch.between(*self._wanted[batch.partition])
        if not len(batch):
            return []
        if self.buffered_bytes >= 2 * self._buffer_bytes_max:
            self._assembly.let_go(batch)
            return []
        return [Deliver(ready) for ready in self._assembly.take(batch)]

    def _receive_earliest(self, message: wire.DirectEarliest, now: float) -> list[Action]:
        if message.address == message.partition:
            if self._is_mine(message.requestor):
                self._told.add(message.address)
                self._look(now)
            return []
        reason = self._assembly.receive_earliest(message)
        self.discarded.update([reason] if reason else [])
        return self._give_up()

    def _give_up(self) -> list[Action]:
        """Goes on after records that nobody holds any more."""
        actions: list[Action] = []
        for partition, _, end_sequence in self._assembly.gone():
            actions += [Deliver(run) for run in self._assembly.skip(partition, end_sequence)]
        return actions

    def _learn(self, partition: Partition, end_sequence: int) -> None:
        if partition.topic not in self._topics:
            return
        if partition not in self.ends and len(self.ends) >= self._partitions_max:
            self.discarded["too many partitions"] += 1
            return
        self.ends[partition] = max(self.ends.get(partition, 0), end_sequence)

    def _is_mine(self, requestor: str) -> bool:
        if requestor != self.address:
            self.discarded["another requestor"] += 1
        return requestor == self.address

    def _note_connected(self, address: str) -> None:
        self._awaited.discard(address)
        if len(self._connected) < self._peers_max:
            self._connected[address] = None

    def _greet(self, store: str) -> list[Action]:
        if not self._topics:
            return []
        hello = wire.ConsumerHello(store, self.address, self._topics)
        return [Publish(hello), Publish(wire.Fetch(store, self.address, self._topics[0], 0, 1))]

    def _look(self, now: float) -> None:
        """Is it known by now what there is?"""
        stores = self._assembly.holders.stores
        is_enough = now >= self._patient_until or (not self._awaited and stores <= self._told)
        if stores and self._assembly.holders.is_settled and is_enough:
            self._is_ready = True
        if now >= self._patient_until:
            self._patient_until = float("inf")

    def _fetches(self, now: float) -> list[Action]:
        if self.buffered_bytes >= self._buffer_bytes_max:
            return []
        return [Publish(fetch) for fetch in self._assembly.fetches(now)]
