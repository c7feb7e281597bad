"""The broker's node: a store that orders the records of each topic in logs, for clients that are not nodes.

Clients connect to servers, such as the Kafka server, which call the methods of `BrokerNode`. The node publishes their
records in partitions of its own, so that for other nodes they look like the records of a producer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs
import trio

from dafka.batches import BatchHeader, decode_run, with_base_offset
from dafka.broker.core.log.entries import MarkerEntry
from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.topics import (
    LOGS_MAX,
    MESSAGES_TOPIC,
    TOPICS_TOPIC,
    Deletion,
    Topic,
    encode_deletion,
    find_name_problem,
)
from dafka.broker.core.node_machine import (
    BrokerMachine,
    HeartbeatsReceived,
    IndexesAcknowledged,
    IndexesAnnounced,
    MessagesReceived,
    RoundsReceived,
    TopicMissing,
)
from dafka.broker.core.partition_address import name_log
from dafka.broker.core.positions import RecordSequence
from dafka.broker.core.replication.records import EpochStart
from dafka.broker.core.tables import BrokerTables
from dafka.broker.interbroker.mesh import BrokerMesh
from dafka.broker.inventory import Inventory
from dafka.broker.local_state import LocalState
from dafka.broker.log.broker_storage import BrokerStorage
from dafka.broker.log.deletion import RecordDeletion
from dafka.broker.log.durable_waits import Written
from dafka.broker.log.own_partitions import OwnPartitions
from dafka.broker.log.pending_append import PendingAppend
from dafka.broker.log.reader import LogReader
from dafka.broker.log.retention import LogRetention
from dafka.broker.log.stages import AssignOffsets, WriteLocalState
from dafka.broker.log.waiters import LogWaiters
from dafka.broker.replication.lease_clock import lease_time
from dafka.broker.replication.replicator import Replicator
from dafka.config import Config
from dafka.errors import ConfigError, NotLeaderError
from dafka.internal_topics import check_no_system_topic, is_internal_topic
from dafka.protocol.actions import Effect
from dafka.records import BATCH_BYTES_LIMIT, Partition, RecordBatch, new_address
from dafka.roles.arguments import check_sizes
from dafka.roles.sockets import NodeSockets
from dafka.roles.store import Store
from dafka.storage import Storage
from dafka.storage.plugin_helpers import now_ms

CREATION_WAIT_S = 0.25
"""Seconds that a broker waits for another one to create a topic, before it checks whether that one is alive."""


class BrokerNode:
    """A running broker, started by `serve_broker`.

    Attributes:
        address: The broker's node address, which is stored in its storage.
        store: The store that receives and writes its records.
        log_table: The topics and their logs, for reading.
        reader: Reads the logs.
        inventory: The stored partitions, by topic.
        brokers: The brokers of the cluster.
        policy: Decides which partitions this broker stores, and which topics it creates.
        replicator: The replicas of this broker.
        membership: The registration and the number of this broker.
        leases: Its leader leases.
        storage: The access to its storage.
        watchers: Notifies waiters when a log advances.
        on_message: Called with each message of another broker: the address of the sender, and the message.
    """

    def __init__(
        self,
        machine: BrokerMachine,
        sockets: NodeSockets,
        storage: Storage,
        config: Config,
        tables: BrokerTables,
        state: LocalState,
    ) -> None:
        """Create the broker. Programs call `serve_broker` instead."""
        log_table, policy = tables.log_table, tables.policy
        self.address = machine.address
        self.log_table = log_table
        self.policy = policy
        self.brokers = tables.brokers
        self.reader = LogReader(storage)
        self.watchers = LogWaiters()
        self.on_message: Callable[[str, bytes | None], None] = lambda _sender, _value: None
        retention = LogRetention(storage, machine.stored, log_table, tables.logs, state, config.store, self.address)
        self.store = Store(machine, sockets, storage, config, retention, self._execute)
        pipeline = self.store.pipeline
        offsets = AssignOffsets(log_table, self.watchers)
        self.storage = BrokerStorage(storage, machine, pipeline, state, offsets, config.store.pending_bytes_max)
        self._own = OwnPartitions(machine, sockets, policy, log_table, state)
        self.deletion = RecordDeletion(machine, self.storage, log_table, self._own)
        mesh = BrokerMesh(machine, sockets, self.store.act)
        self.replicator = Replicator(
            config, tables, self.storage, self._own, self.deletion, mesh, self.store, self.watchers
        )
        self.membership = self.replicator.membership
        self.leases = self.replicator.leases
        pipeline.stages = (offsets, WriteLocalState(state), self._own, self.replicator, self.storage)
        self.inventory = Inventory(machine, storage, log_table, tables.topics.is_orphan)
        self._machine = machine
        self._log_count = config.kafka.log_count
        self._record_bytes_max = config.node.message_bytes_max

    async def run(self, *, task_status: trio.TaskStatus[BrokerNode]) -> None:
        """Run until cancelled, then write what has been received. Raises `StorageLostError`."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._own.heads.run)
            await nursery.start(self.replicator.run)
            await nursery.start(self.store.run)
            task_status.started(self)

    def _execute(self, effect: Effect) -> None:
        """Execute an effect of the machine of the store."""
        if isinstance(effect, HeartbeatsReceived):
            self.replicator.record_heartbeats(effect.brokers)
        elif isinstance(effect, IndexesAcknowledged):
            self.replicator.record_acknowledgements(effect.ends)
        elif isinstance(effect, IndexesAnnounced):
            self.replicator.repeat_acknowledgements(effect.partitions)
        elif isinstance(effect, RoundsReceived):
            self.leases.process_rounds(effect.asked, effect.answers)
        elif isinstance(effect, MessagesReceived):
            for value in effect.values:
                self.on_message(effect.sender, value)
        elif isinstance(effect, TopicMissing):
            self.replicator.put_topic(self._make_topic(effect.topic, self._log_count, {}))

    # Topics

    @property
    def topics(self) -> Mapping[str, Topic]:
        """The topics that clients may use, by name. `order` has the internal topics, too."""
        return {name: topic for name, topic in self.log_table.topics.items() if not is_internal_topic(name)}

    def find_topic(self, name: str) -> Topic | None:
        """Return a topic that clients may use; None if it does not exist."""
        return None if is_internal_topic(name) else self.log_table.topics.get(name)

    def logs(self, topic: str) -> Sequence[Log]:
        """Return the logs of a topic that clients may use; empty if it does not exist."""
        return () if is_internal_topic(topic) else self.log_table.logs(topic)

    def find_log(self, topic: str, number: int) -> Log | None:
        """Return a log that clients may use; None if it does not exist."""
        return None if is_internal_topic(topic) else self.log_table.find_log(topic, number)

    async def ensure_internal_topic(self, name: str, log_count: int) -> Sequence[Log]:
        """Create a topic that only brokers use, unless it exists.

        Args:
            name: The name, which begins with `$`.
            log_count: The number of its logs.

        Returns:
            Its logs.
        """
        if name not in self.log_table.topics:
            await self.membership.wait_others()
        while name not in self.log_table.topics and not self.policy.creates(name):
            with trio.move_on_after(CREATION_WAIT_S):  # the broker that should create it can be gone
                await self.storage.durable.wait()
        if name not in self.log_table.topics:
            await self.replicator.put_topic(self._make_topic(name, log_count, {})).wait()
        return self.log_table.logs(name)

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
        self.storage.waits.check()
        problem = find_name_problem(name) or (f"there is a topic {name!r} already" if self.find_topic(name) else "")
        count = log_count or self._log_count
        if not problem and not 0 < count <= LOGS_MAX:
            problem = f"a topic has from 1 to {LOGS_MAX} logs, not {count}"
        if problem:
            raise ConfigError(problem)
        placed = tuple(tuple(each) for each in placement)
        written = self.replicator.put_topic(self._make_topic(name, count, settings or {}, replica_count, placed))
        return Written(self.storage.waits, written)

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
        self.storage.waits.check()
        topic = self.log_table.topics[name]
        if log_count is not None and not topic.log_count <= log_count <= LOGS_MAX:
            raise ConfigError(f"the topic {name!r} can have from {topic.log_count} to {LOGS_MAX} logs, not {log_count}")
        changed = attrs.evolve(
            topic,
            log_count=topic.log_count if log_count is None else log_count,
            settings=topic.settings if settings is None else dict(settings),
            revision=topic.revision + 1,
        )
        placed = attrs.evolve(changed, placement=self.replicator.reassigner.place_logs(changed))
        return Written(self.storage.waits, self.replicator.put_topic(placed))

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
        self.storage.waits.check()
        cursors_of_topic = [partition for partition in self._machine.reassembler.cursors if partition.topic == name]
        producer_ends = {
            each.address: self._machine.next_sequence(each)
            for each in cursors_of_topic
            if self.log_table.is_producer_partition(each)
        }
        changes: list[tuple[bytes, bytes | None]] = []
        epochs = [log.leadership.epoch for log in self.log_table.logs(name)]
        for topic in self.replicator.topic_table.living(name):
            last_epoch = max([topic.first_epoch, *epochs])
            deletion = Deletion(attrs.evolve(topic, revision=topic.revision + 1), producer_ends, last_epoch)
            changes.append((deletion.key.encode(), encode_deletion(deletion)))
            self.replicator.topic_table.learn_deletion(deletion)
        changes.append((name.encode(), changes[0][1]))  # instead of the record of its creation
        written = self.storage.write_state(TOPICS_TOPIC, changes)
        self.replicator.settle_topics()
        with self.storage.waits.bounded():
            await written.wait()

    # Replicas

    def epoch_starts(self, topic: str) -> list[list[EpochStart]]:
        """Return the epoch starts of each log of a topic, by epoch."""
        found = self.log_table.topics.get(topic)
        numbers = range(0 if found is None else found.log_count)
        return [
            self.replicator.logs.epoch_starts(name_log(found.topic_id, number))
            for number in numbers
            if found is not None
        ]

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
        return log.leadership.is_led and lease_time() < self.leases.lease_end(log)

    async def wait_lease(self, log: Log) -> bool:
        """Wait until this broker has the leader lease of a log, or leads it no longer. Return whether it leads it."""
        while log.leadership.is_led and not self.holds_lease(log):
            await self.leases.wait_round()
        return log.leadership.is_led

    def set_draining(self, is_draining: bool) -> None:
        """Start or stop draining this broker: moving its logs to others, so that it can be removed."""
        was_draining = self.brokers.own.is_draining
        awaits_share = not is_draining and (was_draining or self.brokers.own.awaits_share)
        self.membership.update_registration(is_draining=is_draining, awaits_share=awaits_share)

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
        first_sequence = self.next_sequence(log)
        sequence: int = first_sequence
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
        self.store.act(self._machine.append_own(records, trio.current_time()))
        count, epoch = sequence - first_sequence, log.leadership.epoch
        return PendingAppend(
            self.watchers, self.log_table, log, log.leader_partition, first_sequence, count, epoch, self.storage.durable
        )

    def _check_led(self, log: Log) -> None:
        if not log.leadership.is_led:
            raise NotLeaderError(
                f"this broker does not lead the log {log.number} of {log.topic}", log.leadership.leader
            )

    def next_sequence(self, log: Log) -> RecordSequence:
        """Return the next sequence of the leader partition of a log."""
        return RecordSequence(self._machine.next_sequence(log.leader_partition))

    def durable_end(self, log: Log) -> RecordSequence:
        """Return the sequence after the last durable record of the leader partition of a log."""
        return RecordSequence(self.storage.durable_end(log.leader_partition))

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
        self.log_table.append_marker(log, marker)
        return self.storage.write()

    # Messages

    def publish_messages(self, values: Sequence[bytes]) -> None:
        """Publish messages to other brokers when they are durable. Their `on_message` receives them in this order."""
        partition = Partition(MESSAGES_TOPIC, self.address)
        sequence = self._machine.next_sequence(partition)
        batch = RecordBatch(partition, sequence, values, timestamps=[now_ms()] * len(values))
        self.store.act(self._machine.append_own(batch, trio.current_time()))
