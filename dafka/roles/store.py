"""The store: makes every record durable, acknowledges it, and sends it to nodes that missed it."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

import attrs
import trio

from dafka.config import Config
from dafka.config.settings import StoreConfig
from dafka.errors import StorageError, StorageLostError, StorageUnsupportedError
from dafka.exceptions import unwrap_group
from dafka.internal_topics import is_internal_topic, is_system_topic
from dafka.protocol import (
    CommitQueue,
    DeletePartitions,
    ForgetPartitions,
    ReadRequest,
    RecordsDropped,
    ResetPosition,
    StorageFailed,
    StorageLost,
    StorageRepaired,
    StoreMachine,
)
from dafka.protocol.token_bucket import TokenBucket
from dafka.records import Partition, RecordBatch
from dafka.roles.compactor import Compactor
from dafka.roles.fetch_replies import FetchReplies
from dafka.roles.logging_events import CommitSlow, RecordsUnwritten, StorageOpened
from dafka.roles.position_replies import PositionReplies
from dafka.roles.role import NodeRole
from dafka.roles.sockets import NodeSockets, open_sockets
from dafka.roles.statistics import Health, Histogram, Timer
from dafka.roles.trio_context import check_in_trio
from dafka.storage import (
    DeletesPartitions,
    DetectsRemoval,
    HasColdTier,
    KeepsRecordBatches,
    PartitionInfo,
    RetentionPolicy,
    Storage,
    TierStatistics,
    open_storage,
)
from dafka.storage.base import delete_partitions
from dafka.storage.plugin_helpers import now_ms
from dafka.wire import Role

STUCK_S = 60.0
"""Seconds after which one transaction counts as stuck, so that a supervisor should restart the store."""

SLOW_COMMIT_REPEAT_S = 60.0
"""Seconds after which a slow commit is logged again."""

FORGET_PAUSE_S = 1.0
"""Seconds until further partitions are forgotten, if there are many."""

REMOVAL_CHECK_S = 1.0
"""Seconds between two checks whether the storage was removed; it may be idle otherwise."""


@attrs.frozen
class TopicCounts:
    """A topic in a store.

    Attributes:
        partitions: The number of its partitions that have durable records.
        records: The records before the end of the durable part of each partition, with those that were dropped since.
    """

    partitions: int
    records: int


@attrs.frozen
class StoreStatistics:
    """A store's counters since it was opened.

    Attributes:
        partitions: Partitions that it knows.
        records_stored: Records made durable.
        bytes_stored: The bytes of their contents.
        records_dropped: Records dropped by retention.
        records_compacted: Superseded records removed by compaction.
        commits: Transactions of its storage.
        commit_seconds: The durations of the transactions, in seconds.
        pending_bytes: Memory of the records received and not yet durable.
        fetches_sent: FETCHes sent for missing records.
        fetches_received: FETCHes answered.
        records_sent: Records sent in answers to FETCHes.
        bytes_sent: The bytes of their contents.
        lag: By partition, how many records are known to exist and are not durable here; only partitions that have any.
        missing_records: The part of the lag for which several FETCHes in a row were not answered.
        is_full: Whether the store takes no further partition, or its storage fails.
        discarded: Messages that were discarded, by reason.
        peers: Nodes that this one is connected to.
        topics: The topics that have durable records.
        cold: The cold tier of its storage; None if there is none.
    """

    partitions: int
    records_stored: int
    bytes_stored: int
    records_dropped: int
    commits: int
    commit_seconds: Histogram
    pending_bytes: int
    fetches_sent: int
    fetches_received: int
    records_sent: int
    bytes_sent: int
    lag: dict[Partition, int]
    missing_records: int
    is_full: bool
    discarded: dict[str, int]
    peers: int
    topics: dict[str, TopicCounts] = attrs.field(factory=dict)
    cold: TierStatistics | None = None
    records_compacted: int = 0


class Store(NodeRole):
    """A running store, started by `serve_store`.

    Attributes:
        address: The store's node address, which is kept in its storage.
        endpoint: The endpoint that other nodes connect to.
        events: The events of the store since it was started; an async iterable.
        compactor: Compacts partitions.
        finish_by: Until when it may write what it has received when it is stopped, by Trio's clock. It has `[node]
            grace_ms` at most.
    """

    def __init__(self, machine: StoreMachine, sockets: NodeSockets, storage: Storage, config: Config) -> None:
        """Create the store. Programs call `serve_store` instead."""
        super().__init__(machine, sockets, config)
        self._machine = machine
        self._storage = storage
        self._config = config.store
        self._retry_s = config.store.retry_ms / 1000
        self._grace_s = config.node.grace_ms / 1000
        self._commit_timer = Timer()
        self._slow_commit_log = TokenBucket(1 / SLOW_COMMIT_REPEAT_S, 1, trio.current_time())
        self._writing_since: float | None = None
        self._refusal = ""
        cold_end = storage.cold_end if isinstance(storage, HasColdTier) else None
        self._replies = FetchReplies(sockets, machine.responder, self._read, cold_end)
        self._positions = PositionReplies(sockets, machine.answers.positions, storage, machine.stored.durable_end)
        self._commits = CommitQueue(machine)
        self._arrived = trio.lowlevel.ParkingLot()
        self._records_dropped = 0
        self.compactor = Compactor(storage, config.store, self.events.put)
        self._is_lost = False
        self.finish_by = math.inf

    def statistics(self) -> StoreStatistics:
        """Return the counters so far, and the lag."""
        machine = self._machine
        lag = {
            partition: cursor.known_end - machine.stored.durable_end(partition)
            for partition, cursor in machine.reassembler.cursors.items()
            if cursor.known_end > machine.stored.durable_end(partition)
        }
        return StoreStatistics(
            partitions=len(machine.reassembler.cursors),
            records_stored=self._commits.records,
            bytes_stored=self._commits.bytes,
            records_dropped=self._records_dropped,
            commits=self._commits.commits,
            commit_seconds=self._commit_timer.histogram(),
            pending_bytes=machine.pending_bytes,
            fetches_sent=machine.reassembler.fetches_sent,
            fetches_received=machine.answers.fetches_received,
            records_sent=machine.responder.records_sent,
            bytes_sent=machine.responder.bytes_sent,
            lag=lag,
            missing_records=machine.missing.count(),
            is_full=bool(self._refusal or machine.room.full_reason),
            discarded=self.discarded(),
            peers=self._node.peers,
            topics={
                topic: TopicCounts(len(partitions), sum(partitions.values()))
                for topic, partitions in machine.stored.durable.items()
                if not is_internal_topic(topic)
            },
            cold=self._storage.tier_statistics() if isinstance(self._storage, HasColdTier) else None,
            records_compacted=self.compactor.records_removed,
        )

    def health(self) -> Health:
        """Return the store's health: whether its storage works, and whether it has found its cluster."""
        since = self._writing_since
        waited = 0.0 if since is None else trio.current_time() - since
        trouble = f"one transaction of the storage has taken {waited:.0f} s so far" if waited >= STUCK_S else ""
        refusal = f"the storage fails: {self._refusal}" if self._refusal else self._machine.room.full_reason
        return Health(trouble, trouble or refusal or super().health().unready)

    def _report_opened(self, url: str, held: Mapping[Partition, PartitionInfo]) -> None:
        """Log what the storage holds, and report what was repaired."""
        records = sum(info.count for info in held.values())
        self.events.log.write(StorageOpened(url, len(held), records))
        for damage in self._storage.repairs:
            self.events.put(StorageRepaired(str(damage)))

    async def _run(self, task_status: trio.TaskStatus[Store]) -> None:
        """Run until cancelled, then write what has been received. Raises `StorageLostError`."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._run_until_lost, self._write)
                nursery.start_soon(self._replies.run)
                nursery.start_soon(self._positions.run)
                if self._drops_records():
                    nursery.start_soon(self._run_until_lost, self._retain)
                if self._compacts():
                    nursery.start_soon(self._run_until_lost, self._compact)
                nursery.start_soon(self._forget)
                if isinstance(self._storage, DetectsRemoval):
                    nursery.start_soon(self._run_until_lost, self._watch_removal, self._storage)
                await nursery.start(self._run_node)
                task_status.started(self)
        finally:
            try:
                await self._finish()
            finally:
                self._close()  # after the last events

    async def _finish(self) -> None:
        """Write and acknowledge what has been received, as far as the grace period allows."""
        with trio.CancelScope(shield=True, deadline=min(trio.current_time() + self._grace_s, self.finish_by)):
            try:
                while self._has_work() and not self._is_lost:
                    await self._flush()
            except StorageError as error:
                self._refuse(error)
        if self._has_work():
            self.events.log.write(RecordsUnwritten(self._machine.pending_bytes, self._refusal), logging.WARNING)

    async def _run_until_lost(self, task: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Run a task until it finds that the storage was removed. Its contents can no longer be relied on."""
        try:
            await task(*arguments)
        except StorageLostError as error:
            if self._is_lost:  # another task was the first to notice
                return
            self._is_lost = True
            self.events.put(StorageLost(str(error)))
            raise

    async def _watch_removal(self, storage: DetectsRemoval) -> None:
        while True:
            await trio.sleep(REMOVAL_CHECK_S)
            try:
                await storage.check_not_removed()
            except StorageLostError:
                raise
            except StorageError:
                pass  # the writing task reports it

    def _on_records(self, batch: RecordBatch) -> None:
        self._commits.put_records(batch)
        self._arrived.unpark_all()

    def _on_reset_position(self, reset: ResetPosition) -> None:
        self._commits.put_reset(reset)
        self._arrived.unpark_all()

    def _on_change(self) -> None:
        self._replies.wake()
        self._positions.wake()

    async def _read(self, request: ReadRequest) -> RecordBatch | None:
        batch = await self._storage.read(request.partition, request.first_sequence, request.count)
        if batch is None:
            await self._learn_earliest(request)
        return batch

    async def _learn_earliest(self, request: ReadRequest) -> None:
        """Learn which records a bounded storage has dropped by itself, to answer further FETCHes for them."""
        partition = request.partition
        info = await self._storage.find_partition(partition)
        if info is not None and info.earliest_sequence > request.first_sequence:
            self._records_dropped += self._machine.records_trimmed({partition: info.earliest_sequence})

    async def _write(self) -> None:
        while True:
            if not self._has_work():
                await self._arrived.park()
            try:
                await self._flush()
            except StorageLostError:
                raise
            except StorageError as error:
                self._refuse(error)
                await trio.sleep(self._retry_s)

    def _has_work(self) -> bool:
        """Return whether something waits for the storage."""
        return bool(self._commits)

    def _drops_records(self) -> bool:
        """Return whether `_retain` may find records to drop."""
        return self._config.has_retention

    def _compacts(self) -> bool:
        """Return whether the store compacts partitions by itself."""
        return bool(self._config.compact_topics)

    def _refuse(self, error: StorageError) -> None:
        self._refusal = str(error)
        self._node.act(self._commits.work_failed(self._refusal))

    async def _flush(self) -> None:
        """Carry out the next work for the storage, then acknowledge it."""
        work = self._commits.begin_work()
        if isinstance(work, ResetPosition):
            await self._storage.reset_to(work.partition, work.next_sequence)
        elif isinstance(work, ForgetPartitions | DeletePartitions):
            await delete_partitions(self._storage, work.partitions)
        else:
            await self._append(work)
        self._refusal = ""
        self._node.act(self._commits.work_done(trio.current_time()))

    async def _append(self, batches: list[RecordBatch]) -> None:
        if not self.compactor.is_possible and any(batch.compacted is not None for batch in batches):
            raise StorageUnsupportedError(
                "other stores have compacted records, and this storage cannot keep the places of removed ones; "
                "use sqlite: or filelog:"
            )
        self._writing_since = begun = trio.current_time()
        try:
            await self._storage.append(batches)
        finally:
            self._writing_since = None
        now = trio.current_time()
        self._commit_timer.add(now - begun)
        is_slow = now - begun > self._config.slow_commit_ms / 1000
        if is_slow and self._slow_commit_log.try_take(now):
            records, size = sum(map(len, batches)), sum(batch.content_bytes for batch in batches)
            self.events.log.write(CommitSlow(now - begun, records, size), logging.WARNING)

    async def _forget(self) -> None:
        """Forget partitions that have ended and hold no records, and partitions known only by name."""
        can_delete = isinstance(self._storage, DeletesPartitions)
        while True:
            await trio.sleep(self._config.retention_interval_ms / 1000)
            self._machine.drop_silent_unproven(trio.current_time())
            while can_delete and (silent := self._machine.silent_partitions(trio.current_time())):
                self._commits.put_silent(silent)
                self._arrived.unpark_all()
                await trio.sleep(FORGET_PAUSE_S)

    async def _retain(self) -> None:
        """Drop the records beyond the retention limits, at once and then each interval."""
        while True:
            try:
                moved = await self._apply_retention()
            except StorageLostError:
                raise
            except StorageError as error:
                self.events.put(StorageFailed(str(error)))
            else:
                dropped = self._machine.records_trimmed(moved)
                self._records_dropped += dropped
                if dropped:
                    self.events.put(RecordsDropped(dropped, len(moved)))
            await trio.sleep(self._config.retention_interval_ms / 1000)

    async def _apply_retention(self) -> dict[Partition, int]:
        """Drop the records beyond the retention limits; return the first sequence left of each partition."""
        policy = default_retention(self._config)
        moved: dict[Partition, int] = {}
        for topic in list(self._machine.stored.durable):  # never all at once: meanwhile others come, to be kept whole
            if not self._keeps_whole(topic):
                moved.update(await self._storage.apply_retention(policy, topic))
        return moved

    def _keeps_whole(self, topic: str) -> bool:
        """Return whether limits do not apply to a topic: it is compacted, or brokers need it."""
        return is_system_topic(topic) or self._config.compacts(topic)

    async def _compact(self) -> None:
        """Compact the partitions of topics that are compacted, at once and then each interval."""
        while True:
            compacted = filter(self._config.compacts, self._machine.stored.durable)
            for topic in [each for each in compacted if not is_system_topic(each)]:
                for partition in await self._storage.partitions(topic):
                    await self.compactor.compact(partition)
            await trio.sleep(self._config.compaction_interval_ms / 1000)


def default_retention(config: StoreConfig) -> RetentionPolicy:
    """Return the limits that the configuration of a store sets for every partition."""
    return RetentionPolicy(
        age_ms=config.retention_ms or None,
        bytes_max=config.retention_bytes or None,
        records_max=config.retention_records or None,
    )


class HeldPartitions(NamedTuple):
    """What a storage holds when a store starts, as the machine of the store takes it.

    Attributes:
        ends: By partition, the sequence after its last record.
        earliest: By partition, the sequence of its first record, if it is not 0.
        idle_s: By partition, the seconds since its last record was appended.
    """

    ends: dict[Partition, int]
    earliest: dict[Partition, int]
    idle_s: dict[Partition, float]


def describe_held(held: Mapping[Partition, PartitionInfo]) -> HeldPartitions:
    """Return what a machine needs to know of the partitions in a storage that other nodes may see."""
    time_ms = now_ms()
    return HeldPartitions(
        {partition: info.end_sequence for partition, info in held.items()},
        {partition: info.earliest_sequence for partition, info in held.items() if info.earliest_sequence},
        {
            partition: (time_ms - info.last_append_at) / 1000
            for partition, info in held.items()
            if info.last_append_at is not None
        },
    )


async def serve_store(
    config: Config | None = None, *, task_status: trio.TaskStatus[Store] = trio.TASK_STATUS_IGNORED
) -> None:
    """Run a store until cancelled: `store = await nursery.start(dafka.serve_store, config)`.

    When it is cancelled, it writes what it has received, for at most `[node] grace_ms`.

    Args:
        config: The configuration; the defaults if None.
        task_status: Receives the `Store` once it listens.

    Raises:
        StorageError: The storage cannot be opened, for example because another process uses it (`StorageBusyError`).
        StorageLostError: The storage was removed or replaced while it was open. Started again, the store opens what is
            there then, or a new storage, and fetches the records that it misses.
        AddressInUseError: The node cannot listen at the configured endpoint.
        DiscoveryError: The discovery cannot be set up.
    """
    check_in_trio("serve_store")
    config = config or Config()
    with unwrap_group():
        async with open_storage(config.storage_url) as storage:
            held = await storage.partitions()
            machine = StoreMachine(storage.identity, config, *describe_held(held))
            async with open_sockets(
                storage.identity,
                config,
                Role.STORE,
                config.store.high_watermark,
                keeps_record_batches=isinstance(storage, KeepsRecordBatches),
            ) as sockets:
                store = Store(machine, sockets, storage, config)
                store._report_opened(config.store.storage, held)
                await store._run(task_status)
