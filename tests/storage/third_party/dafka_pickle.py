"""A storage plugin as a third party would write it: a file with a pickle of each change, all of which opening repeats.

It uses only what docs/how-to/embed.md documents: the protocol `Storage` with its types, and
`dafka.storage.plugin_helpers`.
"""

from __future__ import annotations

import os
import pickle
from bisect import bisect_left
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import attrs
import trio

from dafka.errors import StorageError, StorageFormatError, StorageSequenceError
from dafka.records import NO_TIMESTAMP, Partition, Record, RecordBatch, new_address, record_bytes
from dafka.storage import READ_BYTES, Damage, PartitionInfo, RetentionPolicy, StorageStatistics
from dafka.storage.plugin_helpers import now_ms, split_by_time, writer_lock


@attrs.define
class Log:
    """One partition."""

    earliest: int
    records: list[Record] = attrs.field(factory=list)
    times: list[int] = attrs.field(factory=list)
    latest: int = 0

    @property
    def end(self) -> int:
        return self.earliest + len(self.records)

    def info(self) -> PartitionInfo:
        times = (self.times[0], self.times[-1]) if self.times else (None, None)
        return PartitionInfo(self.earliest, self.end, sum(map(record_bytes, self.records)), *times)

    def append(self, batch: RecordBatch, time_ms: int) -> None:
        for run in split_by_time(batch, time_ms, self.latest):
            assert run.stored_at is not None
            self.records += run
            self.times += run.stored_at
        self.latest = self.times[-1]

    def trim(self, earliest: int) -> bool:
        count = min(max(earliest - self.earliest, 0), len(self.records))
        del self.records[:count], self.times[:count]
        self.earliest += count
        return count > 0

    def kept_from(self, retention: RetentionPolicy, time_ms: int) -> int:
        first = self.earliest
        if retention.records_max is not None:
            first = max(first, self.end - retention.records_max)
        if retention.age_ms is not None:
            first = max(first, self.earliest + bisect_left(self.times, time_ms - retention.age_ms))
        if retention.bytes_max is not None:
            while sum(map(record_bytes, self.records[first - self.earliest :])) > retention.bytes_max:
                first += 1
        return first


