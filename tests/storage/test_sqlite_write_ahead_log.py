"""The write-ahead log stays small while readers come and go."""

# ruff: noqa: ASYNC221, ASYNC240  (short programs and file sizes in tests)
from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from dafka.records import Partition, RecordBatch
from dafka.storage import PartitionInfo, Storage, open_storage
from dafka.storage.sqlite import SqliteStorage, write_ahead_log
from dafka.storage.sqlite.schema import SCHEMA_VERSION
from tests.storage.test_sqlite_rows import traced
from tests.waiting import DEADLINE_S

PARTITION = Partition("orders", "A" * 32)
MIB = 2**20
LIMIT = MIB


@pytest.fixture(autouse=True)
def short_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_ahead_log, "LOG_BYTES_MAX", LIMIT)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def log_bytes(path: Path) -> int:
    return path.with_name(f"{path.name}-wal").stat().st_size


async def append(storage: Storage, path: Path, first_sequence: int, count: int) -> int:
    """Append batches of about 64 KiB, and return the largest size of the log after one of them."""
    longest = 0
    for sequence in range(first_sequence, first_sequence + count):
        await storage.append([RecordBatch(PARTITION, sequence, [b"." * 2**16])])
        longest = max(longest, log_bytes(path))
    return longest


# Two transactions, each of which begins before the other one ends.
OVERLAPPING = """
import sqlite3, sys, time

one, two = (sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True, isolation_level=None) for _ in range(2))
connections = one, two
begun = False
while True:
    for connection, other in (connections, connections[::-1]):
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM partitions").fetchone()
        if other.in_transaction:
            other.execute("COMMIT")
        time.sleep(0.002)
    if not begun:
        begun = True
        print("reading", flush=True)
"""


@contextmanager
def overlapping_readers(path: Path) -> Iterator[None]:
    command = [sys.executable, "-c", OVERLAPPING, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"reading\n"
            yield
            assert process.poll() is None
        finally:
            process.kill()


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a transaction that sees one record."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        assert connection.execute("SELECT count(*) FROM records").fetchone() == (1,)
        yield connection


async def test_log_stays_small_while_there_is_always_a_reader(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_ahead_log, "READERS_TIMEOUT_S", DEADLINE_S)  # a busy machine stops a reader for longer
    async with open_storage(f"sqlite:{path}?synchronous=OFF") as storage:
        await append(storage, path, 0, 1)
        with ExitStack() as stack:
            for _ in range(2):
                stack.enter_context(overlapping_readers(path))
            longest = await append(storage, path, 1, 200)
        assert LIMIT // 2 < longest < 3 * LIMIT
        assert await storage.find_damage() == []


async def test_long_reader_blocks_no_append_and_the_log_is_truncated_when_it_leaves(path: Path) -> None:
    async with open_storage(f"sqlite:{path}?synchronous=OFF") as storage:
        await append(storage, path, 0, 1)
        with reading(path) as connection:
            await append(storage, path, 1, 100)
            assert log_bytes(path) > 6 * MIB
            assert connection.execute("SELECT count(*) FROM records").fetchone() == (1,)
            connection.execute("COMMIT")
            assert isinstance(storage, SqliteStorage)
            storage._log._next_truncate_at = 0.0
            await append(storage, path, 101, 1)
            assert log_bytes(path) == 0
            assert connection.execute("SELECT count(*) FROM records").fetchone() == (102,)


async def test_waits_for_a_long_reader_become_rare(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    waits = 0

    def sleep(seconds: float) -> None:
        nonlocal now, waits
        waits += 1
        now += seconds

    monkeypatch.setattr(
        "dafka.storage.sqlite.write_ahead_log.time", SimpleNamespace(monotonic=lambda: now, sleep=sleep)
    )
    sequence = 0

    async def waits_after(storage: Storage, seconds: float) -> bool:
        """Append after this time, and return whether the append waited for the reader."""
        nonlocal now, sequence
        now += seconds
        before = waits
        sequence += 1
        await append(storage, path, sequence, 1)
        return waits > before

    async with open_storage(f"sqlite:{path}?synchronous=OFF") as storage:
        await append(storage, path, 0, 1)
        with reading(path):
            while not await waits_after(storage, 0.0):
                pass
            for pause in (0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0):
                assert not await waits_after(storage, pause - 0.01)
                assert await waits_after(storage, 0.02)
        assert waits * write_ahead_log.POLL_S < 1.2, "an append waits a tenth of a second at most"


async def test_trim_leaves_no_large_log(path: Path) -> None:
    async with open_storage(f"sqlite:{path}") as storage:
        await storage.append([RecordBatch(PARTITION, 0, [b"." * 100] * 50_000)])
        assert isinstance(storage, SqliteStorage)
        with traced(storage._log._helper) as statements:
            await storage.trim(PARTITION, 49_000)
        assert "PRAGMA wal_checkpoint(PASSIVE)" in statements
        assert await storage.partitions() != {}
        await append(storage, path, 50_000, 30)
        assert log_bytes(path) < 3 * LIMIT


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (
            "NORMAL",
            ["PRAGMA synchronous = FULL", f"PRAGMA user_version = {SCHEMA_VERSION}", "PRAGMA synchronous = NORMAL"],
        ),
        ("FULL", []),
    ],
)
async def test_flush_commits_durably_with_every_synchronous_option(path: Path, level: str, expected: list[str]) -> None:
    async with open_storage(f"sqlite:{path}?synchronous={level}") as storage:
        await append(storage, path, 0, 1)
        assert isinstance(storage, SqliteStorage)
        before = log_bytes(path)
        with traced(storage._writer) as statements:
            await storage.flush()
        assert statements == expected
        assert (log_bytes(path) > before) == bool(expected), "a commit that writes nothing makes nothing durable"
        assert await storage.partitions() != {}


