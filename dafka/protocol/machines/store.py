"""The store's side of RFC 46: take every record in order, acknowledge what is durable, answer FETCHes and GET-HEADS.

One machine with one address does what libdafka splits into a writer and a reader node. Records leave it as `Append`
actions. The caller reports when they are durable (`records_committed`), and only then are they acknowledged, announced
and served.

Stores also learn from each other, so that a store that was down catches up with partitions whose producer has left:

- A store that connects, or that discovery finds again, is sent all heads at once.
- Whatever happened before, each store tells the others the heads of all its partitions, a few in each round.
- A libdafka store, which sends no heads by itself, is asked for all of them, again and again.
- When a producer leaves, the connected stores are asked for the heads of its topics, and the store announces its own
  heads of them to all subscribers.
- Records that become durable only after their producer has left are announced by the store to all subscribers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice

from dafka import wire
from dafka.config import Config
from dafka.protocol.actions import Action, Append, Notify, Publish, ResetPosition, Subscribe
from dafka.protocol.answering.fetch_responder import FetchResponder
from dafka.protocol.answering.head_responder import HeadResponder
from dafka.protocol.answering.head_rounds import HeadRounds
from dafka.protocol.answering.topic_responder import TopicResponder
from dafka.protocol.events import (
    PartitionHalted,
    PartitionsForgotten,
    RecordsUnrecoverable,
    StoreFull,
    StoreHasRoom,
)
from dafka.protocol.machines.ended_partitions import EndedPartitions
from dafka.protocol.ordering.gap_resolver import HOLDS_NOTHING
from dafka.protocol.ordering.reassembler import Reassembler
from dafka.protocol.polling import LASTING_INTERVAL_S, LastingQuestion, RetrySchedule
from dafka.protocol.presence.peer_limits import (
    ABSURD_SEQUENCE,
    MANY_FETCHES,
    MANY_PARTITIONS,
    MANY_QUESTIONS,
    MANY_UNPROVEN,
    TOO_OFTEN,
    PeerLimits,
)
from dafka.protocol.presence.subscribers import EarliestResponder, SubscriberSet
from dafka.protocol.token_bucket import TokenBucket
from dafka.records import SEQUENCE_MAX, Partition
from dafka.wire import Command

ALL_TOPICS = ""
"""The topic that asks a libdafka store for all heads, since it takes a prefix. Our stores have no such topic."""

ACKS_MAX = 64
"""Partitions of one node that are acknowledged again when it connects. A producer has one."""

REFUSED_TOPICS_MAX = 1000
"""Topics whose heads are asked for again because there was no room for one of their partitions."""

ALL_HEADS_WAITS_S = (1.0, 4.0, 15.0)
"""Seconds after which a libdafka store is asked for all heads again: its answer is lost if it comes before the store
knows of this node's subscription."""

ALL_HEADS_PER_S = 1000
"""Heads per second that libdafka stores may be asked for in the long run."""

FAREWELL_HEADS_PER_S = 1000.0
"""Heads of leaving producers that are announced per second in the long run. Beyond that, nodes learn of them later."""

FAREWELL_HEADS_BURST = 10_000.0
"""Heads of leaving producers that are announced at once."""

FORGOTTEN_TOGETHER_MAX = 100
"""Partitions that are forgotten in one transaction. Records that arrive meanwhile wait for it."""

ROOM_CHECK_S = 1.0
"""Seconds between two looks at whether a full store has room again."""

_GREETINGS = frozenset((Command.STORE_HELLO, Command.CONSUMER_HELLO, Command.GET_HEADS))


