"""Deletes records that are expired or obsolete, are before an offset, or belong to a deleted topic."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

import attrs
import trio

from dafka.broker.core.log.log import Log
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.metadata.topics import MESSAGES_AGE_MS, MESSAGES_TOPIC, Deletion, Topic
from dafka.broker.core.node_machine import BrokerMachine
from dafka.broker.core.positions import Offset
from dafka.broker.core.replication.replicated_logs import ReplicatedLog
from dafka.broker.local_state import LocalState
from dafka.broker.log.broker_storage import BrokerStorage
from dafka.broker.log.index_reader import restore_log
from dafka.broker.log.own_partitions import OwnPartitions
from dafka.config import StoreConfig
from dafka.errors import StorageError, TopicDeletedError
from dafka.internal_topics import is_system_topic
from dafka.protocol.machines.stored_partitions import StoredPartitions
from dafka.protocol.presence.identity import owner_of
from dafka.records import Partition
from dafka.roles.store import default_retention
from dafka.storage import RetentionPolicy, Storage

_LOGGER = logging.getLogger("dafka.broker")


@attrs.define(eq=False, slots=False)
class LogRetention:
    """The retention of one broker.

    A follower has no index of its logs in memory. It reads the index of a log again when the leader has advanced the
    log's start offset. A leader deletes records at once, except those that it had to delete as a follower.
    """

    _storage: Storage
    _stored: StoredPartitions
    _log_table: LogTable
    _logs: Iterable[ReplicatedLog]
    _state: LocalState
    _config: StoreConfig
    _address: str
    _trimmed: dict[str, int] = attrs.field(init=False, factory=dict)

    async def apply(self) -> dict[Partition, int]:
        """Delete the records beyond the limits of each topic, and obsolete records of indexes and state.

        Return the first remaining sequence of each partition of which records were deleted. Raise `StorageError`.
        """
        moved: dict[Partition, int] = {}
        for name in list(self._stored.durable):
            policy = self._policy_of(name)
            if policy:
                moved.update(await self._storage.apply_retention(policy, name))
        earliest = {**self._stored.earliest, **moved}
        for log in filter(self._log_table.leads, self._log_table.all_logs()):
            self._log_table.skip_dropped(log, earliest)
            if log.index_first > log.index_trimmed:
                await self._storage.trim(log.index_partition, log.index_first)
                log.index_trimmed = log.index_first
        for followed in list(self._logs):
            await self._trim_indexes(followed, moved)
            await self._trim_records(followed, moved)
        await self._state.trim(self._storage)
        return moved

    def _policy_of(self, name: str) -> RetentionPolicy:
        """Return the limits of a topic; its settings override the defaults. Other internal topics have no limits."""
        if name == MESSAGES_TOPIC:
            return RetentionPolicy(age_ms=MESSAGES_AGE_MS)
        if is_system_topic(name):
            return RetentionPolicy()
        default, topic = default_retention(self._config), self._log_table.topics.get(name)
        return default if topic is None else _limits_of(topic, default, is_compacted=self._config.compacts(name))

    async def _trim_indexes(self, log: ReplicatedLog, moved: dict[Partition, int]) -> None:
        """Delete the index records of a log that other brokers have rewritten."""
        for epoch, sequence in log.local_log.needed_from().items():
            partition = log.index_partition(epoch)
            is_own = owner_of(partition.address) == self._address
            if not is_own and sequence > self._stored.earliest.get(partition, 0):
                await self._storage.trim(partition, sequence)
                moved[partition] = sequence

    async def _trim_records(self, log: ReplicatedLog, moved: dict[Partition, int]) -> None:
        """Delete the records before the start of a log that another broker leads."""
        start = log.local_log.start_offset
        is_trimmed = start <= self._trimmed.get(log.name, 0)
        if is_trimmed or not log.replica.local_epochs.is_complete(log.replica.latest.leader_epoch):
            return
        for partition, sequence in (await self._find_starts(log)).items():
            if sequence > max(self._stored.earliest.get(partition, 0), moved.get(partition, 0)):
                await self._storage.trim(partition, sequence)
                moved[partition] = sequence
        self._trimmed[log.name] = start

    async def _find_starts(self, log: ReplicatedLog) -> dict[Partition, int]:
        """Return the first remaining sequence of each partition of a log, or the next one if none remains."""
        epoch = log.replica.latest.leader_epoch
        state = Log(log.topic, log.number, log.leader_partition(epoch), log.index_partition(epoch))
        await restore_log(self._storage, log, state, epoch, is_led=False)
        index, topic = state.index, self._log_table.topics.get(log.topic)
        found: dict[Partition, int] = {}
        for address in index.addresses():
            partition = Partition(log.topic, address)
            # Producer partitions can have records in several logs, and this broker does not always store all of these.
            if topic is None or (self._log_table.is_producer_partition(partition) and topic.log_count > 1):
                continue
            first = index.sequence_from(address, index.start_offset)
            found[partition] = index.end_sequence(address) if first is None else first
        return found


def _limits_of(topic: Topic, default: RetentionPolicy, *, is_compacted: bool) -> RetentionPolicy:
    cleanup = topic.settings.get("cleanup.policy", "compact" if is_compacted else "delete")
    if "delete" not in cleanup:
        return RetentionPolicy()

    def choose(setting: str, otherwise: int | None) -> int | None:
        text = topic.settings.get(setting)
        return otherwise if text is None else (int(text) if int(text) >= 0 else None)

    return RetentionPolicy(
        age_ms=choose("retention.ms", default.age_ms),
        bytes_max=choose("retention.bytes", default.bytes_max),
        records_max=default.records_max,
    )


@attrs.define(eq=False, slots=False)
class RecordDeletion:
    """Deletes records of a broker."""

    _machine: BrokerMachine
    _storage: BrokerStorage
    _log_table: LogTable
    _own: OwnPartitions

    def delete_partitions(self, partitions: Collection[Partition]) -> trio.Event:
        """Delete partitions that brokers have written. The returned event is set when they are deleted."""
        self._own.forget(partitions)
        return self._storage.delete_partitions(partitions)

    async def delete_before(self, log: Log, offset: Offset) -> None:
        """Delete the records of a log before an offset, from all its partitions.

        A partition with records in several logs is trimmed up to the first record that one of these logs still has.
        Raise `TopicDeletedError` or `StorageError`.
        """
        partitions = [log.partition_of(address) for address in log.index.addresses()]
        self._storage.waits.check()
        self._log_table.delete_before(log, offset)
        written = self._storage.write()
        with self._storage.waits.bounded():
            await written.wait()
        if log.is_gone:
            raise TopicDeletedError(log.topic)
        await self._storage.trim({each: self._log_table.first_needed(each) for each in partitions})

    async def drop_topic(self, deletion: Deletion, logs: Iterable[Log]) -> None:
        """Drop the partitions of a topic after its deletion is durable."""
        await self._storage.wait_durable()
        own = [partition for log in logs for partition in (log.leader_partition, log.index_partition)]
        partitions = self._machine.partitions_of(deletion.topic.topic_id)
        await self.delete_partitions(dict.fromkeys((*own, *partitions))).wait()
        await self.trim_deleted(deletion.topic.name)

    async def trim_deleted(self, name: str) -> None:
        """Drop the records of deleted topics of a name from producer partitions."""
        partitions = [Partition(name, address) for address in self._storage.stored.durable.get(name, {})]
        starts = self._log_table.producer_starts
        try:
            await self._storage.trim({each: starts[each] for each in partitions if each in starts})
        except StorageError as error:  # the next start of the broker drops them
            _LOGGER.warning("cannot drop records of a deleted topic %s: %s", name, error)
