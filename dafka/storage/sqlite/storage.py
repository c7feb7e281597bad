"""Opening a SQLite store, and its `Storage` methods.

One connection writes and one reads, each used by one worker thread at a time. A writer keeps the rows of the table
`partitions` in memory.
"""

from __future__ import annotations

import os
import sqlite3
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, closing, nullcontext, suppress
from functools import partial
from typing import TypeVar

import attrs
import trio

from dafka.errors import StorageCorruptError, StorageError, StorageSequenceError
from dafka.records import Partition, RecordBatch
from dafka.storage.base import READ_BYTES, Damage, PartitionInfo, RetentionPolicy, Storage, StorageStatistics
from dafka.storage.capabilities import Compactable, Compacted, FindRemoved, Throttle
from dafka.storage.plugin_helpers import FileIdentity, now_ms, one_of, opened_in_thread, parse_location, writer_lock
from dafka.storage.sqlite.connection import connect, prepare_database, reject_other_files, storage_errors, transaction
from dafka.storage.sqlite.damage import DamageFinder
from dafka.storage.sqlite.reading import RangeRead, find_sequence_by_time
from dafka.storage.sqlite.schema import (
    PartitionRow,
    PartitionTable,
    check_sequence,
    delete_partitions,
    from_column,
    insert_partition,
    select_identity,
    to_columns,
    update_partition,
)
from dafka.storage.sqlite.write_ahead_log import WriteAheadLog
from dafka.storage.sqlite.writing import (
    DELETE_RECORDS_MAX,
    TrimLimits,
    append_batch,
    choose_removed,
    delete_records,
    find_compactable,
    trim_step,
)

SYNCHRONOUS = ("FULL", "EXTRA", "NORMAL", "OFF")
"""The values of the option `synchronous`; the first one is the default."""

CHECKPOINT_STEPS = 25
"""The number of trim steps after which a checkpoint runs."""

PROGRESS_STEPS = 100_000
"""The interval at which a long check tests for cancellation, in instructions of SQLite's virtual machine."""

_ChangedRows = dict[Partition, PartitionRow]
_T = TypeVar("_T")


@asynccontextmanager
async def open_sqlite(location: str, *, read_only: bool = False) -> AsyncIterator[Storage]:
    """Open `sqlite:PATH?synchronous=FULL`; see `open_storage`. A writer creates a missing file.

    `synchronous` is `FULL` (the default), `EXTRA`, `NORMAL` or `OFF`. Raise `StorageError` if an option is wrong or the
    file cannot be opened.
    """
    path, options = parse_location("sqlite", location, {"synchronous": one_of(*SYNCHRONOUS)})
    if not path or "\0" in path:
        raise StorageError("storage 'sqlite:': expected a path, as in sqlite:dafka.db")
    await trio.to_thread.run_sync(reject_other_files, path)
    synchronous = None if read_only else options.get("synchronous", "FULL")
    with nullcontext() if read_only else writer_lock(path):
        async with opened_in_thread(partial(_open, path, synchronous)) as storage:
            yield storage


def _open(path: str, synchronous: str | None) -> SqliteStorage:
    prepare_database(path, read_only=synchronous is None)
    storage = SqliteStorage(path, synchronous)
    with storage_errors(path):
        try:
            storage.load()
        except BaseException:
            storage.close()
            raise
    return storage


