"""The broker's node: a store that orders the records of each topic in logs, for clients that are not nodes.

Clients connect to servers, such as the Kafka server, which call the methods of `BrokerNode`. The node publishes their
records in partitions of its own, so that for other nodes they look like the records of a producer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import attrs
import trio

from dafka import wire
from dafka.batches import BatchHeader, decode_run, with_base_offset
from dafka.broker.core.log.entries import MarkerEntry
from dafka.broker.core.log.log import Log
from dafka.broker.core.log.offset_assigner import OffsetAssigner
from dafka.broker.core.metadata.brokers import BROKERS_TOPIC, Brokers
from dafka.broker.core.metadata.topics import (
    LOGS_MAX,
    MESSAGES_TOPIC,
    TOPICS_TOPIC,
    Deletion,
    Topic,
    encode_deletion,
    find_name_problem,
)
from dafka.broker.core.node_machine import BrokerMachine
from dafka.broker.core.partition_address import name_log, parse_address
from dafka.broker.core.replication.records import EpochStart
from dafka.broker.head_announcer import HeadAnnouncer
from dafka.broker.inventory import Inventory
from dafka.broker.local_state import LocalState
from dafka.broker.log.durable_waits import DurableWaits, Written
from dafka.broker.log.pending_append import PendingAppend
from dafka.broker.log.reader import LogReader
from dafka.broker.log.retention import LogRetention
from dafka.broker.log.waiters import LogWaiters
from dafka.broker.replication.lease_clock import lease_time
from dafka.broker.replication.replicator import CONTROL_TOPICS, Replicator
from dafka.config import Config
from dafka.errors import ConfigError, NotLeaderError, StorageError, TopicDeletedError
from dafka.internal_topics import check_no_system_topic, is_internal_topic
from dafka.protocol.presence.identity import owner_of
from dafka.records import BATCH_BYTES_LIMIT, Partition, RecordBatch, new_address
from dafka.roles.arguments import check_sizes
from dafka.roles.sockets import NodeSockets
from dafka.roles.store import Store, StoreStatistics
from dafka.storage import Storage
from dafka.storage.plugin_helpers import now_ms
from dafka.wire import Command

_LOGGER = logging.getLogger("dafka.broker")

CREATION_WAIT_S = 0.25
"""Seconds that a broker waits for another one to create a topic, before it checks whether that one is alive."""


class BrokerNode(Store):
    """A running broker, started by `serve_broker`.

    Attributes:
        address: The broker's node address, which is stored in its storage.
        endpoint: The endpoint that other nodes connect to.
        events: The events of the broker since it was started; an async iterable.
        order: The topics and their logs, for reading.
        reader: Reads the logs.
        inventory: The stored partitions, by topic.
        replicator: The membership in the cluster, and the replicas of this broker.
        storage: The storage.
        watchers: Notifies waiters when a log advances.
        waits: The waits of requests until something is durable.
        on_message: Called with each message of another broker: the address of the sender, and the message.
        on_removed: Called with a topic that is deleted, or hidden by another one of its name, and with its logs.
    """

    def __init__(
        self,
        machine: BrokerMachine,
        sockets: NodeSockets,
        storage: Storage,
        config: Config,
        order: OffsetAssigner,
        state: LocalState,
    ) -> None:
        """Create the broker. Programs call `serve_broker` instead."""
        super().__init__(machine, sockets, storage, config)
        self.order = order
        self.reader = LogReader(storage)
        self.storage = storage
        self.on_message: Callable[[str, bytes | None], None] = lambda _sender, _value: None
        self.on_removed: Callable[[Topic, Sequence[Log]], None] = lambda _topic, _logs: None
        self._state = state
        self._broker_machine = machine
        self._replica_count = config.broker.replicas
        self._index_logs: dict[Partition, Log] = {}
        self._backfill: list[tuple[Log, RecordBatch]] = []
        self._stored: list[RecordBatch] = []
        self._is_announced = False
        self._in_flight: list[RecordBatch] = []
        self.replicator = Replicator(self, config)
        self.inventory = Inventory(machine, storage, order, self.replicator.topic_table.is_orphan)
        self._retention = LogRetention(
            storage, machine.stored, order, self.replicator.logs, state, config.store, self.address
        )
        self._creates_topics = config.kafka.auto_create_topics == "on"
        self._log_count = config.kafka.log_count
        self._record_bytes_max = config.node.message_bytes_max
        self._capacity_bytes = config.store.pending_bytes_max
        self._durable = trio.Event()
        self._deleted = trio.Event()
        self._writing: trio.Event | None = None
        self._is_writing_own = False
        self.watchers = LogWaiters()
        self.waits = DurableWaits()
        self._capacity = trio.lowlevel.ParkingLot()
        self._heads = HeadAnnouncer(sockets, machine.stored.durable_end)

    @property
    def brokers(self) -> Brokers:
        """The brokers of the cluster."""
        return self.replicator.brokers

    @property
    def can_write(self) -> bool:
        """Whether the storage accepts records: the last write did not fail, for example on a full disk."""
        return not self._refusal

    # Topics

    @property
    def topics(self) -> Mapping[str, Topic]:
        """The topics that clients may use, by name. `order` has the internal topics, too."""
        return {name: topic for name, topic in self.order.topics.items() if not is_internal_topic(name)}

    def find_topic(self, name: str) -> Topic | None:
        """Return a topic that clients may use; None if it does not exist."""
        return None if is_internal_topic(name) else self.order.topics.get(name)

    def logs(self, topic: str) -> Sequence[Log]:
        """Return the logs of a topic that clients may use; empty if it does not exist."""
        return () if is_internal_topic(topic) else self.order.logs(topic)

    def find_log(self, topic: str, number: int) -> Log | None:
        """Return a log that clients may use; None if it does not exist."""
        return None if is_internal_topic(topic) else self.order.find_log(topic, number)

    async def ensure_internal_topic(self, name: str, log_count: int) -> Sequence[Log]:
        """Create a topic that only brokers use, unless it exists.

        Args:
            name: The name, which begins with `$`.
            log_count: The number of its logs.

        Returns:
            Its logs.
        """
        if name not in self.order.topics:
            await self.replicator.wait_others()
        while name not in self.order.topics and not self.replicator.creates(name):
            with trio.move_on_after(CREATION_WAIT_S):  # the broker that should create it can be gone
                await self._durable.wait()
        if name not in self.order.topics:
            await self.replicator.put_topic(self._make_topic(name, log_count, {})).wait()
        return self.order.logs(name)

    def create_topic(
        self,
        name: str,
        log_count: int = 0,
        settings: Mapping[str, str] | None = None,
        replica_count: int = 0,
        *,
        placement: Sequence[Sequence[str]] = (),
    ) -> Written:
        """Create a topic.

        Args:
            name: The name.
            log_count: The number of its logs; 0 for `[kafka] log_count`.
            settings: Its own settings.
            replica_count: The number of replicas of each log; 0 for `[broker] replicas`.
            placement: The replicas of each log, the preferred leader first. Empty to choose the brokers with the fewest
                logs.

        Returns:
            An object to wait until the topic is durable.

        Raises:
            ConfigError: The name is taken or not valid, or the number of logs is not allowed.
            StorageError: The storage fails.
        """
        self.waits.check()
        problem = find_name_problem(name) or (f"there is a topic {name!r} already" if self.find_topic(name) else "")
        count = log_count or self._log_count
        if not problem and not 0 < count <= LOGS_MAX:
            problem = f"a topic has from 1 to {LOGS_MAX} logs, not {count}"
        if problem:
            raise ConfigError(problem)
        placed = tuple(tuple(each) for each in placement)
        written = self.replicator.put_topic(self._make_topic(name, count, settings or {}, replica_count, placed))
        return Written(self.waits, written)

    def _make_topic(
        self,
        name: str,
        log_count: int,
        settings: Mapping[str, str],
        replica_count: int = 0,
        placement: tuple[tuple[str, ...], ...] = (),
    ) -> Topic:
        topic = Topic(
            name,
            new_address(),
            log_count,
            dict(settings),
            replica_count,
            placement,
            assignments=dict(enumerate(placement)),
            created_at=now_ms(),
            first_epoch=self.replicator.first_epoch(name),
        )
        return attrs.evolve(topic, placement=self.replicator.reassigner.place_logs(topic))

    def change_topic(
        self, name: str, *, log_count: int | None = None, settings: Mapping[str, str] | None = None
    ) -> Written:
        """Add logs to a topic, or replace its settings.

        Args:
            name: The name of an existing topic.
            log_count: The number of its logs, which cannot decrease; None to keep it.
            settings: All its settings; None to keep them.

        Returns:
            An object to wait until the change is durable.

        Raises:
            ConfigError: The number of logs is not allowed.
            StorageError: The storage fails.
        """
        self.waits.check()
        topic = self.order.topics[name]
        if log_count is not None and not topic.log_count <= log_count <= LOGS_MAX:
            raise ConfigError(f"the topic {name!r} can have from {topic.log_count} to {LOGS_MAX} logs, not {log_count}")
        changed = attrs.evolve(
            topic,
            log_count=topic.log_count if log_count is None else log_count,
            settings=topic.settings if settings is None else dict(settings),
            revision=topic.revision + 1,
        )
        placed = attrs.evolve(changed, placement=self.replicator.reassigner.place_logs(changed))
        return Written(self.waits, self.replicator.put_topic(placed))

    async def delete_topic(self, name: str) -> None:
        """Delete a topic. Its logs are gone at once. Its records are dropped when the deletion is durable.

        With automatic creation of topics, a producer that writes to it later creates it again.

        Args:
            name: The name of an existing topic.

        Raises:
            ConfigError: It is a system topic.
            StorageError: The storage fails.
        """
        check_no_system_topic(name)
        self.waits.check()
        cursors_of_topic = [partition for partition in self._machine.reassembler.cursors if partition.topic == name]
        producer_ends = {
            each.address: self._machine.next_sequence(each)
            for each in cursors_of_topic
            if self.order.is_producer_partition(each)
        }
        changes: list[tuple[bytes, bytes | None]] = []
        epochs = [log.leadership.epoch for log in self.order.logs(name)]
        for topic in self.replicator.topic_table.living(name):
            last_epoch = max([topic.first_epoch, *epochs])
            deletion = Deletion(attrs.evolve(topic, revision=topic.revision + 1), producer_ends, last_epoch)
            changes.append((deletion.key.encode(), encode_deletion(deletion)))
            self.replicator.topic_table.learn_deletion(deletion)
        changes.append((name.encode(), changes[0][1]))  # instead of the record of its creation
        written = self.write_state(TOPICS_TOPIC, changes)
        self.replicator.settle_topics()
        with self.waits.bounded():
            await written.wait()

    async def drop_topic(self, deletion: Deletion, logs: Iterable[Log]) -> None:
        """Drop the partitions of a topic after its deletion is durable."""
        await self.wait_durable()
        own = [partition for log in logs for partition in (log.leader_partition, log.index_partition)]
        partitions = self._broker_machine.partitions_of(deletion.topic.topic_id)
        await self.forget_partitions(dict.fromkeys((*own, *partitions))).wait()
        await self.trim_deleted(deletion.topic.name)

    async def trim_deleted(self, name: str) -> None:
        """Drop the records of deleted topics of a name from producer partitions."""
        trimmed: dict[Partition, int] = {}
        for address, end in list(self._machine.stored.durable.get(name, {}).items()):
            partition = Partition(name, address)
            first = min(self.order.producer_starts.get(partition, 0), end)
            if first > self._machine.stored.earliest.get(partition, 0):
                try:
                    await self._storage.trim(partition, first)
                except StorageError as error:  # the next start of the broker drops them
                    _LOGGER.warning("cannot drop records of a deleted topic %s: %s", name, error)
                    return
                trimmed[partition] = first
        self._machine.records_trimmed(trimmed)

    # Replicas

    def describe(
        self, *, kafka_listener: str | None = None, http_url: str | None = None, forwarding_key: str | None = None
    ) -> None:
        """Announce the addresses of this broker for clients, and its forwarding key. None keeps a value."""
        changes = {"kafka_listener": kafka_listener, "http_url": http_url, "forwarding_key": forwarding_key}
        self.replicator.describe(**{name: value for name, value in changes.items() if value is not None})

    def branches(self, topic: str) -> list[list[EpochStart]]:
        """Return the epoch starts of each log of a topic, by epoch."""
        found = self.order.topics.get(topic)
        numbers = range(0 if found is None else found.log_count)
        return [
            self.replicator.logs.epoch_starts(name_log(found.topic_id, number))
            for number in numbers
            if found is not None
        ]

    async def wait_leadership(self, log: Log) -> None:
        """Wait until the leadership of a log changes, or the log is gone."""
        await self.replicator.wait_leadership(log)

    def change_replicas(self, log: Log, replicas: Sequence[str]) -> None:
        """Assign replicas to a log. New replicas copy the log first, then the previous ones leave.

        The assignment lasts until the next one, or until one of the brokers is drained or dies for good.

        Args:
            log: The log. Any broker can be its leader.
            replicas: The addresses of the brokers, the preferred ones first. Empty to let brokers choose them again.

        Raises:
            ConfigError: An address is not that of a broker, or occurs twice.
        """
        if replicas:
            self.replicator.reassigner.change_replicas(log, replicas)
        else:
            self.replicator.reassigner.release_replicas(log.topic, log.number)

    def holds_lease(self, log: Log) -> bool:
        """Return whether this broker leads a log and has its leader lease, so that no other broker can lead it.

        Call it after reading the latest state for a client: the process can have been stopped in between.
        """
        return log.leadership.is_led and lease_time() < self.replicator.lease_end(log)

    async def wait_lease(self, log: Log) -> bool:
        """Wait until this broker has the leader lease of a log, or leads it no longer. Return whether it leads it."""
        while log.leadership.is_led and not self.holds_lease(log):
            await self.replicator.wait_round()
        return log.leadership.is_led

    def set_draining(self, is_draining: bool) -> None:
        """Start or stop draining this broker: moving its logs to others, so that it can be removed."""
        was_draining = self.brokers.own.is_draining
        awaits_share = not is_draining and (was_draining or self.brokers.own.awaits_share)
        self.replicator.describe(is_draining=is_draining, awaits_share=awaits_share)

    def under_replicated(self) -> list[Log]:
        """Return the logs that this broker leads and that have too few living in-sync replicas."""
        return self.replicator.reassigner.under_replicated()

    # Records

    def append(
        self,
        log: Log,
        batches: Sequence[tuple[BatchHeader, bytes | memoryview]],
        *,
        records: RecordBatch | None = None,
        bytes_max: int | None = None,
    ) -> PendingAppend:
        """Append record batches of a client to a log. The append is complete when `wait_offset` returns.

        Args:
            log: The log.
            batches: Each record batch with its header. The CRC must be checked already.
            records: The records in these batches, if they were unpacked already.
            bytes_max: The largest decompressed size of the records of a client; None for records of the broker itself.

        Returns:
            The pending append, to wait for.

        Raises:
            BatchTooLargeError: The records are larger than `bytes_max`.
            BatchError: A batch is malformed.
            RecordError: A record of a client is larger than nodes accept.
            NotLeaderError: This broker does not lead the log.
        """
        self._check_led(log)
        first_sequence = sequence = self._machine.next_sequence(log.leader_partition)
        rebased = []
        for header, data in batches:
            rebased.append((attrs.evolve(header, base_offset=sequence), with_base_offset(data, sequence)))
            sequence += header.count
        if records is None:
            records = decode_run(
                log.leader_partition, rebased, bytes_max=BATCH_BYTES_LIMIT if bytes_max is None else bytes_max
            )
        else:
            encoded = tuple([data for _, data in rebased])
            records = attrs.evolve(
                records, partition=log.leader_partition, first_sequence=first_sequence, encoded=encoded
            )
        if bytes_max is not None:
            check_sizes(records, self._record_bytes_max)
        self._node.act(self._machine.append_own(records, trio.current_time()))
        count, epoch = sequence - first_sequence, log.leadership.epoch
        return PendingAppend(
            self.watchers, self.order, log, log.leader_partition, first_sequence, count, epoch, self._durable
        )

    def _check_led(self, log: Log) -> None:
        if not log.leadership.is_led:
            raise NotLeaderError(
                f"this broker does not lead the log {log.number} of {log.topic}", log.leadership.leader
            )

    def next_sequence(self, log: Log) -> int:
        """Return the next sequence of the leader partition of a log."""
        return self._machine.next_sequence(log.leader_partition)

    def durable_end(self, log: Log) -> int:
        """Return the sequence after the last durable record of the leader partition of a log."""
        return self._machine.stored.durable_end(log.leader_partition)

    async def wait_capacity(self) -> None:
        """Wait until the records that are not durable yet need less than `[store] pending_bytes_max`.

        Raises `StorageError` if the storage fails or the wait takes too long.
        """
        if self._machine.pending_bytes < self._capacity_bytes:
            return
        self.waits.check()
        with self.waits.bounded():
            while self._machine.pending_bytes >= self._capacity_bytes:
                await self._capacity.park()

    def append_marker(self, log: Log, marker: MarkerEntry) -> trio.Event:
        """Append a transaction marker to a log, after the records that were appended before.

        It has no record in a partition, so that nodes other than brokers do not see it.

        Args:
            log: The log.
            marker: The marker. Its offset is ignored; its position is `next_sequence`.

        Returns:
            An event that is set when the marker is durable.
        """
        self._check_led(log)
        self.order.append_marker(log, marker)
        self._arrived.unpark_all()
        return self._durable

    async def delete_records(self, log: Log, offset: int) -> None:
        """Delete the records of a log before an offset, from all its partitions.

        A partition with records in several logs is trimmed up to the first record that one of these logs still has.

        Args:
            log: The log.
            offset: The offset of the first record that is kept.

        Raises:
            TopicDeletedError: The topic was deleted meanwhile.
            StorageError: The storage fails.
        """
        partitions = [log.partition_of(address) for address in log.index.addresses()]
        self.waits.check()
        self.order.delete_before(log, offset)
        self._arrived.unpark_all()
        with self.waits.bounded():
            await self._durable.wait()
        if log.is_gone:
            raise TopicDeletedError(log.topic)
        trimmed: dict[Partition, int] = {}
        for partition in partitions:
            needed = min(self.order.first_needed(partition), self._machine.stored.durable_end(partition))
            if needed > self._machine.stored.earliest.get(partition, 0):
                await self._storage.trim(partition, needed)
                trimmed[partition] = needed
        self._machine.records_trimmed(trimmed)

    # State

    def state(self, topic: str) -> Mapping[bytes, bytes]:
        """Return the state that `write_state` has written in a topic."""
        return self._state.values(topic)

    def write_state(self, topic: str, changes: Iterable[tuple[bytes, bytes | None]]) -> trio.Event:
        """Write state: keys with values; None removes a key. The returned event is set when it is durable."""
        self._state.put(topic, changes)
        self._arrived.unpark_all()
        return self._durable

    # Messages

    def publish_messages(self, values: Sequence[bytes]) -> None:
        """Publish messages to other brokers when they are durable. Their `on_message` receives them in this order."""
        partition = Partition(MESSAGES_TOPIC, self.address)
        sequence = self._machine.next_sequence(partition)
        batch = RecordBatch(partition, sequence, values, timestamps=[now_ms()] * len(values))
        self._node.act(self._machine.append_own(batch, trio.current_time()))

    # Overrides of the store

    def statistics(self) -> StoreStatistics:
        """Return the counters and the lag, without those of internal topics."""
        found = super().statistics()
        visible = {name: counts for name, counts in found.topics.items() if not is_internal_topic(name)}
        return attrs.evolve(found, topics=visible)

    async def _run(self, task_status: trio.TaskStatus[Any]) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._heads.run)
            await nursery.start(self.replicator.run)
            await super()._run(task_status)

    def _on_records(self, batch: RecordBatch) -> None:
        topic = batch.partition.topic
        if topic not in self.order.topics and self.creates_topic_of(batch.partition):
            self.replicator.put_topic(self._make_topic(topic, self._log_count, {}))
        super()._on_records(batch)
        if topic == MESSAGES_TOPIC:
            for value in batch.values if not self.is_own(batch.partition) else ():
                self.on_message(batch.partition.address, value)

    def _on_change(self) -> None:
        super()._on_change()
        if signs := self._broker_machine.take_signs():
            self.replicator.heard(signs.heartbeats)
            self.replicator.acknowledged(signs.acknowledgements.items())
            self.replicator.repeat_acknowledgements(signs.repeats)
            self.replicator.heard_rounds(signs.rounds, signs.answers)

    def _has_work(self) -> bool:
        return super()._has_work() or self._has_own_work()

    def _has_own_work(self) -> bool:
        return bool(self._state) or self.order.has_unwritten() or bool(self._backfill)

    def _drops_records(self) -> bool:
        return True

    def _refuse(self, error: StorageError) -> None:
        super()._refuse(error)
        self.waits.note_failure(self._refusal)

    async def _flush(self) -> None:
        # A failed write is repeated before anything else, so that `_writing` belongs to it.
        is_due = self._commits.lets_others_write and self._has_own_work()
        if super()._has_work() and not self._is_writing_own and not is_due:
            await super()._flush()
        else:
            self._is_writing_own = True
            await self._append([])
            self._is_writing_own = False
            self._refusal = ""
            self._commits.others_written()
        self.waits.note_success()
        self._in_flight = []
        stored, self._stored = self._stored, []
        self.replicator.stored(stored)
        if not self._has_work():  # a repeated write includes what arrived meanwhile
            self._durable.set()
            self._durable = trio.Event()
        if not self._commits.is_deleting:
            self._deleted.set()
            self._deleted = trio.Event()
        self._capacity.unpark_all()

    async def _append(self, batches: list[RecordBatch]) -> None:
        time_ms = now_ms()
        if self._writing is None:
            self._writing, self._durable = self._durable, trio.Event()
        backfill, self._backfill = self._backfill, []
        self._in_flight = batches
        plan = self.order.plan(batches, time_ms, backfill)
        state = self._state.begin_write(time_ms)
        self.replicator.begin_write()
        # If this broker no longer leads a log when they are durable, they diverge, and the new leader merges them.
        written = [*plan.index_records, *state]
        are_announced = [self._is_announced_to_others(batch.partition) for batch in written]
        try:
            await super()._append([*batches, *written])
        except BaseException:
            self.order.undo(plan)
            self._backfill = backfill + self._backfill
            for log in plan.logs:
                self.watchers.notify(log)
            raise
        self.order.commit(plan)
        self._state.write_done()
        announced = [
            batch
            for batch, was_announced in zip(written, are_announced, strict=True)
            if was_announced or self._is_announced_to_others(batch.partition)
        ]
        for batch in announced:
            self._broker_machine.store_own(batch.partition, batch.end_sequence)
        announced += [batch for batch in batches if self.is_own(batch.partition)]
        if announced:
            self._sockets.publish([wire.RecordRun(batch) for batch in announced])
            self._heads.add(batch.partition for batch in announced)
        self._stored = [*batches, *plan.index_records]
        self.replicator.write_done()
        self._writing.set()
        self._writing = None
        for log in plan.logs:
            self.watchers.notify(log)

    # The interface for the replicator

    def is_own(self, partition: Partition) -> bool:
        """Return whether only this broker writes a partition."""
        return owner_of(partition.address) == self.address

    def may_create(self, topic: str) -> bool:
        """Return whether a topic is created when a producer writes to it."""
        return self._creates_topics and not find_name_problem(topic)

    def creates_topic_of(self, partition: Partition) -> bool:
        """Return whether this broker creates the topic of stored records, if it does not exist.

        Records of brokers create no topic: theirs was deleted, or is not known yet.
        """
        is_producer_partition = parse_address(partition.address) is None
        return is_producer_partition and self.may_create(partition.topic) and self.replicator.creates(partition.topic)

    def durable_end_of(self, partition: Partition) -> int:
        """Return the sequence after the last stored record of a partition."""
        return self._machine.stored.durable_end(partition)

    def ends(self, topic: str) -> dict[Partition, int]:
        """Return the sequence after the last record of each partition of a topic that is stored or being written."""
        partitions = self._machine.stored.durable.get(topic, {})
        ends = {Partition(topic, address): end for address, end in partitions.items()}
        ends.update(
            (batch.partition, batch.end_sequence) for batch in self._in_flight if batch.partition.topic == topic
        )
        return ends

    def earliest(self, topic: str) -> dict[Partition, int]:
        """Return the first stored sequence of each partition of a topic, where it is not 0."""
        return {each: first for each, first in self._machine.stored.earliest.items() if each.topic == topic}

    def publish(self, messages: Sequence[wire.BatchedMessage]) -> None:
        """Publish messages to other nodes."""
        self._sockets.publish(messages)

    def acknowledge(self, ends: Mapping[Partition, int]) -> None:
        """Acknowledge index records that are stored here together with the records they refer to."""
        self.publish([wire.Ack(each.address, each.topic, end - 1, self.address) for each, end in ends.items() if end])

    def expect_records(self, ends: Mapping[Partition, int]) -> None:
        """Fetch records of partitions up to these end sequences; 0 fetches at least one more record than is stored."""
        self._node.act(self._broker_machine.expect_records(ends, trio.current_time()))

    def ask_heads(self, topics: Iterable[str]) -> None:
        """Ask other stores for the ends of the partitions of topics."""
        self._node.act(self._broker_machine.ask_heads(topics))

    def hear_acknowledgements(self, address: str) -> None:
        """Subscribe to the acknowledgements of other replicas for the logs that a broker leads."""
        self._sockets.subscribe(wire.subscription_prefix(Command.ACK, f"{address}/"))

    def wake(self) -> None:
        """Start to write what is pending."""
        self._arrived.unpark_all()

    async def wait_durable(self) -> None:
        """Wait until everything that is pending now is durable."""
        if self._has_work():
            await self._durable.wait()

    def forget_partitions(self, partitions: Collection[Partition]) -> trio.Event:
        """Delete partitions that brokers have written. The returned event is set when they are deleted."""
        for partition in partitions:
            self._heads.forget(partition)
        self._commits.put_deleted(partitions)
        self._arrived.unpark_all()
        return self._deleted

    async def place(self, log: Log, batch: RecordBatch) -> None:
        """Assign offsets in a log to stored records, and wait until these are durable."""
        self._backfill.append((log, batch))
        self.wake()
        await self._durable.wait()

    def announce(self, partition: Partition) -> None:
        """Announce one of this broker's partitions that other nodes could not see before."""
        self.announce_until(partition, self.order_end(partition))

    def announce_until(self, partition: Partition, end: int, *, is_announced: bool = True) -> None:
        """Serve one of this broker's partitions to other nodes up to a sequence, and announce it."""
        if end:
            self._broker_machine.store_own(partition, end)
        if end and is_announced:
            self.publish([wire.Head(partition.address, partition.topic, end - 1)])
            self._heads.add([partition])

    def order_end(self, partition: Partition) -> int:
        """Return the sequence after the last record of an index or state partition."""
        log = self.find_index(partition)
        return self._state.end_of(partition) if log is None else log.index_end

    def announce_control(self) -> None:
        """Announce this broker's control records to other nodes."""
        self._is_announced = True
        for topic in CONTROL_TOPICS:
            self.announce(Partition(topic, self.address))

    def lead(self, log: Log) -> None:
        """Record that this broker leads a log, whose index others read."""
        self._index_logs[log.index_partition] = log

    def find_index(self, partition: Partition) -> Log | None:
        """Return the log with an index partition, if this broker leads it; None otherwise."""
        log = self._index_logs.get(partition)
        return log if log is not None and log.index_partition == partition and self.order.leads(log) else None

    def _is_announced_to_others(self, partition: Partition) -> bool:
        if partition.topic in CONTROL_TOPICS:
            return self._is_announced or partition.topic == BROKERS_TOPIC
        log = self.find_index(partition)
        return log is not None and log.is_replicated

    async def _apply_retention(self) -> dict[Partition, int]:
        return await self._retention.apply()

    def _compacts(self) -> bool:
        """See `Store._compacts`. A broker compacts logs: see `LogCompaction`."""
        return False
