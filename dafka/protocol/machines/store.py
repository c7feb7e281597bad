"""The store's side of RFC 46: take every record in order, acknowledge what is durable, answer FETCHes and GET-HEADS.

One machine with one address is both the writer and the reader node of libdafka. Records leave it as `Append` actions.
The caller reports when they are durable (`records_committed`), and only then are they acknowledged, announced and
served.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import islice

from dafka import wire
from dafka.config import Config
from dafka.protocol.actions import Action, Append, Notify, Publish, ResetPosition, Subscribe
from dafka.protocol.answering.fetch_responder import FetchResponder
from dafka.protocol.events import RecordsUnrecoverable
from dafka.protocol.machines.head_exchange import HeadExchange, StorePeers
from dafka.protocol.machines.store_answers import StoreAnswers
from dafka.protocol.machines.stored_partitions import EndedPartitions, PartitionCapacity, StoredPartitions
from dafka.protocol.ordering.reassembler import MissingRecords, Reassembler
from dafka.protocol.presence.peer_limits import ABSURD_SEQUENCE, MANY_UNPROVEN, TOO_OFTEN, PeerLimits
from dafka.protocol.store_events import PartitionHalted, PartitionsForgotten
from dafka.records import SEQUENCE_MAX, Partition, RecordBatch
from dafka.wire import Command

ACKS_MAX = 64
"""Partitions of one node that are acknowledged again when it connects. A producer has one."""

FORGOTTEN_TOGETHER_MAX = 100
"""The maximum number of partitions that are forgotten in one transaction, while arriving records wait."""

OWN_PARTITION = "own partition"
"""The reason for discarding a peer's record or head that belongs to an own partition of this node."""

_COMMANDS = (Command.RECORD, Command.HEAD, Command.FETCH, Command.GET_HEADS, Command.CONSUMER_HELLO)
_OWN_COMMANDS = (
    Command.DIRECT_RECORD,
    Command.DIRECT_HEAD,
    Command.GET_POSITION,
    Command.CONSUMER_HELLO,
    Command.DIRECT_EARLIEST,
    Command.GET_TOPICS,
)
_GREETINGS = frozenset((Command.STORE_HELLO, Command.CONSUMER_HELLO, Command.GET_HEADS))


