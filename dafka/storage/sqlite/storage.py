"""The storage itself: who may use which connection when, and what the writer knows of its partitions by heart."""

from __future__ import annotations

import os
import sqlite3
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, closing, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import attrs
import trio

from dafka.errors import StorageError, StorageSequenceError
from dafka.records import Partition, RecordBatch
from dafka.storage.base import READ_BYTES, Damage, PartitionInfo, RetentionPolicy, Storage, StorageStatistics
from dafka.storage.plugin_helpers import FileIdentity, now_ms, one_of, parse_location, writer_lock
from dafka.storage.sqlite.connection import connect, prepare_database, reject_other_files, storage_errors, transaction
from dafka.storage.sqlite.damage import find_damage
from dafka.storage.sqlite.reading import read_records, select_time
from dafka.storage.sqlite.schema import (
    SEQUENCE_MAX,
    Held,
    PartitionRows,
    from_column,
    insert_partition,
    select_identity,
    to_columns,
    update_partition,
)
from dafka.storage.sqlite.write_ahead_log import WriteAheadLog
from dafka.storage.sqlite.writing import TrimLimits, append_batch, trim_step

CHECKPOINT_STEPS = 25
"""After so many steps of trimming the log is copied back."""

PROGRESS_STEPS = 100_000
"""Of SQLite's machine: how often a long check asks whether it was cancelled."""

_Changes = dict[Partition, Held]
_T = TypeVar("_T")


