"""Storage in the memory of this process: `memory:`, for tests and relays.

The records are lost when the storage is closed. `memory:?records_max=N&bytes_max=N` limits the whole storage; the
oldest records are dropped first. `bytes_max` limits the memory of the records, which is more than their content.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial

import attrs
import trio

from dafka.errors import StorageError, StorageSequenceError
from dafka.records import RECORD_MEMORY_BYTES, Partition, RecordBatch, new_address
from dafka.storage.base import READ_BYTES, Damage, PartitionInfo, RetentionPolicy, Storage, StorageStatistics
from dafka.storage.capabilities import Compactable, Compacted, FindRemoved, Throttle
from dafka.storage.plugin_helpers import int_at_least, now_ms, parse_location, split_by_time

RUN_RECORDS_MAX = 4096
"""The maximum length of a run, in records. Longer runs are split, so that trimming frees memory piece by piece."""


class _PartitionLog:
    """One partition: runs of records that were stored at the same time."""

    def __init__(self, first_sequence: int) -> None:
        self.earliest_sequence = self.end_sequence = first_sequence
        self.content_bytes = 0
        self.latest_stored_at = 0
        self.runs: deque[RecordBatch] = deque()

    def info(self) -> PartitionInfo:
        first_at, last_at = (_time_of(self.runs[0]), _time_of(self.runs[-1])) if self.runs else (None, None)
        append_at = self.latest_stored_at or None
        return PartitionInfo(
            self.earliest_sequence, self.end_sequence, self.content_bytes, first_at, last_at, append_at
        )

    def append_run(self, run: RecordBatch) -> None:
        if not self.runs:
            self.earliest_sequence = run.first_sequence
        self.runs.append(run)
        self.end_sequence = run.end_sequence
        self.content_bytes += run.content_bytes
        self.latest_stored_at = _time_of(run)

    def read(self, first_sequence: int, count: int, bytes_max: int) -> RecordBatch | None:
        if not self.earliest_sequence <= first_sequence < self.end_sequence:
            return None
        index = bisect_right(self.runs, first_sequence, key=lambda run: run.first_sequence) - 1
        return self.runs[index].between(first_sequence, first_sequence + count).within(bytes_max)

    def find_sequence_by_time(self, stored_at: int) -> int:
        index = bisect_left(self.runs, stored_at, key=_time_of)
        return self.runs[index].first_sequence if index < len(self.runs) else self.end_sequence

    def trim(self, earliest_sequence: int) -> int:
        """Drop the records before a sequence, and return how many bytes of memory that freed."""
        freed = 0
        while self.runs and self.earliest_sequence < earliest_sequence:
            run = self.runs.popleft()
            rest = run.between(earliest_sequence, run.end_sequence)
            if len(rest):
                self.runs.appendleft(rest)
            freed += run.memory_bytes - rest.memory_bytes
            self.content_bytes -= run.content_bytes - rest.content_bytes
            self.earliest_sequence = rest.first_sequence if len(rest) else run.end_sequence
        return freed

    def compact_run(self, number: int, find_removed: FindRemoved) -> Compacted:
        """Remove records of a run."""
        run = self.runs[number]
        left = run.without(find_removed(run))
        self.runs[number] = left
        self.content_bytes -= run.content_bytes - left.content_bytes
        removed = run.held_count - left.held_count
        return Compacted(run.content_bytes, removed, run.content_bytes - left.content_bytes)

    def find_retained_sequence(self, policy: RetentionPolicy, time_ms: int) -> int:
        """Return the sequence of the first record that a policy keeps."""
        earliest = self.earliest_sequence
        if policy.records_max is not None:
            earliest = max(earliest, self.end_sequence - policy.records_max)
        if policy.age_ms is not None:
            earliest = max(earliest, self.find_sequence_by_time(time_ms - policy.age_ms))
        if policy.bytes_max is not None:
            earliest = max(earliest, self._sequence_after_bytes(self.content_bytes - policy.bytes_max))
        return earliest

    def _sequence_after_bytes(self, surplus: int) -> int:
        """Return the sequence after the oldest records whose contents are at least `surplus` bytes."""
        for run in self.runs:
            for sequence, size in enumerate(run.record_sizes(), run.first_sequence):
                if surplus <= 0:
                    return sequence
                surplus -= size
        return self.end_sequence


def _time_of(run: RecordBatch) -> int:
    """Return when the records of a run were stored."""
    assert run.stored_at is not None
    return run.stored_at[0]


class MemoryStorage:
    """A `Storage` in memory; the simplest implementation, and the reference for the others.

    It can be limited to a number of records in all partitions, and to the bytes of memory that they take.
    """

    repairs: Sequence[Damage] = ()

    def __init__(self, records_max: int | None = None, bytes_max: int | None = None) -> None:
        self.identity = new_address()
        self._records_max = records_max
        self._bytes_max = bytes_max
        self._logs: dict[Partition, _PartitionLog] = {}
        self._records = 0
        self._memory_bytes = 0
        self._order: deque[tuple[Partition, int]] = deque()  # partition and end of each run, oldest first
        self._positions: dict[str, dict[Partition, int]] = {}

    async def append(self, batches: Sequence[RecordBatch]) -> None:
        """See `Storage.append`."""
        await trio.lowlevel.checkpoint()
        ends: dict[Partition, int] = {}
        batches = [batch for batch in batches if len(batch)]
        for batch in batches:
            log = self._logs.get(batch.partition)
            end = ends.get(batch.partition, 0 if log is None else log.end_sequence)
            PartitionInfo(0, end).check_append(batch)
            ends[batch.partition] = batch.end_sequence
        time_ms = now_ms()
        for batch in batches:
            self._push(batch, time_ms)
        self._drop_oldest()

    async def read(
        self,
        partition: Partition,
        first_sequence: int,
        count: int,
        bytes_max: int = READ_BYTES,
        *,
        with_times: bool = False,
    ) -> RecordBatch | None:
        """See `Storage.read`."""
        await trio.lowlevel.checkpoint()
        log = self._logs.get(partition)
        batch = None if log is None or count < 1 else log.read(first_sequence, count, bytes_max)
        return batch if batch is None or with_times else attrs.evolve(batch, stored_at=None)

    async def find_sequence_by_time(self, partition: Partition, stored_at: int) -> int:
        """See `Storage.find_sequence_by_time`."""
        await trio.lowlevel.checkpoint()
        log = self._logs.get(partition)
        return 0 if log is None else log.find_sequence_by_time(stored_at)

    async def partitions(self, topic: str | None = None) -> dict[Partition, PartitionInfo]:
        """See `Storage.partitions`."""
        await trio.lowlevel.checkpoint()
        return {partition: log.info() for partition, log in self._logs_of(topic).items()}

    async def find_partition(self, partition: Partition) -> PartitionInfo | None:
        """See `Storage.find_partition`."""
        await trio.lowlevel.checkpoint()
        log = self._logs.get(partition)
        return None if log is None else log.info()

    async def statistics(self) -> StorageStatistics:
        """See `Storage.statistics`."""
        await trio.lowlevel.checkpoint()
        content_bytes = sum(log.content_bytes for log in self._logs.values())
        return StorageStatistics(len(self._logs), self._records, content_bytes, self._memory_bytes)

    async def trim(self, partition: Partition, earliest_sequence: int) -> None:
        """See `Storage.trim`."""
        await trio.lowlevel.checkpoint()
        if partition in self._logs:
            self._trim(self._logs[partition], earliest_sequence)

    async def reset_to(self, partition: Partition, next_sequence: int) -> None:
        """See `Storage.reset_to`."""
        await trio.lowlevel.checkpoint()
        log = self._logs.setdefault(partition, _PartitionLog(next_sequence))
        if next_sequence < log.end_sequence:
            raise StorageSequenceError(
                f"{partition}: cannot reset to sequence {next_sequence}, expected {log.end_sequence} or later"
            )
        self._trim(log, log.end_sequence)
        log.earliest_sequence = log.end_sequence = next_sequence

    async def delete_partitions(self, partitions: Collection[Partition]) -> None:
        """See `DeletesPartitions.delete_partitions`."""
        await trio.lowlevel.checkpoint()
        for partition in partitions:
            log = self._logs.pop(partition, None)
            if log is not None:
                self._trim(log, log.end_sequence)
        self._order = deque((partition, end) for partition, end in self._order if partition in self._logs)

    async def apply_retention(self, policy: RetentionPolicy, topic: str | None = None) -> dict[Partition, int]:
        """See `Storage.apply_retention`."""
        await trio.lowlevel.checkpoint()
        moved = {}
        time_ms = now_ms()
        for partition, log in self._logs_of(topic).items():
            if self._trim(log, log.find_retained_sequence(policy, time_ms)):
                moved[partition] = log.earliest_sequence
        return moved

    async def find_compactable(self, partition: Partition, clean_end: int) -> Compactable | None:
        """See `CompactsPartitions.find_compactable`."""
        await trio.lowlevel.checkpoint()
        log = self._logs.get(partition)
        if log is None:
            return None
        clean = sum(run.between(0, clean_end).content_bytes for run in log.runs if run.first_sequence < clean_end)
        return Compactable(max(log.end_sequence - 1, log.earliest_sequence), clean, log.content_bytes - clean)

    async def compact(
        self, partition: Partition, end_sequence: int, find_removed: FindRemoved, throttle: Throttle
    ) -> Compacted:
        """See `CompactsPartitions.compact`. The marks of removed records take memory until retention drops them."""
        await trio.lowlevel.checkpoint()
        done = Compacted()
        sequence = 0
        log = self._logs.get(partition)
        while log is not None and log.runs and self._logs.get(partition) is log:  # not deleted, nor begun again
            number = bisect_right(log.runs, sequence, key=lambda run: run.end_sequence)
            if number == len(log.runs) or log.runs[number].first_sequence >= end_sequence:
                break
            step = log.compact_run(number, partial(_keep_last, log.end_sequence, find_removed))
            self._memory_bytes -= step.bytes_removed
            sequence = log.runs[number].end_sequence
            done = done.plus(step)
            await throttle(step.bytes_read)
        return done

    async def flush(self) -> None:
        """See `Storage.flush`. Records in memory are never durable, so this does nothing."""
        await trio.lowlevel.checkpoint()

    async def find_damage(self) -> list[Damage]:
        """See `Storage.find_damage`. Memory is not checked."""
        await trio.lowlevel.checkpoint()
        return []

    async def save_positions(self, name: str, positions: Mapping[Partition, int]) -> None:
        """See `Storage.save_positions`."""
        await trio.lowlevel.checkpoint()
        if positions:
            self._positions.setdefault(name, {}).update(positions)

    async def load_positions(self, name: str) -> dict[Partition, int]:
        """See `Storage.load_positions`."""
        await trio.lowlevel.checkpoint()
        return dict(self._positions.get(name, {}))

    async def position_names(self) -> list[str]:
        """See `Storage.position_names`."""
        await trio.lowlevel.checkpoint()
        return sorted(self._positions)

    def _push(self, batch: RecordBatch, time_ms: int) -> None:
        log = self._logs.setdefault(batch.partition, _PartitionLog(batch.first_sequence))
        for run in split_by_time(batch, time_ms, log.latest_stored_at):
            for first_sequence in range(run.first_sequence, run.end_sequence, RUN_RECORDS_MAX):
                part = run.between(first_sequence, first_sequence + RUN_RECORDS_MAX)
                log.append_run(part)
                self._order.append((batch.partition, part.end_sequence))
                self._records += len(part)
                self._memory_bytes += part.memory_bytes

    def _drop_oldest(self) -> None:
        """Drop the oldest records until the storage is within its limits."""
        while self._order:
            partition, end_sequence = self._order[0]
            log = self._logs[partition]
            surplus = self._count_surplus(log.runs[0]) if log.earliest_sequence < end_sequence else 0
            if surplus:
                self._trim(log, log.earliest_sequence + surplus)
            elif log.earliest_sequence >= end_sequence:
                self._order.popleft()
            else:
                return

    def _count_surplus(self, run: RecordBatch) -> int:
        """Return how many records at the start of a run must be dropped to satisfy the limits."""
        records = 0 if self._records_max is None else self._records - self._records_max
        memory_bytes = 0 if self._bytes_max is None else self._memory_bytes - self._bytes_max
        for count, size in enumerate(run.record_sizes()):
            if count >= records and memory_bytes <= 0:
                return count
            memory_bytes -= size + RECORD_MEMORY_BYTES
        return len(run)

    def _trim(self, log: _PartitionLog, earliest_sequence: int) -> bool:
        """Drop the records before a sequence, and return whether there were any."""
        before = log.earliest_sequence
        self._memory_bytes -= log.trim(earliest_sequence)
        self._records -= log.earliest_sequence - before
        return log.earliest_sequence > before

    def _logs_of(self, topic: str | None) -> dict[Partition, _PartitionLog]:
        return {partition: log for partition, log in self._logs.items() if topic is None or partition.topic == topic}


def _keep_last(end_sequence: int, find_removed: FindRemoved, run: RecordBatch) -> bytes:
    """Return which records to remove, always keeping the last one of a partition."""
    removed = find_removed(run)
    return removed if run.end_sequence < end_sequence else removed[:-1] + b"\0"


@asynccontextmanager
async def open_memory(location: str, *, read_only: bool = False) -> AsyncIterator[Storage]:
    """Open `memory:?records_max=N&bytes_max=N`; see `open_storage`.

    Raise `StorageError` if the URL names a path, an option is wrong, or `read_only` is true: a new storage is empty.
    """
    options = {"records_max": int_at_least(1), "bytes_max": int_at_least(1)}
    path, bounds = parse_location("memory", location, options)
    if path or read_only:
        raise StorageError("storage 'memory:' takes no path and cannot be opened read-only: it exists in one process")
    yield MemoryStorage(**bounds)
