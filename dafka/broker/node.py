"""The broker's node: a store that orders the records of each topic in logs, for clients that are not nodes.

Clients connect to servers, such as the Kafka server, which call the methods of `BrokerNode`. The node publishes their
records in partitions of its own, so that for other nodes they look like the records of a producer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import trio

from dafka.broker.core.broker_news import (
    HeartbeatsReceived,
    HighWatermarksAnnounced,
    IndexesAcknowledged,
    IndexesAnnounced,
    MessagesReceived,
    RoundsReceived,
    StoreChecked,
)
from dafka.broker.core.cluster_status import MetadataQuorum, describe_quorum
from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.cluster_state import METADATA_TOPIC
from dafka.broker.core.metadata.commands import Command, CreateTopic
from dafka.broker.core.metadata.log_replicas import LogReplicas
from dafka.broker.core.metadata.planner import Planner, PlannerSettings
from dafka.broker.core.metadata.store_record import StoreRecord
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.node_machine import BrokerMachine, TopicMissing
from dafka.broker.core.partition_address import name_log
from dafka.broker.core.replication.records import EpochStart
from dafka.broker.core.tables import BrokerTables
from dafka.broker.interbroker.cluster_secret import read_secret
from dafka.broker.interbroker.link_frames import LinkIdentity
from dafka.broker.interbroker.mesh import BrokerMesh
from dafka.broker.interbroker.messenger import BrokerMessenger
from dafka.broker.inventory import Inventory
from dafka.broker.local_state import LocalState
from dafka.broker.log.broker_storage import BrokerStorage
from dafka.broker.log.damaged_logs import DamagedLogs
from dafka.broker.log.deletion import RecordDeletion
from dafka.broker.log.log_starts import LogStarts
from dafka.broker.log.own_partitions import OwnPartitions
from dafka.broker.log.reader import LogReader
from dafka.broker.log.retention import LogRetention
from dafka.broker.log.space_reserve import SpaceReserve
from dafka.broker.log.stages import AssignOffsets, WriteLocalState
from dafka.broker.log.trimming import LogTrimmer
from dafka.broker.log.waiters import LogWaiters
from dafka.broker.log.writer import LogWriter
from dafka.broker.metadata.admin import ClusterAdmin
from dafka.broker.metadata.changes import ClusterChanges
from dafka.broker.metadata.controller import Controller
from dafka.broker.metadata.history import MetadataHistory
from dafka.broker.metadata.joining import CONFIRM_S, Joining
from dafka.broker.metadata.metadata_log import MetadataLog
from dafka.broker.metadata.replica_reports import ReplicaReports
from dafka.broker.replication.handover import LeadershipHandover
from dafka.broker.replication.replicator import Replicator
from dafka.broker.replication.store_identity import StoreIdentity
from dafka.config import Config
from dafka.internal_topics import is_internal_topic
from dafka.protocol.actions import Effect
from dafka.records import Partition, new_address
from dafka.roles.sockets import NodeSockets
from dafka.roles.store import RecordsDamaged, Store
from dafka.storage import Storage

HELLO_S = 0.25
"""Seconds after which another broker is greeted again if it does not answer while messages wait for it."""


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
        self._machine = machine
        self.tables = tables
        self.log_table = log_table
        self.policy = policy
        self.brokers = tables.brokers
        self.damaged = DamagedLogs(tables.state)
        self.reader = LogReader(storage, self.damaged)
        self.watchers = LogWaiters()
        self.store = Store(machine, sockets, storage, config, self._execute)
        pipeline = self.store.pipeline
        offsets = AssignOffsets(log_table, self.watchers)
        self.storage = BrokerStorage(storage, machine, pipeline, state, offsets, config.store.pending_bytes_max)
        disk = config.store.storage, config.broker.reserve_bytes
        self._reserve = SpaceReserve(machine, self.store.act, self.storage, *disk)
        self._own = OwnPartitions(machine, sockets, policy, log_table, state)
        starts = LogStarts(log_table, tables.logs, self.storage, self.watchers)
        trimmer = LogTrimmer(storage, machine.stored, log_table, tables.logs)
        delete_delay_s = config.broker.delete_delay_ms / 1000
        self.deletion = RecordDeletion(machine, self.storage, log_table, self._own, starts, trimmer, delete_delay_s)
        self.writer = LogWriter(
            machine, self.store.act, self.storage, log_table, self.watchers, config.node.message_bytes_max
        )
        mesh = BrokerMesh(machine, sockets, self.store.act)
        self.secret = read_secret(config.broker.secret_file)
        """The secret of the cluster, with which brokers authenticate to each other; empty if there is none."""
        self.messenger = BrokerMessenger(self.address, mesh.send_bytes, self.secret)
        self.identity = StoreIdentity(tables, machine, self.storage, mesh, self.store.act, config.broker)
        self.metadata = MetadataLog(
            tables, self.storage, self.identity, self.reader, self.watchers, self.messenger, self._apply_state
        )
        self.replica_reports = ReplicaReports(tables, self.messenger)
        self.replicator = Replicator(
            config,
            tables,
            self.storage,
            self._own,
            self.deletion,
            mesh,
            self.store,
            self.watchers,
            self.identity,
            self.damaged,
            self._request,
        )
        self.membership = self.replicator.membership
        self.leases = self.replicator.leases
        self.handover = LeadershipHandover(tables, self.replicator, self.messenger)
        self.store.retention = LogRetention(
            self.storage,
            log_table,
            tables.logs,
            state,
            config.store,
            self.address,
            self.reader,
            starts,
            trimmer,
            self.may_expire,
        )
        pipeline.stages = (offsets, self.identity, WriteLocalState(state), self._own, self.replicator, self.storage)
        self.inventory = Inventory(machine, storage, log_table, tables.state)
        replicator = self.replicator
        planner = Planner(
            tables.state,
            tables.brokers,
            PlannerSettings(
                replicas=config.broker.replicas,
                replace_replicas_after_s=config.broker.replace_replicas_after_ms / 1000,
                full_bytes=config.broker.least_free_bytes,
            ),
        )
        self.controller = Controller(
            tables,
            self.metadata,
            self.writer,
            self.messenger,
            machine,
            self.deletion,
            planner,
            replicator.act,
            config.broker.initial_brokers,
        )
        self.history = MetadataHistory(self.metadata)
        self.changes = ClusterChanges(tables, self.metadata, self.controller, self.messenger)
        self.joining = Joining(
            tables,
            self.identity,
            self.metadata,
            self.changes,
            self.membership,
            config.broker,
            self.messenger,
            self._observe_metadata,
        )
        self._log_count = config.kafka.log_count
        self.admin = ClusterAdmin(
            tables, self.storage.waits, self.metadata, self.changes, self.joining.has_joined, self._log_count
        )
        self._executors: dict[type[Effect], Callable[[Any], None]] = {
            HeartbeatsReceived: self._record_heartbeats,
            IndexesAcknowledged: lambda effect: replicator.record_acknowledgements(effect.ends),
            IndexesAnnounced: lambda effect: replicator.repeat_acknowledgements(effect.partitions),
            HighWatermarksAnnounced: lambda effect: replicator.record_high_watermarks(effect.offsets),
            RoundsReceived: lambda effect: self.leases.process_rounds(self.identity.admit(effect), effect.answers),
            StoreChecked: self.identity.process_check,
            MessagesReceived: self._receive_messages,
            TopicMissing: lambda effect: self._request_topic(effect.topic),
            RecordsDamaged: lambda effect: self.damaged.record(effect.partition, effect.error),
        }
        self.has_started = trio.Event()
        """Set when this broker takes part in its cluster, with all logs that it has stored."""

    async def run(self, *, task_status: trio.TaskStatus[BrokerNode]) -> None:
        """Run until cancelled, then write what has been received.

        Raises `StorageLostError`, and `OutdatedStoreError` if the storage is an older copy or a clone. It takes part in
        the cluster when others have checked the storage. Meanwhile, it describes the cluster as it has stored it.
        """
        was_registered = self.address in self.tables.state.brokers
        describes_cluster = was_registered and self.tables.state.is_open and not self.brokers.is_alone
        async with trio.open_nursery() as nursery:
            self._machine.hold()
            nursery.start_soon(self.watchers.run)
            nursery.start_soon(self._own.heads.run)
            await nursery.start(self.store.run)
            if describes_cluster:
                self.replicator.describe_stored()
                task_status.started(self)
            await self.identity.check(self.store.wait_settled)
            nursery.start_soon(self.identity.watch)
            nursery.start_soon(self.deletion.run)
            nursery.start_soon(self._reserve.run)
            await nursery.start(self.replicator.run)
            self.store.act(self._machine.release(trio.current_time()))
            self._identify()
            nursery.start_soon(self._repeat_hellos)
            nursery.start_soon(self.metadata.run)
            nursery.start_soon(self.changes.run)
            nursery.start_soon(self.controller.run)
            nursery.start_soon(self.joining.run)
            nursery.start_soon(self.joining.wait_forgotten)
            nursery.start_soon(self._request_topics)
            if was_registered:
                with trio.move_on_after(CONFIRM_S):
                    await self.joining.is_accepted.wait()
            self.has_started.set()
            if not describes_cluster:
                task_status.started(self)

    def _request(self, command: Command) -> None:
        self.changes.request_later(command)

    def _apply_state(self) -> None:
        self.replicator.apply_state()
        self._identify()

    def _observe_metadata(self, record: StoreRecord) -> None:
        self.replicator.observe_metadata(record)
        self._identify()

    def _identify(self) -> None:
        """Set what this broker says of itself when it connects to other brokers."""
        record = self.identity.record
        if record is not None and record.starts:
            number = self.brokers.own.number
            self.messenger.identify(LinkIdentity(self.address, record.cluster_id, number, record.starts[-1]))

    async def _repeat_hellos(self) -> None:
        while True:
            await trio.sleep(HELLO_S)
            self.messenger.tick()
            self.joining.check_secret()

    async def _request_topics(self) -> None:
        """Request topics for the records of producers that this broker stored before it joined its cluster."""
        await self.joining.has_joined.wait()
        stored = [Partition(topic, each) for topic, ends in self.storage.stored.durable.items() for each in ends]
        missing = {each.topic for each in stored if self._needs_topic(each)}
        for name in sorted(missing):
            self._request_topic(name)

    def _needs_topic(self, partition: Partition) -> bool:
        stored = self.storage.stored
        first = max(stored.earliest.get(partition, 0), self.log_table.producer_starts.get(partition, 0))
        return stored.durable_end(partition) > first and self.policy.misses_topic_of(partition)

    def _execute(self, effect: Effect) -> None:
        """Execute an effect of the machine of the store."""
        self._executors[type(effect)](effect)

    def _record_heartbeats(self, effect: HeartbeatsReceived) -> None:
        self.replicator.record_heartbeats(effect.brokers)
        self.membership.record_heartbeats(effect.brokers)
        self.joining.record_heartbeats(effect.brokers)

    def _receive_messages(self, effect: MessagesReceived) -> None:
        for sender, content in effect.messages:
            self.messenger.receive(sender, content)

    def _request_topic(self, name: str) -> None:
        self.changes.request_later(CreateTopic(Topic(name, new_address(), self._log_count)))

    def may_expire(self, log: Log) -> bool:
        """Return whether this broker may decide which records of a log are too old.

        It must lead the log for sure, and its clock must be right, as far as the other brokers can tell.
        """
        return self.leases.holds_lease(log) and self.leases.is_clock_right()

    @property
    def cluster_id(self) -> str:
        """The id of the cluster; empty if this broker belongs to none yet."""
        return self.tables.state.cluster_id

    @property
    def controller_address(self) -> str:
        """The address of the controller, as far as this broker knows; empty if there is none."""
        log = self.metadata.log
        return "" if log is None else self.brokers.leader_of(log.leadership)

    @property
    def quorum(self) -> MetadataQuorum:
        """The brokers that vote on metadata; without voters if this broker belongs to no cluster yet."""
        return describe_quorum(self.tables, trio.current_time()) or MetadataQuorum()

    # Topics

    @property
    def topics(self) -> Mapping[str, Topic]:
        """The topics that clients may use, by name. `log_table` has the internal ones, too."""
        return self.log_table.client_topics()

    def find_topic(self, name: str) -> Topic | None:
        """Return a topic that clients may use; None if it does not exist."""
        return self.log_table.find_client_topic(name)

    def all_logs(self) -> list[Log]:
        """Return the logs of all topics, also of internal ones, without the log of metadata."""
        return [log for log in self.log_table.all_logs() if log.topic != METADATA_TOPIC]

    def logs(self, topic: str) -> Sequence[Log]:
        """Return the logs of a topic that clients may use; empty if it does not exist."""
        return () if is_internal_topic(topic) else self.log_table.logs(topic)

    def find_log(self, topic: str, number: int, topic_id: str | None = None) -> Log | None:
        """Return a log that clients may use, of the topic with an id or with this name at present; None if none."""
        return self.log_table.find_client_log(topic, number, topic_id)

    # Replicas

    def replica_changes(self) -> dict[Log, LogReplicas]:
        """Return the logs whose replicas are changing, with what was ordered."""
        state = self.tables.state
        found: dict[Log, LogReplicas] = {}
        for key, ordered in state.replicas.changing.items():
            topic = state.find_id(key.topic_id)
            log = None if topic is None else self.log_table.find_log(topic.name, key.number)
            if log is not None:
                found[log] = ordered
        return found

    def epoch_starts(self, topic: str) -> list[list[EpochStart]]:
        """Return the epoch starts of each log of a topic, by epoch."""
        found = self.log_table.topics.get(topic)
        if found is None:
            return []
        names = (name_log(found.topic_id, number) for number in range(found.log_count))
        return [self.replicator.logs.epoch_starts(name) for name in names]