class StoreMachine:
    """The state machine of one store.

    Its `reassembler` includes records on their way to the storage, whose memory is `pending_bytes`.

    Args:
        address: The node's address.
        config: The configuration.
        ends: By partition, the sequence after the last record in the storage.
        earliest: By partition, the sequence of the first record in the storage, if it is not 0.
        idle_s: By partition, the seconds since its last record was appended.
        is_own: Returns whether this node produces a partition, so that peers cannot add records to it.
        stored: The table of stored partitions, which the machine fills; None for a new one, with `earliest`.
    """

    def __init__(
        self,
        address: str,
        config: Config,
        ends: Mapping[Partition, int],
        earliest: Mapping[Partition, int] | None = None,
        idle_s: Mapping[Partition, float] | None = None,
        is_own: Callable[[Partition], bool] = lambda _: False,
        stored: StoredPartitions | None = None,
    ) -> None:
        self.address = address
        self._is_own = is_own
        self.reassembler = Reassembler(address, config.fetch, config.node.partitions_unproven_max)
        self.missing = MissingRecords(self.reassembler)
        self.stored = StoredPartitions(earliest or {}) if stored is None else stored
        self.pending_bytes = 0
        self.responder = FetchResponder(
            self.stored.readable_range, config.fetch.replies_max, fetch_records_max=config.fetch.reply_records_max
        )
        self.discarded: Counter[str] = Counter()
        self._config = config
        self.halted: set[Partition] = set()
        """The partitions of which nothing more is stored, because no node has their next records."""
        self._limits = PeerLimits(config.node)
        self._peers = StorePeers(address, config.node.peers_max, self.reassembler.gap_resolver)
        self._ended = EndedPartitions(config, self._peers.has_producer, idle_s or {})
        self.capacity = PartitionCapacity(config.node, self.reassembler, self._ended, self._limits)
        self._heads = HeadExchange(
            address, self.reassembler.cursors, self.stored, self._ended, self._peers, self._limits, self.discarded
        )
        self.answers = StoreAnswers(
            address,
            self.reassembler.cursors,
            self.stored,
            self.responder,
            self._heads,
            self._peers,
            self._limits,
            self.discarded,
        )
        self._forgetting: dict[Partition, float] = {}
        for partition, end in ends.items():
            self.reassembler.follow_partition(partition, end)
            self._set_durable(partition, end)

    def start(self, now: float) -> list[Action]:
        """Subscribe as RFC 46, "Store Subscriptions", says.

        There are two subscriptions to CONSUMER-HELLO: without an address, as the RFC says, and with this node's
        address, from which a consumer learns the store's address (as with libdafka). DIRECT-HEAD and DIRECT-EARLIEST
        are the answers of other stores. GET-TOPICS is addressed to one store.
        """
        self._ended.start(now)
        self.capacity.check(now)
        prefixes = [wire.subscription_prefix(command) for command in _COMMANDS]
        prefixes += [wire.subscription_prefix(command, self.address) for command in _OWN_COMMANDS]
        return [*(Subscribe(prefix) for prefix in prefixes), *self.capacity.take_notices()]

    def receive(self, messages: Iterable[wire.BatchedMessage], now: float) -> list[Action]:
        """Process the messages of a store's subscriptions; discard and count all other messages."""
        actions: list[Action] = []
        for message in messages:
            if isinstance(message, wire.RecordRun):
                actions += self._receive_run(message, now)
            elif isinstance(message, (wire.Head, wire.DirectHead)):
                actions += self._receive_head(message, now)
            elif message.address == self.address:
                self.discarded["own message"] += 1
            elif isinstance(message, wire.Fetch):
                actions += self.answers.receive_fetch(message, now)
            elif isinstance(message, wire.DirectEarliest):
                reason = self.reassembler.receive_earliest(message)
                self.discarded.update([reason] if reason else [])
            elif isinstance(message, wire.GetHeads):
                self._heads.add_request((message.subject,), message.address, now)
            elif isinstance(message, (wire.GetTopics, wire.GetPosition)) and message.store == self.address:
                actions += self.answers.receive_question(message, now)
            elif isinstance(message, wire.ConsumerHello) and message.store == self.address:
                self._heads.add_request(message.subjects, message.address, now)
            else:
                self.discarded["unexpected command"] += 1
        actions += self._skip_unrecoverable(only_new=True) + self.capacity.take_notices()
        return actions + self._heads.due_heads(now) + self._due_fetches(now)

    def receive_subscriptions(self, subscriptions: Iterable[wire.Subscription], now: float) -> list[Action]:
        """Take subscriptions, which show that a peer has connected: greet it, send it ACKs, or ask it for heads."""
        actions: list[Action] = []
        for subscription in subscriptions:
            self.reassembler.gap_resolver.record_subscription(subscription, self.address)
            self._peers.record_subscription(subscription)
            command, topic = subscription.command, subscription.topic
            if not subscription.active:
                if command is Command.GET_HEADS and not topic:
                    self._heads.stop_asking_all_heads()
                continue
            if command is Command.FETCH:
                self.reassembler.refetch_unanswered(subscription, now)
            elif command is Command.ACK:
                for subject in islice(self.stored.topics_of(topic), ACKS_MAX):
                    actions += self._acknowledge(Partition(subject, topic))
            elif command in _GREETINGS and topic != self.address:
                actions += self._greet_peer(command, topic, now)
        return actions + self._heads.due_heads(now) + self._due_fetches(now)

    def _greet_peer(self, command: Command, topic: str, now: float) -> list[Action]:
        """Answer a subscription that shows that its node is a consumer or a store."""
        if not self._limits.allow_request(topic, now):
            self.discarded[TOO_OFTEN] += 1
        elif command is Command.STORE_HELLO and topic:
            return [Publish(wire.StoreHello(topic, self.address))]
        elif command is Command.CONSUMER_HELLO and topic:
            self._heads.send_all_heads(topic, now)
        elif command is Command.GET_HEADS and not topic:
            return self._heads.ask_all_heads(now)
        return []

    def append_own(self, batch: RecordBatch, now: float) -> list[Action]:
        """Append records of an own partition; see `next_sequence`."""
        if batch.partition not in self.reassembler.cursors:
            self.reassembler.follow_partition(batch.partition, batch.first_sequence)
        self._ended.record_heard(batch.partition, now)
        return [Append(ready) for ready in self.reassembler.add_batch(batch)]

    def next_sequence(self, partition: Partition) -> int:
        """Return the sequence of the next record of a partition, after the records on their way to the storage."""
        cursor = self.reassembler.cursors.get(partition)
        return 0 if cursor is None else cursor.next_sequence

    def forget_own(self, partition: Partition) -> None:
        """Forget an own partition, whose records are deleted."""
        if self.stored.durable_end(partition):
            self._forget_partition(partition)
        elif partition in self.reassembler.cursors:
            self._drop_unproven(partition)

    def records_committed(self, ends: Mapping[Partition, int], now: float) -> list[Action]:
        """Record that these partitions are durable up to, not including, these sequences, and acknowledge them."""
        actions: list[Action] = []
        for partition, end in ends.items():
            self._set_durable(partition, end)
            if self._is_own(partition):
                continue
            actions += self._acknowledge(partition)
            if end >= self.reassembler.cursors[partition].known_end and self._peers.is_orphaned(partition):
                actions += self._heads.orphan_stored(partition, now)
        return actions + self._due_fetches(now)

    def records_queued(self, memory_bytes: int) -> None:
        """Record that records wait to be written."""
        self.pending_bytes += memory_bytes

    def records_unqueued(self, memory_bytes: int) -> None:
        """Record that records no longer wait: they are durable, or were dropped."""
        self.pending_bytes -= memory_bytes

    def records_trimmed(self, earliest: Mapping[Partition, int]) -> int:
        """Record that the storage dropped the records before these sequences, and return how many it dropped."""
        count = 0
        for partition, sequence in earliest.items():
            if partition in self.reassembler.cursors:
                count += max(sequence - self.stored.earliest.get(partition, 0), 0)
                self.stored.set_earliest(partition, sequence)
                self._ended.record_range(partition, sequence, self.stored.durable_end(partition))
        return count

    def position_reset(self, partition: Partition, next_sequence: int) -> list[Action]:
        """Record that the storage has run `ResetPosition`, and acknowledge the records before the new position."""
        self.halted.discard(partition)
        self.stored.set_earliest(partition, next_sequence)
        self._set_durable(partition, next_sequence)
        return self._acknowledge(partition)

    def silent_partitions(self, now: float) -> list[Partition]:
        """Return a limited number of ended partitions to forget, the longest silent first; see `EndedPartitions`."""
        silent = (each for each in self._ended.silent_partitions(now) if self._is_complete(each))
        return list(islice(silent, FORGOTTEN_TOGETHER_MAX))

    def drop_silent_unproven(self, now: float) -> None:
        """Stop following partitions that are known only by name and have been silent for long enough."""
        for partition in self.reassembler.unproven_partitions():
            if self._ended.is_unproven_silent(partition, now) and not self._peers.has_producer(partition):
                self._drop_unproven(partition)

    def begin_forgetting(self, partitions: Iterable[Partition]) -> tuple[Partition, ...]:
        """Return the partitions that are still ended; the storage deletes them now."""
        ended = [each for each in partitions if each in self._ended and self._is_complete(each)]
        self._forgetting = {partition: self._ended.heard_at(partition) for partition in ended}
        return tuple(ended)

    def partitions_deleted(self) -> list[Action]:
        """Record that the storage has deleted the partitions of `begin_forgetting`, and forget them.

        A partition about which a message arrived meanwhile continues at its end.
        """
        forgetting, self._forgetting = self._forgetting, {}
        actions: list[Action] = []
        forgotten = 0
        for partition, heard_at in forgetting.items():
            end = self.stored.durable_end(partition)
            is_heard = self._ended.heard_at(partition) > heard_at or partition not in self._ended
            if not is_heard and self._is_complete(partition):
                self._forget_partition(partition)
                forgotten += 1
            elif self.reassembler.cursors[partition].next_sequence == end:
                actions.append(ResetPosition(partition, end))  # otherwise waiting records continue it
        return [*actions, Notify(PartitionsForgotten(forgotten))] if forgotten else actions

    def peer_joined(self, address: str, now: float) -> list[Action]:
        """Record a node that discovery found.

        The role of a new node shows later, from its subscriptions. A store that is found again while its connection
        lasts does not subscribe again, and is greeted here.
        """
        self.reassembler.gap_resolver.add_node(address)
        self._limits.peer_joined(address)
        if address not in self.reassembler.gap_resolver.stores:
            return []
        self._heads.send_all_heads(address, now)
        return self._heads.ask_all_heads(now) + self._heads.due_heads(now)

    def peer_left(self, address: str, now: float) -> list[Action]:
        """Record that discovery lost a node, and exchange heads about its records if it was a producer."""
        self.reassembler.gap_resolver.remove_node(address)
        self._limits.peer_left(address)
        return self._heads.peer_left(address, now)

    def node_settled(self, now: float) -> list[Action]:
        """Record that the node is settled: from now on, records that no known node holds can be given up."""
        self.reassembler.gap_resolver.node_settled()
        return self._skip_unrecoverable()

    def tick(self, now: float) -> list[Action]:
        """Repeat unanswered FETCHes, and the heads and questions that other stores may have missed."""
        actions: list[Action] = [Notify(event) for event in self.reassembler.tick(now)]
        if actions:
            self.missing.begin(now)
        actions += [Notify(event) for event in self.missing.take_due(now)]
        actions += self._heads.tick(now, has_capacity=self.reassembler.has_capacity())
        self.capacity.tick(now)
        actions += self._skip_unrecoverable() + self.capacity.take_notices()
        return actions + self._heads.due_heads(now) + self._due_fetches(now)

    def deadline(self) -> float:
        """Return when to call `tick`."""
        due = min(self.reassembler.deadline(), self.missing.deadline())
        return min(due, self._heads.deadline(), self.capacity.deadline())

    def _set_durable(self, partition: Partition, end: int) -> None:
        if end:
            self.stored.set_durable_end(partition, end)
            self._ended.record_range(partition, self.stored.earliest.get(partition, 0), end)

    def _is_written_here(self, partition: Partition) -> bool:
        """Return whether this node has all records of a partition before any other one."""
        return self._is_own(partition)

    def _receive_run(self, run: wire.RecordRun, now: float) -> list[Action]:
        batch = run.batch
        partition = batch.partition
        is_for_another = run.requestor is not None and run.requestor != self.address
        if is_for_another or self._is_written_here(partition):
            self.discarded["another requestor" if is_for_another else OWN_PARTITION] += len(batch)
            return []
        if batch.end_sequence > SEQUENCE_MAX:
            self.discarded[ABSURD_SEQUENCE] += len(batch)
            return []
        if not self._follow_partition(partition, now, is_live=run.requestor is None):
            return []
        if run.requestor is not None:
            self.reassembler.record_answer(now)
        limit = self._config.store.pending_bytes_max * (1 if run.requestor is None else 2)
        if self.pending_bytes >= limit or self.reassembler.is_held(partition):
            self.reassembler.drop_batch(batch)
            return []
        actions: list[Action] = [Append(ready) for ready in self.reassembler.add_batch(batch)]
        if not actions and batch.end_sequence <= self.stored.durable_end(partition):
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
        if self._is_written_here(partition):
            self.discarded[OWN_PARTITION] += 1
            return []
        if not self._follow_partition(partition, now, is_live=isinstance(head, wire.Head)):
            return []
        if isinstance(head, wire.DirectHead):
            self._heads.head_received(head, now)
        self.reassembler.record_known_end(partition, head.sequence + 1)
        # A producer that announces records that are durable already may have missed their ACK (erratum 9).
        is_durable = head.sequence < self.stored.durable_end(partition)
        return self._acknowledge(partition) if isinstance(head, wire.Head) and is_durable else []

    def _skip_unrecoverable(self, *, only_new: bool = False) -> list[Action]:
        """Continue after records that no node holds any more, dropping earlier ones if retention allows it."""
        actions: list[Action] = []
        for partition, first_sequence, end_sequence in self.reassembler.unrecoverable_ranges(only_new=only_new):
            if not first_sequence and self._is_over(partition, end_sequence):
                self._drop_unproven(partition)  # the storage has none of its records
            elif not self._must_keep(partition):
                actions += self._report_unrecoverable(partition, first_sequence, end_sequence)
                actions.append(ResetPosition(partition, end_sequence))
                actions += [Append(run) for run in self.reassembler.reset_to(partition, end_sequence)]
            elif partition not in self.halted:
                self.halted.add(partition)
                actions += self._report_halted(partition, first_sequence, end_sequence)
        return actions

    def _report_halted(self, partition: Partition, first_sequence: int, end_sequence: int) -> list[Action]:
        """Return the actions that report that nothing more of a partition is stored."""
        return [Notify(PartitionHalted(partition, first_sequence, end_sequence))]

    def _report_unrecoverable(self, partition: Partition, first_sequence: int, end_sequence: int) -> list[Action]:
        """Return the actions that report records that no node holds any more."""
        return [Notify(RecordsUnrecoverable(partition, first_sequence, end_sequence))]

    def _must_keep(self, partition: Partition) -> bool:
        """Return whether there are records before the gap, and no retention that allows to drop them."""
        is_empty = self.reassembler.cursors[partition].next_sequence == self.stored.earliest.get(partition, 0)
        return not is_empty and not self._config.store.has_retention

    def _is_complete(self, partition: Partition) -> bool:
        """Return whether all known records of a partition are durable here."""
        cursor = self.reassembler.cursors[partition]
        return cursor.next_sequence == cursor.known_end == self.stored.durable_end(partition)

    def _is_over(self, partition: Partition, end_sequence: int) -> bool:
        """Return whether a partition without a producer has no records from this sequence on."""
        return end_sequence >= self.reassembler.cursors[partition].known_end and not self._peers.has_producer(partition)

    def _forget_partition(self, partition: Partition) -> None:
        self._drop_unproven(partition)
        self.halted.discard(partition)
        self.stored.remove(partition)
        self._heads.responder.partition_removed(partition.topic)

    def _drop_unproven(self, partition: Partition) -> None:
        self.reassembler.forget_partition(partition)
        self._limits.forget_partition(partition)
        self._ended.remove(partition)

    def _acknowledge(self, partition: Partition) -> list[Action]:
        end = self.stored.durable_end(partition)
        return [Publish(wire.Ack(partition.address, partition.topic, end - 1, self.address))] if end else []

    def _follow_partition(self, partition: Partition, now: float, *, is_live: bool) -> bool:
        """Follow a partition; return False if that is not possible.

        If there is no room for it, its topic's heads are requested again when there is.
        """
        if partition in self.reassembler.cursors:
            self._ended.record_heard(partition, now)
            return True
        if not self.reassembler.has_capacity():
            for idle in self.reassembler.idle_partitions(now):
                self._drop_unproven(idle)
        reason = self.capacity.admit_partition(partition, now, is_live=is_live)
        if reason == MANY_UNPROVEN:
            self._heads.partition_refused(partition.topic)
        if reason:
            self.discarded[reason] += 1
            return False
        self.reassembler.follow_partition(partition, 0, now)
        self._ended.record_heard(partition, now)
        self.capacity.partition_followed(now)
        return True

    def _due_fetches(self, now: float) -> list[Action]:
        if self.pending_bytes >= self._config.store.pending_bytes_max:
            return []
        return [Publish(fetch) for fetch in self.reassembler.due_fetches(now)]
