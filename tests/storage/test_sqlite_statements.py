"""The statements of SQLite storages: when they sync, when they check the file, and which changes an error undoes."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from dafka.errors import StorageCorruptError, StorageError, StorageLostError, StorageSequenceError
from dafka.records import Partition, RecordBatch
from dafka.storage import RetentionPolicy, open_storage
from dafka.storage.base import PartitionInfo
from dafka.storage.sqlite import SqliteStorage
from dafka.storage.sqlite.connection import connect, snapshot, transaction
from dafka.storage.sqlite.schema import SEQUENCE_MAX
from dafka.storage.sqlite.writing import TrimLimits

PARTITION = Partition("orders", "A")
CHECK = "check that the file is in place"


def batch(first: int, end: int) -> RecordBatch:
    return RecordBatch(PARTITION, first, [b"%d" % sequence for sequence in range(first, end)])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture(params=["FULL", "OFF"])
def synchronous(request: pytest.FixtureRequest) -> str:
    value: str = request.param
    return value


@pytest.fixture
async def storage(path: Path, synchronous: str) -> AsyncIterator[SqliteStorage]:
    async with open_storage(f"sqlite:{path}?synchronous={synchronous}") as opened:
        assert isinstance(opened, SqliteStorage)
        await opened.append([batch(0, 100)])
        yield opened


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


async def test_an_append_is_one_transaction_with_the_options_sync(
    storage: SqliteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    with recorded(storage, monkeypatch) as seen:
        await storage.append([batch(100, 110), RecordBatch(Partition("orders", "B"), 0, [b""]), batch(110, 111)])
    (*before, last_check) = seen
    assert (before[0], before[1], before[-1], last_check) == (CHECK, "BEGIN IMMEDIATE", "COMMIT", CHECK)
    assert not [each for each in before[2:-1] if each.startswith(("PRAGMA", "COMMIT", "BEGIN"))]
    assert before[-2] == "UPDATE", "the partitions' rows are part of it"


async def test_saved_positions_are_synced_like_records(storage: SqliteStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    with recorded(storage, monkeypatch) as seen:
        await storage.save_positions("name", {PARTITION: 7})
    assert seen == [CHECK, "BEGIN IMMEDIATE", "INSERT", "COMMIT", CHECK]


async def test_dropping_records_does_not_sync_and_restores_the_option(
    storage: SqliteStorage, synchronous: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with recorded(storage, monkeypatch) as seen:
        await storage.trim(PARTITION, 10)
    relaxed = [] if synchronous == "OFF" else ["PRAGMA synchronous = NORMAL"]
    assert seen[: seen.index("BEGIN IMMEDIATE")] == [CHECK, "PRAGMA wal_autocheckpoint = 0", *relaxed]
    restored = [f"PRAGMA synchronous = {synchronous}", "PRAGMA wal_autocheckpoint = 1024"]
    assert seen[seen.index("COMMIT") + 1 :] == [*restored, CHECK]


async def test_a_failed_drop_restores_the_option(
    storage: SqliteStorage, synchronous: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr("dafka.storage.sqlite.storage.trim_step", fail)
    with recorded(storage, monkeypatch) as seen, pytest.raises(StorageError, match="disk I/O error"):
        await storage.trim(PARTITION, 10)
    assert seen[-3:] == ["ROLLBACK", f"PRAGMA synchronous = {synchronous}", "PRAGMA wal_autocheckpoint = 1024"]
    assert (await storage.partitions())[PARTITION].earliest_sequence == 0
    await storage.append([batch(100, 101)])


async def test_a_file_that_is_lost_at_the_commit_acknowledges_nothing(
    storage: SqliteStorage, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(statement: str) -> None:
        if statement == "COMMIT":
            path.unlink()

    assert storage._writer is not None
    storage._writer.set_trace_callback(lose)
    with pytest.raises(StorageLostError):
        await storage.append([batch(100, 101)])
    storage._writer.set_trace_callback(None)
    assert (await storage.partitions())[PARTITION].end_sequence == 100
    with recorded(storage, monkeypatch) as seen, pytest.raises(StorageLostError):
        await storage.append([batch(100, 101)])
    assert seen == [CHECK], "nothing is written to a file that is gone"


async def test_a_refused_append_changes_nothing(storage: SqliteStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    with recorded(storage, monkeypatch) as seen, pytest.raises(StorageSequenceError):
        await storage.append([batch(100, 102), batch(103, 104)])
    assert seen[-1] == "ROLLBACK"
    assert "COMMIT" not in seen
    async with open_storage(f"sqlite:{storage._path}", read_only=True) as reader:
        assert (await reader.partitions())[PARTITION].end_sequence == 100
    assert (await storage.partitions())[PARTITION].end_sequence == 100
    await storage.append([batch(100, 101)])


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


def test_a_transaction_is_complete_or_undone(path: Path) -> None:
    with closing(connect(str(path), read_only=False)) as writer:
        writer.execute("CREATE TABLE t (x)")
        with transaction(writer):
            writer.execute("INSERT INTO t VALUES (1)")
            assert writer.in_transaction
        assert not writer.in_transaction
        with pytest.raises(ZeroDivisionError), transaction(writer):
            assert writer.execute("INSERT INTO t VALUES (2)").rowcount / 0
        assert not writer.in_transaction
        assert writer.execute("SELECT x FROM t").fetchall() == [(1,)]


async def test_a_failed_read_leaves_no_transaction_open(path: Path) -> None:
    async with open_storage(f"sqlite:{path}") as storage:
        assert isinstance(storage, SqliteStorage)
        await storage.append([batch(0, 10)])
        with closing(sqlite3.connect(path)) as other:
            other.execute("DELETE FROM records WHERE sequence = 3")
            other.commit()
        with pytest.raises(StorageCorruptError):
            await storage.read(PARTITION, 3, 1)
        assert not storage._reader.in_transaction
        with closing(sqlite3.connect(path)) as other:
            other.execute("UPDATE records SET stored_at = 'x'")
            other.commit()
        with pytest.raises(StorageError):
            await storage.find_sequence_by_time(PARTITION, 5)
        assert not storage._reader.in_transaction


# Limits


def info(earliest: int, end: int, content_bytes: int = 0, earliest_at: int | None = 50) -> PartitionInfo:
    return PartitionInfo(earliest, end, content_bytes, earliest_at, earliest_at)


@pytest.mark.parametrize(
    ("limits", "held", "is_exceeded"),
    [
        (TrimLimits(before_sequence=5), info(5, 9), False),
        (TrimLimits(before_sequence=6), info(5, 9), True),
        (TrimLimits(before_sequence=99), info(9, 9), False),
        (TrimLimits(records_max=4), info(5, 9), False),
        (TrimLimits(records_max=3), info(5, 9), True),
        (TrimLimits(records_max=0), info(5, 9), True),
        (TrimLimits(bytes_max=7), info(5, 9, 7), False),
        (TrimLimits(bytes_max=6), info(5, 9, 7), True),
        (TrimLimits(before_time=50), info(5, 9), False),
        (TrimLimits(before_time=51), info(5, 9), True),
        (TrimLimits(before_time=1), info(5, 9, earliest_at=None), True),
        (TrimLimits(), info(5, 9), False),
        (TrimLimits(), info(5, 9, earliest_at=0), False),
        (TrimLimits(before_time=51), info(9, 9, earliest_at=None), False),
    ],
)
def test_a_limit_is_exceeded_by_one_too_many(limits: TrimLimits, held: PartitionInfo, is_exceeded: bool) -> None:
    assert limits.is_exceeded_by(held) is is_exceeded


@pytest.mark.parametrize(
    ("limits", "earliest"),
    [
        (TrimLimits(), 5),
        (TrimLimits(before_sequence=7), 7),
        (TrimLimits(before_sequence=99), 9),
        (TrimLimits(records_max=3), 6),
        (TrimLimits(records_max=99), 5),
        (TrimLimits(before_sequence=8, records_max=3), 8),
        (TrimLimits(before_sequence=5, records_max=1), 8),
    ],
)
def test_the_first_record_to_keep(limits: TrimLimits, earliest: int) -> None:
    assert limits.earliest_sequence(info(5, 9)) == earliest


def test_a_policy_becomes_limits_at_a_time() -> None:
    assert TrimLimits.from_policy(RetentionPolicy(age_ms=30, bytes_max=7, records_max=2), 100) == TrimLimits(
        before_time=70, bytes_max=7, records_max=2
    )
    assert TrimLimits.from_policy(RetentionPolicy(age_ms=130), 100) == TrimLimits()
    assert TrimLimits(bytes_max=7).surplus_bytes(info(0, 1, 9)) == 2
    assert TrimLimits(bytes_max=7).surplus_bytes(info(0, 1, 6)) == 0
    assert TrimLimits().surplus_bytes(info(0, 1, 6)) == 0


async def test_the_largest_sequence_can_be_stored_and_read(path: Path) -> None:
    async with open_storage(f"sqlite:{path}") as storage:
        last = RecordBatch(PARTITION, SEQUENCE_MAX - 1, [b"last"])
        await storage.append([last])
        assert await storage.read(PARTITION, SEQUENCE_MAX - 1, 5) == last
        for sequence in (SEQUENCE_MAX, SEQUENCE_MAX + 1, 2**64):
            assert await storage.read(PARTITION, sequence, 1) is None
        with pytest.raises(StorageError, match="too large"):
            await storage.append([RecordBatch(PARTITION, SEQUENCE_MAX, [b"more"])])
        other = Partition("orders", "B")
        await storage.reset_to(other, SEQUENCE_MAX)
        assert (await storage.partitions())[other].end_sequence == SEQUENCE_MAX
        for sequence in (SEQUENCE_MAX + 1, 2**64):
            with pytest.raises(StorageError, match="too large"):
                await storage.reset_to(other, sequence)
