"""The store: makes every record durable, acknowledges it, and sends it to nodes that missed it."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Protocol

import attrs
import trio

from dafka.config import Config
from dafka.config.settings import StoreConfig
from dafka.errors import StorageCorruptError, StorageError, StorageLostError
from dafka.exceptions import unwrap_group
from dafka.internal_topics import is_internal_topic, is_system_topic
from dafka.protocol import (
    CommitQueue,
    ReadRequest,
    RecordsDropped,
    ResetPosition,
    StorageFailed,
    StorageLost,
    StorageRepaired,
    StoreMachine,
)
from dafka.protocol.actions import Action, Effect
from dafka.protocol.machines.stored_partitions import StoredPartitions
from dafka.records import Partition, RecordBatch
from dafka.roles.commit_pipeline import CommitPipeline
from dafka.roles.compactor import Compactor
from dafka.roles.logging_events import RecordsUnwritten, StorageOpened
from dafka.roles.replies import FetchReplies, PositionReplies
from dafka.roles.role import NodeRole
from dafka.roles.sockets import NodeSockets, open_sockets
from dafka.roles.statistics import Health, StoreStatistics, TopicCounts
from dafka.roles.trio_context import check_in_trio
from dafka.storage import (
    DeletesPartitions,
    DetectsRemoval,
    HasColdTier,
    KeepsRecordBatches,
    PartitionInfo,
    RetentionPolicy,
    Storage,
    open_storage,
)
from dafka.storage.plugin_helpers import now_ms
from dafka.wire import Role

STUCK_S = 60.0
"""Seconds after which one transaction counts as stuck, so that a supervisor should restart the store."""

FORGET_PAUSE_S = 1.0
"""Seconds until more partitions are forgotten, if there are many."""

REMOVAL_CHECK_S = 1.0
"""Seconds between two checks whether the storage was removed; it may be idle otherwise."""


class Store(NodeRole):
    """A running store, started by `serve_store`. Its address is kept in its storage.

    Attributes:
        pipeline: Writes what it receives to its storage.
        retention: Drops records beyond limits; None for `StoreRetention`, and compaction of `[store] compact_topics`.
        compactor: Compacts partitions.
        finish_by: Until when a stopped store can write received records, by Trio's clock. It has at most `[node]
            grace_ms`.
    """

    def __init__(
        self,
        machine: StoreMachine,
        sockets: NodeSockets,
        storage: Storage,
        config: Config,
        execute: Callable[[Effect], None] | None = None,
    ) -> None:
        """Create the store. Programs call `serve_store` instead.

        `execute` executes the effects of the machine, if it has any.
        """
        super().__init__(machine, sockets, config)
        self._machine = machine
        self._storage = storage
        self._config = config.store
        self._grace_s = config.node.grace_ms / 1000
        self._execute = execute
        cold_end = storage.cold_end if isinstance(storage, HasColdTier) else None
        self._replies = FetchReplies(sockets, machine.responder, self._read, cold_end)
        self._positions = PositionReplies(sockets, machine.answers.positions, storage, machine.stored.durable_end)
        self.pipeline = CommitPipeline(CommitQueue(machine), storage, config.store, self._node.act, self.events.log)
        self._records_dropped = 0
        self.retention: Retention | None = None
        self.compactor = Compactor(storage, config.store, self.events.put)
        self._is_lost = False
        self.finish_by = math.inf

    def act(self, actions: Iterable[Action]) -> None:
        """Execute actions of the store's machine."""
        self._node.act(actions)

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
            records_stored=self.pipeline.queue.records,
            bytes_stored=self.pipeline.queue.bytes,
            records_dropped=self._records_dropped,
            commits=self.pipeline.queue.commits,
            commit_seconds=self.pipeline.timer.histogram(),
            pending_bytes=machine.pending_bytes,
            fetches_sent=machine.reassembler.fetches_sent,
            fetches_received=machine.answers.fetches_received,
            records_sent=machine.responder.records_sent,
            bytes_sent=machine.responder.bytes_sent,
            lag=lag,
            missing_records=machine.missing.count(),
            is_full=bool(self.pipeline.refusal or machine.capacity.full_reason),
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
        since, refusal = self.pipeline.writing_since, self.pipeline.refusal
        waited = 0.0 if since is None else trio.current_time() - since
        trouble = f"one transaction of the storage has taken {waited:.0f} s so far" if waited >= STUCK_S else ""
        refusal = f"the storage fails: {refusal}" if refusal else self._machine.capacity.full_reason
        return Health(trouble, trouble or refusal or super().health().unready)

    def report_opened(self, url: str, held: Mapping[Partition, PartitionInfo]) -> None:
        """Log the contents of the storage, and report repairs."""
        records = sum(info.count for info in held.values())
        self.events.log.write(StorageOpened(url, len(held), records))
        for damage in self._storage.repairs:
            self.events.put(StorageRepaired(str(damage)))

    async def run(self, *, task_status: trio.TaskStatus[Store]) -> None:
        """Run until cancelled, then write received records. Raises `StorageLostError`."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._run_until_lost, self.pipeline.run)
                nursery.start_soon(self._replies.run)
                nursery.start_soon(self._positions.run)
                if self.retention is not None:
                    nursery.start_soon(self._run_until_lost, self._retain, self.retention)
                else:
                    if self._config.has_retention:
                        retention = StoreRetention(self._storage, self._config, self._machine.stored)
                        nursery.start_soon(self._run_until_lost, self._retain, retention)
                    if self._config.compact_topics:
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
        """Write and acknowledge received records within the grace period."""
        with trio.CancelScope(shield=True, deadline=min(trio.current_time() + self._grace_s, self.finish_by)):
            if not self._is_lost:
                with suppress(StorageError):
                    await self.pipeline.finish()
        if self.pipeline.has_work():
            self.events.log.write(RecordsUnwritten(self._machine.pending_bytes, self.pipeline.refusal), logging.WARNING)

    async def _run_until_lost(self, task: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Run a task until it finds that the storage was removed. Its contents can no longer be relied on."""
        try:
            await task(*arguments)
        except StorageLostError as error:
            if self._is_lost:  # another task has noticed it first
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
        self.pipeline.queue.put_records(batch)
        self.pipeline.wake()

    def _on_reset_position(self, reset: ResetPosition) -> None:
        self.pipeline.queue.put_reset(reset)
        self.pipeline.wake()

    def _on_effect(self, effect: Effect) -> None:
        assert self._execute is not None
        self._execute(effect)

    def _on_change(self) -> None:
        self._replies.wake()
        self._positions.wake()

    async def _read(self, request: ReadRequest) -> RecordBatch | None:
        try:
            batch = await self._storage.read(request.partition, request.first_sequence, request.count)
        except StorageCorruptError as error:
            if self._execute is not None:
                self._execute(RecordsDamaged(request.partition, error))
            raise
        if batch is None:
            await self._learn_earliest(request)
        return batch

    async def _learn_earliest(self, request: ReadRequest) -> None:
        """Learn which records a bounded storage has dropped by itself, to answer more FETCHes for them."""
        partition = request.partition
        info = await self._storage.find_partition(partition)
        if info is not None and info.earliest_sequence > request.first_sequence:
            self._records_dropped += self._machine.records_trimmed({partition: info.earliest_sequence})

    async def _forget(self) -> None:
        """Forget ended partitions without records, and partitions known only by name."""
        can_delete = isinstance(self._storage, DeletesPartitions)
        while True:
            await trio.sleep(self._config.retention_interval_ms / 1000)
            self._machine.drop_silent_unproven(trio.current_time())
            while can_delete and (silent := self._machine.silent_partitions(trio.current_time())):
                self.pipeline.queue.put_silent(silent)
                self.pipeline.wake()
                await trio.sleep(FORGET_PAUSE_S)

    async def _retain(self, retention: Retention) -> None:
        """Drop the records beyond the retention limits, at once and then each interval."""
        while True:
            try:
                moved = await retention.apply()
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

    async def _compact(self) -> None:
        """Compact the partitions of topics that are compacted, at once and then each interval."""
        while True:
            compacted = filter(self._config.compacts, self._machine.stored.durable)
            for topic in [each for each in compacted if not is_system_topic(each)]:
                for partition in await self._storage.partitions(topic):
                    await self.compactor.compact(partition)
            await trio.sleep(self._config.compaction_interval_ms / 1000)


@attrs.frozen
class RecordsDamaged(Effect):
    """Records of a partition that another node has requested are damaged in the storage."""

    partition: Partition
    error: StorageCorruptError


class Retention(Protocol):
    """Drops records beyond limits."""

    async def apply(self) -> dict[Partition, int]:
        """Drop them, and return the first sequence left of each partition that lost some. Raises `StorageError`."""


@attrs.frozen(eq=False)
class StoreRetention:
    """Drops the records beyond the limits of the configuration, which apply to each partition.

    Compacted topics and those of brokers have no limits.
    """

    _storage: Storage
    _config: StoreConfig
    _stored: StoredPartitions

    async def apply(self) -> dict[Partition, int]:
        """See `Retention.apply`."""
        policy = default_retention(self._config)
        moved: dict[Partition, int] = {}
        for topic in list(self._stored.durable):  # not all at once: new topics can be ones without limits
            if not is_system_topic(topic) and not self._config.compacts(topic):
                moved.update(await self._storage.apply_retention(policy, topic))
        return moved


def default_retention(config: StoreConfig) -> RetentionPolicy:
    """Return the limits that the configuration of a store sets for every partition."""
    return RetentionPolicy(
        age_ms=config.retention_ms or None,
        bytes_max=config.retention_bytes or None,
        records_max=config.retention_records or None,
    )


def describe_held(
    held: Mapping[Partition, PartitionInfo],
) -> tuple[dict[Partition, int], dict[Partition, int], dict[Partition, float]]:
    """Describe the partitions in a storage that other nodes can see, for the store's machine.

    Return, by partition, the sequence after its last record, the sequence of its first record if it is not 0, and the
    seconds since its last record was appended.
    """
    time_ms = now_ms()
    return (
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

    When it is cancelled, it writes received records, for at most `[node] grace_ms`.

    Args:
        config: The configuration; the defaults if None.
        task_status: Receives the `Store` once it listens.

    Raises:
        StorageError: The storage cannot be opened, for example because another process uses it (`StorageBusyError`).
        StorageLostError: The storage was removed or replaced while it was open. After a restart, the store opens the
            storage that exists then, or a new one, and fetches the records that it misses.
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
                store.report_opened(config.store.storage, held)
                await store.run(task_status=task_status)
