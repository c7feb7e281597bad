"""Files of older schema versions: readers read them as they are, and the first writer upgrades them."""

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
from dafka.records import Partition, Record, RecordBatch
from dafka.storage import PartitionInfo, open_storage, read_range
from dafka.storage.sqlite.schema import APPLICATION_ID, SCHEMA_VERSION
from dafka.storage.tools.verify import verify_storage

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


MANY = Partition("many", "A")

VERSION_2 = Path(__file__).with_name("old_stores") / "sqlite_2.sql"
"""A store as dafka 0.1.0 made it; both hold the same partitions, and this one MANY in addition."""

WHOLE = Record(A, 6, None, b"key", (("a", b"1"), ("a", None), ("b", b"\0")), 77)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "version1.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(VERSION_1)
    return path


@pytest.fixture
def path_2(tmp_path: Path) -> Path:
    path = tmp_path / "version2.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(VERSION_2.read_text())
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
            A, 2, [b"2", b"3", b"4", b"5"], stored_at=[1000, 3000, 2000, 2500]
        )
        assert await storage.find_sequence_by_time(STRANGE, 501) == 1
        assert await storage.load_positions("billing") == {A: 3}
    assert path.read_bytes() == data


async def expect_upgraded(path: Path) -> None:
    assert query(path, "PRAGMA user_version") == [(SCHEMA_VERSION,)]
    assert query(path, "SELECT * FROM partitions ORDER BY id") == [
        (1, "orders", "A", 2, 6, 4, 1000, 3000, 0),
        (2, "orders", "empty", 7, 7, 0, None, None, 0),
        (3, b"\xff", "B", 0, 1, 2, 500, 500, 0),
    ]
    assert query(path, "SELECT stored_at FROM records WHERE partition_id = 1") == [(1000,), (3000,), (3000,), (3000,)]


async def test_version_1_is_upgraded_with_times_that_never_decrease(path: Path) -> None:
    async with open_storage(f"sqlite:{path}", read_only=True) as reader:
        async with open_storage(f"sqlite:{path}") as storage:
            await expect_upgraded(path)
            infos = await storage.partitions()
            assert infos[A] == PartitionInfo(2, 6, 4, 1000, 3000)
            assert await storage.find_sequence_by_time(A, 2000) == 3
            assert await storage.load_positions("billing") == {A: 3}
            assert await storage.find_damage() == []
            await storage.append(
                [RecordBatch(A, 6, [b"6"], stored_at=[2000]), RecordBatch(EMPTY, 7, [b"7"], stored_at=[50])]
            )
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
        contents = [batch.values async for batch in read_range(storage, A, 2, 6)]
    assert contents == [[b"2", b"3", b"4", b"5"]]
    await expect_upgraded(path)


async def test_store_killed_between_two_migrations_is_finished(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    program = KILLED.replace("name: os", 'name: name == "add_partition_times" and os')
    subprocess.run([sys.executable, "-c", program, f"sqlite:{path}"], check=False)
    assert query(path, "PRAGMA user_version") == [(1,)]
    with closing(sqlite3.connect(path)) as connection, connection:  # what the killed process could not record
        connection.execute("INSERT INTO _sqlite_migrations VALUES (1, 'dafka', 'create_tables', '')")
    async with open_storage(f"sqlite:{path}") as storage:
        await storage.append([RecordBatch(A, 0, [b"0"], stored_at=[7])])
        assert await storage.partitions() == {A: PartitionInfo(0, 1, 1, 7, 7)}


async def test_version_2_is_read_as_it_is(path_2: Path) -> None:
    data = path_2.read_bytes()
    async with open_storage(f"sqlite:{path_2}", read_only=True) as storage:
        infos = await storage.partitions()
        assert infos[A] == PartitionInfo(2, 6, 4, 1000, 3000)
        batch = await storage.read(A, 2, 9, with_times=True)
        assert batch == RecordBatch(A, 2, [b"2", b"3", b"4", b"5"], stored_at=[1000, 3000, 3000, 3000])
        many = await storage.read(MANY, 0, 100)
        assert many == RecordBatch(MANY, 0, [b"\xff%d" % n if n % 7 else b"" for n in range(40)])
        assert await storage.load_positions("billing") == {A: 3}
        assert await storage.find_damage() == []
        assert (await verify_storage(storage)).damages == ()
    assert path_2.read_bytes() == data


async def test_old_files_take_whole_records(path: Path, path_2: Path) -> None:
    for old in (path, path_2):
        async with open_storage(f"sqlite:{old}", read_only=True) as reader:
            assert (await reader.partitions())[A].end_sequence == 6
            async with open_storage(f"sqlite:{old}") as storage:
                await storage.append([RecordBatch.from_records(A, 6, [WHOLE], 0)])
                for each in (storage, reader):
                    batch = await each.read(A, 4, 9)
                    assert batch is not None
                    assert [record.value for record in batch] == [b"4", b"5", None]
                    assert list(batch)[-1] == WHOLE
                    assert await each.find_damage() == []
                assert (await storage.partitions())[A].content_bytes == 4 + len("keya1ab0")
        async with open_storage(f"sqlite:{old}") as storage:
            assert (await verify_storage(storage)).damages == ()
        assert query(old, "PRAGMA integrity_check") == [("ok",)]


async def test_new_and_upgraded_files_have_the_same_tables(path: Path, path_2: Path, tmp_path: Path) -> None:
    found = []
    for each in (tmp_path / "new.db", path_2, path):
        async with open_storage(f"sqlite:{each}"):
            pass
        names = query(each, "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY name")
        found.append([(name, query(each, f"SELECT * FROM pragma_table_info('{name}')")) for (name,) in names])
    assert found[0] == found[1] == found[2]


async def test_upgrade_from_version_2_rewrites_no_records(path_2: Path) -> None:
    with closing(sqlite3.connect(path_2)) as connection, connection:
        connection.execute("UPDATE records SET content = zeroblob(100000) WHERE partition_id = 4")
        connection.execute("UPDATE partitions SET content_bytes = 4000000 WHERE id = 4")
    async with open_storage(f"sqlite:{path_2}", read_only=True), open_storage(f"sqlite:{path_2}"):
        assert 0 < path_2.with_name("version2.db-wal").stat().st_size < 500_000 < path_2.stat().st_size


async def test_store_killed_while_it_adds_columns_leaves_version_2(path_2: Path) -> None:
    for _ in range(2):
        killed = subprocess.run([sys.executable, "-c", KILLED, f"sqlite:{path_2}"], check=False)
        assert killed.returncode == -signal.SIGKILL
    assert query(path_2, "PRAGMA user_version") == [(2,)]
    async with open_storage(f"sqlite:{path_2}") as storage:
        assert (await verify_storage(storage)).records == 45
        await storage.append([RecordBatch.from_records(A, 6, [WHOLE], 0)])


async def test_newer_version_is_refused(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(StorageFormatError, match="has schema version 99"):
        async with open_storage(f"sqlite:{path}"):
            pass
