"""Files of schema version 1: readers read them as they are, and the first writer upgrades them."""

# ruff: noqa: ASYNC221, ASYNC240  (short programs and small files in tests)
from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from dafka.errors import StorageFormatError
from dafka.records import Partition, RecordBatch
from dafka.storage import PartitionInfo, open_storage, read_range
from dafka.storage.sqlite.schema import APPLICATION_ID, SCHEMA_VERSION

A, EMPTY, STRANGE = Partition("orders", "A"), Partition("orders", "empty"), Partition("\udcff", "B")

VERSION_1 = f"""
CREATE TABLE [_sqlite_migrations] (
   [id] INTEGER PRIMARY KEY, [migration_set] TEXT, [name] TEXT, [applied_at] TEXT
);
CREATE UNIQUE INDEX [idx__sqlite_migrations_migration_set_name] ON [_sqlite_migrations] ([migration_set], [name]);
INSERT INTO _sqlite_migrations VALUES (1, 'dafka', 'create_tables', '2026-01-01 00:00:00+00:00');
CREATE TABLE [partitions] (
   [id] INTEGER PRIMARY KEY, [topic] TEXT NOT NULL, [address] TEXT NOT NULL,
   [earliest_sequence] INTEGER NOT NULL, [end_sequence] INTEGER NOT NULL, [content_bytes] INTEGER NOT NULL
);
CREATE UNIQUE INDEX [idx_partitions_topic_address] ON [partitions] ([topic], [address]);
CREATE TABLE records (
    partition_id INTEGER NOT NULL REFERENCES partitions(id), sequence INTEGER NOT NULL,
    stored_at INTEGER NOT NULL, content BLOB NOT NULL, PRIMARY KEY (partition_id, sequence)
) WITHOUT ROWID;
CREATE TABLE [positions] (
   [name] TEXT, [topic] TEXT, [address] TEXT, [next_sequence] INTEGER NOT NULL, [saved_at] INTEGER NOT NULL,
   PRIMARY KEY ([name], [topic], [address])
);
CREATE TABLE [node] ([address] TEXT PRIMARY KEY);
INSERT INTO node VALUES ('0123456789ABCDEF0123456789ABCDEF');
CREATE VIEW topic_records AS SELECT topic, address, sequence, stored_at, content
    FROM records JOIN partitions ON partitions.id = records.partition_id;
INSERT INTO partitions VALUES (1, 'orders', 'A', 2, 6, 4), (2, 'orders', 'empty', 7, 7, 0), (3, x'ff', 'B', 0, 1, 2);
INSERT INTO records VALUES (1, 2, 1000, '2'), (1, 3, 3000, '3'), (1, 4, 2000, '4'), (1, 5, 2500, '5'),
    (3, 0, 500, '00');
UPDATE records SET content = CAST(content AS BLOB);
INSERT INTO positions VALUES ('billing', 'orders', 'A', 3, 900);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = 1;
"""
"""A store as version 1 created it; the clock was set back after sequence 3."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "version1.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(VERSION_1)
    return path


def query(path: Path, statement: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(statement).fetchall()


async def test_version_1_is_read_as_it_is(path: Path) -> None:
    data = path.read_bytes()
    async with open_storage(f"sqlite:{path}", read_only=True) as storage:
        assert storage.identity == "0123456789ABCDEF0123456789ABCDEF"
        assert await storage.partitions() == {
            A: PartitionInfo(2, 6, 4, 1000, 2500),
            EMPTY: PartitionInfo(7, 7),
            STRANGE: PartitionInfo(0, 1, 2, 500, 500),
        }
        assert await storage.read(A, 2, 9, with_times=True) == RecordBatch(
            A, 2, [b"2", b"3", b"4", b"5"], [1000, 3000, 2000, 2500]
        )
        assert await storage.find_sequence_by_time(STRANGE, 501) == 1
        assert await storage.load_positions("billing") == {A: 3}
    assert path.read_bytes() == data


async def expect_version_2(path: Path) -> None:
    assert query(path, "PRAGMA user_version") == [(SCHEMA_VERSION,)]
    assert query(path, "SELECT * FROM partitions ORDER BY id") == [
        (1, "orders", "A", 2, 6, 4, 1000, 3000),
        (2, "orders", "empty", 7, 7, 0, None, None),
        (3, b"\xff", "B", 0, 1, 2, 500, 500),
    ]
    assert query(path, "SELECT stored_at FROM records WHERE partition_id = 1") == [(1000,), (3000,), (3000,), (3000,)]


async def test_version_1_is_upgraded_with_times_that_never_decrease(path: Path) -> None:
    async with open_storage(f"sqlite:{path}", read_only=True) as reader:
        async with open_storage(f"sqlite:{path}") as storage:
            await expect_version_2(path)
            infos = await storage.partitions()
            assert infos[A] == PartitionInfo(2, 6, 4, 1000, 3000)
            assert await storage.find_sequence_by_time(A, 2000) == 3
            assert await storage.load_positions("billing") == {A: 3}
            assert await storage.find_damage() == []
            await storage.append([RecordBatch(A, 6, [b"6"], [2000]), RecordBatch(EMPTY, 7, [b"7"], [50])])
            assert (await storage.partitions("orders")) == {
                A: PartitionInfo(2, 7, 5, 1000, 3000),
                EMPTY: PartitionInfo(7, 8, 1, 50, 50),
            }
        assert (await reader.partitions())[A] == PartitionInfo(2, 7, 5, 1000, 3000)


KILLED = """
import os, signal, sys, trio
from sqlite_utils import Migrations
from dafka.storage import open_storage

Migrations._record_applied = lambda self, db, name: os.kill(os.getpid(), signal.SIGKILL)

async def main():
    async with open_storage(sys.argv[1]):
        pass

trio.run(main)
"""


async def test_store_killed_while_it_upgrades_a_file_leaves_the_old_version(path: Path) -> None:
    for _ in range(2):
        killed = subprocess.run([sys.executable, "-c", KILLED, f"sqlite:{path}"], check=False)
        assert killed.returncode == -signal.SIGKILL
        async with open_storage(f"sqlite:{path}", read_only=True) as storage:
            assert (await storage.partitions())[A] == PartitionInfo(2, 6, 4, 1000, 2500)
    assert query(path, "PRAGMA user_version") == [(1,)]
    async with open_storage(f"sqlite:{path}") as storage:
        contents = [batch.contents async for batch in read_range(storage, A, 2, 6)]
    assert contents == [[b"2", b"3", b"4", b"5"]]
    await expect_version_2(path)


async def test_store_killed_between_two_migrations_is_finished(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    program = KILLED.replace("name: os", 'name: name == "add_partition_times" and os')
    subprocess.run([sys.executable, "-c", program, f"sqlite:{path}"], check=False)
    assert query(path, "PRAGMA user_version") == [(1,)]
    with closing(sqlite3.connect(path)) as connection, connection:  # what the killed process could not record
        connection.execute("INSERT INTO _sqlite_migrations VALUES (1, 'dafka', 'create_tables', '')")
    async with open_storage(f"sqlite:{path}") as storage:
        await storage.append([RecordBatch(A, 0, [b"0"], [7])])
        assert await storage.partitions() == {A: PartitionInfo(0, 1, 1, 7, 7)}


async def test_newer_version_is_refused(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(StorageFormatError, match="has schema version 99"):
        async with open_storage(f"sqlite:{path}"):
            pass