class PickleStorage:
    repairs: Sequence[Damage] = ()

    def __init__(self, path: Path, read_only: bool) -> None:
        self._path = path
        self._read_only = read_only
        self._lock = trio.Lock()
        self._logs: dict[Partition, Log] = {}
        self._positions: dict[str, dict[Partition, int]] = {}
        self.identity = new_address()
        if path.exists():
            self._repeat_changes()
        elif not read_only:
            self._write(self.identity)

    def _repeat_changes(self) -> None:
        try:
            with self._path.open("rb") as file:
                self.identity = pickle.load(file)
                while file.peek(1):
                    name, arguments = pickle.load(file)
                    getattr(self, name)(*arguments)
        except (pickle.UnpicklingError, EOFError, ValueError):
            raise StorageFormatError(f"{self._path} is not a file of pickled changes") from None

    def _write(self, entry: object) -> None:
        with self._path.open("ab") as file:
            pickle.dump(entry, file)
            file.flush()
            os.fsync(file.fileno())

    async def _change(self, name: str, *arguments: Any) -> Any:
        """Make a change by one of the methods below, which raises if it is refused, and make it durable."""
        if self._read_only:
            raise StorageError(f"{self._path} was opened read-only; open it for writing to change it")
        await trio.lowlevel.checkpoint()
        with trio.CancelScope(shield=True):
            async with self._lock:
                found = getattr(self, name)(*arguments)
                await trio.to_thread.run_sync(self._write, (name, arguments))
        return found

    def _append(self, batches: Sequence[RecordBatch], time_ms: int) -> None:
        ends: dict[Partition, int] = {}
        for batch in batches:
            log = self._logs.get(batch.partition, Log(0))
            PartitionInfo(0, ends.get(batch.partition, log.end)).check_append(batch)
            ends[batch.partition] = batch.end_sequence
        for batch in batches:
            self._logs.setdefault(batch.partition, Log(batch.first_sequence)).append(batch, time_ms)

    def _trim(self, partition: Partition, earliest_sequence: int) -> None:
        if partition in self._logs:
            self._logs[partition].trim(earliest_sequence)

    def _reset(self, partition: Partition, next_sequence: int) -> None:
        log = self._logs.get(partition, Log(0))
        if next_sequence < log.end:
            raise StorageSequenceError(f"{partition}: cannot reset to {next_sequence}, expected {log.end} or later")
        self._logs[partition] = Log(next_sequence, latest=log.latest)

    def _retain(self, retention: RetentionPolicy, topic: str | None, time_ms: int) -> dict[Partition, int]:
        return {
            partition: log.earliest
            for partition, log in self._logs.items()
            if topic in {None, partition.topic} and log.trim(log.kept_from(retention, time_ms))
        }

    def _save(self, name: str, positions: Mapping[Partition, int]) -> None:
        self._positions.setdefault(name, {}).update(positions)

    async def append(self, batches: Sequence[RecordBatch]) -> None:
        await self._change("_append", [batch for batch in batches if batch.values], now_ms())

    async def trim(self, partition: Partition, earliest_sequence: int) -> None:
        await self._change("_trim", partition, earliest_sequence)

    async def reset_to(self, partition: Partition, next_sequence: int) -> None:
        await self._change("_reset", partition, next_sequence)

    async def apply_retention(self, retention: RetentionPolicy, topic: str | None = None) -> dict[Partition, int]:
        moved: dict[Partition, int] = await self._change("_retain", retention, topic, now_ms())
        return moved

    async def save_positions(self, name: str, positions: Mapping[Partition, int]) -> None:
        await self._change("_save", name, dict(positions))

    async def read(
        self,
        partition: Partition,
        first_sequence: int,
        count: int,
        bytes_max: int = READ_BYTES,
        *,
        with_times: bool = False,
    ) -> RecordBatch | None:
        await trio.lowlevel.checkpoint()
        log = self._logs.get(partition)
        if log is None or count < 1 or not log.earliest <= first_sequence < log.end:
            return None
        start = first_sequence - log.earliest
        records = log.records[start : start + count]
        batch = RecordBatch.from_records(partition, first_sequence, records, NO_TIMESTAMP).within(bytes_max)
        return attrs.evolve(batch, stored_at=log.times[start : start + len(batch)] if with_times else None)

    async def find_sequence_by_time(self, partition: Partition, stored_at: int) -> int:
        await trio.lowlevel.checkpoint()
        log = self._logs.get(partition, Log(0))
        return log.earliest + bisect_left(log.times, stored_at)

    async def partitions(self, topic: str | None = None) -> dict[Partition, PartitionInfo]:
        await trio.lowlevel.checkpoint()
        return {each: log.info() for each, log in self._logs.items() if topic in {None, each.topic}}

    async def find_partition(self, partition: Partition) -> PartitionInfo | None:
        return (await self.partitions(partition.topic)).get(partition)

    async def statistics(self) -> StorageStatistics:
        infos = (await self.partitions()).values()
        records, content_bytes = sum(info.count for info in infos), sum(info.content_bytes for info in infos)
        stored_bytes = await trio.to_thread.run_sync(os.path.getsize, self._path)
        return StorageStatistics(len(infos), records, content_bytes, stored_bytes)

    async def flush(self) -> None:
        await trio.lowlevel.checkpoint()

    async def find_damage(self) -> list[Damage]:
        await trio.lowlevel.checkpoint()
        return []

    async def load_positions(self, name: str) -> dict[Partition, int]:
        await trio.lowlevel.checkpoint()
        return dict(self._positions.get(name, {}))

    async def position_names(self) -> list[str]:
        await trio.lowlevel.checkpoint()
        return sorted(name for name, positions in self._positions.items() if positions)


@asynccontextmanager
async def open_pickle(place: str, *, read_only: bool = False) -> AsyncIterator[PickleStorage]:
    with nullcontext() if read_only else writer_lock(place):
        yield await trio.to_thread.run_sync(PickleStorage, Path(place), read_only)
