"""A writer of SQLite: its transactions, when they sync, and what is left when one of them fails."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from dafka.errors import StorageCorruptError, StorageError, StorageLostError, StorageSequenceError
from dafka.records import Partition, RecordBatch
from dafka.storage import PartitionInfo, RetentionPolicy, open_storage
from dafka.storage.sqlite import storage as storage_module
from dafka.storage.sqlite import write_ahead_log, writing
from dafka.storage.sqlite.connection import BUSY_TIMEOUT_S, connect, snapshot
from dafka.storage.sqlite.schema import PartitionRow, PartitionTable
from dafka.storage.sqlite.storage import SqliteStorage
from dafka.storage.sqlite.write_ahead_log import WriteAheadLog
from dafka.storage.sqlite.writing import TrimLimits
from tests.power.runs import no_wait
from tests.storage.records import PARTITION, batch
from tests.storage.test_sqlite_rows import traced

OTHER = Partition("live", "B")
CHECK = "check that the file is in place"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture(params=["FULL", "OFF"])
def synchronous(request: pytest.FixtureRequest) -> str:
    value: str = request.param
    return value


@pytest.fixture
async def storage(path: Path) -> AsyncIterator[SqliteStorage]:
    """Open a storage with 100 records."""
    async with open_storage(f"sqlite:{path}") as opened:
        assert isinstance(opened, SqliteStorage)
        await opened.append([batch(0, 100)])
        yield opened


def execute(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(statement)


def fail(*_: object) -> None:
    raise sqlite3.OperationalError("disk I/O error")


# Statements


@contextmanager
def recorded(storage: SqliteStorage, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Record the writer's transactions and settings, and the looks at the file."""
    seen: list[str] = []
    check = storage._check_not_removed

    def trace(statement: str) -> None:
        word = statement.split(maxsplit=1)[0]
        if word in {"BEGIN", "COMMIT", "ROLLBACK", "PRAGMA"}:
            seen.append(statement)
        elif word in {"INSERT", "DELETE", "UPDATE"} and word not in seen[-1:]:
            seen.append(word)

    def check_and_note() -> None:
        seen.append(CHECK)
        check()

    assert storage._writer is not None
    with monkeypatch.context() as patched:
        patched.setattr(storage, "_check_not_removed", check_and_note)
        storage._writer.set_trace_callback(trace)
        yield seen
        storage._writer.set_trace_callback(None)


@pytest.mark.parametrize(("option", "level"), [("", 2), ("?synchronous=NORMAL", 1), ("?synchronous=extra", 3)])
async def test_synchronous_is_set_on_the_writing_connection(path: Path, option: str, level: int) -> None:
    async with open_storage(f"sqlite:{path}{option}") as storage:
        assert isinstance(storage, SqliteStorage)
        writer = storage._require_writer()
        assert writer.execute("PRAGMA synchronous").fetchone() == (level,)
        assert writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)


