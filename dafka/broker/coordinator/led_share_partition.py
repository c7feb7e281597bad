"""A share partition while this broker leads its log, and how it is loaded from the coordinator of its group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import attrs
import trio

from dafka.broker.coordinator.groups import follow_divergences
from dafka.broker.coordinator.share_store import COORDINATOR_ERRORS, ShareStore
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.results import FetchedOffset
from dafka.broker.core.groups.share.settings import ShareSettings
from dafka.broker.core.groups.share.share_partition import ShareEvent, SharePartition
from dafka.broker.core.groups.share.state import SharePartitionKey, ShareState
from dafka.broker.core.log.log import Log
from dafka.broker.core.positions import Offset
from dafka.broker.core.tables import BrokerTables
from dafka.broker.core.topic_partition import TopicPartition
from dafka.broker.log.reader import LogReader
from dafka.broker.log.waiters import LogWaiters
from dafka.broker.replication.leases import LeaderLeases
from dafka.errors import StorageError

RETRY_S = 0.2
"""The time before a request to a coordinator is repeated."""


@attrs.define(eq=False)
class LedSharePartition:
    """A share partition of a log, while this broker leads it in one epoch.

    Attributes:
        partition: Its records; None until it is loaded.
        error: Why it is no longer served; NONE while it is.
        written: The revision that is committed.
        changed: Set when one of these changes, and then replaced.
        is_reading: Whether its records are being read for a member.
        is_wanted: Whether another member waits until they are read.
        is_writing: Whether changes are being written.
        is_storing_letters: Whether dead letters are being stored.
        used_at: When it was used last, by trio's clock.
        verified_at: When its state was last compared with the coordinator's, by trio's clock.
    """

    key: SharePartitionKey
    log: Log
    epoch: int
    partition: SharePartition | None = None
    error: ErrorCode = ErrorCode.NONE
    written: int = 0
    changed: trio.Event = attrs.field(factory=trio.Event)
    is_reading: bool = False
    is_wanted: bool = False
    is_writing: bool = False
    is_storing_letters: bool = False
    used_at: float = 0.0
    verified_at: float = 0.0

    @property
    def is_current(self) -> bool:
        """Whether it is served."""
        leadership = self.log.leadership
        return not self.error and leadership.is_led and leadership.epoch == self.epoch

    def notify(self) -> None:
        """Notify the tasks that wait for a change."""
        changed, self.changed = self.changed, trio.Event()
        changed.set()


@attrs.define(eq=False, slots=False)
class ShareLoader:
    """Loads share partitions.

    `time_ms` returns the time in milliseconds since 1970, `settings_of` the settings of a share group.
    """

    _tables: BrokerTables
    _store: ShareStore
    _leases: LeaderLeases
    _watchers: LogWaiters
    _reader: LogReader
    _time_ms: Callable[[], int]
    _settings_of: Callable[[str], ShareSettings]

    async def load(
        self, served: LedSharePartition, counts: Mapping[str, Counter[ShareEvent]]
    ) -> SharePartition | ErrorCode:
        """Return the records of a share partition, or why it cannot be served.

        What happens to them is counted in the `counts` of its group.
        """
        log = served.log
        while served.is_current and not (log.is_end_known and self._leases.holds_lease(log)):
            with self._watchers.watching([log]) as advanced, trio.move_on_after(RETRY_S):
                await advanced.wait()
        while served.is_current:
            stored = await self._store.load(served.key, served.epoch)
            try:
                loaded = stored.error_code or await self._open(served, stored.state, counts)
            except StorageError:
                loaded = ErrorCode.KAFKA_STORAGE_ERROR
            if loaded not in COORDINATOR_ERRORS:
                return loaded
            await trio.sleep(RETRY_S)
        return served.error or ErrorCode.NOT_LEADER_OR_FOLLOWER

    async def _open(
        self, served: LedSharePartition, stored: ShareState, counts: Mapping[str, Counter[ShareEvent]]
    ) -> SharePartition | ErrorCode:
        """Return the records of a share partition, once the offset at which it begins is committed."""
        log, state = served.log, stored
        if state.start_offset < 0:
            state = attrs.evolve(state, start_offset=await self._find_start(served))
        elif state.written_epoch >= 0:
            end = FetchedOffset(state.end_offset, state.written_epoch, "", ErrorCode.NONE)
            partition = TopicPartition(log.topic, log.number)
            state = state.cut(follow_divergences(self._tables, partition, end).offset)
        opened = SharePartition(state, served.epoch, counts[served.key.group_id])
        if not served.is_current:  # another one can be served already, whose state this must not overwrite
            return served.error or ErrorCode.NOT_LEADER_OR_FOLLOWER
        error = ErrorCode.NONE if opened.store() == stored else await self._store.write(served.key, opened.store())
        return error or opened

    async def _find_start(self, served: LedSharePartition) -> Offset:
        """Return where a new group begins. Raise `StorageError` if times cannot be read."""
        log, settings = served.log, self._settings_of(served.key.group_id)
        if settings.begins_after_ms is None:
            return log.index.start_offset if settings.is_earliest else log.high_watermark
        found = await self._reader.find_offset_by_time(log, self._time_ms() - settings.begins_after_ms)
        return log.high_watermark if found is None else min(found[0], log.high_watermark)
