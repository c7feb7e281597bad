"""The share partitions of the logs that this broker leads.

Each is loaded from the coordinator of its group when a member asks for records. All changes are written there. Changes
that come while one is written become the next write, so that many acknowledgements share one. Dead letters are stored
once it is committed that their records are given up, so that none of these is delivered again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

import attrs
import trio

from dafka.broker.coordinator.dead_letters import DeadLetterQueue, StoredLetters
from dafka.broker.coordinator.led_share_partition import RETRY_S, LedSharePartition, ShareLoader
from dafka.broker.coordinator.share_store import COORDINATOR_ERRORS, ShareStore
from dafka.broker.core.coordination.deadlines import Deadlines
from dafka.broker.core.coordination.effects import ReplacedState
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.share.runs import RecordState
from dafka.broker.core.groups.share.settings import ShareSettings
from dafka.broker.core.groups.share.share_partition import (
    Acknowledgement,
    AcknowledgeType,
    AcquiredRange,
    ShareEvent,
)
from dafka.broker.core.groups.share.state import SharePartitionKey
from dafka.broker.core.log.log import Log
from dafka.broker.log.durable_waits import DurableWaits
from dafka.broker.log.waiters import LogWaiters
from dafka.broker.replication.leases import LeaderLeases
from dafka.errors import StorageError
from dafka.steady_clock import steady_now_ms

IDLE_S = 600.0
"""How long a share partition stays without requests."""


@attrs.define(eq=False, slots=False)
class SharePartitions:
    """The share partitions here. `settings_of` returns the settings of a share group."""

    _store: ShareStore
    _loader: ShareLoader
    _leases: LeaderLeases
    _watchers: LogWaiters
    _waits: DurableWaits
    _dead_letters: DeadLetterQueue
    settings_of: Callable[[str], ShareSettings]
    counts: defaultdict[str, Counter[ShareEvent]] = attrs.field(init=False, factory=lambda: defaultdict(Counter))
    """What has happened to records here, by group. Groups that are not used here are forgotten."""
    _served: dict[SharePartitionKey, LedSharePartition] = attrs.field(init=False, factory=dict)
    _locks: Deadlines[SharePartitionKey] = attrs.field(init=False, factory=Deadlines)
    _has_locked: trio.Event = attrs.field(init=False, factory=trio.Event)
    _nursery: trio.Nursery = attrs.field(init=False)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Load and write share partitions, and release records whose locks have expired, until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._forget_idle)
            task_status.started()
            await self._keep_time()

    def find(self, group_id: str, log: Log, topic_id: str) -> LedSharePartition:
        """Return the share partition of a group and a log that this broker leads, and begin to load it if needed."""
        key = SharePartitionKey(group_id, topic_id, log.number)
        found = self._served.get(key)
        if found is None or not found.is_current:
            found = self._served[key] = LedSharePartition(key, log, log.leadership.epoch)
            self._nursery.start_soon(self._load, found)
        found.used_at = trio.current_time()
        return found

    def served(self, group_id: str, topic_id: str, number: int) -> LedSharePartition | None:
        """Return a share partition that is loaded and served; None if it is not."""
        found = self._served.get(SharePartitionKey(group_id, topic_id, number))
        return found if found is not None and found.is_current and found.partition is not None else None

    def count_records(self) -> Counter[tuple[str, RecordState]]:
        """Return how many records of each group are acquired here, or wait for dead letters, by group and state."""
        found = Counter[tuple[str, RecordState]]()
        for key, served in self._served.items():
            for run in () if served.partition is None else served.partition.runs:
                if run.state in {RecordState.ACQUIRED, RecordState.ARCHIVING}:
                    found[key.group_id, run.state] += run.end - run.first
        return found

    def acknowledge(
        self, served: LedSharePartition, member_id: str, acknowledgements: Sequence[Acknowledgement]
    ) -> ErrorCode:
        """Acknowledge records that a member has. They stay acknowledged only once `wait_written` returns."""
        assert served.partition is not None
        limits, now_ms = self.settings_of(served.key.group_id).limits, steady_now_ms()
        error = served.partition.acknowledge(member_id, acknowledgements, limits, now_ms)
        self.on_change(served)
        return error

    def acknowledge_acquired(
        self,
        served: LedSharePartition,
        member_id: str,
        acknowledgements: Iterable[Acknowledgement],
        others: AcknowledgeType | None = None,
    ) -> list[Acknowledgement]:
        """Acknowledge those records that a member still has. Return what was acknowledged; see `acknowledge`.

        `others` is what the member says of all other records that it has; None for nothing.
        """
        assert served.partition is not None
        limits, now_ms = self.settings_of(served.key.group_id).limits, steady_now_ms()
        found = served.partition.find_acquired(member_id, acknowledgements, others, limits, now_ms)
        served.partition.acknowledge(member_id, found, limits, now_ms)
        self.on_change(served)
        return found

    @contextmanager
    def delivering(self, member_id: str) -> Iterator[dict[LedSharePartition, Sequence[AcquiredRange]]]:
        """Give the block a dict for the records that it acquires for a member. They are withdrawn if it fails."""
        acquired = dict[LedSharePartition, Sequence[AcquiredRange]]()
        try:
            yield acquired
        except BaseException:
            for served, ranges in acquired.items():
                self.withdraw(served, member_id, ranges)
            raise

    def withdraw(self, served: LedSharePartition, member_id: str, ranges: Iterable[AcquiredRange]) -> None:
        """Take back records that a member has acquired, but not got. That delivery does not count."""
        assert served.partition is not None
        served.partition.withdraw(member_id, ranges)
        self._watchers.notify(served.log)

    async def wait_written(self, changed: Iterable[LedSharePartition]) -> dict[LedSharePartition, ErrorCode]:
        """Wait until all changes so far of share partitions are committed. Return for which ones that is not certain.

        They are waited for together: see `DurableWaits.bounded`.
        """
        revisions = {served: served.partition.revision for served in changed if served.partition is not None}
        with suppress(StorageError), self._waits.bounded():
            for served, revision in revisions.items():
                while served.written < revision and not served.error:
                    await served.changed.wait()
        return {
            served: served.error or ErrorCode.KAFKA_STORAGE_ERROR
            for served, revision in revisions.items()
            if served.written < revision
        }

    def release(self, group_id: str, member_id: str) -> None:
        """Release what a member of a group has in all share partitions here."""
        limits = self.settings_of(group_id).limits
        for key, served in self._served.items():
            if key.group_id == group_id and served.partition is not None and served.is_current:
                served.partition.release(member_id, limits)
                self.on_change(served)

    def on_read(self, served: LedSharePartition) -> None:
        """Notify the members that wait for the end of a read."""
        if served.is_wanted:
            served.is_wanted = False
            self._watchers.notify(served.log)

    def holds_lease(self, served: LedSharePartition) -> bool:
        """Return whether no other broker can lead the log. Call it right before the response with acquired records."""
        return served.is_current and self._leases.holds_lease(served.log)

    def on_change(self, served: LedSharePartition) -> None:
        """Write what has changed, notify the members that wait for records, and watch their locks."""
        assert served.partition is not None
        self._watch_locks(served)
        if served.partition.revision > served.written:
            self._watchers.notify(served.log)
            if not served.is_writing:
                served.is_writing = True
                self._nursery.start_soon(self._write, served)
            self._store_dead_letters(served)

    def _watch_locks(self, served: LedSharePartition) -> None:
        """Watch the locks of records that were acquired or renewed."""
        assert served.partition is not None
        deadline_ms = served.partition.next_deadline_ms()
        if deadline_ms is not None and self._served.get(served.key) is served:
            due_ms = self._locks.next_deadline_ms()
            self._locks.set(served.key, deadline_ms)
            if self._locks.next_deadline_ms() != due_ms:
                self._has_locked.set()

    def _store_dead_letters(self, served: LedSharePartition) -> None:
        """Begin to store the dead letters of records that wait for them."""
        assert served.partition is not None
        if not served.is_storing_letters and served.partition.awaiting_dead_letters():
            served.is_storing_letters = True
            self._nursery.start_soon(self._keep_storing_letters, served)

    async def _keep_storing_letters(self, served: LedSharePartition) -> None:
        """Store dead letters until no record waits for its letter, and archive the records."""
        partition, group_id = served.partition, served.key.group_id
        assert partition is not None
        while served.is_current and (waiting := partition.awaiting_dead_letters()):
            if await self.wait_written([served]) or not self._leases.holds_lease(served.log):
                await trio.sleep(RETRY_S)
                continue
            for run in waiting:
                settings = self.settings_of(group_id)
                try:
                    done = await self._dead_letters.store(
                        served.log, group_id, run, settings, lambda: served.is_current
                    )
                except StorageError:
                    done = StoredLetters(run.first)
                if not served.is_current:
                    break
                self.counts[group_id][ShareEvent.DEAD_LETTERED] += done.stored
                self.counts[group_id][ShareEvent.UNDELIVERABLE] += done.refused
                if done.end > run.first:
                    partition.end_dead_letters(run.first, done.end)
                    self.on_change(served)
                else:
                    await trio.sleep(RETRY_S)
        served.is_storing_letters = False

    def _end(self, served: LedSharePartition, error: ErrorCode) -> None:
        """Stop serving a share partition, if it is served. It is loaded again when a member asks for its records."""
        served.error = served.error or error
        if self._served.get(served.key) is served:
            del self._served[served.key]
            self._locks.cancel(served.key)
        served.notify()
        self._watchers.notify(served.log)

    async def _load(self, served: LedSharePartition) -> None:
        """Load a share partition and begin to serve it, or stop serving it."""
        loaded = await self._loader.load(served, self.counts)
        if isinstance(loaded, ErrorCode) or not served.is_current:
            self._end(served, loaded if isinstance(loaded, ErrorCode) else ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        served.partition = loaded
        served.verified_at = trio.current_time()
        served.notify()
        self._watchers.notify(served.log)
        self._store_dead_letters(served)

    def drop_replaced(self, states: Iterable[ReplacedState]) -> None:
        """Stop serving share partitions whose states were replaced, loaded or not, and wake their members."""
        for group_id, topic_id, number, state_id in states:
            served = self._served.get(SharePartitionKey(group_id, topic_id, number))
            if served is not None and (served.partition is None or served.partition.state_id != state_id):
                self._end(served, ErrorCode.FENCED_STATE_EPOCH)

    async def verify(self, served: LedSharePartition) -> None:
        """Compare a share partition with its coordinator, and stop serving it if its state was replaced there.

        Call this for a new member, and from time to time: the message for `drop_replaced` can have been lost.
        """
        if served.partition is None:
            return
        served.verified_at = trio.current_time()
        loaded = await self._store.load(served.key, served.epoch)
        is_replaced = not loaded.error_code and loaded.state.state_id != served.partition.state_id
        if is_replaced or (loaded.error_code and loaded.error_code not in COORDINATOR_ERRORS):
            self._end(served, loaded.error_code or ErrorCode.FENCED_STATE_EPOCH)

    async def _write(self, served: LedSharePartition) -> None:
        """Write all changes of a share partition."""
        assert served.partition is not None
        while served.written < served.partition.revision and not served.error:
            revision = served.partition.revision
            error = await self._store.write(served.key, served.partition.store())
            if not error:
                served.written = revision
                served.notify()
            elif error not in COORDINATOR_ERRORS:
                self._end(served, error)
            elif not served.is_current:
                self._end(served, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            else:
                await trio.sleep(RETRY_S)
        served.is_writing = False

    async def _keep_time(self) -> None:
        """Release the records whose locks have expired."""
        while True:
            self._has_locked = trio.Event()
            due_ms = self._locks.next_deadline_ms()
            wait_s = float("inf") if due_ms is None else max(due_ms - steady_now_ms(), 0) / 1000
            with trio.move_on_after(wait_s):
                await self._has_locked.wait()
            now_ms = steady_now_ms()
            while (key := self._locks.pop_due(now_ms)) is not None:
                served = self._served.get(key)
                if served is not None and served.partition is not None:
                    served.partition.expire(self.settings_of(key.group_id).limits, now_ms)
                    self.on_change(served)
            await trio.lowlevel.checkpoint()

    async def _forget_idle(self) -> None:
        """Forget the share partitions that are not used, and have nothing to write, and groups without others."""
        while True:
            await trio.sleep(IDLE_S)
            for served in list(self._served.values()):
                is_idle = (
                    trio.current_time() - served.used_at > IDLE_S
                    and not served.is_writing
                    and not served.is_storing_letters
                )
                if is_idle and served.key not in self._locks:
                    self._end(served, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            for group_id in self.counts.keys() - {key.group_id for key in self._served}:
                del self.counts[group_id]