class SqliteStorage:
    """See `Storage`."""

    repairs: Sequence[Damage] = ()

    def __init__(self, path: str, version: int, synchronous: str | None) -> None:
        """With `synchronous` None, for reading only."""
        self._path = path
        self._synchronous = synchronous
        self._rows = PartitionRows(version)
        self._read_limiter = trio.CapacityLimiter(1)
        self._write_limiter = trio.CapacityLimiter(1)
        self._help_limiter = trio.CapacityLimiter(1)
        self._place_limiter = trio.CapacityLimiter(1)
        self._turn = trio.Lock()  # what the next write is checked against is known when this one has ended
        self._held: dict[Partition, Held] = {}
        self._topics: dict[str, dict[Partition, PartitionInfo]] = {}
        self._connections = ExitStack()
        self._writer: sqlite3.Connection | None = None

    def _connect(self) -> sqlite3.Connection:
        return connect(self._path, read_only=self._synchronous is None)

    def load(self) -> None:
        """Connects, and reads what must be known; `close` afterwards, also where this fails."""
        self._reader = self._connections.enter_context(closing(self._connect()))
        self._place = FileIdentity(self._path)
        self.identity = select_identity(self._reader)
        if self._synchronous is not None:
            helper = self._connections.enter_context(closing(self._connect()))
            self._writer = self._connections.enter_context(closing(self._connect()))
            self._writer.execute("PRAGMA secure_delete = OFF")  # or a trim writes every page that it empties
            self._log = WriteAheadLog(self._path, self._writer, helper, self._synchronous)
            self._take(self._rows.select(self._writer))

    async def append(self, batches: Sequence[RecordBatch]) -> None:
        """See `Storage.append`. All batches are one transaction."""
        await self._change(partial(self._append, batches))

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
        known = self._held.get(partition)

        def select(reader: sqlite3.Connection) -> RecordBatch | None:
            held = known or self._rows.select_one(reader, partition)
            if held is None:
                return None
            return read_records(reader, self._rows, partition, first_sequence, count, bytes_max, with_times, held.info)

        return await self._read(select)

    async def find_sequence_by_time(self, partition: Partition, stored_at: int) -> int:
        """See `Storage.find_sequence_by_time`."""
        return await self._read(lambda reader: select_time(reader, self._rows, partition, stored_at))

    async def partitions(self, topic: str | None = None) -> dict[Partition, PartitionInfo]:
        """See `Storage.partitions`. The writer knows without asking the file."""
        if self._writer is not None:
            await trio.lowlevel.checkpoint()
            if topic is not None:
                return dict(self._topics.get(topic, {}))
            return {partition: held.info for partition, held in self._held.items()}
        return await self._read(lambda reader: self._rows.select_infos(reader, topic))

    async def statistics(self) -> StorageStatistics:
        """See `Storage.statistics`."""
        infos = (await self.partitions()).values()
        stored_bytes = await trio.to_thread.run_sync(_file_bytes, self._path)
        records = sum(info.count for info in infos)
        return StorageStatistics(len(infos), records, sum(info.content_bytes for info in infos), stored_bytes)

    async def trim(self, partition: Partition, earliest_sequence: int) -> None:
        """See `Storage.trim`. A large range goes bit by bit: appends take their turns between."""
        await self._drop(TrimLimits(before_sequence=earliest_sequence), [partition])

    async def reset_to(self, partition: Partition, next_sequence: int) -> None:
        """See `Storage.reset_to`."""
        if next_sequence > SEQUENCE_MAX:
            raise StorageError(f"{partition}: sequence {next_sequence} is more than SQLite can count")
        while not await self._change(partial(self._skip, partition, next_sequence)):
            await self.trim(partition, next_sequence)

    async def apply_retention(self, retention: RetentionPolicy, topic: str | None = None) -> dict[Partition, int]:
        """See `Storage.apply_retention`. It is exact, and goes bit by bit: appends take their turns between."""
        partitions = self._held if topic is None else self._topics.get(topic, {})
        return await self._drop(TrimLimits.retaining(retention, now_ms()), partitions)

    async def flush(self) -> None:
        """See `Storage.flush`."""
        self._require_writer()

        def run() -> None:
            with storage_errors(self._path):
                self._log.flush()

        async with self._turn:
            await trio.to_thread.run_sync(run, limiter=self._write_limiter)

    async def find_damage(self) -> list[Damage]:
        """See `Storage.find_damage`. Reads the whole file."""

        def run() -> list[Damage]:
            with (
                storage_errors(self._path),
                closing(self._connect()) as connection,
            ):
                connection.set_progress_handler(_is_cancelled, PROGRESS_STEPS)
                damages = list(find_damage(connection, self._rows, self._path))
                trio.from_thread.check_cancelled()  # or what it was at when it stopped would be reported
                return damages

        return await trio.to_thread.run_sync(run)

    async def save_positions(self, name: str, positions: Mapping[Partition, int]) -> None:
        """See `Storage.save_positions`."""
        saved_at = now_ms()
        rows = [(name, *to_columns(partition), position, saved_at) for partition, position in positions.items()]
        statement = """
            INSERT INTO positions (name, topic, address, next_sequence, saved_at) VALUES (?, ?, ?, ?, ?)
            ON CONFLICT DO UPDATE SET next_sequence = excluded.next_sequence, saved_at = excluded.saved_at
        """

        def save(writer: sqlite3.Connection) -> _Changes:
            writer.executemany(statement, rows)
            return {}

        await self._change(save)

    async def load_positions(self, name: str) -> dict[Partition, int]:
        """See `Storage.load_positions`."""
        statement = "SELECT topic, address, next_sequence FROM positions WHERE name = ?"
        rows = await self._read(lambda reader: reader.execute(statement, (name,)).fetchall())
        return {Partition(from_column(topic), from_column(address)): position for topic, address, position in rows}

    async def position_names(self) -> list[str]:
        """See `Storage.position_names`."""
        statement = "SELECT DISTINCT name FROM positions ORDER BY name"
        return [name for (name,) in await self._read(lambda reader: reader.execute(statement).fetchall())]

    async def check_not_removed(self) -> None:
        """See `DetectsRemoval.check_not_removed`."""
        await trio.to_thread.run_sync(self._check_place, limiter=self._place_limiter)

    def close(self) -> None:
        """Closes every connection."""
        self._connections.close()
        if self._writer is not None and not self._place.is_in_place:
            self._log.remove()

    def _check_place(self) -> None:
        """SQLite goes on writing to a file that was removed. Cheap: two calls of the system."""
        self._place.check_unchanged()
        if self._writer is not None:
            self._log.check_not_removed()

    async def _read(self, query: Callable[[sqlite3.Connection], _T]) -> _T:
        def run() -> _T:
            with storage_errors(self._path):
                return query(self._reader)

        return await trio.to_thread.run_sync(run, limiter=self._read_limiter)

    async def _change(self, change: Callable[[sqlite3.Connection], _Changes]) -> _Changes:
        """A transaction that gives the rows it changed, true once it is committed."""
        self._require_writer()
        async with self._turn:
            changes = await self._in_writer(change)
            self._take(changes)
        return changes

    async def _drop(self, cut: TrimLimits, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Trims step by step; gives the new earliest sequences of those that lost records."""
        self._require_writer()
        await trio.lowlevel.checkpoint()
        known = self._held
        remaining = deque(each for each in partitions if each in known and cut.concerns(known[each].info))
        moved: dict[Partition, int] = {}
        steps = 0
        while remaining:
            async with self._turn:
                rows = ((partition, known[partition]) for partition in remaining)
                changes, finished = await self._in_writer(partial(trim_step, cut, rows), without_sync=True)
                self._take(changes)
            moved.update((partition, held.info.earliest_sequence) for partition, held in changes.items())
            for _ in range(finished):
                remaining.popleft()
            steps += 1
            if steps % CHECKPOINT_STEPS == 0 or not remaining:
                await trio.to_thread.run_sync(self._log.checkpoint, limiter=self._help_limiter)
        return moved

    async def _in_writer(self, change: Callable[[sqlite3.Connection], _T], *, without_sync: bool = False) -> _T:
        """One transaction; the turn is the caller's."""
        writer = self._require_writer()

        def run() -> _T:
            self._check_place()
            with storage_errors(self._path):
                with self._log.without_sync() if without_sync else nullcontext(), transaction(writer):
                    result = change(writer)
                self._check_place()
                self._log.bound()
            return result

        return await trio.to_thread.run_sync(run, limiter=self._write_limiter)

    def _require_writer(self) -> sqlite3.Connection:
        if self._writer is None:
            raise StorageError(f"{self._path} was opened for reading only")
        return self._writer

    def _take(self, changes: Mapping[Partition, Held]) -> None:
        for partition, held in changes.items():
            self._held[partition] = held
            self._topics.setdefault(partition.topic, {})[partition] = held.info

    def _append(self, batches: Sequence[RecordBatch], writer: sqlite3.Connection) -> _Changes:
        time_ms = now_ms()
        changes: _Changes = {}
        for batch in batches:
            if batch.contents:
                held = changes.get(batch.partition) or self._held.get(batch.partition)
                changes[batch.partition] = append_batch(writer, held, batch, time_ms)
        for held in changes.values():
            update_partition(writer, held)
        return changes

    def _skip(self, partition: Partition, next_sequence: int, writer: sqlite3.Connection) -> _Changes:
        """Changes nothing while there are records to be trimmed first."""
        held = self._held.get(partition)
        if held is None:
            return {partition: insert_partition(writer, partition, next_sequence)}
        if next_sequence < held.info.end_sequence:
            raise StorageSequenceError(f"{partition}: it has come to {held.info.end_sequence}, beyond {next_sequence}")
        if held.info.count:
            return {}
        held = attrs.evolve(held, info=PartitionInfo(next_sequence, next_sequence))
        update_partition(writer, held)
        return {partition: held}


def _is_cancelled() -> bool:
    try:
        trio.from_thread.check_cancelled()
    except trio.Cancelled:
        return True
    return False


def _file_bytes(path: str) -> int:
    """What the database and its log take."""
    size = 0
    for file in (os.path.realpath(path), f"{os.path.realpath(path)}-wal"):
        with suppress(FileNotFoundError):
            size += Path(file).stat().st_size
    return size


SYNCHRONOUS = ("FULL", "EXTRA", "NORMAL", "OFF")


@asynccontextmanager
async def open_sqlite(place: str, *, read_only: bool = False) -> AsyncIterator[Storage]:
    """Opens `sqlite:PATH?synchronous=FULL`; see `open_storage`. Makes the file where there is none."""
    path, options = parse_location("sqlite", place, {"synchronous": one_of(*SYNCHRONOUS)})
    if not path or "\0" in path:
        raise StorageError("storage 'sqlite:': expected a path, as in sqlite:dafka.db")
    await trio.to_thread.run_sync(reject_other_files, path)
    synchronous = None if read_only else options.get("synchronous", "FULL")
    with nullcontext() if read_only else writer_lock(path):
        storage = await trio.to_thread.run_sync(_open, path, synchronous)
        try:
            yield storage
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(storage.close)


def _open(path: str, synchronous: str | None) -> SqliteStorage:
    version = prepare_database(path, read_only=synchronous is None)
    storage = SqliteStorage(path, version, synchronous)
    with storage_errors(path):
        try:
            storage.load()
        except BaseException:
            storage.close()
            raise
    return storage