async def test_flush_runs_a_checkpoint_if_synchronous_is_off(path: Path) -> None:
    async with open_storage(f"sqlite:{path}?synchronous=OFF") as storage:
        await append(storage, path, 0, 3)
        assert path.stat().st_size < 3 * 2**16
        await storage.flush()
        assert path.stat().st_size > 3 * 2**16
        assert isinstance(storage, SqliteStorage)
        assert storage._writer is not None
        assert storage._writer.execute("PRAGMA synchronous").fetchone() == (0,)


async def test_flush_syncs_everything_if_a_reader_uses_the_log(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    monkeypatch.setattr("dafka.storage.sqlite.write_ahead_log.os.sync", lambda: synced.append(True))
    async with open_storage(f"sqlite:{path}?synchronous=OFF") as storage:
        await append(storage, path, 0, 1)
        with reading(path):
            await append(storage, path, 1, 1)
            await storage.flush()
            assert synced == [True]


# A reader in the process of the writer must not release its locks: another program would then delete the log.


async def test_reader_in_the_process_of_the_writer_keeps_its_locks(path: Path) -> None:
    foreign = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('SELECT count(*) FROM records').fetchone()"
    async with open_storage(f"sqlite:{path}") as storage:
        await append(storage, path, 0, 1)
        async with open_storage(f"sqlite:{path}", read_only=True):
            pass
        subprocess.run([sys.executable, "-c", foreign, str(path)], check=True)
        await append(storage, path, 1, 1)
        async with open_storage(f"sqlite:{path}", read_only=True) as reader:
            info = (await reader.partitions())[PARTITION]
        assert (info.earliest_sequence, info.end_sequence) == (0, 2)
        assert info == (await storage.partitions())[PARTITION]
        assert isinstance(info, PartitionInfo)


async def test_a_reader_changes_no_file_of_a_killed_writer(path: Path, tmp_path: Path) -> None:
    """The log has records that are not in the database yet. A writer moves them when it closes."""
    left = tmp_path / "left"
    left.mkdir()
    names = path.name, f"{path.name}-wal"
    async with open_storage(f"sqlite:{path}") as storage:
        await append(storage, path, 0, 3)
        for name in names:
            shutil.copy(path.with_name(name), left)
    before = {name: (left / name).read_bytes() for name in names}
    async with open_storage(f"sqlite:{left}/{path.name}", read_only=True) as reader:
        assert (await reader.partitions())[PARTITION].count == 3
    assert {name: (left / name).read_bytes() for name in names} == before
