"""Storage in a SQLite file, `sqlite:PATH` or `sqlite:PATH?synchronous=NORMAL`; the default.

One connection writes and one reads, each in a worker thread of its own turn. A batch is inserted by one statement:
SQLite then works on all of its rows without the interpreter lock, which stepping row by row would pass back and
forth with the event loop for every record.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager, nullcontext
from pathlib import Path
from typing import TypeVar
from urllib.parse import parse_qsl, quote

import trio
from filelock import FileLock, Timeout
from sqlite_utils import Database

from dafka.errors import StorageBusyError, StorageError, StorageFormatError
from dafka.records import Partition, RecordBatch
from dafka.storage.base import READ_BYTES, PartitionInfo, Storage
from dafka.storage.schema import check_schema, from_column, migrations, to_columns

INSERT_BYTES_MAX = 16 * 2**20
"""Contents bound to one INSERT: they are copied once, and SQLite's own limit is a thousand million octets."""

INSERT_RECORDS_MAX = 50_000

READ_RECORDS_MAX = 10_000
"""Rows of one read. They come one by one through the interpreter lock, so a read is kept short."""

SEQUENCE_MAX = 2**63 - 1

BUSY_TIMEOUT_S = 30.0

HEADER = b"SQLite format 3\0"
"""How every SQLite database begins; an empty file is one that has not begun."""

SYNCHRONOUS = ("FULL", "EXTRA", "NORMAL", "OFF")

_INSERT_ONE = "INSERT INTO records (partition_id, sequence, stored_at, content) VALUES (?, ?, ?, ?)"

# Each value of the JSON array is a content's place in the bound octets (from 1, in the upper half) and its length.
_INSERT_RUN = """
    INSERT INTO records (partition_id, sequence, stored_at, content)
    SELECT ?1, ?2 + key, ?3, ifnull(substr(?4, value >> 32, value & 4294967295), x'') FROM json_each(?5)
"""

_T = TypeVar("_T")


class SqliteStorage:
    """See `Storage`."""

    identity: str

    def __init__(self, path: str, connect: Callable[[], sqlite3.Connection], synchronous: str | None) -> None:
        """With `synchronous` None, for reading only."""
        self._path = path
        self._reader = connect()
        self._writer = None if synchronous is None else connect()
        self._read_limiter = trio.CapacityLimiter(1)
        self._write_limiter = trio.CapacityLimiter(1)
        self._append_turn = trio.Lock()
        (self.identity,) = self._reader.execute("SELECT address FROM node").fetchone()
        self._ids: dict[Partition, int] = {}
        self._ends: dict[Partition, int] = {}
        if self._writer is not None:
            self._writer.execute(f"PRAGMA synchronous = {synchronous}")
            for partition, (partition_id, info) in _select_partitions(self._writer, None).items():
                self._ids[partition] = partition_id
                self._ends[partition] = info.end_sequence

    async def append(self, batches: Sequence[RecordBatch]) -> None:
        """See `Storage.append`. All batches are one transaction."""
        async with self._append_turn:  # the next append is checked against this one's ends
            ids, ends = await self._write(lambda writer: self._append(writer, batches))
            self._ids.update(ids)
            self._ends.update(ends)

    async def read(
        self, partition: Partition, first_sequence: int, count: int, bytes_max: int = READ_BYTES
    ) -> RecordBatch | None:
        """See `Storage.read`."""
        return await self._read(lambda reader: _select_records(reader, partition, first_sequence, count, bytes_max))

    async def partitions(self, topic: str | None = None) -> dict[Partition, PartitionInfo]:
        """See `Storage.partitions`."""
        found = await self._read(lambda reader: _select_partitions(reader, topic))
        return {partition: info for partition, (_, info) in found.items()}

    async def trim(self, partition: Partition, earliest_sequence: int) -> None:
        """See `Storage.trim`."""
        await self._write(lambda writer: _delete_records(writer, partition, earliest_sequence))

    async def save_positions(self, name: str, positions: Mapping[Partition, int]) -> None:
        """See `Storage.save_positions`."""
        saved_at = _now_ms()
        rows = [(name, *to_columns(partition), position, saved_at) for partition, position in positions.items()]
        statement = """
            INSERT INTO positions (name, topic, address, next_sequence, saved_at) VALUES (?, ?, ?, ?, ?)
            ON CONFLICT DO UPDATE SET next_sequence = excluded.next_sequence, saved_at = excluded.saved_at
        """
        await self._write(lambda writer: writer.executemany(statement, rows))

    async def load_positions(self, name: str) -> dict[Partition, int]:
        """See `Storage.load_positions`."""
        statement = "SELECT topic, address, next_sequence FROM positions WHERE name = ?"
        rows = await self._read(lambda reader: reader.execute(statement, (name,)).fetchall())
        return {Partition(from_column(topic), from_column(address)): position for topic, address, position in rows}

    def close(self) -> None:
        """Closes both connections."""
        self._reader.close()
        if self._writer is not None:
            self._writer.close()

    async def _read(self, query: Callable[[sqlite3.Connection], _T]) -> _T:
        def run() -> _T:
            with _storage_errors(self._path):
                return query(self._reader)

        return await trio.to_thread.run_sync(run, limiter=self._read_limiter)

    async def _write(self, change: Callable[[sqlite3.Connection], _T]) -> _T:
        writer = self._writer
        if writer is None:
            raise StorageError(f"{self._path} was opened for reading only")

        def run() -> _T:
            with _storage_errors(self._path), _transaction(writer):
                return change(writer)

        return await trio.to_thread.run_sync(run, limiter=self._write_limiter)

    def _append(
        self, writer: sqlite3.Connection, batches: Sequence[RecordBatch]
    ) -> tuple[dict[Partition, int], dict[Partition, int]]:
        """Inserts; gives the new partitions' ids and every partition's new end, true once it is committed."""
        stored_at = _now_ms()
        ids: dict[Partition, int] = {}
        ends: dict[Partition, int] = {}
        for batch in batches:
            if not batch.contents:
                continue
            partition = batch.partition
            if batch.end_sequence > SEQUENCE_MAX:
                raise StorageError(f"{partition}: sequence {batch.end_sequence} is more than SQLite can count")
            PartitionInfo(0, ends.get(partition, self._ends.get(partition, 0))).check_append(batch)
            partition_id = self._ids.get(partition) or ids.get(partition)
            if partition_id is None:
                partition_id = ids[partition] = _insert_partition(writer, batch)
            _insert_records(writer, partition_id, batch, stored_at)
            writer.execute(
                "UPDATE partitions SET end_sequence = ?, content_bytes = content_bytes + ? WHERE id = ?",
                (batch.end_sequence, batch.content_bytes, partition_id),
            )
            ends[partition] = batch.end_sequence
        return ids, ends


