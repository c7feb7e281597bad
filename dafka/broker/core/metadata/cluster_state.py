"""The state of a cluster: what the commands in the log of metadata give when they are applied in order.

Each broker applies the same committed commands, so each has the same state, sooner or later. Nothing else changes it:
no clock, and nothing about which brokers are heard. A command that cannot take effect is refused, by all in the same
way.

The state is also a set of keys and values. A broker stores the values that a command changes, and restores the state
from all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.metadata.client_access import ClientAccess
from dafka.broker.core.metadata.commands import (
    SNAPSHOTS_KEPT,
    AddLogs,
    AlterClientQuota,
    AlterGroupSettings,
    AlterSettings,
    ChangeReplicas,
    CloseTopic,
    Command,
    CreateAcls,
    CreateTopic,
    DeleteAcls,
    DeleteScramCredential,
    DeleteTopic,
    DrainBroker,
    ForgetBroker,
    OpenCluster,
    Order,
    RecoverLog,
    RegisterBroker,
    ReplicasChanged,
    SetFeatureLevel,
    SetScramCredential,
    SnapshotTaken,
)
from dafka.broker.core.metadata.features import SUPPORTED, FeatureSupport
from dafka.broker.core.metadata.group_settings import GroupSettingsTable
from dafka.broker.core.metadata.log_replicas import LogReplicas, Reason, ReplicaTable
from dafka.broker.core.metadata.outcome import DONE, Outcome
from dafka.broker.core.metadata.quota_table import QuotaTable
from dafka.broker.core.metadata.registered_brokers import NO_BROKER, RegisteredBrokers
from dafka.broker.core.metadata.state_records import (
    DELETED,
    DELETING,
    HEADER,
    REPLICAS,
    SNAPSHOTS,
    TOPIC,
    StateRecords,
    decode_keys,
    decode_records,
)
from dafka.broker.core.metadata.topics import LOGS_MAX, Deletion, Topic
from dafka.broker.core.partition_address import INDEX_TOPIC, parse_address
from dafka.broker.core.positions import FIRST_OFFSET
from dafka.protocol.format_errors import format_errors
from dafka.records import Partition

METADATA_TOPIC = "$metadata"
"""The topic of the log of metadata. It has one log, and its id is that of the cluster."""

_NO_TOPIC = Outcome(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no such topic")
_NO_REPLICAS = Outcome(
    ErrorCode.INVALID_REPLICA_ASSIGNMENT, "the replicas of a log are different brokers of the cluster"
)


@attrs.frozen
class _Header:
    """The part of the state that is neither a broker nor a topic."""

    cluster_id: str = ""
    is_open: bool = False
    controller_epoch: int = 0


class ClusterState:
    """The state of a cluster.

    Args:
        support: What the version of dafka supports that keeps the state.

    Attributes:
        cluster_id: The id of the cluster; empty if this broker belongs to none yet.
        is_open: Whether clients may be served.
        members: The registered brokers, with their numbers, and the feature level.
        access: The ACLs and the users that clients change.
        quotas: The quotas of clients.
        group_settings: The settings of groups.
        brokers: The registered brokers, by store id.
        forgotten_ids: The ids of the stores that were forgotten.
        topics: The topics, by name.
        replicas: The replicas that their logs should have.
        deleting: The deleted topics whose names are not free yet, by name.
        deleted_ids: The ids of all deleted topics.
        producer_starts: By producer partition, the sequence of the first record that belongs to no deleted topic.
        last_epochs: By name of a deleted topic, the latest leader epoch of its logs.
        snapshots: The last snapshots that the voters have agreed on, the oldest first.
        applied: The offset in the log of metadata up to which its commands are applied.
    """

    def __init__(self, support: FeatureSupport = SUPPORTED) -> None:
        self._records = StateRecords()
        self.members = RegisteredBrokers(self._records, support)
        self.access = ClientAccess(self._records)
        self.quotas = QuotaTable(self._records)
        self.group_settings = GroupSettingsTable(self._records)
        self.brokers, self.forgotten_ids = self.members.registered, self.members.forgotten_ids
        self.topics: dict[str, Topic] = {}
        self.replicas = ReplicaTable()
        self.deleting: dict[str, Deletion] = {}
        self.deleted_ids: set[str] = set()
        self.producer_starts: dict[Partition, int] = {}
        self.last_epochs: dict[str, int] = {}
        self.snapshots: tuple[SnapshotTaken, ...] = ()
        self.applied = FIRST_OFFSET
        self._header = _Header()
        self._names: dict[str, str] = {}
        self._changed: dict[str, None] = {}
        self._closed: list[Deletion] = []
        self._appliers: dict[type[Command], Callable[[Any], Outcome]] = {
            OpenCluster: self._open,
            RegisterBroker: self.members.register,
            DrainBroker: self.members.drain,
            ForgetBroker: self.members.forget,
            SetFeatureLevel: self.members.set_level,
            CreateTopic: self._create,
            AddLogs: self._add_logs,
            AlterSettings: self._alter,
            ChangeReplicas: self._change_replicas,
            ReplicasChanged: self._finish_change,
            RecoverLog: self._recover_log,
            DeleteTopic: self._delete,
            CloseTopic: self._close,
            CreateAcls: self.access.create_acls,
            DeleteAcls: self.access.delete_acls,
            SetScramCredential: self.access.set_credential,
            DeleteScramCredential: self.access.delete_credential,
            AlterClientQuota: self.quotas.alter,
            AlterGroupSettings: self.group_settings.alter,
            SnapshotTaken: self._record_snapshot,
        }

    @property
    def cluster_id(self) -> str:
        """The id of the cluster; empty if this broker belongs to none yet."""
        return self._header.cluster_id

    @property
    def is_open(self) -> bool:
        """Whether clients may be served."""
        return self._header.is_open

    # Looking up

    def find(self, name: str) -> Topic | None:
        """Return the topic with a name; None if there is none."""
        return self.topics.get(name)

    def find_id(self, topic_id: str) -> Topic | None:
        """Return the topic with an id; None if there is none, or it is deleted."""
        name = self._names.get(topic_id)
        return None if name is None else self.topics.get(name)

    def name_of(self, topic_id: str) -> str:
        """Return the name of the topic with an id, which can be `$metadata`; empty if there is none."""
        topic = self.find_id(topic_id)
        return METADATA_TOPIC if topic_id == self.cluster_id else "" if topic is None else topic.name

    def find_topic_of(self, topic_id: str, log: int) -> Topic | None:
        """Return the topic with an id if it has a log with this number; None otherwise."""
        topic = self.find_id(topic_id)
        return topic if topic is not None and 0 <= log < topic.log_count else None

    def find_deleting(self, topic_id: str) -> Deletion | None:
        """Return the deletion of a topic whose name is not free yet; None if there is none."""
        name = self._names.get(topic_id)
        return None if name is None else self.deleting.get(name)

    def is_deleted(self, address: str) -> bool:
        """Return whether a partition with this address belongs to a log of a deleted topic."""
        found = parse_address(address)
        return found is not None and found.topic_id in self.deleted_ids

    def is_orphan(self, partition: Partition) -> bool:
        """Return whether a partition belongs to a log of a topic that this state does not have.

        Only a command is a reason to drop records, so such a partition is kept.
        """
        address = parse_address(partition.address)
        if address is None or partition.topic == INDEX_TOPIC or address.topic_id in self.deleted_ids:
            return False
        return address.topic_id != self.cluster_id and address.topic_id not in self._names

    # Changing

    def found(self, cluster_id: str) -> None:
        """Begin the state of a cluster, of which this broker has just become a part."""
        self._put_header(attrs.evolve(self._header, cluster_id=cluster_id))

    def apply(self, order: Order) -> Outcome:
        """Apply a committed order.

        Raise `StorageFormatError` if it gives the cluster a feature level that this version of dafka does not support.
        """
        if order.controller_epoch < self._header.controller_epoch:
            return Outcome(ErrorCode.NOT_CONTROLLER, "another broker had become the controller")
        if order.controller_epoch > self._header.controller_epoch:
            self._put_header(attrs.evolve(self._header, controller_epoch=order.controller_epoch))
        return self._appliers[type(order.command)](order.command)

    def _put_header(self, header: _Header) -> None:
        self._header = header
        self._records.put(HEADER, header)

    def _open(self, command: OpenCluster) -> Outcome:
        if self.is_open:
            return DONE
        outcome = self.members.set_level(SetFeatureLevel(command.feature_level))
        if outcome is DONE:
            self._put_header(attrs.evolve(self._header, is_open=True))
        return outcome

    def _record_snapshot(self, command: SnapshotTaken) -> Outcome:
        if not self.snapshots or command.offset > self.snapshots[-1].offset:
            self.snapshots = (*self.snapshots, command)[-SNAPSHOTS_KEPT:]
            self._records.put(SNAPSHOTS, self.snapshots)
        return DONE

    # Topics

    def _create(self, command: CreateTopic) -> Outcome:
        topic = command.topic
        known = self.topics.get(topic.name)
        if known is not None and known.topic_id == topic.topic_id:
            return DONE
        twin = known or self.find_id(topic.topic_id)
        if twin is not None:
            return Outcome(ErrorCode.TOPIC_ALREADY_EXISTS, f"there is a topic {twin.name!r} already")
        if topic.name in self.deleting or topic.topic_id in self._names:
            return Outcome(ErrorCode.NOT_CONTROLLER, f"the topic {topic.name!r} is still being deleted: try again")
        if topic.topic_id in self.deleted_ids:
            return Outcome(ErrorCode.UNKNOWN_TOPIC_ID, "the topic was deleted meanwhile")
        if not 0 < topic.log_count <= LOGS_MAX:
            return Outcome(
                ErrorCode.INVALID_PARTITIONS, f"a topic has from 1 to {LOGS_MAX} logs, not {topic.log_count}"
            )
        refused = self._check_replicas(topic.placement, topic.log_count)
        return refused or self._put_logs(topic, is_assigned=command.is_assigned)

    def _add_logs(self, command: AddLogs) -> Outcome:
        topic = self.find_id(command.topic_id)
        if topic is None:
            return _NO_TOPIC
        added = command.log_count - topic.log_count
        if added == 0:
            return DONE
        if added < 0 or command.log_count > LOGS_MAX:
            return Outcome(
                ErrorCode.INVALID_PARTITIONS,
                f"the topic {topic.name!r} can have from {topic.log_count} to {LOGS_MAX} logs, not {command.log_count}",
            )
        placement = command.placement[len(command.placement) - added :]
        wider = attrs.evolve(topic, log_count=command.log_count, placement=topic.placement + placement)
        refused = self._check_replicas(placement, added)
        return refused or self._put_logs(wider, topic.log_count, is_assigned=command.is_assigned)

    def _alter(self, command: AlterSettings) -> Outcome:
        topic = self.find_id(command.topic_id)
        return _NO_TOPIC if topic is None else self._put(attrs.evolve(topic, settings=command.settings))

    def _check_replicas(self, placement: tuple[tuple[str, ...], ...], log_count: int) -> Outcome | None:
        if len(placement) != log_count or not all(
            each and len(set(each)) == len(each) and self.brokers.keys() >= set(each) for each in placement
        ):
            return _NO_REPLICAS
        return None

    def _put_logs(self, topic: Topic, first: int = 0, *, is_assigned: bool) -> Outcome:
        """Put a topic whose logs from a number on are new."""
        self.replicas.add(topic, first)
        for number in range(first, topic.log_count) if is_assigned else ():
            placed = topic.placement[number]
            self._put_replicas(topic, number, LogReplicas(placed, assigned_count=len(placed)))
        return self._put(topic)

    def _change_replicas(self, command: ChangeReplicas) -> Outcome:
        topic = self.find_topic_of(command.topic_id, command.log)
        if topic is None:
            return _NO_TOPIC
        present = self.replicas.of(topic, command.log)
        if (command.replicas, command.assigned_count) == (present.replicas, present.assigned_count):
            return DONE
        if command.generation != present.generation + 1:
            return Outcome(
                ErrorCode.REASSIGNMENT_IN_PROGRESS, "other replicas were ordered at the same time: try again"
            )
        refused = self._check_replicas((command.replicas,), 1)
        if refused is not None:
            return refused
        ordered = present.order(command.replicas, command.generation, command.reason, command.assigned_count)
        return self._put_replicas(topic, command.log, ordered)

    def _finish_change(self, command: ReplicasChanged) -> Outcome:
        topic = self.find_topic_of(command.topic_id, command.log)
        if topic is None:
            return _NO_TOPIC
        present = self.replicas.of(topic, command.log)
        if not present.is_changing or present.generation != command.generation:
            return DONE
        return self._put_replicas(topic, command.log, present.finish())

    def _recover_log(self, command: RecoverLog) -> Outcome:
        topic = self.find_topic_of(command.topic_id, command.log)
        if topic is None:
            return _NO_TOPIC
        if command.store_id not in self.brokers:
            return NO_BROKER
        present = self.replicas.of(topic, command.log)
        is_ordered = present.is_changing and present.reason is Reason.RECOVERED
        if is_ordered and present.replicas == (command.store_id,):
            return DONE
        return self._put_replicas(topic, command.log, present.recover(command.store_id))

    def _put_replicas(self, topic: Topic, number: int, replicas: LogReplicas) -> Outcome:
        self.replicas.put(topic, number, replicas)
        self._records.put(f"{REPLICAS}{topic.topic_id}/{number}", replicas)
        return DONE

    def _put(self, topic: Topic) -> Outcome:
        self.topics[topic.name] = topic
        self._names[topic.topic_id] = topic.name
        self._changed[topic.name] = None
        self._records.put(TOPIC + topic.topic_id, topic)
        return DONE

    def _delete(self, command: DeleteTopic) -> Outcome:
        topic = self.find_id(command.topic_id)
        if topic is None:
            return DONE if command.topic_id in self.deleted_ids else _NO_TOPIC
        del self.topics[topic.name]
        self.deleted_ids.add(topic.topic_id)
        deletion = Deletion(topic, last_epoch=max(topic.first_epoch, command.last_epoch))
        self.deleting[topic.name] = deletion
        self._changed[topic.name] = None
        self._records.remove(TOPIC + topic.topic_id)
        for key in self.replicas.remove(topic):
            self._records.remove(f"{REPLICAS}{key.topic_id}/{key.number}")
        self._records.put(DELETING + topic.topic_id, deletion)
        return DONE

    def _close(self, command: CloseTopic) -> Outcome:
        deletion = self.find_deleting(command.topic_id)
        if deletion is None:
            return DONE if command.topic_id in self.deleted_ids else _NO_TOPIC
        del self.deleting[deletion.topic.name], self._names[command.topic_id]
        closed = attrs.evolve(deletion, producer_ends=command.producer_ends)
        self._record_deletion(closed)
        self._closed.append(closed)
        self._records.remove(DELETING + command.topic_id)
        self._records.put(DELETED + command.topic_id, closed)
        return DONE

    def _record_deletion(self, deletion: Deletion) -> None:
        topic = deletion.topic
        self.deleted_ids.add(topic.topic_id)
        self.last_epochs[topic.name] = max(deletion.last_epoch, self.last_epochs.get(topic.name, 0))
        for address, end in deletion.producer_ends.items():
            partition = Partition(topic.name, address)
            self.producer_starts[partition] = max(end, self.producer_starts.get(partition, 0))

    # What has changed

    def take_changed(self) -> list[str]:
        """Return the names of the topics that have changed since the last call."""
        changed, self._changed = self._changed, {}
        return list(changed)

    def take_closed(self) -> list[Deletion]:
        """Return the deletions that were completed since the last call: their records can be dropped."""
        closed, self._closed = self._closed, []
        return closed

    @property
    def records(self) -> Mapping[bytes, bytes]:
        """All keys and values of the state."""
        return self._records.values

    def take_records(self) -> list[tuple[bytes, bytes | None]]:
        """Return the keys and values of the state that have changed since the last call."""
        return self._records.take_changed()

    def restore(self, records: Mapping[bytes, bytes]) -> None:
        """Replace the state by that with these keys and values. Raise `StorageFormatError` if one is malformed.

        If this was a state before, the differences have changed, as `take_changed`, `take_closed` and `take_records`
        say.
        """
        was_empty, former = not self.records, dict.fromkeys((*self.topics, *self.deleting))
        new = self._records.replace(records)
        self.replicas.clear()
        for each in (self.topics, self.deleting, self.deleted_ids, self._names):
            each.clear()
        self.producer_starts.clear()
        self.last_epochs.clear()
        with format_errors("the stored state of the cluster"):
            self.members.restore(records)
            self.access.restore(records)
            self.quotas.restore(records)
            self.group_settings.restore(records)
            self._restore(records)
            if not was_empty:
                self._closed += decode_records(new.items(), DELETED, Deletion)
        self._changed = {**former, **dict.fromkeys(self.topics)}

    def _restore(self, records: Mapping[bytes, bytes]) -> None:
        (self._header,) = [*decode_records(records.items(), HEADER, _Header)] or [_Header()]
        (self.snapshots,) = [*decode_records(records.items(), SNAPSHOTS, tuple[SnapshotTaken, ...])] or [()]
        for topic in decode_records(records.items(), TOPIC, Topic):
            self.topics[topic.name] = topic
            self._names[topic.topic_id] = topic.name
            self.replicas.add(topic)
        for key, replicas in decode_keys(records.items(), REPLICAS, LogReplicas):
            topic_id, _, number = key.partition("/")
            self.replicas.put(self.topics[self._names[topic_id]], int(number), replicas)
        for deletion in decode_records(records.items(), DELETING, Deletion):
            self.deleting[deletion.topic.name] = deletion
            self.deleted_ids.add(deletion.topic.topic_id)
            self._names[deletion.topic.topic_id] = deletion.topic.name
        for deletion in decode_records(records.items(), DELETED, Deletion):
            self._record_deletion(deletion)
