"""The checks and releases of SQLite storages around a change, and when something fails in the middle."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio

from dafka.errors import StorageError, StorageLostError
from dafka.records import Partition, RecordBatch
from dafka.storage import RetentionPolicy, open_storage
from dafka.storage.sqlite import connection, storage, write_ahead_log, writing
from dafka.storage.sqlite.connection import BUSY_TIMEOUT_S, connect, snapshot
from dafka.storage.sqlite.schema import PartitionRow, PartitionTable
from dafka.storage.sqlite.storage import SqliteStorage
from dafka.storage.sqlite.write_ahead_log import WriteAheadLog

PARTITION = Partition("orders", "A")


def batch(first: int, count: int = 10) -> RecordBatch:
    return RecordBatch(PARTITION, first, [b"%d" % sequence for sequence in range(first, first + count)])


def settings(opened: SqliteStorage) -> tuple[int, int]:
    """Return the settings of the writing connection that decide when it syncs and when it runs checkpoints."""
    writer = opened._require_writer()
    (synchronous,) = writer.execute("PRAGMA synchronous").fetchone()
    (pages,) = writer.execute("PRAGMA wal_autocheckpoint").fetchone()
    return synchronous, pages


@pytest.mark.parametrize("suffix", ["", "-wal"])
async def test_a_file_that_is_removed_during_a_commit_acknowledges_nothing(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.db"
    is_removed = False

    @contextmanager
    def transaction(writer: sqlite3.Connection) -> Iterator[None]:
        with connection.transaction(writer):
            yield
        if is_removed:
            os.unlink(f"{path}{suffix}")

    monkeypatch.setattr(storage, "transaction", transaction)
    async with open_storage(f"sqlite:{path}") as opened:
        await opened.append([batch(0)])
        is_removed = True
        with pytest.raises(StorageLostError, match="was removed or replaced"):
            await opened.append([batch(10)])


def test_an_error_ends_the_snapshot(tmp_path: Path) -> None:
    with closing(connect(str(tmp_path / "s.db"), read_only=False)) as reader:
        with pytest.raises(ZeroDivisionError), snapshot(reader):
            raise ZeroDivisionError
        assert not reader.in_transaction
        with snapshot(reader):
            assert reader.in_transaction
        assert not reader.in_transaction


async def test_a_reader_that_meets_damage_does_not_keep_the_log_in_use(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    async with open_storage(f"sqlite:{path}") as opened:
        assert isinstance(opened, SqliteStorage)
        await opened.append([batch(0)])
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("UPDATE records SET content = 'text' WHERE sequence = 3")
        with pytest.raises(StorageError):
            await opened.read(PARTITION, 3, 1)
        await opened.append([batch(10)])
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            assert other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() == (0, 0, 0)


async def test_a_failed_trim_leaves_the_settings_of_appends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    async with open_storage(f"sqlite:{tmp_path / 's.db'}") as opened:
        assert isinstance(opened, SqliteStorage)
        before = settings(opened)
        assert before[0] == 2
        assert before[1] > 0
        await opened.append([batch(0)])
        await opened.trim(PARTITION, 3)
        assert settings(opened) == before
        monkeypatch.setattr(storage, "trim_step", fail)
        with pytest.raises(StorageError, match="disk I/O error"):
            await opened.trim(PARTITION, 5)
        assert settings(opened) == before


async def test_an_append_that_truncates_the_log_leaves_the_settings_of_appends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_ahead_log, "LOG_BYTES_MAX", 0)
    path = tmp_path / "s.db"
    async with open_storage(f"sqlite:{path}") as opened:
        assert isinstance(opened, SqliteStorage)
        before = settings(opened)
        await opened.append([batch(0)])
        assert path.with_name("s.db-wal").stat().st_size == 0
        assert settings(opened) == before
        # A writer of another program, such as a backup, may hold the lock for seconds.
        assert opened._require_writer().execute("PRAGMA busy_timeout").fetchone() == (BUSY_TIMEOUT_S * 1000,)


async def test_a_commit_succeeds_although_the_log_cannot_be_examined_or_truncated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records are durable by then. A producer that gets no ACK would send them again, and the store fail again."""

    def fail_to_examine(path: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    def fail_to_truncate(*_: object) -> bool:
        raise sqlite3.OperationalError("disk I/O error")

    async with open_storage(f"sqlite:{tmp_path / 's.db'}") as opened:
        with monkeypatch.context() as patch:
            patch.setattr(write_ahead_log, "os", SimpleNamespace(stat=fail_to_examine))
            await opened.append([batch(0)])
        with monkeypatch.context() as patch:
            patch.setattr(write_ahead_log, "LOG_BYTES_MAX", 0)
            patch.setattr(WriteAheadLog, "_run_checkpoint", fail_to_truncate)
            await opened.append([batch(10)])
        assert await opened.read(PARTITION, 0, 100) == batch(0, 20)


async def test_partitions_may_be_deleted_while_retention_drops_their_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "STEP_S", 0.0)  # one statement in each transaction
    monkeypatch.setattr(writing, "CHUNK_RECORDS_MAX", 1)
    other = Partition("orders", "B")
    async with open_storage(f"sqlite:{tmp_path / 's.db'}") as opened:
        assert isinstance(opened, SqliteStorage)
        await opened.append([batch(0, 50), RecordBatch(other, 0, [b"0", b"1"])])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(opened.apply_retention, RetentionPolicy(records_max=0))
            await opened.delete_partitions([other])
            assert (await opened.partitions())[PARTITION].count > 0  # retention has not come to the other one yet
        assert {each: info.count for each, info in (await opened.partitions()).items()} == {PARTITION: 0}


