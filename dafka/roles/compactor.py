"""Compacts the partitions of a store in the background: one at a time, within the configured rate."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from math import inf

import trio

from dafka.config.settings import StoreConfig
from dafka.errors import StorageError, StorageLostError
from dafka.protocol import Event, RecordsCompacted, StorageFailed
from dafka.records import Partition
from dafka.storage import Compacted, CompactsPartitions, Storage
from dafka.storage.compaction import CompactionPolicy, compact_partition
from dafka.storage.plugin_helpers import now_ms

IDLE_SHARE = 3
"""How long compaction waits after each step, as a multiple of the duration of the step. So it takes at most a quarter
of a processor, and less when appends or other programs slow it down."""

CLEAN_ENDS = "$compaction"
"""The consumer name under which a storage keeps the sequences up to which its partitions are compacted."""


class Compactor:
    """Compacts partitions. `records_removed` counts the removed records."""

    def __init__(self, storage: Storage, config: StoreConfig, report: Callable[[Event], None]) -> None:
        self.records_removed = 0
        self._storage = storage
        self._config = config
        self._report = report
        self._clean_ends: dict[str, dict[Partition, int]] = {}
        self._failed: set[Partition] = set()
        self._resumed_at = inf

    @property
    def is_possible(self) -> bool:
        """Whether the storage can compact."""
        return isinstance(self._storage, CompactsPartitions)

    def policy(self) -> CompactionPolicy:
        """Return the compaction policy of topics without settings."""
        return CompactionPolicy(
            dirty_ratio=self._config.compaction_dirty_percent / 100,
            tombstone_ms=self._config.tombstone_ms,
            keys_max=self._config.compaction_keys_max,
        )

    async def compact(self, partition: Partition) -> None:
        """Compact a partition if enough of it is new.

        If the storage fails, the partition is not changed until the next attempt. The failure is reported once. Raise
        `StorageLostError` if the storage was removed.
        """
        await self.attempt(partition, partial(self._compact, partition))

    async def attempt(self, partition: Partition, work: Callable[[], Awaitable[None]]) -> None:
        """Run a part of compaction, and report its failure. Raises `StorageLostError`."""
        self._resumed_at = trio.current_time()
        try:
            await work()
        except StorageLostError:
            raise
        except StorageError as error:
            if partition not in self._failed:
                self._failed.add(partition)
                self._report(StorageFailed(f"compaction of {partition}: {error}"))
        else:
            self._failed.discard(partition)

    async def clean_end(self, partition: Partition, name: str = CLEAN_ENDS) -> int:
        """Return the sequence up to which a partition is compacted. Raises `StorageError`."""
        if name not in self._clean_ends:
            self._clean_ends[name] = await self._storage.load_positions(name)
        return self._clean_ends[name].get(partition, 0)

    async def save_clean_end(self, partition: Partition, sequence: int, name: str = CLEAN_ENDS) -> None:
        """Keep the sequence up to which a partition is compacted. Raises `StorageError`."""
        await self._storage.save_positions(name, {partition: sequence})
        self._clean_ends.setdefault(name, {})[partition] = sequence

    async def throttle(self, count: int) -> None:
        """Wait after a step that has read this many bytes."""
        rate = self._config.compaction_rate_bytes
        elapsed = trio.current_time() - self._resumed_at
        await trio.sleep(max(count / rate, IDLE_SHARE * elapsed) if rate else 0)
        self._resumed_at = trio.current_time()

    def record_removed(self, partition: Partition, done: Compacted) -> None:
        """Record and report the removed records."""
        self.records_removed += done.records_removed
        if done.records_removed:
            self._report(RecordsCompacted(partition, done.records_removed, done.bytes_removed))

    async def _compact(self, partition: Partition) -> None:
        if not self.is_possible:
            raise StorageError("this storage cannot remove single records; use sqlite:, filelog: or memory:")
        clean_end = await self.clean_end(partition)
        found = await compact_partition(self._storage, partition, clean_end, self.policy(), now_ms(), self.throttle)
        if found is not None:
            self.record_removed(partition, found.done)
            await self.save_clean_end(partition, found.clean_end)
