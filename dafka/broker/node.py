"""The broker's node: a store that orders the records of each topic in logs, for clients that are not nodes.

Clients connect to servers, such as the Kafka server, which call the methods of `BrokerNode`. The node publishes their
records in partitions of its own, so that for other nodes they look like the records of a producer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import trio

from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.topics import (
    LOGS_MAX,
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
from dafka.broker.core.replication.records import EpochStart
from dafka.broker.core.tables import BrokerTables
from dafka.broker.interbroker.mesh import BrokerMesh
from dafka.broker.interbroker.messenger import BrokerMessenger
from dafka.broker.inventory import Inventory
from dafka.broker.local_state import LocalState
from dafka.broker.log.broker_storage import BrokerStorage
from dafka.broker.log.durable_waits import Written
from dafka.broker.log.own_partitions import OwnPartitions
from dafka.broker.log.reader import LogReader
from dafka.broker.log.retention import LogRetention, RecordDeletion
from dafka.broker.log.stages import AssignOffsets, WriteLocalState
from dafka.broker.log.waiters import LogWaiters
from dafka.broker.log.writer import LogWriter
from dafka.broker.replication.replicator import Replicator
from dafka.config import Config
from dafka.errors import ConfigError
from dafka.internal_topics import check_no_system_topic, is_internal_topic
from dafka.protocol.actions import Effect
from dafka.records import new_address
from dafka.roles.sockets import NodeSockets
from dafka.roles.store import Store
from dafka.storage import Storage
from dafka.storage.plugin_helpers import now_ms

CREATION_WAIT_S = 0.25
"""Seconds that a broker waits for another one to create a topic, before it checks whether that one is alive."""


class BrokerNode:
    """A running broker, started by `serve_broker`. Its address is stored in its storage."""

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
        self.tables = tables
        self.log_table = log_table
        self.policy = policy
        self.brokers = tables.brokers
        self.reader = LogReader(storage)
        self.watchers = LogWaiters()
        retention = LogRetention(storage, machine.stored, log_table, tables.logs, state, config.store, self.address)
        self.store = Store(machine, sockets, storage, config, retention, self._execute)
        pipeline = self.store.pipeline
        offsets = AssignOffsets(log_table, self.watchers)
        self.storage = BrokerStorage(storage, machine, pipeline, state, offsets, config.store.pending_bytes_max)
        self._own = OwnPartitions(machine, sockets, policy, log_table, state)
        self.deletion = RecordDeletion(machine, self.storage, log_table, self._own)
        self.writer = LogWriter(
            machine, self.store.act, self.storage, log_table, self.watchers, config.node.message_bytes_max
        )
        self._mesh = mesh = BrokerMesh(machine, sockets, self.store.act)
        self.messenger = BrokerMessenger(self.address, mesh.publish_message)
        self.replicator = Replicator(
            config, tables, self.storage, self._own, self.deletion, mesh, self.store, self.watchers
        )
        self.membership = self.replicator.membership
        self.leases = self.replicator.leases
        pipeline.stages = (offsets, WriteLocalState(state), self._own, self.replicator, self.storage)
        self.inventory = Inventory(machine, storage, log_table, tables.topics)
        self._machine = machine
        self._log_count = config.kafka.log_count

    async def run(self, *, task_status: trio.TaskStatus[BrokerNode]) -> None:
        """Run until cancelled, then write what has been received. Raises `StorageLostError`."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._own.heads.run)
            nursery.start_soon(self._mesh.run)
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
                self.messenger.receive(effect.sender, value)
        elif isinstance(effect, TopicMissing):
            self.replicator.put_topic(self._make_topic(effect.topic, self._log_count, {}))

    # Topics

    @property
    def topics(self) -> Mapping[str, Topic]:
        """The topics that clients may use, by name. `log_table` has the internal ones, too."""
        return {name: topic for name, topic in self.log_table.topics.items() if not is_internal_topic(name)}

    def find_topic(self, name: str) -> Topic | None:
        """Return a topic that clients may use; None if it does not exist."""
        return self.log_table.find_client_topic(name)

    def logs(self, topic: str) -> Sequence[Log]:
        """Return the logs of a topic that clients may use; empty if it does not exist."""
        return () if is_internal_topic(topic) else self.log_table.logs(topic)

    def find_log(self, topic: str, number: int) -> Log | None:
        """Return a log that clients may use; None if it does not exist."""
        return self.log_table.find_client_log(topic, number)

    async def ensure_internal_topic(self, name: str, log_count: int) -> Sequence[Log]:
        """Create a topic that only brokers use, whose name begins with `$`, unless it exists. Return its logs."""
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
        """Create a topic. Return an object to wait until it is durable.

        By default, the numbers of its logs and of their replicas are `[kafka] log_count` and `[broker] replicas`. The
        placement has the replicas of each log, the preferred leader first; if it is empty, the brokers with the fewest
        logs are chosen.

        Raise `ConfigError` if the name is taken or not valid, or the number of logs is not allowed, and `StorageError`
        if the storage fails.
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
        """Add logs to an existing topic, or replace all its settings. Return an object to wait until that is durable.

        None keeps the number of logs, which cannot decrease, or the settings. Raise `ConfigError` if the number of logs
        is not allowed, and `StorageError` if the storage fails.
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
        """Delete an existing topic. Its logs are gone at once. Its records are dropped when the deletion is durable.

        With automatic creation of topics, a producer that writes to it later creates it again. Raise `ConfigError` if
        it is a system topic, and `StorageError` if the storage fails.
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
        if found is None:
            return []
        names = (name_log(found.topic_id, number) for number in range(found.log_count))
        return [self.replicator.logs.epoch_starts(name) for name in names]

    def change_replicas(self, log: Log, replicas: Sequence[str]) -> None:
        """Assign replicas to a log that any broker leads. New replicas copy it first, then the former ones leave.

        The assignment lasts until the next one, or until one of the brokers is drained or dies for good. The preferred
        replicas are first; without any, brokers choose them again. Raise `ConfigError` if an address is not that of a
        broker, or occurs twice.
        """
        if replicas:
            self.replicator.reassigner.change_replicas(log, replicas)
        else:
            self.replicator.reassigner.release_replicas(log.topic, log.number)

    def set_draining(self, is_draining: bool) -> None:
        """Start or stop draining this broker: moving its logs to others, so that it can be removed."""
        was_draining = self.brokers.own.is_draining
        awaits_share = not is_draining and (was_draining or self.brokers.own.awaits_share)
        self.membership.update_registration(is_draining=is_draining, awaits_share=awaits_share)
