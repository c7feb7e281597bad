"""Replicates the logs of a broker: processes what others have written, and executes what its replicas decide."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from itertools import chain

import attrs
import trio

from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.brokers import BROKERS_TOPIC, BrokerRegistration, decode_broker
from dafka.broker.core.metadata.cluster_state import METADATA_TOPIC
from dafka.broker.core.metadata.commands import Command
from dafka.broker.core.metadata.leader_and_isr import LeaderAndIsr
from dafka.broker.core.metadata.log_replicas import RECOVERY_STEP, recovery_of
from dafka.broker.core.metadata.store_record import StoreRecord
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.partition_address import INDEX_TOPIC, name_log, parse_address
from dafka.broker.core.partition_policy import CONTROL_TOPICS
from dafka.broker.core.positions import Offset, RecordSequence
from dafka.broker.core.replication.effects import (
    Acknowledge,
    AdvanceHighWatermark,
    Lead,
    ReplicaAction,
    StepDown,
    WriteControl,
)
from dafka.broker.core.replication.records import ControlRecord, decode_control
from dafka.broker.core.replication.replicated_logs import (
    FetchRecords,
    LogAction,
    ReplicatedLog,
)
from dafka.broker.core.tables import BrokerTables
from dafka.broker.interbroker.mesh import BrokerMesh
from dafka.broker.log.broker_storage import BrokerStorage
from dafka.broker.log.damaged_logs import DamagedLogs
from dafka.broker.log.deletion import RecordDeletion
from dafka.broker.log.own_partitions import OwnPartitions
from dafka.broker.log.waiters import LogWaiters
from dafka.broker.replication.checkpoints import Checkpoints
from dafka.broker.replication.leader import LedLogs
from dafka.broker.replication.leases import LeaderLeases
from dafka.broker.replication.membership import Membership
from dafka.broker.replication.own_control import OwnControl
from dafka.broker.replication.reassignment import Reassigner
from dafka.broker.replication.replica_loader import ReplicaLoader
from dafka.broker.replication.store_identity import StoreIdentity
from dafka.config import Config
from dafka.errors import StorageFormatError
from dafka.records import Partition, RecordBatch
from dafka.roles.commit_pipeline import Commit, CommitStage
from dafka.roles.role import NodeRole

_LOGGER = logging.getLogger("dafka.broker")

RECOVER_TIMEOUTS = 3
"""How long a broker that is to recover the cluster listens for others first, in multiples of `leader_timeout_ms`."""

FETCH_AGAIN_S = 1.0
"""Seconds after which missing records are requested again. There can be thousands of partitions."""


class Replicator(CommitStage):
    """The replicas of one broker.

    As a stage of the commits, it processes the records that are durable, and the control records of this broker. The
    node finds other brokers. `apply_state` applies the state of the cluster to the logs. `deleted_topics` receives each
    topic that is deleted. `request` requests a command of the controller.
    """

    def __init__(
        self,
        config: Config,
        tables: BrokerTables,
        storage: BrokerStorage,
        own: OwnPartitions,
        deletion: RecordDeletion,
        mesh: BrokerMesh,
        node: NodeRole,
        watchers: LogWaiters,
        identity: StoreIdentity,
        damaged: DamagedLogs,
        request: Callable[[Command], None],
    ) -> None:
        settings = config.broker
        self.brokers = tables.brokers
        self.logs = tables.logs
        self._state = tables.state
        self._find_metadata = tables.find_metadata
        self._deleted_topics, self.deleted_topics = trio.open_memory_channel[Topic](math.inf)
        self._log_table = tables.log_table
        self._policy = tables.policy
        self._storage = storage
        self._own = own
        self._deletion = deletion
        self._mesh = mesh
        self._watchers = watchers
        self._address = mesh.address
        self._heartbeat_s = settings.heartbeat_ms / 1000
        self._timeout_s = settings.leader_timeout_ms / 1000
        self._indexes: defaultdict[str, set[Partition]] = defaultdict(set)
        self._stored: list[RecordBatch] = []
        self._removed: dict[str, list[Log]] = {}
        self._nursery: trio.Nursery | None = None
        self._recover_at = math.inf
        self._met: set[str] = set()
        self._control = OwnControl(tables.logs, storage)
        self.membership = Membership(tables, storage, mesh, node, settings)
        self.leases = LeaderLeases(tables, storage, identity, self._control, mesh, settings)
        self._identity = identity
        self.checkpoints = Checkpoints(storage, self.logs)
        self._loader = ReplicaLoader(
            tables, storage, own, mesh, self.checkpoints, self._indexes, damaged, self._take_part
        )
        self.led_logs = LedLogs(tables, storage, own, watchers, self.membership, self.act)
        self.reassigner = Reassigner(
            config, tables, self.led_logs, deletion, self._indexes, damaged, request, self.act, self.membership
        )

    # Starting

    def learn(self, partition: Partition, records: Iterable[tuple[bytes | None, bytes | None]]) -> None:
        """Process stored control records of this broker or another one: keys and values of a partition."""
        writer = partition.address
        for key, value in records:
            try:
                name = (key or b"").decode()
                found = None if value is None else _decode(partition, value)
            except (StorageFormatError, UnicodeDecodeError) as error:
                _LOGGER.warning("a control record of the broker %s is ignored: %s", writer, error)
                continue
            if found is None:
                if writer == self._address:  # others have removed theirs, which have the same keys
                    self._control.restore(name, None)
            elif isinstance(found, BrokerRegistration):
                self.membership.learn(found)
                self.led_logs.update_racks()
            else:
                self._learn_control(found, writer, name)

    def _learn_control(self, record: ControlRecord, writer: str, key: str) -> None:
        if record.log.partition("/")[0] in self._state.deleted_ids:
            return
        if writer == self._address:
            self._control.restore(key, record)
        self.act(self.logs.record_control(writer, record))
        log = self.logs.find(record.log)
        if log is not None:
            self.led_logs.record_stored([log])
            self.led_logs.divergent.merge_later([log])

    def describe_stored(self) -> None:
        """Describe the cluster to clients as this broker has stored it, until its logs are loaded.

        The brokers that it knew count as alive, as it has just heard them, and the last known leaders as presumed ones.
        """
        self.brokers.check_alive(trio.current_time())
        for name, topic in self._log_table.topics.items():
            for log in self._log_table.logs(name):
                start = self.logs.known_start(name_log(topic.topic_id, log.number))
                if start is None:
                    replicas = log.leadership.replicas
                    epoch, leader = topic.first_epoch, replicas[0]
                else:
                    replicas, (epoch, leader) = start.replicas, start.leader_epoch
                log.leadership = attrs.evolve(log.leadership, epoch=epoch, replicas=replicas, presumed_leader=leader)

    # Topics

    def observe_metadata(self, record: StoreRecord) -> None:
        """Take part in the log of metadata of the cluster that this broker belongs to."""
        self._add_topic(Topic(METADATA_TOPIC, record.cluster_id, placement=(record.first_voters,)))

    def apply_state(self) -> None:
        """Apply the state of the cluster: to the known brokers, and to the logs.

        The partitions of deleted topics are dropped later, when the deletion is durable.
        """
        was_alone = self.brokers.is_alone
        self.membership.apply_state()
        self.reassigner.apply_state()
        if was_alone and not self.brokers.is_alone and self._nursery is not None:
            self._join_cluster()
        for name in self._state.take_changed():
            known, found = self._log_table.topics.get(name), self._state.find(name)
            if known is not None and (found is None or found.topic_id != known.topic_id):
                self._removed[known.topic_id] = self._remove_topic(known)
            if found is not None and found != known:
                self._add_topic(found)
        self._mesh.apply_registration()
        for deletion in self._state.take_closed():
            self._forget_control(deletion.topic)
            removed = self._removed.pop(deletion.topic.topic_id, ())
            if self._nursery is not None:
                self._nursery.start_soon(self._deletion.drop_topic, deletion, removed)

    def _add_topic(self, topic: Topic) -> None:
        """Add a topic or change one, and load its new logs."""
        before = len(self._log_table.logs(topic.name))
        self._log_table.add_topic(topic)
        own = self._address
        added = self._log_table.logs(topic.name)[before:]
        for log in added:
            replicas = topic.placement[log.number] if log.number < len(topic.placement) else (own,)
            name = name_log(topic.topic_id, log.number)
            is_own = replicas == (own,) and self.brokers.is_alone and topic.name != METADATA_TOPIC
            if is_own and not topic.first_epoch and not self.logs.has_control(name):
                log.leadership = LeaderAndIsr(own, 0, is_led=True, replicas=replicas, in_sync=replicas)
                if self._nursery is not None:
                    self._log_table.catch_up(log, self._storage.ends(topic.name), self._storage.earliest(topic.name))
                    self._nursery.start_soon(self.led_logs.catch_up_oldest_first, log)
            else:
                self._log_table.end_epoch(log)
                log.leadership = LeaderAndIsr("", 0, is_led=False, replicas=replicas)
                self._loader.put(log)
        if added and self._nursery is not None and not self.brokers.is_alone:
            self._mesh.ask_heads((topic.name, INDEX_TOPIC))

    def _remove_topic(self, topic: Topic) -> list[Log]:
        """Forget the logs of a deleted topic, and notify their waiters."""
        logs = self._log_table.remove_topic(topic.name)
        for log in logs:
            name = name_log(topic.topic_id, log.number)
            self.logs.remove(name)
            self.led_logs.forget(name)
            self.led_logs.set_leadership(log, attrs.evolve(log.leadership, leader="", is_led=False))
        self._deleted_topics.send_nowait(topic)
        return logs

    def _forget_control(self, topic: Topic) -> None:
        """Forget the control records of the logs of a deleted topic, and remove those of this broker."""
        names = [name_log(topic.topic_id, number) for number in range(topic.log_count)]
        for name in names:
            self.logs.forget_control(name)
            self._indexes.pop(name, None)
        self._control.forget(names)

    # Running

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the membership in the cluster until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._recover_at = trio.current_time() + RECOVER_TIMEOUTS * self._timeout_s
            self.reassigner.measure_space()
            self.membership.start()
            self.leases.start()
            self._own.announce_control()
            nursery.start_soon(self._stop_spawning_when_cancelled)
            if not self.brokers.is_alone:
                self._join_cluster()
                await self._loader.load_first()
            nursery.start_soon(self._run_clock)
            nursery.start_soon(self._loader.run)
            nursery.start_soon(self.led_logs.run)
            nursery.start_soon(self.reassigner.run)
            nursery.start_soon(self.checkpoints.run)
            task_status.started()

    async def _stop_spawning_when_cancelled(self) -> None:
        """Start no further tasks when the broker stops. The last written records can still ask for some."""
        try:
            await trio.sleep_forever()
        finally:
            self._nursery = None

    async def _run_clock(self) -> None:
        heartbeat_s = self._heartbeat_s
        due = trio.current_time()
        fetched_at, is_first = due, True
        while True:
            self._identity.count_writes()
            self.leases.begin_round(self.membership.make_heartbeat())
            now = trio.current_time()
            late_s, due = max(now - due, 0.0), now + heartbeat_s
            self.brokers.record_storage(self._address, can_write=self._storage.can_write)
            has_changed = self.brokers.check_alive(now, late_s if late_s > heartbeat_s else 0.0)
            if has_changed or is_first:
                is_first = False
                self.act(self.logs.set_alive(self.brokers.alive, now, self.brokers.replaceable))
                self.led_logs.refresh_all(self.logs)
                self.led_logs.divergent.merge_later(self.logs)
            else:
                advanced = self.logs.active
                self.act(self.logs.advance(now))
                self.led_logs.refresh_all(advanced)
            self._announce_high_watermark()
            self._recover_metadata(now)
            if now - fetched_at >= FETCH_AGAIN_S:
                fetched_at = now
                self.act(self.logs.repeat_fetches())
            await trio.sleep(heartbeat_s)

    def _announce_high_watermark(self) -> None:
        """Announce how far the log of metadata is committed, if this broker leads it. All brokers observe it."""
        log = self._find_metadata()
        if log is not None and log.replica.led_epoch is not None:
            self._mesh.announce_high_watermark(log.index_partition(log.replica.led_epoch), log.replica.high_watermark)

    def _recover_metadata(self, now: float) -> None:
        """Continue the log of metadata with this broker alone, if an administrator has ordered it.

        The order is cancelled if enough voters are heard: the cluster goes on without a recovery, and can have made
        changes that this broker does not have.
        """
        record, log = self._identity.record, self._find_metadata()
        if log is None or record is None or not record.pending_recovery:
            return
        replica, heard = log.replica, self.brokers.alive.intersection((self._address, *self._met))
        if recovery_of(replica.newest.generation) >= record.pending_recovery:
            self._identity.update(record, pending_recovery=0)
        elif now >= self._recover_at and replica.elections.rule.can_elect(replica.newest.voters, heard):
            self._identity.update(record, pending_recovery=0)
            _LOGGER.warning("the cluster is not recovered from this broker: enough of the voters on metadata are heard")
        elif now >= self._recover_at:
            self._recover_at = math.inf
            _LOGGER.warning("this broker is the only voter on metadata from now on, as an administrator has ordered")
            self.act(self.logs.recover(log, record.pending_recovery * RECOVERY_STEP))

    def record_heartbeats(self, brokers: Iterable[str]) -> None:
        """Record heartbeats of brokers."""
        now = trio.current_time()
        for broker in brokers:
            self._met.add(broker)
            self.brokers.record_heartbeat(broker, now)

    def _join_cluster(self) -> None:
        """Replicate the logs that this broker had while it was alone."""
        for log in self._log_table.all_logs():
            self._loader.put(log)

    # Loading logs

    def record_indexes(self, partitions: Iterable[Partition]) -> None:
        """Record the index partitions that are stored."""
        for partition in partitions:
            if partition.topic == INDEX_TOPIC:
                address = parse_address(partition.address)
                if address is not None:
                    self._indexes[address.log_name].add(partition)

    def _take_part(self, log: ReplicatedLog, state: Log) -> None:
        self.reassigner.prefer_leaders(log)
        if self._log_table.leads(state):
            self.led_logs.keep_leading(log, state)
        self.led_logs.refresh(log)
        self.act(self.logs.resume(log, trio.current_time()))

    # The stage of commits

    def prepare(self, commit: Commit) -> None:
        """Record that the control records so far are being written."""
        self._control.begin_write()

    def done(self, commit: Commit) -> None:
        """Apply the control records that are durable now."""
        indexes = (batch for batch in commit.added if batch.partition.topic == INDEX_TOPIC)
        self._stored = [*commit.batches, *indexes]
        for record in self._control.write_done():
            self.act(self.logs.record_control(self._address, record))

    def acknowledged(self, commit: Commit) -> None:
        """Advance the replicas, also those that waited for records that no broker has any more."""
        stored, self._stored = self._stored, []
        if commit.reset is not None:
            stored = [RecordBatch(commit.reset.partition, commit.reset.next_sequence, [])]
        self._process_stored(stored)

    # Effects of replicas

    def _process_stored(self, batches: list[RecordBatch]) -> None:
        """Process records that are durable here."""
        self.record_indexes(batch.partition for batch in batches)
        for batch in batches:
            if batch.partition.topic in CONTROL_TOPICS and batch.partition.address != self._address:
                self.learn(batch.partition, zip(batch.keys or (), batch.values, strict=True))
                self.leases.record_learned(batch.partition, batch.end_sequence)
        if len(self.logs):
            changed, actions = self.logs.stored(batches)
            self.act(actions)
            self.led_logs.record_stored(changed)
            others = (self.logs.find_partition(each.partition) for each in batches if self._is_index_of_other(each))
            self.led_logs.divergent.merge_later(found[0] for found in others if found is not None)

    def _is_index_of_other(self, batch: RecordBatch) -> bool:
        return batch.partition.topic == INDEX_TOPIC and not self._policy.owns(batch.partition)

    def record_acknowledgements(self, ends: Mapping[tuple[Partition, str], int]) -> None:
        """Process acknowledgements of indexes by other replicas; see `IndexesAcknowledged`."""
        for (partition, broker), index_end in ends.items():
            self.act(self.logs.acknowledged(broker, partition, RecordSequence(index_end)))
            found = self.logs.find_partition(partition)
            if found is not None:
                self.led_logs.record_index_stored(found[0])

    def record_high_watermarks(self, offsets: Mapping[Partition, int]) -> None:
        """Process the high watermarks that leaders have announced; see `HighWatermarksAnnounced`."""
        for partition, offset in offsets.items():
            self.act(self.logs.announced(partition, Offset(offset)))

    def repeat_acknowledgements(self, partitions: Iterable[Partition]) -> None:
        """Acknowledge indexes again whose leaders can have missed the acknowledgement."""
        self.act(chain.from_iterable(map(self.logs.repeat_acknowledgement, partitions)))

    def act(self, actions: Iterable[LogAction]) -> None:
        """Execute the effects of replicas. Acknowledgements and fetches are sent together at the end."""
        acknowledged: dict[Partition, int] = {}
        missing: dict[Partition, int] = {}
        for log, action in actions:
            if self.logs.find(log.name) is not log:  # its topic was deleted meanwhile
                continue
            if isinstance(action, FetchRecords):
                missing[action.partition] = action.end_sequence
                continue
            if isinstance(action, Acknowledge):
                acknowledged[log.index_partition(action.leader_epoch)] = log.local_log.acknowledged_end(
                    action.leader_epoch
                )
            else:
                self._execute(log, action)
            self.led_logs.refresh(log)
            self.membership.send_heartbeat_if_due()
        if acknowledged:
            self._mesh.acknowledge(acknowledged)
        if missing:
            self._mesh.fetch_records(missing)
            self.membership.send_heartbeat_if_due()

    def _execute(self, log: ReplicatedLog, action: ReplicaAction) -> None:
        if isinstance(action, WriteControl):
            self._control.write(action.record)
        elif isinstance(action, AdvanceHighWatermark):
            self.led_logs.move_high_watermark(log, action.offset)
            if log.topic == METADATA_TOPIC:
                self._announce_high_watermark()
        elif isinstance(action, Lead) and self._nursery is not None:
            self._nursery.start_soon(self.led_logs.lead, log, action.start)
        elif isinstance(action, StepDown):
            state = self._log_table.find_log(log.topic, log.number, log.topic_id)
            if state is not None:
                self._log_table.end_epoch(state)


def _decode(partition: Partition, value: bytes) -> BrokerRegistration | ControlRecord:
    return decode_broker(partition.address, value) if partition.topic == BROKERS_TOPIC else decode_control(value)