@asynccontextmanager
async def open_sqlite(place: str, *, read_only: bool = False) -> AsyncIterator[Storage]:
    """Opens `sqlite:PATH?synchronous=FULL`; see `open_storage`. Makes the file where there is none."""
    path, options = _parse_place(place)
    await trio.to_thread.run_sync(_check_header, path)
    with nullcontext() if read_only else _lock(path):
        storage = await trio.to_thread.run_sync(_open, path, options, read_only)
        try:
            yield storage
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(storage.close)


def _parse_place(place: str) -> tuple[str, dict[str, str]]:
    path, _, query = place.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    if not path or "\0" in path:
        raise StorageError("storage 'sqlite:': expected a path, as in sqlite:dafka.db")
    unknown = set(options) - {"synchronous"}
    if unknown:
        raise StorageError(f"storage 'sqlite:': unknown option {min(unknown)!r}, expected synchronous")
    if options.setdefault("synchronous", "FULL").upper() not in SYNCHRONOUS:
        raise StorageError(f"storage 'sqlite:': expected synchronous={' or '.join(SYNCHRONOUS)}")
    return path, options


@contextmanager
def _lock(path: str) -> Iterator[None]:
    """One writer: the lock goes with the process, however it ends."""
    real_path = Path(os.path.realpath(path))
    if not real_path.parent.is_dir():  # the lock would make it
        raise StorageError(f"cannot open {path}: there is no folder {real_path.parent}")
    lock = FileLock(f"{real_path}.lock", thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise StorageBusyError(f"{path} is being written to by another store") from None
    except OSError as error:
        raise StorageError(f"cannot open {path}: {error.strerror}") from None
    try:
        yield
    finally:
        lock.release()


def _check_header(path: str) -> None:
    """Refuses what is plainly something else, before a lock file is made beside it."""
    if Path(path).is_dir():
        raise StorageFormatError(f"{path} is a folder, not a dafka store")
    try:
        with Path(path).open("rb") as file:
            header = file.read(len(HEADER))
    except OSError:
        return  # there is nothing yet, or SQLite will say what is wrong with it
    if header and header != HEADER:
        raise StorageFormatError(f"{path} is not a dafka store: file is not a database")


def _open(path: str, options: Mapping[str, str], read_only: bool) -> SqliteStorage:
    if read_only and not Path(path).exists():
        raise StorageError(f"{path} does not exist")

    def connect() -> sqlite3.Connection:
        mode = "ro" if read_only else "rwc"
        return sqlite3.connect(
            f"file:{quote(os.fsencode(path))}?mode={mode}",
            uri=True,
            timeout=BUSY_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
        )

    with _storage_errors(path):
        with closing(connect()) as connection:
            is_store = check_schema(connection, path)
            if read_only and not is_store:
                raise StorageFormatError(f"{path} is not a dafka store, but an empty database")
            if not read_only:
                connection.execute("PRAGMA journal_mode = WAL")
                migrations.apply(Database(connection))
        return SqliteStorage(path, connect, None if read_only else options["synchronous"])


@contextmanager
def _storage_errors(path: str) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OverflowError) as error:
        raise StorageError(f"{path}: {error}") from error