async def test_a_deleted_topic_leaves_nothing_in_memory(tmp_path: Path) -> None:
    """A program may use a new topic each day."""
    async with open_storage(f"sqlite:{tmp_path / 's.db'}") as opened:
        assert isinstance(opened, SqliteStorage)
        await opened.append([batch(0), RecordBatch(Partition("bills", "B"), 0, [b"0"])])
        await opened.delete_partitions([PARTITION])
        assert set(opened._known_rows) == {Partition("bills", "B")}
        assert set(opened._topics) == {"bills"}


async def test_records_that_are_dropped_while_a_read_looks_for_damage_are_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:{tmp_path / 's.db'}"
    async with open_storage(url) as writer, open_storage(url, read_only=True) as reader:
        assert isinstance(reader, SqliteStorage)
        await writer.append([batch(0)])
        select_one = PartitionTable.select_one
        looks = 0

        def append_before_and_trim_after(
            self: PartitionTable, connection: sqlite3.Connection, partition: Partition
        ) -> PartitionRow | None:
            nonlocal looks
            looks += 1
            if looks == 1:
                return select_one(self, connection, partition)
            trio.from_thread.run(writer.append, [batch(10)])
            found = select_one(self, connection, partition)
            trio.from_thread.run(writer.trim, PARTITION, 15)
            return found

        monkeypatch.setattr(PartitionTable, "select_one", append_before_and_trim_after)
        assert await reader.read(PARTITION, 10, 1) is None
        assert looks == 2


async def test_a_failed_append_leaves_what_is_known_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    other = Partition("orders", "B")
    async with open_storage(f"sqlite:{tmp_path / 's.db'}") as opened:
        await opened.append([batch(0)])
        before = await opened.partitions()
        with monkeypatch.context() as patch:
            patch.setattr(storage, "update_partition", fail)
            with pytest.raises(StorageError, match="disk is full"):
                await opened.append([batch(10), RecordBatch(other, 0, [b"0"])])
        assert await opened.partitions() == before
        await opened.append([batch(10), RecordBatch(other, 0, [b"0"])])
        assert {each: info.end_sequence for each, info in (await opened.partitions()).items()} == {
            PARTITION: 20,
            other: 1,
        }


@pytest.mark.parametrize("damage", ["UPDATE node SET address = x'00'", "DELETE FROM node"])
async def test_a_store_without_its_address_is_not_opened(damage: str, tmp_path: Path) -> None:
    """Under another address its ACKs would count as those of another store."""
    path = tmp_path / "s.db"
    async with open_storage(f"sqlite:{path}"):
        pass
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute(damage)
    with pytest.raises(StorageError, match="the store's node address is damaged"):
        async with open_storage(f"sqlite:{path}"):
            pass
