"""Deletes records that are expired, or before the start of their log, and obsolete records of indexes and state."""

from __future__ import annotations

import logging
from collections.abc import Callable

import attrs
import trio

from dafka.broker.core.log.log import Log
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.metadata.topic_settings import drops_old_records
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.positions import Offset
from dafka.broker.core.replication.replicated_logs import ReplicatedLog, ReplicatedLogs
from dafka.broker.local_state import LocalState
from dafka.broker.log.broker_storage import BrokerStorage
from dafka.broker.log.expiry import find_retained_offset
from dafka.broker.log.log_starts import LogStarts
from dafka.broker.log.reader import LogReader
from dafka.broker.log.trimming import LogTrimmer
from dafka.config import StoreConfig
from dafka.errors import NotLeaderError, StorageError, TopicDeletedError
from dafka.internal_topics import is_internal_topic, is_system_topic
from dafka.protocol.presence.identity import owner_of
from dafka.records import Partition
from dafka.roles.store import Retention, default_retention
from dafka.storage import RetentionPolicy
from dafka.storage.plugin_helpers import now_ms

_LOGGER = logging.getLogger("dafka.broker")


@attrs.define(eq=False, slots=False)
class LogRetention(Retention):
    """The retention of one broker.

    Only the leader of a log decides which of its records are expired, while `may_expire` is true of it. All replicas,
    the leader included, then drop the records before the start of the log. Records that belong to no log stay.
    """

    _storage: BrokerStorage
    _log_table: LogTable
    _logs: ReplicatedLogs
    _state: LocalState
    _config: StoreConfig
    _address: str
    _reader: LogReader
    _starts: LogStarts
    _trimmer: LogTrimmer
    _may_expire: Callable[[Log], bool]

    async def apply(self) -> dict[Partition, int]:
        """Delete the records beyond the limits of each topic, and obsolete records of indexes and state.

        Return the first remaining sequence of each partition of which records were deleted. Raise `StorageError`.
        """
        await self._move_starts()
        stored = self._storage.stored
        moved: dict[Partition, int] = {}
        for name in list(stored.durable):
            if policy := _limits_without_leader(name, self._config):
                moved.update(await self._storage.storage.apply_retention(policy, name))
        for topic in list(self._log_table.topics):
            for partition, sequence in (await self._trimmer.find_surplus(topic)).items():
                await self._storage.storage.trim(partition, sequence)
                moved[partition] = sequence
        earliest = {**stored.earliest, **moved}
        for log in filter(self._log_table.leads, self._log_table.all_logs()):
            if not log.is_replicated:
                self._log_table.skip_dropped(log, earliest)
            self._log_table.forget_dropped(log, earliest)
            if log.index_first > log.index_trimmed:
                await self._storage.storage.trim(log.index_partition, log.index_first)
                log.index_trimmed = log.index_first
        for followed in list(self._logs):
            await self._trim_indexes(followed, moved)
        await self._state.trim(self._storage.storage)
        return moved

    async def _move_starts(self) -> None:
        """Move the starts of the logs that this broker leads beyond expired records. Raises `StorageError`."""
        async with trio.open_nursery() as nursery:
            for name, topic in list(self._log_table.topics.items()):
                policy = _limits_of(topic, self._config)
                infos = await self._storage.storage.partitions(name) if policy else {}
                for log in self._log_table.logs(name):
                    if not log.leadership.is_led:
                        continue
                    start = log.next_start  # a former leader may have decided it
                    if policy and self._may_expire(log):
                        arguments = self._storage.storage, self._reader, log, infos, policy, now_ms()
                        start = max(start, await find_retained_offset(*arguments))
                    if start > log.index.start_offset:
                        nursery.start_soon(self._move_start, log, start)

    async def _move_start(self, log: Log, start: Offset) -> None:
        try:
            await self._starts.move(log, start)
        except (NotLeaderError, TopicDeletedError):
            pass
        except StorageError as error:  # the next round tries again
            _LOGGER.warning("expired records of log %d of %s stay for now: %s", log.number, log.topic, error)

    async def _trim_indexes(self, log: ReplicatedLog, moved: dict[Partition, int]) -> None:
        """Delete the index records of a log that other brokers have rewritten."""
        for epoch, sequence in log.local_log.needed_from().items():
            partition = log.index_partition(epoch)
            is_own = owner_of(partition.address) == self._address
            if not is_own and sequence > self._storage.stored.earliest.get(partition, 0):
                await self._storage.storage.trim(partition, sequence)
                moved[partition] = sequence


def _limits_without_leader(name: str, config: StoreConfig) -> RetentionPolicy:
    """Return the limits of a topic that has no logs, such as the state of groups of nodes."""
    is_of_group = is_internal_topic(name) and not is_system_topic(name)
    return default_retention(config) if is_of_group else RetentionPolicy()


def _limits_of(topic: Topic, config: StoreConfig) -> RetentionPolicy:
    """Return the limits of a topic; its settings override the defaults. Topics of brokers have no limits."""
    if is_internal_topic(topic.name) or not drops_old_records(topic, config):
        return RetentionPolicy()
    default = default_retention(config)

    def choose(setting: str, otherwise: int | None) -> int | None:
        text = topic.settings.get(setting)
        return otherwise if text is None else (int(text) if int(text) >= 0 else None)

    return RetentionPolicy(
        age_ms=choose("retention.ms", default.age_ms),
        bytes_max=choose("retention.bytes", default.bytes_max),
        records_max=default.records_max,
    )
