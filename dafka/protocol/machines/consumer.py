"""The consumer's side of RFC 46: subscribe, learn the heads, put each partition in order, fetch missing records.

A partition begins for this consumer at the position given for it. If there is none, it begins at sequence 0 with
`earliest`, at the next record after the first message about it with `latest`, and at the position that the stores
report with a start time (`TimedStart`). One exception: if the producer joined after this consumer had settled, the
partition began while the consumer was listening, and is read from sequence 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from dafka import wire
from dafka.config import Config
from dafka.protocol.actions import Action, Deliver, Notify, Publish, Subscribe, Unsubscribe
from dafka.protocol.events import PartitionHeard, PartitionSilent, RecordsUnrecoverable
from dafka.protocol.machines.head_intervals import ProducerSilence
from dafka.protocol.ordering.position_query import TimedStart
from dafka.protocol.ordering.reassembler import Reassembler, ReceiveCapacity
from dafka.protocol.polling import LASTING_INTERVAL_S, LastingQuestion, RetrySchedule
from dafka.protocol.presence.peer_limits import ABSURD_SEQUENCE, MANY_UNPROVEN, TOO_OFTEN, PeerLimits
from dafka.records import SEQUENCE_MAX, Partition
from dafka.wire import Command

GET_HEADS_INTERVAL = 1.0
"""The minimum seconds between two GET-HEADS for a topic because peers join and leave. Every node answers each one."""

ALL_HEADS_PER_S = 50
"""Heads per second that this consumer may ask stores for in the long run."""

PEERS_REMEMBERED_MAX = 10_000
"""Producers remembered as having joined after this consumer, even if only stores still have their records."""

PREFIXES_MAX = 4
"""Different topic prefixes of GET-HEADS subscriptions that are matched against the topics in one call."""

_TOPIC_COMMANDS = (Command.RECORD, Command.HEAD)
OWN_COMMANDS = (
    Command.DIRECT_RECORD,
    Command.DIRECT_HEAD,
    Command.DIRECT_POSITION,
    Command.STORE_HELLO,
    Command.DIRECT_EARLIEST,
)


class ConsumerMachine:
    """The state machine of one consumer of any number of topics.

    `positions` has, by partition, the first sequence to receive. Records of other partitions are received from the time
    `start_ms` on, in milliseconds since 1970; without it, `offset_reset` applies.
    """

    def __init__(
        self,
        address: str,
        config: Config,
        positions: Mapping[Partition, int] | None = None,
        start_ms: int | None = None,
    ) -> None:
        self.address = address
        self.topics: dict[str, float] = {}
        """The subscribed topics, each with the time from which GET-HEADS may be sent again."""
        self.reassembler = Reassembler(address, config.fetch, config.node.partitions_unproven_max)
        self.capacity = ReceiveCapacity(config.consumer.buffer_bytes_max, self.reassembler)
        self.records_unrecoverable = 0
        self.discarded: Counter[str] = Counter()
        self._config = config
        self._positions = dict(positions or {})
        self._older_peers: set[str] = set()
        self._newer_peers: dict[str, None] = {}
        self._producers = ProducerSilence(self._silence_s)
        self._silence_check_due = float("inf")
        self._heads_wanted: dict[str, None] = {}
        self._get_heads_retries = RetrySchedule[str]()
        self._heads_question = LastingQuestion(address)
        self._asked_stores: set[str] = set()
        self._limits = PeerLimits(config.node)
        self.timed_start = TimedStart(address, config.node, self.reassembler.gap_resolver, start_ms)

    def start(self, now: float) -> list[Action]:
        """Subscribe to messages that are addressed to this consumer."""
        self._silence_check_due = now + self._silence_s
        return [Subscribe(wire.subscription_prefix(command, self.address)) for command in OWN_COMMANDS]

    def subscribe(self, topic: str, now: float) -> list[Action]:
        """Follow a topic, and ask for the heads of its partitions (RFC 46, "The GET-HEADS Command")."""
        if topic in self.topics:
            return []
        actions: list[Action] = [Subscribe(wire.subscription_prefix(command, topic)) for command in _TOPIC_COMMANDS]
        return [*actions, self._get_heads(topic, now)]

    def unsubscribe(self, topic: str) -> list[Action]:
        """Stop following a topic, and forget the positions of its partitions."""
        if topic not in self.topics:
            return []
        del self.topics[topic]
        self._heads_wanted.pop(topic, None)
        self._get_heads_retries.cancel(topic)
        for partition in [partition for partition in self.reassembler.cursors if partition.topic == topic]:
            self._forget_partition(partition)
        for partition in self.timed_start.remove_topic(topic):
            self._limits.forget_partition(partition)
        return [Unsubscribe(wire.subscription_prefix(command, topic)) for command in _TOPIC_COMMANDS]

    def seek(self, partition: Partition, sequence: int, now: float) -> list[Action]:
        """Continue a partition of a subscribed topic at another record, which may have been received before.

        If the partition is not known yet, it will begin there, and the heads are requested.
        """
        cursor = self.reassembler.cursors.get(partition)
        if partition in self.timed_start:
            self._begin(partition, sequence, self.timed_start.remove_partition(partition))
            return self._due_fetches(now)
        if cursor is None:
            self._positions[partition] = sequence
            self._heads_wanted[partition.topic] = None
            return self._due_get_heads(now)
        known_end = cursor.known_end
        self.reassembler.forget_partition(partition)
        self.reassembler.follow_partition(partition, sequence)
        self.reassembler.record_known_end(partition, known_end)
        return self._due_fetches(now)

    def resume(self, selected: Collection[Partition | str], now: float) -> list[Action]:
        """Receive records of these partitions and topics again."""
        self.reassembler.resume(selected)
        return self._due_fetches(now)

    def receive(self, messages: Iterable[wire.BatchedMessage], now: float) -> list[Action]:
        """Take records, heads and STORE-HELLOs; discard and count all other messages."""
        actions: list[Action] = []
        for message in messages:
            if isinstance(message, wire.RecordRun):
                actions += self._receive_run(message, now)
            elif isinstance(message, (wire.Head, wire.DirectHead)):
                actions += self._receive_head(message, now)
            elif isinstance(message, wire.StoreHello):
                if message.consumer == self.address and self.topics:
                    actions += self._greet_store(message.address, now)
                    self.timed_start.query.ask_again()  # only this shows that the store's messages arrive here
            elif isinstance(message, wire.DirectEarliest):
                reason = self.reassembler.receive_earliest(message)
                self.discarded.update([reason] if reason else [])
            elif isinstance(message, wire.DirectPosition):
                reason = self.timed_start.query.receive(message)
                self.discarded.update([reason] if reason else [])
            else:
                self.discarded["unexpected command"] += 1
        actions += self._begin_partitions(now)
        actions += self._skip_unrecoverable(only_new=True) + self._due_get_heads(now) + self._due_fetches(now)
        self.capacity.end_arrival()
        return actions

    def receive_subscriptions(self, subscriptions: Iterable[wire.Subscription], now: float) -> list[Action]:
        """Take subscriptions, which show that a peer has connected: greet stores, ask for heads, repeat FETCHes."""
        actions: list[Action] = []
        heads: set[str] = set()
        for subscription in subscriptions:
            self.reassembler.gap_resolver.record_subscription(subscription, self.address)
            self.timed_start.record_subscription(subscription)
            if not subscription.active:
                continue
            if subscription.command is Command.CONSUMER_HELLO and subscription.topic and self.topics:
                actions += self._greet_store(subscription.topic, now)
            elif subscription.command is Command.GET_HEADS:
                if subscription.topic in self.topics:
                    self._heads_wanted[subscription.topic] = None
                elif len(heads) < PREFIXES_MAX and subscription.topic not in heads:
                    heads.add(subscription.topic)
                    wanted = (topic for topic in self.topics if subscription.covers(Command.GET_HEADS, topic))
                    self._heads_wanted.update(dict.fromkeys(wanted))
            elif subscription.command is Command.FETCH:
                self.reassembler.refetch_unanswered(subscription, now)
        return actions + self._begin_partitions(now) + self._due_get_heads(now) + self._due_fetches(now)

    def peer_joined(self, address: str, now: float) -> list[Action]:
        """Record a node that discovery found. Where its partition begins depends on whether the node is new."""
        gap_resolver = self.reassembler.gap_resolver
        gap_resolver.add_node(address)
        self._limits.peer_joined(address)
        self.timed_start.pending_peers.add_node(address)
        if not gap_resolver.is_settled:
            if len(self._older_peers) < PEERS_REMEMBERED_MAX:
                self._older_peers.add(address)
        elif address not in self._older_peers:
            self._newer_peers[address] = None
            if len(self._newer_peers) > PEERS_REMEMBERED_MAX:
                del self._newer_peers[next(iter(self._newer_peers))]
        return []

    def peer_left(self, address: str, now: float) -> list[Action]:
        """Record that discovery lost a node. Ask stores for its last records, which this consumer may have missed."""
        self.reassembler.gap_resolver.remove_node(address)
        self._limits.peer_left(address)
        self.timed_start.pending_peers.remove_node(address)
        for topic in self.topics:
            partition = Partition(topic, address)
            if partition in self._producers:
                self._producers.forget_partition(partition)
                self._heads_wanted[topic] = None
        return self._begin_partitions(now) + self._due_get_heads(now) + self._due_fetches(now)

    def node_settled(self, now: float) -> list[Action]:
        """Record that the nodes that were there before have been found: nodes found from now on are new."""
        self.reassembler.gap_resolver.node_settled()
        self.timed_start.query.node_settled(now)
        return self._begin_partitions(now) + self._skip_unrecoverable() + self._due_fetches(now)

    def tick(self, now: float) -> list[Action]:
        """Repeat unanswered FETCHes and GET-HEADS, and report silent producers."""
        actions: list[Action] = [Notify(event) for event in self.reassembler.tick(now)]
        actions += self._skip_unrecoverable()
        if now >= self._silence_check_due:
            self._silence_check_due = now + self._silence_s / 2
            for partition, silent_s in self._producers.take_silent(now):
                actions.append(Notify(PartitionSilent(partition, silent_s)))
        actions += [Publish(wire.GetHeads(topic, self.address)) for topic in self._get_heads_retries.take_due(now)]
        interval_s = max(LASTING_INTERVAL_S, len(self.reassembler.cursors) / ALL_HEADS_PER_S)
        if self._heads_question.take_due(now, interval_s):
            actions += self._ask_next_store(now)
        self.timed_start.query.tick(now)
        actions += self._begin_partitions(now)
        return actions + self._due_get_heads(now) + self._due_fetches(now)

    def records_buffered(self, memory_bytes: int) -> None:
        """Record that records wait for the program."""
        self.capacity.record_buffered(memory_bytes)

    def records_taken(self, memory_bytes: int, now: float) -> list[Action]:
        """Record that the program took records that waited, or dropped them, and fetch more if that makes room."""
        return self._due_fetches(now) if self.capacity.record_taken(memory_bytes) else []

    def deadline(self) -> float:
        """Return when to call `tick`."""
        heads_due = min((self.topics[topic] for topic in self._heads_wanted), default=float("inf"))
        repeats = min(self._get_heads_retries.deadline(), self._heads_question.deadline())
        repeats = min(repeats, self.timed_start.query.deadline())
        return min(self.reassembler.deadline(), self._silence_check_due, repeats, heads_due)

    @property
    def _silence_s(self) -> float:
        return self._config.consumer.silence_ms / 1000

    def _receive_run(self, run: wire.RecordRun, now: float) -> list[Action]:
        batch = run.batch
        partition = batch.partition
        if run.requestor is not None and run.requestor != self.address:
            self.discarded["another requestor"] += len(batch)
            return []
        if run.requestor is not None and partition not in self.reassembler.cursors:
            self.discarded["not asked for"] += len(batch)
            return []
        if batch.end_sequence > SEQUENCE_MAX:
            self.discarded[ABSURD_SEQUENCE] += len(batch)
            return []
        if not self._follow_partition(partition, batch.first_sequence, now, is_live=run.requestor is None):
            return self._record_unbegun(partition, batch.end_sequence, now, batch.first_sequence)
        actions = []
        if run.requestor is None:
            actions = self._record_heard(partition, now)
        else:
            self.reassembler.record_answer(now)
        if self.reassembler.is_paused(partition) or not self.capacity.has_capacity(is_live=run.requestor is None):
            self.reassembler.drop_batch(batch)
            return actions
        for ready in self.reassembler.add_batch(batch):
            self.capacity.record_arriving(ready.memory_bytes)
            actions.append(Deliver(ready))
        return actions

    def _receive_head(self, head: wire.Head | wire.DirectHead, now: float) -> list[Action]:
        partition = Partition(head.subject, head.address)
        is_direct = isinstance(head, wire.DirectHead)
        if isinstance(head, wire.DirectHead) and head.requestor != self.address:
            self.discarded["another requestor"] += 1
            return []
        if head.sequence >= SEQUENCE_MAX:
            self.discarded[ABSURD_SEQUENCE] += 1
            return []
        if not self._follow_partition(partition, head.sequence + 1, now, is_live=not is_direct):
            return self._record_unbegun(partition, head.sequence + 1, now)
        self.reassembler.record_known_end(partition, head.sequence + 1)
        if is_direct or not (partition in self._producers or self._is_present(partition.address)):
            return []
        return self._record_heard(partition, now)

    def _skip_unrecoverable(self, *, only_new: bool = False) -> list[Action]:
        """Continue after records that no node holds any more."""
        actions: list[Action] = []
        for partition, first_sequence, end_sequence in self.reassembler.unrecoverable_ranges(only_new=only_new):
            self.records_unrecoverable += end_sequence - first_sequence
            actions.append(Notify(RecordsUnrecoverable(partition, first_sequence, end_sequence)))
            actions += [Deliver(run) for run in self.reassembler.reset_to(partition, end_sequence)]
        return actions

    def _forget_partition(self, partition: Partition) -> None:
        self.reassembler.forget_partition(partition)
        self._limits.forget_partition(partition)
        self._producers.forget_partition(partition)

    def _follow_partition(self, partition: Partition, latest: int, now: float, *, is_live: bool) -> bool:
        """Follow a partition; return False if that is not possible."""
        if partition.topic not in self.topics:
            self.discarded["another topic"] += 1
            return False
        if partition in self.reassembler.cursors:
            return True
        if partition in self.timed_start:
            return False
        is_given = partition in self._positions
        if not is_given and not self._has_capacity(partition, now, is_live=is_live):
            return False
        is_newer = partition.address in self._newer_peers
        if not is_given and not is_newer and self.timed_start.add_partition(partition):
            return False
        begins_at_zero = self._config.consumer.offset_reset == "earliest" or is_newer
        begin = self._positions.pop(partition, 0 if begins_at_zero else latest)
        self.reassembler.follow_partition(partition, begin, None if is_given else now)
        return True

    def _record_unbegun(
        self, partition: Partition, end_sequence: int, now: float, first_live: int | None = None
    ) -> list[Action]:
        """Remember the end of a partition that is not followed, perhaps because its beginning is not known yet."""
        if not self.timed_start.record_received(partition, end_sequence, first_live) or first_live is None:
            return []
        return self._record_heard(partition, now) if self._is_present(partition.address) else []

    def _begin_partitions(self, now: float) -> list[Action]:
        """Follow the partitions whose beginning the stores have reported, and ask about the others."""
        return self.timed_start.begin_partitions(self._begin, now)

    def _begin(self, partition: Partition, sequence: int, known_end: int, since: float | None = None) -> None:
        self.reassembler.follow_partition(partition, sequence, since)
        self.reassembler.record_known_end(partition, known_end)

    def _has_capacity(self, partition: Partition, now: float, *, is_live: bool) -> bool:
        """Return whether one more partition can be followed. If not, ask for the heads again later."""
        if not self.reassembler.has_capacity():
            for idle in self.reassembler.idle_partitions(now):
                self._forget_partition(idle)
        followed = len(self.reassembler.cursors) + len(self.timed_start)
        reason = self._limits.admit_partition(partition, followed, is_live=is_live)
        if not reason and (not self.reassembler.has_capacity() or not self.timed_start.has_capacity()):
            self._limits.forget_partition(partition)
            reason = MANY_UNPROVEN
            self._heads_wanted[partition.topic] = None
        if reason:
            self.discarded[reason] += 1
        return not reason

    def _is_present(self, address: str) -> bool:
        """Return whether a producer may be present. Stores send HEADs of producers that have left (erratum 32)."""
        gap_resolver = self.reassembler.gap_resolver
        return gap_resolver.has_node(address) or gap_resolver.has_node("")

    def _record_heard(self, partition: Partition, now: float) -> list[Action]:
        return [Notify(PartitionHeard(partition))] if self._producers.record_heard(partition, now) else []

    def _get_heads(self, topic: str, now: float) -> Action:
        self.topics[topic] = now + GET_HEADS_INTERVAL
        self._heads_wanted.pop(topic, None)
        self._get_heads_retries.schedule(topic, now)
        return Publish(wire.GetHeads(topic, self.address))

    def _due_get_heads(self, now: float) -> list[Action]:
        due = [topic for topic in self._heads_wanted if self.topics[topic] <= now]
        return [self._get_heads(topic, now) for topic in due]

    def _greet_store(self, store: str, now: float) -> list[Action]:
        if not self._limits.allow_request(store, now):
            self.discarded[TOO_OFTEN] += 1
            return []
        if not self._heads_question.is_asked:
            self._heads_question.record_asked(now)
        return [Publish(wire.ConsumerHello(store, self.address, tuple(self.topics)))]

    def _ask_next_store(self, now: float) -> list[Action]:
        """Ask one store for its heads, and the others in turn later. One store may not have all heads.

        A producer may have come and gone while this consumer was connected to stores only.
        """
        stores = self.reassembler.gap_resolver.stores
        if not stores or not self.topics:
            self._heads_question.stop()
            return []
        if self._asked_stores >= stores:
            self._asked_stores.clear()
        store = min(stores - self._asked_stores)
        self._asked_stores = (self._asked_stores & stores) | {store}
        return self._greet_store(store, now)

    def _due_fetches(self, now: float) -> list[Action]:
        return [Publish(fetch) for fetch in self.reassembler.due_fetches(now)] if self.capacity.has_half else []