@contextmanager
def _transaction(writer: sqlite3.Connection) -> Iterator[None]:
    writer.execute("BEGIN IMMEDIATE")
    try:
        yield
        writer.execute("COMMIT")
    except BaseException:
        if writer.in_transaction:
            writer.execute("ROLLBACK")
        raise


def _insert_partition(writer: sqlite3.Connection, batch: RecordBatch) -> int:
    statement = """
        INSERT INTO partitions (topic, address, earliest_sequence, end_sequence, content_bytes)
        VALUES (?, ?, ?, ?, 0)
    """
    cursor = writer.execute(statement, (*to_columns(batch.partition), batch.first_sequence, batch.first_sequence))
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def _insert_records(writer: sqlite3.Connection, partition_id: int, batch: RecordBatch, stored_at: int) -> None:
    sequence = batch.first_sequence
    for contents in _chunks(batch.contents):
        if len(contents) == 1:
            writer.execute(_INSERT_ONE, (partition_id, sequence, stored_at, contents[0]))
        else:
            places = []
            place = 1
            for content in contents:
                places.append(place << 32 | len(content))
                place += len(content)
            # The representation of a list of whole numbers is JSON.
            row = (partition_id, sequence, stored_at, b"".join(contents), repr(places))
            writer.execute(_INSERT_RUN, row)
        sequence += len(contents)


def _chunks(contents: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    start = size = 0
    for index, content in enumerate(contents):
        size += len(content)
        if index > start and (size > INSERT_BYTES_MAX or index - start >= INSERT_RECORDS_MAX):
            yield contents[start:index]
            start, size = index, len(content)
    if start < len(contents):
        yield contents[start:]


def _select_partitions(reader: sqlite3.Connection, topic: str | None) -> dict[Partition, tuple[int, PartitionInfo]]:
    statement = "SELECT topic, address, id, earliest_sequence, end_sequence, content_bytes FROM partitions"
    if topic is None:
        rows = reader.execute(statement)
    else:
        rows = reader.execute(f"{statement} WHERE topic = ?", to_columns(Partition(topic, ""))[:1])
    return {
        Partition(from_column(topic_column), from_column(address)): (partition_id, PartitionInfo(*info))
        for topic_column, address, partition_id, *info in rows
    }


def _select_records(
    reader: sqlite3.Connection, partition: Partition, first_sequence: int, count: int, bytes_max: int
) -> RecordBatch | None:
    statement = """
        SELECT sequence, content FROM records
        WHERE partition_id = (SELECT id FROM partitions WHERE topic = ? AND address = ?) AND sequence >= ?
        ORDER BY sequence LIMIT ?
    """
    limit = max(min(count, READ_RECORDS_MAX), 0)
    contents: list[bytes] = []
    size = 0
    if first_sequence > SEQUENCE_MAX:
        return None
    with closing(reader.execute(statement, (*to_columns(partition), first_sequence, limit))) as rows:
        for sequence, content in rows:
            if sequence != first_sequence + len(contents) or (contents and size + len(content) > bytes_max):
                break
            contents.append(content)
            size += len(content)
    return RecordBatch(partition, first_sequence, contents) if contents else None


def _delete_records(writer: sqlite3.Connection, partition: Partition, earliest_sequence: int) -> None:
    row = writer.execute(
        "SELECT id, earliest_sequence, end_sequence FROM partitions WHERE topic = ? AND address = ?",
        to_columns(partition),
    ).fetchone()
    if row is None:
        return
    partition_id, earliest, end = row
    earliest_sequence = min(earliest_sequence, end)
    if earliest_sequence <= earliest:
        return
    where = "WHERE partition_id = ? AND sequence < ?"
    (dropped,) = writer.execute(
        f"SELECT ifnull(sum(length(content)), 0) FROM records {where}", (partition_id, earliest_sequence)
    ).fetchone()
    writer.execute(f"DELETE FROM records {where}", (partition_id, earliest_sequence))
    writer.execute(
        "UPDATE partitions SET earliest_sequence = ?, content_bytes = content_bytes - ? WHERE id = ?",
        (earliest_sequence, dropped, partition_id),
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
