"""Applies retention: deletes expired records, and obsolete records of indexes and of local state."""

from __future__ import annotations

from collections.abc import Iterable

from dafka.broker.core.log.log import Log
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.metadata.topics import MESSAGES_AGE_MS, MESSAGES_TOPIC, Topic
from dafka.broker.core.replication.replicated_logs import ReplicatedLog
from dafka.broker.local_state import LocalState
from dafka.broker.replication.index_reader import restore_log
from dafka.config import StoreConfig
from dafka.internal_topics import is_system_topic
from dafka.protocol.machines.stored_partitions import StoredPartitions
from dafka.protocol.presence.identity import owner_of
from dafka.records import Partition
from dafka.roles.store import default_retention
from dafka.storage import RetentionPolicy, Storage


class LogRetention:
    """The retention of one broker.

    A follower has no index of its logs in memory. It reads the index of a log again when the leader has advanced the
    log's start offset. A leader deletes records at once, except those that it had to delete as a follower.

    Args:
        storage: The storage.
        stored: The partitions in the storage.
        log_table: The topics and their logs.
        logs: The replicated logs.
        state: The broker's state.
        config: The limits of topics that have none of their own.
        address: The address of the broker.
    """

    def __init__(
        self,
        storage: Storage,
        stored: StoredPartitions,
        log_table: LogTable,
        logs: Iterable[ReplicatedLog],
        state: LocalState,
        config: StoreConfig,
        address: str,
    ) -> None:
        self._storage = storage
        self._stored = stored
        self._log_table = log_table
        self._logs = logs
        self._state = state
        self._config = config
        self._address = address
        self._trimmed: dict[str, int] = {}

    async def apply(self) -> dict[Partition, int]:
        """Delete the records beyond the limits of each topic, and obsolete records of indexes and state.

        Returns:
            The first remaining sequence of each partition of which records were deleted.

        Raises:
            StorageError: The storage fails.
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
