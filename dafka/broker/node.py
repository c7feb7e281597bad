"""The broker: a store that gives the records of each topic an order, for clients that are no nodes.

Clients come through listeners, such as Kafka's, which use the methods of `BrokerNode`. What they append is published by
this node, as partitions of its own, so that other nodes see no difference to the records of producers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import attrs
import trio

from dafka import wire
from dafka.batches import BatchHeader, decode_run, with_base_offset
from dafka.broker.core.log.entries import MarkerEntry, ProducerEntry
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
"""How long a broker waits for another one that should create a topic, before it looks whether that one is alive."""


class BrokerNode(Store):
    """A running broker, started by `serve_broker`.

    Attributes:
        address: The broker's node address, which is kept in its storage.
        endpoint: The endpoint that other nodes connect to.
        events: The events of the broker since it was started; an async iterable.
        order: The topics and their logs, for reading.
        reader: Reads the logs.
        inventory: The stored partitions, by topic.
        cluster: The other brokers, and what this one does among them.
        storage: The storage.
        watchers: Those who wait for its logs to get further.
        waits: The waits of requests until something is durable.
        on_message: Takes the messages of other brokers: the address of the sender, and the message.
        on_removed: Is called with a topic that is deleted, or hidden by another one of its name, and with its logs.
    """

    def __init__(
        self,
        machine: BrokerMachine,
        sockets: NodeSockets,
        storage: Storage,
        config: Config,
        order: OffsetAssigner,
        state: LocalState,
        restore_producer: Callable[[Log, ProducerEntry], None],
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
        self._earlier: list[tuple[Log, RecordBatch]] = []
        self._stored: list[RecordBatch] = []
        self._is_announced = False
        self._in_flight: list[RecordBatch] = []
        self.replicator = Replicator(self, config, restore_producer)
        self.inventory = Inventory(machine, storage, order, self.replicator.topic_table.is_orphan)
        self._retention = LogRetention(
            storage, machine.stored, order, self.replicator.logs, state, config.store, self.address
        )
        self._creates_topics = config.kafka.auto_create_topics == "on"
        self._log_count = config.kafka.log_count
        self._record_bytes_max = config.node.message_bytes_max
        self._room_bytes = config.store.pending_bytes_max
        self._durable = trio.Event()
        self._deleted = trio.Event()
        self._writing: trio.Event | None = None
        self._is_writing_state = False
        self.watchers = LogWaiters()
        self.waits = DurableWaits()
        self._room = trio.lowlevel.ParkingLot()
        self._heads = HeadAnnouncer(sockets, machine.stored.durable_end)

    @property
    def brokers(self) -> Brokers:
        """The brokers of the cluster."""
        return self.replicator.brokers

    @property
    def can_write(self) -> bool:
        """Whether the storage takes records: the last attempt to write has not failed, such as on a full disk."""
        return not self._refusal

    # Topics

    @property
    def topics(self) -> Mapping[str, Topic]:
        """The topics that clients may use, by name. `order` has internal topics, too."""
        return {name: topic for name, topic in self.order.topics.items() if not is_internal_topic(name)}

    def find_topic(self, name: str) -> Topic | None:
        """Return a topic that clients may use; None if there is none of that name."""
        return None if is_internal_topic(name) else self.order.topics.get(name)

    def logs(self, topic: str) -> Sequence[Log]:
        """Return the logs of a topic that clients may use; none if there is no such topic."""
        return () if is_internal_topic(topic) else self.order.logs(topic)

    def find_log(self, topic: str, number: int) -> Log | None:
        """Return a log that clients may use; None if there is no such log."""
        return None if is_internal_topic(topic) else self.order.find_log(topic, number)

    async def ensure_internal_topic(self, name: str, log_count: int) -> Sequence[Log]:
        """Create a topic for brokers only, unless the cluster has it.

        Args:
            name: The name, which begins with `$`.
            log_count: The number of its logs.

        Returns:
            Its logs.
        """
        if name not in self.order.topics:
            await self.replicator.wait_others()
        while name not in self.order.topics and not self.replicator.creates(name):
            with trio.move_on_after(CREATION_WAIT_S):  # the broker that should create it may be gone
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
            replica_count: On how many brokers its logs are kept; 0 for `[broker] replicas`.
            placement: The brokers that keep each log, the preferred leader first. Empty to choose those that keep the
                fewest.

        Returns:
            The topic, to wait until it is durable.

        Raises:
            ConfigError: The name is taken or impossible, or there would be too many logs.
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
        """Give a topic further logs, or other settings.

        Args:
            name: The name of an existing topic.
            log_count: The number of its logs, which cannot decrease; None to keep it.
            settings: All its settings; None to keep them.

        Returns:
            The change, to wait until it is durable.

        Raises:
            ConfigError: The number of logs is impossible.
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
        """Delete a topic. Its logs are gone at once; its records are dropped when the deletion is durable.

        Where topics are created automatically, a producer that continues one of its partitions creates it again.

        Args:
            name: The name of an existing topic.

        Raises:
            ConfigError: It is a system topic.
            StorageError: The storage fails.
        """
        check_no_system_topic(name)
        self.waits.check()
        marks = [partition for partition in self._machine.reassembler.cursors if partition.topic == name]
        native = {
            each.address: self._machine.next_sequence(each) for each in marks if self.order.is_producer_partition(each)
        }
        changes: list[tuple[bytes, bytes | None]] = []
        epochs = [log.leadership.epoch for log in self.order.logs(name)]
        for topic in self.replicator.topic_table.living(name):
            last_epoch = max([topic.first_epoch, *epochs])
            deletion = Deletion(attrs.evolve(topic, revision=topic.revision + 1), native, last_epoch)
            changes.append((deletion.key.encode(), encode_deletion(deletion)))
            self.replicator.topic_table.learn_deletion(deletion)
        changes.append((name.encode(), changes[0][1]))  # instead of the record of its creation
        written = self.write_state(TOPICS_TOPIC, changes)
        self.replicator.settle_topics()
        with self.waits.bounded():
            await written.wait()

    async def drop_topic(self, deletion: Deletion, logs: Iterable[Log]) -> None:
        """Drop the partitions of a topic, once its deletion is durable."""
        await self.wait_durable()
        own = [partition for log in logs for partition in (log.leader_partition, log.index_partition)]
        held = self._broker_machine.partitions_of(deletion.topic.topic_id)
        await self.forget_partitions(dict.fromkeys((*own, *held))).wait()
        await self.trim_deleted(deletion.topic.name)

    async def trim_deleted(self, name: str) -> None:
        """Drop what deleted topics of a name have had in producers' own partitions."""
        trimmed: dict[Partition, int] = {}
        for address, end in list(self._machine.stored.durable.get(name, {}).items()):
            partition = Partition(name, address)
            first = min(self.order.producer_starts.get(partition, 0), end)
            if first > self._machine.stored.earliest.get(partition, 0):
                try:
                    await self._storage.trim(partition, first)
                except StorageError as error:  # a later start drops it
                    _LOGGER.warning("cannot drop records of a deleted topic %s: %s", name, error)
                    return
                trimmed[partition] = first
        self._machine.records_trimmed(trimmed)

    # Replicas

    def describe(
        self, *, kafka_listener: str | None = None, http_url: str | None = None, forwarding_key: str | None = None
    ) -> None:
        """Describe to the other brokers where clients reach this one, and what they sign with. What is None stays."""
        changes = {"kafka_listener": kafka_listener, "http_url": http_url, "forwarding_key": forwarding_key}
        self.replicator.describe(**{name: value for name, value in changes.items() if value is not None})

    def branches(self, topic: str) -> list[list[EpochStart]]:
        """Return the branch table of each log of a topic: its rows by epoch."""
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
        """Have other brokers store a log. New replicas copy it; then those that are not named leave.

        They keep it until others are named, or one of them is drained or dies for good.

        Args:
            log: The log, which any broker may lead.
            replicas: The addresses of the brokers, the preferred ones first; none to let brokers choose them again.

        Raises:
            ConfigError: One of them is no broker, or is named twice.
        """
        if replicas:
            self.replicator.reassigner.change_replicas(log, replicas)
        else:
            self.replicator.reassigner.release_replicas(log.topic, log.number)

    def holds_lease(self, log: Log) -> bool:
        """Return whether this broker leads a log, and no other one can have begun to.

        Whoever tells clients what is the latest asks this after it was read: the process may have been stopped between.
        """
        return log.leadership.is_led and lease_time() < self.replicator.lease_end(log)

    async def wait_lease(self, log: Log) -> bool:
        """Wait until this broker leads a log and holds its lease. Return whether it still leads the log."""
        while log.leadership.is_led and not self.holds_lease(log):
            await self.replicator.wait_round()
        return log.leadership.is_led

    def set_draining(self, is_draining: bool) -> None:
        """Begin to hand the logs of this broker to others, so that it can be taken away; or no longer."""
        was_draining = self.brokers.own.is_draining
        awaits_share = not is_draining and (was_draining or self.brokers.own.awaits_share)
        self.replicator.describe(is_draining=is_draining, awaits_share=awaits_share)

    def under_replicated(self) -> list[Log]:
        """Return the logs that this broker leads and that fewer brokers have whole than should."""
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
        """Append record batches of a client to a log, which is done when `wait_offset` returns.

        Args:
            log: The log.
            batches: The header of each record batch, whose CRC was checked, and the record batch.
            records: The records in these batches, if they were unpacked before.
            bytes_max: The largest size of the records of a client, decompressed; None if the broker has made them.

        Returns:
            The records to wait for.

        Raises:
            BatchTooLargeError: The records are larger than that.
            BatchError: A batch is malformed.
            RecordError: A record of a client is larger than nodes accept.
            NotLeaderError: This broker does not lead the log.
        """
        self._check_led(log)
        first_sequence = sequence = self._machine.next_sequence(log.leader_partition)
        moved = []
        for header, data in batches:
            moved.append((attrs.evolve(header, base_offset=sequence), with_base_offset(data, sequence)))
            sequence += header.count
        if records is None:
            records = decode_run(
                log.leader_partition, moved, bytes_max=BATCH_BYTES_LIMIT if bytes_max is None else bytes_max
            )
        else:
            encoded = tuple([data for _, data in moved])
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
        """Return the sequence in the broker's own partition of a log that the next appended record gets."""
        return self._machine.next_sequence(log.leader_partition)

    def durable_end(self, log: Log) -> int:
        """Return the sequence after the last durable record of the broker's own partition of a log."""
        return self._machine.stored.durable_end(log.leader_partition)

    async def wait_capacity(self) -> None:
        """Wait until records that are not durable yet take less than `[store] pending_bytes_max`.

        Raises `StorageError` if the storage fails, or that lasts too long.
        """
        if self._machine.pending_bytes < self._room_bytes:
            return
        self.waits.check()
        with self.waits.bounded():
            while self._machine.pending_bytes >= self._room_bytes:
                await self._room.park()

    def append_marker(self, log: Log, marker: MarkerEntry) -> trio.Event:
        """Append the end of a transaction to a log, behind the records that were appended before.

        Other nodes do not see it: it has no record in a partition.

        Args:
            log: The log.
            marker: The end. Its offset does not matter; its position is `next_sequence`.

        Returns:
            An event that is set when it is durable.
        """
        self._check_led(log)
        self.order.append_marker(log, marker)
        self._arrived.unpark_all()
        return self._durable

    async def delete_records(self, log: Log, offset: int) -> None:
        """Delete the records of a log before an offset, from all partitions in it.

        A partition whose records are in several logs keeps those behind the first one that any of these still has.

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
        """Return the state that was kept with `write_state` in a topic."""
        return self._state.values(topic)

    def write_state(self, topic: str, changes: Iterable[tuple[bytes, bytes | None]]) -> trio.Event:
        """Keep state: pairs of a key and a value; None removes a key. The event returned says that it is durable."""
        self._state.put(topic, changes)
        self._arrived.unpark_all()
        return self._durable

    # Messages

    def publish_messages(self, values: Sequence[bytes]) -> None:
        """Publish messages to other brokers, which their `on_message` gets in this order, when they are durable."""
        partition = Partition(MESSAGES_TOPIC, self.address)
        sequence = self._machine.next_sequence(partition)
        batch = RecordBatch(partition, sequence, values, timestamps=[now_ms()] * len(values))
        self._node.act(self._machine.append_own(batch, trio.current_time()))

    # The store's side

    def statistics(self) -> StoreStatistics:
        """Return the counters so far, and the lag. Internal topics are not among the topics."""
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
        return bool(self._state) or self.order.has_unwritten() or bool(self._earlier)

    def _drops_records(self) -> bool:
        return True

    def _refuse(self, error: StorageError) -> None:
        super()._refuse(error)
        self.waits.note_failure(self._refusal)

    async def _flush(self) -> None:
        # What has failed is written again before anything else, so that `_writing` belongs to it.
        is_due = self._commits.lets_others_write and self._has_own_work()
        if super()._has_work() and not self._is_writing_state and not is_due:
            await super()._flush()
        else:
            self._is_writing_state = True
            await self._append([])
            self._is_writing_state = False
            self._refusal = ""
            self._commits.others_written()
        self.waits.note_success()
        self._in_flight = []
        stored, self._stored = self._stored, []
        self.replicator.stored(stored)
        if not self._has_work():  # what came while a failed write was repeated was written with it
            self._durable.set()
            self._durable = trio.Event()
        if not self._commits.is_deleting:
            self._deleted.set()
            self._deleted = trio.Event()
        self._room.unpark_all()

    async def _append(self, batches: list[RecordBatch]) -> None:
        time_ms = now_ms()
        if self._writing is None:
            self._writing, self._durable = self._durable, trio.Event()
        earlier, self._earlier = self._earlier, []
        self._in_flight = batches
        plan = self.order.plan(batches, time_ms, earlier)
        state = self._state.begin_write(time_ms)
        self.replicator.begin_write()
        # If this broker no longer leads a log when they are durable, they have diverged there, and are merged later.
        written = [*plan.index_records, *state]
        are_shown = [self._is_announced_to_others(batch.partition) for batch in written]
        try:
            await super()._append([*batches, *written])
        except BaseException:
            self.order.undo(plan)
            self._earlier = earlier + self._earlier
            for log in plan.logs:
                self.watchers.notify(log)
            raise
        self.order.commit(plan)
        self._state.write_done()
        shown = [
            batch
            for batch, was_shown in zip(written, are_shown, strict=True)
            if was_shown or self._is_announced_to_others(batch.partition)
        ]
        for batch in shown:
            self._broker_machine.store_own(batch.partition, batch.end_sequence)
        shown += [batch for batch in batches if self.is_own(batch.partition)]
        if shown:
            self._sockets.publish([wire.RecordRun(batch) for batch in shown])
            self._heads.add(batch.partition for batch in shown)
        self._stored = [*batches, *plan.index_records]
        self.replicator.write_done()
        self._writing.set()
        self._writing = None
        for log in plan.logs:
            self.watchers.notify(log)

    # What the cluster needs

    def is_own(self, partition: Partition) -> bool:
        """Return whether only this broker writes a partition."""
        return owner_of(partition.address) == self.address

    def may_create(self, topic: str) -> bool:
        """Return whether a topic that a producer has begun gets logs."""
        return self._creates_topics and not find_name_problem(topic)

    def creates_topic_of(self, partition: Partition) -> bool:
        """Return whether this broker creates the topic of stored records, if there is none.

        Records that a broker has written never do: they belong to a topic that was deleted, or is not known yet.
        """
        is_producer_partition = parse_address(partition.address) is None
        return is_producer_partition and self.may_create(partition.topic) and self.replicator.creates(partition.topic)

    def durable_end_of(self, partition: Partition) -> int:
        """Return the sequence after the last stored record of a partition."""
        return self._machine.stored.durable_end(partition)

    def ends(self, topic: str) -> dict[Partition, int]:
        """Return the sequence after the last record of each partition of a topic that is stored, or being written."""
        held = self._machine.stored.durable.get(topic, {})
        ends = {Partition(topic, address): end for address, end in held.items()}
        ends.update(
            (batch.partition, batch.end_sequence) for batch in self._in_flight if batch.partition.topic == topic
        )
        return ends

    def earliest(self, topic: str) -> dict[Partition, int]:
        """Return the sequence of the first stored record of each partition of a topic, if it is not 0."""
        return {each: first for each, first in self._machine.stored.earliest.items() if each.topic == topic}

    def publish(self, messages: Sequence[wire.BatchedMessage]) -> None:
        """Send messages."""
        self._sockets.publish(messages)

    def acknowledge(self, ends: Mapping[Partition, int]) -> None:
        """Acknowledge index records that are stored here together with the records that they refer to."""
        self.publish([wire.Ack(each.address, each.topic, end - 1, self.address) for each, end in ends.items() if end])

    def expect_records(self, ends: Mapping[Partition, int]) -> None:
        """Fetch records of partitions up to sequences that other brokers have; 0: at least one more than is here."""
        self._node.act(self._broker_machine.expect_records(ends, trio.current_time()))

    def ask_heads(self, topics: Iterable[str]) -> None:
        """Ask other stores what they have of topics."""
        self._node.act(self._broker_machine.ask_heads(topics))

    def hear_acknowledgements(self, address: str) -> None:
        """Hear what other replicas acknowledge of the logs that a broker leads."""
        self._sockets.subscribe(wire.subscription_prefix(Command.ACK, f"{address}/"))

    def wake(self) -> None:
        """Write what waits."""
        self._arrived.unpark_all()

    async def wait_durable(self) -> None:
        """Wait until all that waits now is durable."""
        if self._has_work():
            await self._durable.wait()

    def forget_partitions(self, partitions: Collection[Partition]) -> trio.Event:
        """Delete partitions that brokers have written. The event returned says that they are deleted."""
        for partition in partitions:
            self._heads.forget(partition)
        self._commits.put_deleted(partitions)
        self._arrived.unpark_all()
        return self._deleted

    async def place(self, log: Log, batch: RecordBatch) -> None:
        """Give stored records their offsets in a log, and wait until these are durable."""
        self._earlier.append((log, batch))
        self.wake()
        await self._durable.wait()

    def announce(self, partition: Partition) -> None:
        """Announce a partition of this broker that was not visible to other nodes."""
        self.announce_until(partition, self.order_end(partition))

    def announce_until(self, partition: Partition, end: int, *, is_announced: bool = True) -> None:
        """Announce a partition of this broker up to a sequence, so that other nodes can fetch it."""
        if end:
            self._broker_machine.store_own(partition, end)
        if end and is_announced:
            self.publish([wire.Head(partition.address, partition.topic, end - 1)])
            self._heads.add([partition])

    def order_end(self, partition: Partition) -> int:
        """Return the sequence after the last record of an index or of a state."""
        log = self.find_index(partition)
        return self._state.end_of(partition) if log is None else log.index_end

    def announce_control(self) -> None:
        """Announce this broker's control records."""
        self._is_announced = True
        for topic in CONTROL_TOPICS:
            self.announce(Partition(topic, self.address))

    def lead(self, log: Log) -> None:
        """Note that this broker leads a log, whose index others read."""
        self._index_logs[log.index_partition] = log

    def find_index(self, partition: Partition) -> Log | None:
        """Return the log that this broker leads with an index partition; None if there is none."""
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
