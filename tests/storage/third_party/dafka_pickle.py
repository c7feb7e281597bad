"""A storage plugin as a third party would write it: a folder with one pickle per partition, replaced by each change.

It uses only what docs/how-to/embed.md documents: the protocol `Storage` with its types, and
`dafka.storage.plugin_helpers`.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import attrs
import trio

from dafka.errors import StorageError, StorageFormatError, StorageSequenceError
from dafka.records import NO_TIMESTAMP, Partition, Record, RecordBatch, new_address, record_bytes
from dafka.storage import READ_BYTES, Damage, PartitionInfo, RetentionPolicy, StorageStatistics
from dafka.storage.plugin_helpers import now_ms, split_by_time, writer_lock


class Log:
    """One partition."""

    def __init__(self, earliest: int) -> None:
        self.earliest = earliest
        self.records: list[Record] = []
        self.times: list[int] = []
        self.latest = 0

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

    def __init__(self, folder: Path, read_only: bool) -> None:
        self._folder = folder
        self._read_only = read_only
        self._lock = trio.Lock()
        self.identity = new_address()
        self._logs: dict[Partition, Log] = {}
        self._positions: dict[str, dict[Partition, int]] = {}
        if not read_only:
            folder.mkdir(exist_ok=True)
        for path in folder.glob("*.log"):
            partition, log = self._load(path)
            self._logs[partition] = log
        if (folder / "positions").exists():
            self.identity, self._positions = self._load(folder / "positions")
        elif not read_only:
            self._save([])

    async def append(self, batches: Sequence[RecordBatch]) -> None:
        def change() -> None:
            ends: dict[Partition, int] = {}
            for batch in batches:
                if batch.values:
                    log = self._logs.get(batch.partition)
                    end = ends.get(batch.partition, log.end if log is not None else 0)
                    PartitionInfo(0, end).check_append(batch)
                    ends[batch.partition] = batch.end_sequence
            for batch in batches:
                if batch.values:
                    self._logs.setdefault(batch.partition, Log(batch.first_sequence)).append(batch, now_ms())
            changed.extend(ends)

        changed: list[Partition] = []
        await self._change(change, changed)

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
        log = self._logs.get(partition)
        return 0 if log is None else log.earliest + bisect_left(log.times, stored_at)

    async def partitions(self, topic: str | None = None) -> dict[Partition, PartitionInfo]:
        await trio.lowlevel.checkpoint()
        return {each: log.info() for each, log in self._logs.items() if topic in {None, each.topic}}

    async def find_partition(self, partition: Partition) -> PartitionInfo | None:
        await trio.lowlevel.checkpoint()
        log = self._logs.get(partition)
        return None if log is None else log.info()

    async def statistics(self) -> StorageStatistics:
        infos = (await self.partitions()).values()
        content_bytes = sum(info.content_bytes for info in infos)
        stored_bytes = self._folder.stat().st_size if self._folder.exists() else 0
        return StorageStatistics(len(infos), sum(info.count for info in infos), content_bytes, stored_bytes)

    async def trim(self, partition: Partition, earliest_sequence: int) -> None:
        known = [partition] if partition in self._logs else []
        await self._change(lambda: [self._logs[each].trim(earliest_sequence) for each in known], known)

    async def reset_to(self, partition: Partition, next_sequence: int) -> None:
        def change() -> None:
            log = self._logs.get(partition, Log(0))
            if next_sequence < log.end:
                raise StorageSequenceError(
                    f"{partition}: cannot reset to sequence {next_sequence}, expected {log.end} or later"
                )
            begun = self._logs[partition] = Log(next_sequence)
            begun.latest = log.latest

        await self._change(change, [partition])

    async def apply_retention(self, retention: RetentionPolicy, topic: str | None = None) -> dict[Partition, int]:
        moved: dict[Partition, int] = {}

        def change() -> None:
            for partition, log in self._logs.items():
                if topic in {None, partition.topic} and log.trim(log.kept_from(retention, now_ms())):
                    moved[partition] = log.earliest

        await self._change(change, moved)
        return moved

    async def flush(self) -> None:
        await trio.lowlevel.checkpoint()

    async def find_damage(self) -> list[Damage]:
        await trio.lowlevel.checkpoint()
        return []

    async def save_positions(self, name: str, positions: Mapping[Partition, int]) -> None:
        await self._change(lambda: self._positions.setdefault(name, {}).update(positions), [])

    async def load_positions(self, name: str) -> dict[Partition, int]:
        await trio.lowlevel.checkpoint()
        return dict(self._positions.get(name, {}))

    async def position_names(self) -> list[str]:
        await trio.lowlevel.checkpoint()
        return sorted(name for name, positions in self._positions.items() if positions)

    async def _change(self, change: Callable[[], object], changed: Collection[Partition]) -> None:
        """Run a change, and save the partitions that `changed` lists afterwards."""
        if self._read_only:
            raise StorageError(f"{self._folder} was opened read-only; open it for writing to change it")
        await trio.lowlevel.checkpoint()
        with trio.CancelScope(shield=True):
            async with self._lock:
                change()
                await trio.to_thread.run_sync(self._save, changed)

    def _save(self, changed: Collection[Partition]) -> None:
        for partition in changed:
            name = hashlib.sha256(repr(partition).encode()).hexdigest()
            self._replace(f"{name}.log", (partition, self._logs[partition]))
        if not changed:
            self._replace("positions", (self.identity, self._positions))

    def _replace(self, name: str, value: object) -> None:
        new = self._folder / f"{name}.new"
        with new.open("wb") as file:
            pickle.dump(value, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._folder / name)

    def _load(self, path: Path) -> Any:
        try:
            with path.open("rb") as file:
                return pickle.load(file)
        except (pickle.UnpicklingError, EOFError, ValueError):
            raise StorageFormatError(f"{path} is not a pickle of records") from None


@asynccontextmanager
async def open_pickle(place: str, *, read_only: bool = False) -> AsyncIterator[PickleStorage]:
    with nullcontext() if read_only else writer_lock(place):
        yield await trio.to_thread.run_sync(PickleStorage, Path(place), read_only)
