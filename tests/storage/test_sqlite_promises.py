"""What SQLite storages check and release around a change, and when something fails in the middle."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from dafka.errors import StorageError, StorageLostError
from dafka.records import Partition, RecordBatch
from dafka.storage import open_storage
from dafka.storage.sqlite import connection, storage
from dafka.storage.sqlite.connection import connect, snapshot
from dafka.storage.sqlite.storage import SqliteStorage

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