class StoreMachine:
    """The state machine of one store.

    Args:
        address: The node's address.
        config: The configuration.
        ends: By partition, the sequence after the last record in the storage.
        earliest: By partition, the sequence of the first record in the storage, if it is not 0.
        idle_s: By partition, the seconds since its last record was appended.

    Attributes:
        reassembler: The position of each partition, including records on their way to the storage.
        durable: By topic and by the producer's address, the sequence after the last durable record.
        earliest: The sequence of the first record held, of each partition that has lost any.
        pending_bytes: Memory of the records on their way to the storage; see `records_queued`.
        responder: Answers FETCHes from the storage.
        discarded: Messages that were discarded, by reason.
    """

    def __init__(
        self,
        address: str,
        config: Config,
        ends: Mapping[Partition, int],
        earliest: Mapping[Partition, int] | None = None,
        idle_s: Mapping[Partition, float] | None = None,
    ) -> None:
        self.address = address
        self.reassembler = Reassembler(address, config.fetch, config.node.partitions_unproven_max)
        self.durable: dict[str, dict[str, int]] = {}
        self.earliest: dict[Partition, int] = dict(earliest or {})
        self.pending_bytes = 0
        self.responder = FetchResponder(
            self.readable_range, config.fetch.replies_max, fetch_records_max=config.fetch.reply_records_max
        )
        self.discarded: Counter[str] = Counter()
        self.fetches_received = 0
        self._config = config
        self._by_address: dict[str, dict[str, None]] = {}
        self._earliest_responder = EarliestResponder(config.node.peers_max)
        self._halted: set[Partition] = set()
        self._get_heads_retries = RetrySchedule[str]()
        self._heads_retries = RetrySchedule[str]()
        self._farewell_retries = RetrySchedule[str]()
        self._producers: set[str] = set()
        self._head_subscribers = SubscriberSet(Command.DIRECT_HEAD, config.node.peers_max)
        self._record_subscribers = SubscriberSet(Command.DIRECT_RECORD, config.node.peers_max)
        self._topics_subscribers = SubscriberSet(Command.DIRECT_TOPICS, config.node.peers_max)
        self._limits = PeerLimits(config.node)
        self._heads = HeadResponder(self.durable, self._direct_heads)
        self._heads_at = float("inf")
        self._head_rounds = HeadRounds(address)
        self._all_heads_question = LastingQuestion(address, ALL_HEADS_WAITS_S)
        self._farewells = TokenBucket(FAREWELL_HEADS_PER_S, FAREWELL_HEADS_BURST, 0.0)
        self._topics = TopicResponder(self.durable)
        self._refused_topics: dict[str, None] = {}
        self._ended = EndedPartitions(config, self._has_producer, idle_s or {})
        self._forgetting: dict[Partition, float] = {}
        self._full_reason = ""
        self._room_check_due = float("inf")
        self._notices: list[Action] = []
        for partition, end in ends.items():
            self.reassembler.follow_partition(partition, end)
            self._set_durable(partition, end)

    def start(self, now: float) -> list[Action]:
        """Subscribe as RFC 46, "Store Subscriptions", says.

        CONSUMER-HELLO is subscribed to twice: without an address, as the RFC says, and with this node's own, from which
        a consumer learns the store's address (as with libdafka). DIRECT-HEAD and DIRECT-EARLIEST bring the answers of
        other stores. GET-TOPICS is asked by name.
        """
        self._ended.start(now)
        self._check_room(now)
        prefixes = [wire.subscription_prefix(command) for command in (Command.RECORD, Command.HEAD, Command.FETCH)]
        prefixes += [wire.subscription_prefix(command) for command in (Command.GET_HEADS, Command.CONSUMER_HELLO)]
        own_commands = (
            Command.DIRECT_RECORD,
            Command.DIRECT_HEAD,
            Command.CONSUMER_HELLO,
            Command.DIRECT_EARLIEST,
            Command.GET_TOPICS,
        )
        prefixes += [wire.subscription_prefix(command, self.address) for command in own_commands]
        return [*(Subscribe(prefix) for prefix in prefixes), *self._take_notices()]

    def receive(self, messages: Iterable[wire.BatchedMessage], now: float) -> list[Action]:
        """Take what a store listens to; discard and count all other messages."""
        actions: list[Action] = []
        for message in messages:
            if isinstance(message, wire.RecordRun):
                actions += self._receive_run(message, now)
            elif isinstance(message, (wire.Head, wire.DirectHead)):
                actions += self._receive_head(message, now)
            elif message.address == self.address:
                self.discarded["own message"] += 1
            elif isinstance(message, wire.Fetch):
                actions += self._receive_fetch(message, now)
            elif isinstance(message, wire.DirectEarliest):
                reason = self.reassembler.receive_earliest(message)
                self.discarded.update([reason] if reason else [])
            elif isinstance(message, wire.GetHeads):
                self._queue_heads((message.subject,), message.address, now)
            elif isinstance(message, wire.GetTopics) and message.store == self.address:
                actions += self._answer_topics(message, now)
            elif isinstance(message, wire.ConsumerHello) and message.store == self.address:
                self._queue_heads(message.subjects, message.address, now)
            else:
                self.discarded["unexpected command"] += 1
        actions += self._skip_unrecoverable(only_new=True) + self._take_notices()
        return actions + self._due_heads(now) + self._due_fetches(now)

    def receive_subscriptions(self, subscriptions: Iterable[wire.Subscription], now: float) -> list[Action]:
        """Take subscriptions, which show that a peer has connected: greet it, send it ACKs, or ask it for heads."""
        actions: list[Action] = []
        for subscription in subscriptions:
            self.reassembler.gap_resolver.note_subscription(subscription, self.address)
            self._earliest_responder.note_subscription(subscription)
            self._note_peer(subscription)
            command, topic = subscription.command, subscription.topic
            if not subscription.active:
                if command is Command.GET_HEADS and not topic:
                    self._all_heads_question.stop()
                continue
            if command is Command.FETCH:
                self.reassembler.refetch_unanswered(subscription, now)
            elif command is Command.ACK:
                for subject in islice(self._by_address.get(topic, ()), ACKS_MAX):
                    actions += self._acknowledge(Partition(subject, topic))
            elif command in _GREETINGS and topic != self.address:
                actions += self._greet_peer(command, topic, now)
        return actions + self._due_heads(now) + self._due_fetches(now)

    def _greet_peer(self, command: Command, topic: str, now: float) -> list[Action]:
        """Answer the subscription of a node that says it is a consumer or a store."""
        if not self._limits.allow_request(topic, now):
            self.discarded[TOO_OFTEN] += 1
        elif command is Command.STORE_HELLO and topic:
            return [Publish(wire.StoreHello(topic, self.address))]
        elif command is Command.CONSUMER_HELLO and topic:
            self._send_all_heads(topic, now)
        elif command is Command.GET_HEADS and not topic:
            return self._ask_all_heads(now)
        return []

    def _send_all_heads(self, store: str, now: float) -> None:
        self._queue_heads(self.durable, store, now)
        self._heads_retries.schedule(store, now)
        self._head_rounds.schedule(now)

    def _ask_all_heads(self, now: float) -> list[Action]:
        self._all_heads_question.note_asked(now)
        return [Publish(wire.GetHeads(ALL_TOPICS, self.address))]

    def records_committed(self, ends: Mapping[Partition, int], now: float) -> list[Action]:
        """Note that these partitions are durable up to, not including, these sequences, and acknowledge them."""
        actions: list[Action] = []
        for partition, end in ends.items():
            self._set_durable(partition, end)
            actions += self._acknowledge(partition)
            if end >= self.reassembler.cursors[partition].known_end and self._is_orphaned(partition):
                actions += self._announce(partition, self._head_subscribers)
        return actions + self._due_fetches(now)

    def records_queued(self, memory_bytes: int) -> None:
        """Note that records wait to be written."""
        self.pending_bytes += memory_bytes

    def records_unqueued(self, memory_bytes: int) -> None:
        """Note that records wait no longer: they are durable, or were dropped."""
        self.pending_bytes -= memory_bytes

    def records_trimmed(self, earliest: Mapping[Partition, int]) -> int:
        """Note that the storage dropped the records before these sequences, and return how many it dropped."""
        count = 0
        for partition, sequence in earliest.items():
            if partition in self.reassembler.cursors:
                count += max(sequence - self.earliest.get(partition, 0), 0)
                self.earliest[partition] = sequence
                self._ended.note_range(partition, sequence, self.durable_end(partition))
        return count

    def position_reset(self, partition: Partition, next_sequence: int) -> list[Action]:
        """Note that the storage has carried out `ResetPosition`, and acknowledge what it now counts as durable."""
        self.earliest[partition] = next_sequence
        self._set_durable(partition, next_sequence)
        return self._acknowledge(partition)

    @property
    def full_reason(self) -> str:
        """Why the store takes no further partition; empty if it does."""
        return self._full_reason

    def silent_partitions(self, now: float) -> list[Partition]:
        """Return a limited number of ended partitions to forget, the longest silent first; see `EndedPartitions`."""
        silent = (each for each in self._ended.silent_partitions(now) if self._is_complete(each))
        return list(islice(silent, FORGOTTEN_TOGETHER_MAX))

    def drop_silent_unproven(self, now: float) -> None:
        """Stop following partitions of which only the name is known, and nothing was heard for long enough."""
        for partition in self.reassembler.unproven_partitions():
            if self._ended.is_unproven_silent(partition, now) and not self._has_producer(partition):
                self._drop_unproven(partition)

    def begin_forgetting(self, partitions: Iterable[Partition]) -> tuple[Partition, ...]:
        """Return those of these partitions that still have ended, which the storage deletes now."""
        ended = [each for each in partitions if each in self._ended and self._is_complete(each)]
        self._forgetting = {partition: self._ended.heard_at(partition) for partition in ended}
        return tuple(ended)

    def partitions_deleted(self) -> list[Action]:
        """Note that the storage has deleted the partitions of `begin_forgetting`, and forget them.

        A partition that was heard of meanwhile continues where it was.
        """
        forgetting, self._forgetting = self._forgetting, {}
        actions: list[Action] = []
        forgotten = 0
        for partition, heard_at in forgetting.items():
            end = self.durable_end(partition)
            is_heard = self._ended.heard_at(partition) > heard_at or partition not in self._ended
            if not is_heard and self._is_complete(partition):
                self._forget_partition(partition)
                forgotten += 1
            elif self.reassembler.cursors[partition].next_sequence == end:
                actions.append(ResetPosition(partition, end))  # otherwise the records that wait continue it
        return [*actions, Notify(PartitionsForgotten(forgotten))] if forgotten else actions

    def peer_joined(self, address: str, now: float) -> list[Action]:
        """Note a node that discovery found.

        The role of a new node shows later, from its subscriptions. A store that is found again while its connection
        lasts does not subscribe again, and is greeted here.
        """
        self.reassembler.gap_resolver.add_node(address)
        self._limits.peer_joined(address)
        if address not in self.reassembler.gap_resolver.stores:
            return []
        self._send_all_heads(address, now)
        return self._ask_all_heads(now) + self._due_heads(now)

    def peer_left(self, address: str, now: float) -> list[Action]:
        """Note that discovery lost a node.

        If it was a producer, ask other stores for its last records, which this one may have missed, and announce what
        this store has, which other nodes may have missed.
        """
        self.reassembler.gap_resolver.remove_node(address)
        self._heads_retries.cancel(address)
        self._limits.peer_left(address)
        topics = list(islice(self._by_address.get(address, {}), ACKS_MAX))
        for topic in topics:
            self._get_heads_retries.schedule(topic, now)
        if topics:
            self._farewell_retries.schedule(address, now)
        return [Publish(wire.GetHeads(topic, self.address)) for topic in topics] + self._announce_producer(address, now)

    def node_settled(self, now: float) -> list[Action]:
        """Note that the node is settled: records that no known node holds may be given up from now on."""
        self.reassembler.gap_resolver.node_settled()
        return self._skip_unrecoverable()

    def tick(self, now: float) -> list[Action]:
        """Repeat unanswered FETCHes, and the heads and questions that other stores may have missed."""
        actions: list[Action] = [Notify(event) for event in self.reassembler.tick(now)]
        actions += [Publish(wire.GetHeads(topic, self.address)) for topic in self._get_heads_retries.take_due(now)]
        for store in self._heads_retries.take_due(now):
            self._queue_heads(self.durable, store, now)
        if self._refused_topics and self.reassembler.has_room():
            short, self._refused_topics = self._refused_topics, {}
            for topic in short:
                self._get_heads_retries.schedule(topic, now)
        for producer in self._farewell_retries.take_due(now):
            actions += self._announce_producer(producer, now)
        if now >= self._room_check_due:
            self._check_room(now)
        actions += self._exchange_heads(now) + self._skip_unrecoverable() + self._take_notices()
        return actions + self._due_heads(now) + self._due_fetches(now)

    def deadline(self) -> float:
        """Return when to call `tick`."""
        repeats = min(self._get_heads_retries.deadline(), self._heads_retries.deadline())
        repeats = min(repeats, self._farewell_retries.deadline())
        lasting = min(self._all_heads_question.deadline(), self._head_rounds.deadline())
        return min(self.reassembler.deadline(), repeats, lasting, self._heads_at, self._room_check_due)

    def _exchange_heads(self, now: float) -> list[Action]:
        """Tell the other stores some of this one's heads, and ask libdafka stores for theirs, from time to time."""
        actions: list[Action] = []
        partitions = self.reassembler.cursors
        if self._all_heads_question.take_due(now, max(LASTING_INTERVAL_S, len(partitions) / ALL_HEADS_PER_S)):
            actions.append(Publish(wire.GetHeads(ALL_TOPICS, self.address)))
        if now >= self._head_rounds.deadline():
            stores = sorted(set(self._head_subscribers) & self.reassembler.gap_resolver.stores)
            for partition in self._head_rounds.take_due(now, partitions, len(stores)):
                if self._is_announced(partition):
                    actions += self._announce(partition, stores)
        return actions

    def _is_announced(self, partition: Partition) -> bool:
        """Return whether to tell others of a partition. If stores told each other of ended ones, none forgot them."""
        return self.durable_end(partition) > 0 and partition not in self._ended

    def _announce_producer(self, address: str, now: float) -> list[Action]:
        """Tell all subscribers what is held of a producer that has left, unless there is too much to tell."""
        topics = islice(self._by_address.get(address, {}), ACKS_MAX)
        held = [partition for topic in topics if self._is_announced(partition := Partition(topic, address))]
        actions: list[Action] = []
        if self._farewells.try_take(now, len(self._head_subscribers) * len(held)):
            for partition in held:
                actions += self._announce(partition, self._head_subscribers)
        return actions

    def _announce(self, partition: Partition, nodes: Iterable[str]) -> list[Action]:
        """Return the actions that tell nodes the head of a partition that has durable records."""
        head = self.durable_end(partition) - 1
        return [Publish(wire.DirectHead(node, partition.address, partition.topic, head)) for node in nodes]

    def durable_end(self, partition: Partition) -> int:
        """Return the sequence after the partition's last durable record; 0 if there is none."""
        return self.durable.get(partition.topic, {}).get(partition.address, 0)

    def readable_range(self, partition: Partition) -> range:
        """Return the sequences of a partition that are durable, and so may be sent."""
        return range(self.durable_end(partition))

    def _set_durable(self, partition: Partition, end: int) -> None:
        if end:
            self.durable.setdefault(partition.topic, {})[partition.address] = end
            self._by_address.setdefault(partition.address, {})[partition.topic] = None
            self._ended.note_range(partition, self.earliest.get(partition, 0), end)

    def _receive_run(self, run: wire.RecordRun, now: float) -> list[Action]:
        batch = run.batch
        partition = batch.partition
        if run.requestor is not None and run.requestor != self.address:
            self.discarded["another requestor"] += len(batch)
            return []
        if batch.end_sequence > SEQUENCE_MAX:
            self.discarded[ABSURD_SEQUENCE] += len(batch)
            return []
        if not self._follow_partition(partition, now, is_live=run.requestor is None):
            return []
        if run.requestor is not None:
            self.reassembler.note_answer(now)
        limit = self._config.store.pending_bytes_max * (1 if run.requestor is None else 2)
        if self.pending_bytes >= limit:
            self.reassembler.drop_batch(batch)
            return []
        actions: list[Action] = [Append(ready) for ready in self.reassembler.add_batch(batch)]
        if not actions and batch.end_sequence <= self.durable_end(partition):
            return self._acknowledge(partition)
        return actions

    def _receive_head(self, head: wire.Head | wire.DirectHead, now: float) -> list[Action]:
        partition = Partition(head.subject, head.address)
        if isinstance(head, wire.DirectHead) and head.requestor != self.address:
            self.discarded["another requestor"] += 1
            return []
        if head.sequence >= SEQUENCE_MAX:
            self.discarded[ABSURD_SEQUENCE] += 1
            return []
        if not self._follow_partition(partition, now, is_live=isinstance(head, wire.Head)):
            return []
        self.reassembler.note_known_end(partition, head.sequence + 1)
        # A producer that announces records that are durable already may have missed their ACK (erratum 9).
        is_producers = isinstance(head, wire.Head)
        return self._acknowledge(partition) if is_producers and head.sequence < self.durable_end(partition) else []

    def _receive_fetch(self, fetch: wire.Fetch, now: float) -> list[Action]:
        partition = Partition(fetch.subject, fetch.partition)
        if not self._limits.allow_fetch(fetch.address, now):
            self.discarded[MANY_FETCHES] += 1
            return []
        earliest = self.earliest.get(partition, 0)
        if fetch.sequence < earliest:
            self.discarded["before the earliest"] += 1
            return self._answer_earliest(fetch, earliest, earliest)
        if partition not in self.reassembler.cursors:
            self.discarded["beyond the head"] += 1
            return self._answer_earliest(fetch, HOLDS_NOTHING, 0)
        if fetch.sequence >= self.durable_end(partition):
            self.discarded["beyond the head"] += 1
        elif not self.responder.add_fetch(fetch, is_verified=fetch.address in self._record_subscribers):
            self.discarded[MANY_FETCHES] += 1
        else:
            self.fetches_received += 1
        return []

    def _answer_earliest(self, fetch: wire.Fetch, sequence: int, unrecoverable_end: int) -> list[Action]:
        """Answer after the heads that the node has asked for: it takes the answer as a sign that they are complete."""
        answer = self._earliest_responder.answer(fetch, self.address, sequence, unrecoverable_end)
        return [] if answer is None or self._heads.send_after_heads(answer) else [Publish(answer)]

    def _answer_topics(self, question: wire.GetTopics, now: float) -> list[Action]:
        if not self._limits.allow_heads_request(question.address, now):
            self.discarded[TOO_OFTEN] += 1
            return []
        if question.address not in self._topics_subscribers:  # it would not receive the answer
            return []
        return [Publish(self._topics.answer(question, now))]

    def _skip_unrecoverable(self, *, only_new: bool = False) -> list[Action]:
        """Continue after records that no node holds any more, dropping earlier ones if retention allows it."""
        actions: list[Action] = []
        for partition, first_sequence, end_sequence in self.reassembler.unrecoverable_ranges(only_new=only_new):
            if not first_sequence and self._is_over(partition, end_sequence):
                self._drop_unproven(partition)  # nothing of it was given to the storage
            elif not self._must_keep(partition):
                unrecoverable = Notify(RecordsUnrecoverable(partition, first_sequence, end_sequence))
                actions += [unrecoverable, ResetPosition(partition, end_sequence)]
                actions += [Append(run) for run in self.reassembler.reset_to(partition, end_sequence)]
            elif partition not in self._halted:
                self._halted.add(partition)
                actions.append(Notify(PartitionHalted(partition, first_sequence, end_sequence)))
        return actions

    def _must_keep(self, partition: Partition) -> bool:
        """Return whether there are records before the gap, and the store has no retention that may drop them."""
        is_empty = self.reassembler.cursors[partition].next_sequence == self.earliest.get(partition, 0)
        return not is_empty and not self._config.store.has_retention

    def _queue_heads(self, topics: Iterable[str], requestor: str, now: float) -> None:
        is_verified = requestor in self._head_subscribers
        if not self._limits.allow_heads_request(requestor, now):
            self.discarded[TOO_OFTEN] += 1
        elif not self._heads.add_request(requestor, topics, is_verified=is_verified):
            self.discarded[MANY_QUESTIONS] += 1

    def _due_heads(self, now: float) -> list[Action]:
        """Send some of the heads that were asked for. The rest follows when incoming messages have had their turn."""
        if now < self._heads_at < float("inf"):
            self._heads_at = min(self._heads_at, now + self._heads.pause_s)
            return []
        heads = self._heads.next_heads()
        self._heads_at = now + self._heads.pause_s
        return heads

    def _direct_heads(self, topic: str, requestor: str, begin: int, count: int) -> list[Action]:
        """Return heads. Stores are not told of ended partitions: each would keep the other from forgetting them."""
        heads = islice(self.durable.get(topic, {}).items(), begin, begin + count)
        is_store = requestor in self.reassembler.gap_resolver.stores
        return [
            Publish(wire.DirectHead(requestor, address, topic, end - 1))
            for address, end in heads
            if not (is_store and Partition(topic, address) in self._ended)
        ]

    def _note_peer(self, subscription: wire.Subscription) -> None:
        """Note what a peer is: a producer subscribes to ACKs; a node that takes heads, to DIRECT-HEADs."""
        peers_max = self._config.node.peers_max
        if subscription.command is Command.ACK:
            if not subscription.active:
                self._producers.discard(subscription.topic)
            elif len(self._producers) < peers_max:
                self._producers.add(subscription.topic)
        elif subscription.topic != self.address:
            self._head_subscribers.note_subscription(subscription)
            self._record_subscribers.note_subscription(subscription)
            self._topics_subscribers.note_subscription(subscription)

    def _is_orphaned(self, partition: Partition) -> bool:
        """Return whether the partition's producer has left, so that only this store can announce its records."""
        return partition.address not in self._producers and len(self._producers) < self._config.node.peers_max

    def _has_producer(self, partition: Partition) -> bool:
        return not self._is_orphaned(partition) or self.reassembler.gap_resolver.has_node(partition.address)

    def _is_complete(self, partition: Partition) -> bool:
        """Return whether everything that is known of a partition is durable here."""
        cursor = self.reassembler.cursors.get(partition)
        return cursor is not None and cursor.next_sequence == cursor.known_end == self.durable_end(partition)

    def _is_over(self, partition: Partition, end_sequence: int) -> bool:
        """Return whether a partition without a producer has no records from this sequence on."""
        return end_sequence >= self.reassembler.cursors[partition].known_end and not self._has_producer(partition)

    def _forget_partition(self, partition: Partition) -> None:
        self._drop_unproven(partition)
        self.earliest.pop(partition, None)
        self._halted.discard(partition)
        self.durable[partition.topic].pop(partition.address, None)
        if not self.durable[partition.topic]:
            del self.durable[partition.topic]
        self._heads.partition_removed(partition.topic)
        self._by_address[partition.address].pop(partition.topic, None)
        if not self._by_address[partition.address]:
            del self._by_address[partition.address]

    def _drop_unproven(self, partition: Partition) -> None:
        self.reassembler.forget_partition(partition)
        self._limits.forget_partition(partition)
        self._ended.remove(partition)

    def _acknowledge(self, partition: Partition) -> list[Action]:
        end = self.durable_end(partition)
        return [Publish(wire.Ack(partition.address, partition.topic, end - 1, self.address))] if end else []

    def _follow_partition(self, partition: Partition, now: float, *, is_live: bool) -> bool:
        """Follow a partition, and return whether it may be followed.

        If there is no room for it, its topic's heads are asked for again when there is.
        """
        if partition in self.reassembler.cursors:
            self._ended.note_heard(partition, now)
            return True
        if not self.reassembler.has_room():
            for idle in self.reassembler.idle_partitions(now):
                self._drop_unproven(idle)
        reason = self._limits.admit_partition(partition, self._count_living(now), is_live=is_live)
        if not reason and not self.reassembler.has_room():
            self._limits.forget_partition(partition)
            reason = MANY_UNPROVEN
            if len(self._refused_topics) < REFUSED_TOPICS_MAX:
                self._refused_topics[partition.topic] = None
        if reason:
            self.discarded[reason] += 1
            if reason in {MANY_PARTITIONS, MANY_UNPROVEN}:
                self._note_full(reason, now)
            return False
        self.reassembler.follow_partition(partition, 0, now)
        self._ended.note_heard(partition, now)
        if len(self.reassembler.cursors) >= self._config.node.partitions_max:
            self._check_room(now)
        return True

    def _count_living(self, now: float) -> int:
        """Return how many partitions count for the limit: those with records or a producer.

        Ended ones count only beyond that limit again.
        """
        followed, limit = len(self.reassembler.cursors), self._config.node.partitions_max
        if followed < limit:
            return followed
        return followed - min(self._ended.count(now), limit)

    def _check_room(self, now: float) -> None:
        """Note whether the store takes further partitions; while it does not, look again each second."""
        if self._count_living(now) >= self._config.node.partitions_max:
            self._note_full(MANY_PARTITIONS, now)
        elif not self.reassembler.has_room():
            self._note_full(MANY_UNPROVEN, now)
        elif self._full_reason:
            self._full_reason = ""
            self._room_check_due = float("inf")
            self._notices.append(Notify(StoreHasRoom()))

    def _note_full(self, reason: str, now: float) -> None:
        self._room_check_due = now + ROOM_CHECK_S
        if not self._full_reason:
            limit = (
                self._config.node.partitions_max
                if reason == MANY_PARTITIONS
                else self._config.node.partitions_unproven_max
            )
            event = StoreFull(reason, limit)
            self._full_reason = str(event)
            self._notices.append(Notify(event))

    def _take_notices(self) -> list[Action]:
        notices, self._notices = self._notices, []
        return notices

    def _due_fetches(self, now: float) -> list[Action]:
        if self.pending_bytes >= self._config.store.pending_bytes_max:
            return []
        return [Publish(fetch) for fetch in self.reassembler.due_fetches(now)]