async def test_an_append_is_one_transaction_with_the_options_sync(
    storage: SqliteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    with recorded(storage, monkeypatch) as seen:
        await storage.append([batch(100, 110), batch(0, 1, OTHER), batch(110, 111)])
    (*before, last_check) = seen
    assert (before[0], before[1], before[-1], last_check) == (CHECK, "BEGIN IMMEDIATE", "COMMIT", CHECK)
    assert not [each for each in before[2:-1] if each.startswith(("PRAGMA", "COMMIT", "BEGIN"))]
    assert before[-2] == "UPDATE", "the partitions' rows are part of it"
    with recorded(storage, monkeypatch) as seen:
        await storage.save_positions("name", {PARTITION: 7})
    assert seen == [CHECK, "BEGIN IMMEDIATE", "INSERT", "COMMIT", CHECK]


async def test_dropping_records_takes_short_transactions_that_do_not_sync(
    path: Path, synchronous: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "STEP_S", 0.0)  # one statement in each transaction
    monkeypatch.setattr(writing, "CHUNK_RECORDS_MAX", 30)
    async with open_storage(f"sqlite:{path}?synchronous={synchronous}") as storage:
        assert isinstance(storage, SqliteStorage)
        await storage.append([batch(0, 100)])
        begun = [CHECK, "PRAGMA wal_autocheckpoint = 0"]
        begun += [] if synchronous == "OFF" else ["PRAGMA synchronous = NORMAL"]
        restored = [f"PRAGMA synchronous = {synchronous}", "PRAGMA wal_autocheckpoint = 1024"]
        with recorded(storage, monkeypatch) as seen:
            await storage.trim(PARTITION, 95)
        step = [*begun, "BEGIN IMMEDIATE", "DELETE", "UPDATE", "COMMIT", *restored, CHECK]
        assert seen == 4 * step
        assert (await storage.partitions())[PARTITION].content_bytes == 10
        monkeypatch.setattr(storage_module, "trim_step", fail)
        with recorded(storage, monkeypatch) as seen, pytest.raises(StorageError, match="disk I/O error"):
            await storage.trim(PARTITION, 98)
        assert seen == [*begun, "BEGIN IMMEDIATE", "ROLLBACK", *restored]
        assert (await storage.partitions())[PARTITION].earliest_sequence == 95
        await storage.append([batch(100, 101)])


async def test_large_records_are_dropped_one_by_one(storage: SqliteStorage) -> None:
    await storage.append([RecordBatch(OTHER, 0, [b"." * 2**18] * 8)])
    with traced(storage._writer) as statements:
        assert await storage.apply_retention(RetentionPolicy(bytes_max=2**19), OTHER.topic) == {OTHER: 6}
    assert sum(statement.startswith("DELETE") for statement in statements) == 6


async def test_an_append_that_truncates_the_log_leaves_the_settings_of_appends(
    storage: SqliteStorage, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_ahead_log, "LOG_BYTES_MAX", 0)
    settings = ("synchronous", "wal_autocheckpoint", "busy_timeout")
    before = [storage._require_writer().execute(f"PRAGMA {name}").fetchone()[0] for name in settings]
    await storage.append([batch(100, 110)])
    assert path.with_name("store.db-wal").stat().st_size == 0
    assert before == [storage._require_writer().execute(f"PRAGMA {name}").fetchone()[0] for name in settings]
    # A writer of another program, such as a backup, may hold the lock for seconds.
    assert before[2] == BUSY_TIMEOUT_S * 1000


# Failures


@pytest.mark.parametrize("suffix", ["", "-wal"])
async def test_a_file_that_is_lost_at_the_commit_acknowledges_nothing(
    storage: SqliteStorage, path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(statement: str) -> None:
        if statement == "COMMIT":
            path.with_name(f"{path.name}{suffix}").unlink()

    storage._require_writer().set_trace_callback(lose)
    with pytest.raises(StorageLostError, match="was removed or replaced"):
        await storage.append([batch(100, 101)])
    storage._require_writer().set_trace_callback(None)
    assert (await storage.partitions())[PARTITION].end_sequence == 100
    with recorded(storage, monkeypatch) as seen, pytest.raises(StorageLostError):
        await storage.append([batch(100, 101)])
    assert seen == [CHECK], "nothing is written to a file that is gone"


async def test_a_refused_or_failed_append_changes_nothing(
    storage: SqliteStorage, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await storage.partitions()
    with recorded(storage, monkeypatch) as seen, pytest.raises(StorageSequenceError):
        await storage.append([batch(100, 102), batch(0, 1, OTHER), batch(103, 104)])
    assert seen[-1] == "ROLLBACK"
    assert "COMMIT" not in seen
    with monkeypatch.context() as patch:
        patch.setattr(storage_module, "update_partition", fail)
        with pytest.raises(StorageError, match="disk I/O error"):
            await storage.append([batch(100, 102), batch(0, 1, OTHER)])
    storage._require_writer().execute("PRAGMA max_page_count = 50")
    for _ in range(2):
        with pytest.raises(StorageError, match=f"^{path}: database or disk is full$"):
            await storage.append([batch(0, 5, OTHER), batch(100, 300, size=10_000)])
    assert await storage.partitions() == before
    async with open_storage(f"sqlite:{path}", read_only=True) as reader:
        assert await reader.partitions() == before
    storage._require_writer().execute("PRAGMA max_page_count = 1000000")
    await storage.append([batch(100, 300, size=10_000), batch(0, 5, OTHER)])
    assert await storage.read(PARTITION, 100, 50) == batch(100, 150, size=10_000)
    assert await storage.read(OTHER, 0, 10) == batch(0, 5, OTHER)


async def test_a_commit_succeeds_although_the_log_cannot_be_examined_or_truncated(
    storage: SqliteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records are durable by then. A producer that gets no ACK would send them again, and the store fail again."""

    def fail_to_examine(path: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    with monkeypatch.context() as patch:
        patch.setattr(write_ahead_log, "os", SimpleNamespace(stat=fail_to_examine))
        await storage.append([batch(100, 110)])
    with monkeypatch.context() as patch:
        patch.setattr(write_ahead_log, "LOG_BYTES_MAX", 0)
        patch.setattr(WriteAheadLog, "_run_checkpoint", fail)
        await storage.append([batch(110, 120)])
    assert await storage.read(PARTITION, 0, 200) == batch(0, 120)


@pytest.mark.parametrize("damage", ["UPDATE node SET address = x'00'", "DELETE FROM node"])
async def test_a_store_without_its_address_is_not_opened(damage: str, path: Path) -> None:
    """Under another address its ACKs would count as those of another store."""
    async with open_storage(f"sqlite:{path}"):
        pass
    execute(path, damage)
    with pytest.raises(StorageError, match="the store's node address is damaged"):
        async with open_storage(f"sqlite:{path}"):
            pass


# Connections


def test_a_snapshot_shows_one_state_and_ends_whatever_happens(path: Path) -> None:
    with closing(connect(str(path), read_only=False)) as writer, closing(connect(str(path), read_only=False)) as reader:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("CREATE TABLE t (x)")

        def count() -> int:
            return int(reader.execute("SELECT count(*) FROM t").fetchone()[0])

        with snapshot(reader):
            assert count() == 0
            writer.execute("INSERT INTO t VALUES (1)")
            assert count() == 0
        assert count() == 1
        with pytest.raises(ZeroDivisionError), snapshot(reader):
            assert count() / 0
        assert not reader.in_transaction


async def test_a_failed_read_leaves_no_transaction_open(storage: SqliteStorage, path: Path) -> None:
    execute(path, "DELETE FROM records WHERE sequence = 3")
    with pytest.raises(StorageCorruptError):
        await storage.read(PARTITION, 3, 1)
    assert not storage._reader.in_transaction
    execute(path, "UPDATE records SET stored_at = 'x'")
    with pytest.raises(StorageError):
        await storage.find_sequence_by_time(PARTITION, 5)
    assert not storage._reader.in_transaction


async def test_records_that_are_dropped_while_a_read_looks_for_damage_are_not_damaged(
    storage: SqliteStorage, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_storage(f"sqlite:{path}", read_only=True) as reader:
        select_one = PartitionTable.select_one
        looks = 0

        def append_before_and_trim_after(
            self: PartitionTable, connection: sqlite3.Connection, partition: Partition
        ) -> PartitionRow | None:
            nonlocal looks
            looks += 1
            if looks == 1:
                return select_one(self, connection, partition)
            trio.from_thread.run(storage.append, [batch(100, 110)])
            found = select_one(self, connection, partition)
            trio.from_thread.run(storage.trim, PARTITION, 105)
            return found

        monkeypatch.setattr(PartitionTable, "select_one", append_before_and_trim_after)
        assert await reader.read(PARTITION, 100, 1) is None
        assert looks == 2


async def test_a_reader_does_not_mistake_a_new_partition_for_a_deleted_one(storage: SqliteStorage, path: Path) -> None:
    """SQLite gives the row of a new partition the key of the one that was deleted last."""
    async with open_storage(f"sqlite:{path}", read_only=True) as reader:
        assert set(await reader.partitions()) == {PARTITION}
        await storage.delete_partitions([PARTITION])
        assert not storage._known_rows, "a program may use a new topic each day"
        assert not storage._topics
        await storage.append([batch(0, 1, OTHER)])
        assert set(await reader.partitions()) == {OTHER}
        assert await reader.read(PARTITION, 0, 1) is None


# Several changes at once


@pytest.fixture
def one_record_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each transaction drop one record."""
    monkeypatch.setattr(writing, "STEP_S", 0.0)
    monkeypatch.setattr(writing, "CHUNK_RECORDS_MAX", 1)


async def test_each_change_holds_the_lock_of_the_writing_connection(
    storage: SqliteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, changes = SqliteStorage._run_transaction, 0

    async def check_and_run(self: SqliteStorage, *arguments: Any, **options: Any) -> Any:
        nonlocal changes
        changes += 1
        assert self._write_lock.statistics().owner is trio.lowlevel.current_task()
        return await run(self, *arguments, **options)

    monkeypatch.setattr(SqliteStorage, "_run_transaction", check_and_run)
    calls: tuple[Callable[[], Awaitable[object]], ...] = (
        lambda: storage.append([batch(100, 101)]),
        lambda: storage.trim(PARTITION, 5),
        lambda: storage.apply_retention(RetentionPolicy(records_max=10)),
        lambda: storage.compact(PARTITION, 100, lambda each: b"\1" * len(each), no_wait),
        lambda: storage.reset_to(PARTITION, 200),
        lambda: storage.save_positions("name", {PARTITION: 1}),
        lambda: storage.delete_partitions([PARTITION]),
    )
    for change in calls:
        before = changes
        await change()
        assert changes > before


@pytest.mark.usefixtures("one_record_each")
async def test_appends_and_deletions_run_between_steps_of_retention(storage: SqliteStorage) -> None:
    third = Partition("orders", "C")
    await storage.append([batch(0, 50, third)])
    appended = 0
    async with trio.open_nursery() as nursery:

        async def append() -> None:
            nonlocal appended
            while True:
                await storage.append([batch(appended, appended + 1, OTHER)])
                appended += 1

        nursery.start_soon(append)
        async with trio.open_nursery() as dropping:
            dropping.start_soon(storage.apply_retention, RetentionPolicy(records_max=10), "orders")
            await storage.delete_partitions([third])
            assert (await storage.partitions())[PARTITION].count > 10  # retention goes on
        nursery.cancel_scope.cancel()
    infos = await storage.partitions()
    assert infos.keys() == {PARTITION, OTHER}
    assert infos[PARTITION].earliest_sequence == 90
    assert infos[OTHER].count >= appended >= 3
    assert await storage.find_damage() == []


@pytest.mark.usefixtures("one_record_each")
async def test_cancelled_retention_leaves_an_undamaged_store(storage: SqliteStorage) -> None:
    async with trio.open_nursery() as nursery:

        async def retain() -> None:
            await storage.apply_retention(RetentionPolicy(records_max=10))
            pytest.fail("not cancelled")

        nursery.start_soon(retain)
        while (await storage.partitions())[PARTITION].earliest_sequence == 0:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    info = (await storage.partitions())[PARTITION]
    assert 0 < info.earliest_sequence < 90
    assert info.content_bytes == batch(info.earliest_sequence, 100).content_bytes
    assert await storage.find_damage() == []
    assert await storage.apply_retention(RetentionPolicy(records_max=10)) == {PARTITION: 90}


@pytest.mark.usefixtures("one_record_each")
async def test_a_reset_includes_the_records_that_are_appended_meanwhile(storage: SqliteStorage) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(storage.reset_to, PARTITION, 200)
        await trio.lowlevel.checkpoint()
        nursery.start_soon(storage.append, [batch(100, 105)])
    assert await storage.partitions() == {PARTITION: PartitionInfo(200, 200)}
    await storage.append([batch(200, 201)])
    assert await storage.find_damage() == []


async def test_trim_continues_past_a_gap_and_a_missing_end(storage: SqliteStorage, path: Path) -> None:
    execute(path, "DELETE FROM records WHERE sequence BETWEEN 10 AND 19 OR sequence >= 90")
    await storage.trim(PARTITION, 15)
    assert (await storage.partitions())[PARTITION].earliest_sequence == 15
    assert await storage.apply_retention(RetentionPolicy(records_max=5)) == {PARTITION: 100}
    assert await storage.partitions() == {PARTITION: PartitionInfo(100, 100)}
    assert await storage.find_damage() == []
    await storage.append([batch(100, 101)])


def test_a_limit_is_exceeded_by_one_too_many() -> None:
    held, empty = PartitionInfo(5, 9, 7, 50, 50), PartitionInfo(9, 9)
    for name, most in {"before_sequence": 5, "records_max": 4, "bytes_max": 7, "before_time": 50}.items():
        less = most - 1 if name.endswith("max") else most + 1
        assert not TrimLimits(**{name: most}).is_exceeded_by(held), name
        assert TrimLimits(**{name: less}).is_exceeded_by(held), name
        assert not TrimLimits(**{name: less}).is_exceeded_by(empty), name
    assert TrimLimits(before_time=1).is_exceeded_by(PartitionInfo(5, 9))