class SqliteStorage:
    """A `Storage` in a SQLite file, which `prepare_database` has prepared. Call `load` before using it.

    `synchronous` is the value of `PRAGMA synchronous`; None to open the file for reading only.
    """

    repairs: Sequence[Damage] = ()

    def __init__(self, path: str, synchronous: str | None) -> None:
        self._path = path
        self._synchronous = synchronous
        self._table = PartitionTable()
        self._read_limiter = trio.CapacityLimiter(1)
        self._write_limiter = trio.CapacityLimiter(1)
        self._checkpoint_limiter = trio.CapacityLimiter(1)
        self._stat_limiter = trio.CapacityLimiter(1)
        self._write_lock = trio.Lock()  # held until the rows in memory match the database again
        self._known_rows: dict[Partition, PartitionRow] = {}
        self._topics: dict[str, dict[Partition, PartitionInfo]] = {}
        self._compacting: set[Partition] = set()
        """The partitions that are being compacted, and were not deleted meanwhile."""
        self._connections = ExitStack()
        self._writer: sqlite3.Connection | None = None

    def load(self) -> None:
        """Connect, and read the rows that a writer keeps in memory. Call `close` afterward, even if this fails."""
        self._reader = self._connections.enter_context(closing(self._connect()))
        self._file_identity = FileIdentity(self._path)
        self.identity = select_identity(self._reader)
        if self._synchronous is not None:
            helper = self._connections.enter_context(closing(self._connect()))
            self._writer = self._connections.enter_context(closing(self._connect()))
            self._writer.execute("PRAGMA secure_delete = OFF")  # otherwise a trim would overwrite every page it frees
            self._log = WriteAheadLog(self._path, self._writer, helper, self._synchronous)
            self._log.sync_found()
            self._remember_rows(self._table.select_all(self._writer))

    async def append(self, batches: Sequence[RecordBatch]) -> None:
        """See `Storage.append`. All batches share one transaction."""
        await self._write(partial(self._append_batches, batches))

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
        wanted = partition, first_sequence, count, bytes_max, with_times
        return await self._read(lambda reader: self._select(RangeRead(reader, self._table, *wanted)))

    async def read_several(
        self, ranges: Sequence[tuple[Partition, int, int]], bytes_max: int
    ) -> list[RecordBatch | None]:
        """See `ReadsSeveral.read_several`."""
        return await self._read(
            lambda reader: [self._select(RangeRead(reader, self._table, *each, bytes_max)) for each in ranges]
        )

    def _select(self, wanted: RangeRead) -> RecordBatch | None:
        row = self._known_rows.get(wanted.partition) or self._table.select_one(wanted.reader, wanted.partition)
        return None if row is None else wanted.run(row.info)

    async def find_sequence_by_time(self, partition: Partition, stored_at: int) -> int:
        """See `Storage.find_sequence_by_time`."""
        return await self._read(lambda reader: find_sequence_by_time(reader, self._table, partition, stored_at))

    async def partitions(self, topic: str | None = None) -> dict[Partition, PartitionInfo]:
        """See `Storage.partitions`. A writer answers from memory."""
        if self._writer is not None:
            await trio.lowlevel.checkpoint()
            if topic is not None:
                return dict(self._topics.get(topic, {}))
            return {partition: row.info for partition, row in self._known_rows.items()}
        return await self._read(lambda reader: self._table.select_infos(reader, topic))

    async def find_partition(self, partition: Partition) -> PartitionInfo | None:
        """See `Storage.find_partition`. A writer answers from memory."""
        if self._writer is not None:
            await trio.lowlevel.checkpoint()
            row = self._known_rows.get(partition)
            return None if row is None else row.info
        return (await self.partitions(partition.topic)).get(partition)

    async def statistics(self) -> StorageStatistics:
        """See `Storage.statistics`."""
        infos = (await self.partitions()).values()
        stored_bytes = await trio.to_thread.run_sync(_file_sizes, self._path, limiter=self._stat_limiter)
        records = sum(info.count for info in infos)
        return StorageStatistics(len(infos), records, sum(info.content_bytes for info in infos), stored_bytes)

    async def trim(self, partition: Partition, earliest_sequence: int) -> None:
        """See `Storage.trim`. Records are dropped in small steps, and appends run between the steps."""
        await self._trim_partitions(TrimLimits(before_sequence=earliest_sequence), [partition])

    async def reset_to(self, partition: Partition, next_sequence: int) -> None:
        """See `Storage.reset_to`."""
        check_sequence(partition, next_sequence)
        while not await self._write(partial(self._reset_empty, partition, next_sequence)):
            await self.trim(partition, next_sequence)

    async def delete_partitions(self, partitions: Collection[Partition]) -> None:
        """See `DeletesPartitions.delete_partitions`. Records are dropped in small steps, as in `trim`."""
        await self._trim_partitions(TrimLimits(records_max=0), partitions)

        async with self._write_lock:
            rows = {each: self._known_rows[each] for each in partitions if each in self._known_rows}
            await self._run_transaction(lambda writer: delete_partitions(writer, rows.values()))
            for partition in rows:
                self._compacting.discard(partition)
                del self._known_rows[partition]
                del self._topics[partition.topic][partition]
                if not self._topics[partition.topic]:
                    del self._topics[partition.topic]

    async def apply_retention(self, policy: RetentionPolicy, topic: str | None = None) -> dict[Partition, int]:
        """See `Storage.apply_retention`. Limits are exact. Appends run between the steps, as in `trim`."""
        partitions = self._known_rows if topic is None else self._topics.get(topic, {})
        return await self._trim_partitions(TrimLimits.from_policy(policy, now_ms()), partitions)

    async def find_compactable(self, partition: Partition, clean_end: int) -> Compactable | None:
        """See `CompactsPartitions.find_compactable`."""
        return await self._read(lambda reader: find_compactable(reader, self._table, partition, clean_end))

    async def compact(
        self, partition: Partition, end_sequence: int, find_removed: FindRemoved, throttle: Throttle
    ) -> Compacted:
        """See `CompactsPartitions.compact`. Records are removed in small steps, and appends run between the steps."""
        self._require_writer()
        await trio.lowlevel.checkpoint()
        done, sequence, steps = Compacted(), 0, 0
        self._compacting.add(partition)
        while (row := self._known_rows.get(partition)) is not None and partition in self._compacting:
            sequence = max(sequence, row.info.earliest_sequence)
            count = min(end_sequence, row.info.end_sequence - 1) - sequence
            try:
                batch = None if count <= 0 else await self.read(partition, sequence, count, with_times=True)
            except StorageCorruptError as error:  # damaged records are kept
                sequence = max(error.end_sequence, sequence + 1)
                continue
            if batch is None:
                break
            sequences = await trio.to_thread.run_sync(choose_removed, batch, end_sequence, find_removed)
            for start in range(0, len(sequences), DELETE_RECORDS_MAX):
                removed = await self._delete_records(partition, sequences[start : start + DELETE_RECORDS_MAX])
                done = done.plus(removed)
                steps += 1
                if steps % CHECKPOINT_STEPS == 0:
                    await self._checkpoint()
                await throttle(removed.bytes_removed)
            done = done.plus(Compacted(batch.content_bytes))
            await throttle(batch.content_bytes)
            sequence = batch.end_sequence
        self._compacting.discard(partition)
        if steps:
            await self._checkpoint()
        return done

    async def _delete_records(self, partition: Partition, sequences: list[int]) -> Compacted:
        async with self._write_lock:
            row = self._known_rows.get(partition)
            if row is None or partition not in self._compacting:
                return Compacted()
            kept = [each for each in sequences if each >= row.info.earliest_sequence]
            if not kept:
                return Compacted()
            changed, removed = await self._run_transaction(
                lambda writer: delete_records(writer, row, kept), without_sync=True
            )
            self._remember_rows({partition: changed})
        return removed

    async def flush(self) -> None:
        """See `Storage.flush`."""
        self._require_writer()

        def run() -> None:
            with storage_errors(self._path):
                self._log.flush()

        async with self._write_lock:
            await trio.to_thread.run_sync(run, limiter=self._write_limiter)

    async def find_damage(self) -> list[Damage]:
        """See `Storage.find_damage`. Reads the whole file."""

        def run() -> list[Damage]:
            with storage_errors(self._path), closing(self._connect()) as connection:
                connection.set_progress_handler(_is_cancelled, PROGRESS_STEPS)
                damages = list(DamageFinder(connection, self._table, self._path).run())
                trio.from_thread.check_cancelled()  # a cancelled check must not be reported as damage
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
        self._require_writer()
        async with self._write_lock:
            await self._run_transaction(lambda writer: writer.executemany(statement, rows))

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
        await trio.to_thread.run_sync(self._check_not_removed, limiter=self._stat_limiter)

    def close(self) -> None:
        """Close all connections."""
        self._connections.close()
        if self._writer is not None and not self._file_identity.is_in_place:
            self._log.remove_files()

    def _connect(self) -> sqlite3.Connection:
        return connect(self._path, read_only=self._synchronous is None)

    def _check_not_removed(self) -> None:
        """Check that the files are in place, because SQLite also writes to removed files (two `stat` calls)."""
        self._file_identity.check_in_place()
        if self._writer is not None:
            self._log.check_not_removed()

    async def _read(self, query: Callable[[sqlite3.Connection], _T]) -> _T:
        def run() -> _T:
            with storage_errors(self._path):
                return query(self._reader)

        return await trio.to_thread.run_sync(run, limiter=self._read_limiter)

    async def _write(self, change: Callable[[sqlite3.Connection], _ChangedRows]) -> _ChangedRows:
        """Run a change in its own transaction, and return the rows that it changed."""
        self._require_writer()
        async with self._write_lock:
            changes = await self._run_transaction(change)
            self._remember_rows(changes)
        return changes

    async def _trim_partitions(self, limits: TrimLimits, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Drop records step by step, and return the new earliest sequence of each partition that lost any."""
        self._require_writer()
        await trio.lowlevel.checkpoint()
        known = self._known_rows
        remaining = deque(each for each in partitions if each in known and limits.is_exceeded_by(known[each].info))
        moved: dict[Partition, int] = {}
        steps = 0
        while remaining:
            async with self._write_lock:
                remaining = deque(each for each in remaining if each in known)  # others may have been deleted
                rows = ((partition, known[partition]) for partition in remaining)
                changes, finished = await self._run_transaction(partial(trim_step, limits, rows), without_sync=True)
                self._remember_rows(changes)
            moved.update((partition, row.info.earliest_sequence) for partition, row in changes.items())
            for _ in range(finished):
                remaining.popleft()
            steps += 1
            if steps % CHECKPOINT_STEPS == 0 or not remaining:
                await self._checkpoint()
        return moved

    async def _checkpoint(self) -> None:
        await trio.to_thread.run_sync(self._log.checkpoint, limiter=self._checkpoint_limiter)

    async def _run_transaction(self, change: Callable[[sqlite3.Connection], _T], *, without_sync: bool = False) -> _T:
        """Run a change in a transaction. The caller holds the write lock."""
        writer = self._require_writer()

        def run() -> _T:
            self._check_not_removed()
            with storage_errors(self._path):
                with self._log.without_sync() if without_sync else nullcontext(), transaction(writer):
                    result = change(writer)
                self._check_not_removed()
                self._log.truncate_if_large()
            return result

        return await trio.to_thread.run_sync(run, limiter=self._write_limiter)

    def _require_writer(self) -> sqlite3.Connection:
        if self._writer is None:
            raise StorageError(f"{self._path} was opened read-only; open it for writing to change it")
        return self._writer

    def _remember_rows(self, changes: Mapping[Partition, PartitionRow]) -> None:
        for partition, row in changes.items():
            self._known_rows[partition] = row
            self._topics.setdefault(partition.topic, {})[partition] = row.info

    def _append_batches(self, batches: Sequence[RecordBatch], writer: sqlite3.Connection) -> _ChangedRows:
        time_ms = now_ms()
        changes: _ChangedRows = {}
        for batch in batches:
            if batch.values:
                row = changes.get(batch.partition) or self._known_rows.get(batch.partition)
                changes[batch.partition] = append_batch(writer, row, batch, time_ms)
        for row in changes.values():
            update_partition(writer, row)
        return changes

    def _reset_empty(self, partition: Partition, next_sequence: int, writer: sqlite3.Connection) -> _ChangedRows:
        """Reset a partition without records; return an empty dict if it has records, which must be trimmed first."""
        row = self._known_rows.get(partition)
        if row is None:
            return {partition: insert_partition(writer, partition, next_sequence)}
        if next_sequence < row.info.end_sequence:
            raise StorageSequenceError(
                f"{partition}: cannot reset to sequence {next_sequence}, expected {row.info.end_sequence} or later"
            )
        if row.info.count:
            return {}
        info = PartitionInfo(next_sequence, next_sequence, last_append_at=row.info.last_append_at)
        row = attrs.evolve(row, info=info)
        update_partition(writer, row)
        return {partition: row}


def _is_cancelled() -> bool:
    with suppress(trio.Cancelled):
        trio.from_thread.check_cancelled()
        return False
    return True


def _file_sizes(path: str) -> int:
    """Return the size of the database and its log, in bytes."""
    size = 0
    for file in (os.path.realpath(path), f"{os.path.realpath(path)}-wal"):
        with suppress(FileNotFoundError):
            size += os.stat(file).st_size
    return size
