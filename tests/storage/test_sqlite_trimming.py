from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import trio
import trio.lowlevel

from dafka.records import Partition, RecordBatch
from dafka.storage import PartitionInfo, RetentionPolicy, Storage, open_storage
from dafka.storage.sqlite import SqliteStorage
from dafka.storage.sqlite.connection import PAGE_BYTES
from dafka.storage.sqlite.write_ahead_log import CHECKPOINT_BYTES
from dafka.storage.sqlite.writing import CHUNK_RECORDS_MAX

PARTITION, LIVE = Partition("orders", "A" * 32), Partition("live", "B" * 32)
COUNT = 20_000


def batch(first_sequence: int, count: int, partition: Partition = PARTITION, time_ms: int | None = None) -> RecordBatch:
    contents = [b"%020d" % sequence for sequence in range(first_sequence, first_sequence + count)]
    return RecordBatch(partition, first_sequence, contents, stored_at=None if time_ms is None else [time_ms] * count)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path}/store.db"


def writer(storage: Storage) -> sqlite3.Connection:
    assert isinstance(storage, SqliteStorage)
    assert storage._writer is not None
    return storage._writer


@contextmanager
def traced(storage: Storage) -> Iterator[list[str]]:
    statements: list[str] = []
    writer(storage).set_trace_callback(statements.append)
    yield statements
    writer(storage).set_trace_callback(None)


async def test_trim_of_many_records_uses_short_transactions_that_do_not_sync(url: str) -> None:
    async with open_storage(url) as storage:
        await storage.append([batch(0, COUNT)])
        with traced(storage) as statements:
            await storage.trim(PARTITION, COUNT - 5)
        begun = [statement for statement in statements if statement.startswith(("BEGIN", "COMMIT", "PRAGMA sync"))]
        assert len(begun) % 4 == 0
        assert begun[:4] == ["PRAGMA synchronous = NORMAL", "BEGIN IMMEDIATE", "COMMIT", "PRAGMA synchronous = FULL"]
        assert begun == begun[:4] * (len(begun) // 4)
        deletes = sum(statement.startswith("DELETE") for statement in statements)
        assert deletes >= (COUNT - 5) / CHUNK_RECORDS_MAX
        assert len(begun) // 4 > 1, "in one transaction"
        assert writer(storage).execute("PRAGMA synchronous").fetchone() == (2,)
        assert writer(storage).execute("PRAGMA wal_autocheckpoint").fetchone() == (CHECKPOINT_BYTES // PAGE_BYTES,)
        infos = await storage.partitions()
        assert (infos[PARTITION].earliest_sequence, infos[PARTITION].content_bytes) == (COUNT - 5, 100)
        assert await storage.find_damage() == []


async def test_records_without_content_have_no_bytes_to_drop(url: str) -> None:
    async with open_storage(url) as storage:
        await storage.append([RecordBatch(PARTITION, 0, [b"", b"", b"abc"])])
        await storage.trim(PARTITION, 2)
        assert (await storage.partitions())[PARTITION].content_bytes == 3
        assert await storage.find_damage() == []


async def test_appends_run_between_steps_of_retention(url: str) -> None:
    async with open_storage(url) as storage:
        await storage.append([batch(0, COUNT)])
        appended = 0
        async with trio.open_nursery() as nursery:

            async def append() -> None:
                nonlocal appended
                while True:
                    await storage.append([batch(appended, 1, LIVE)])
                    appended += 1

            nursery.start_soon(append)
            moved = await storage.apply_retention(RetentionPolicy(records_max=10), "orders")
            nursery.cancel_scope.cancel()
        assert moved == {PARTITION: COUNT - 10}
        assert appended >= 3
        assert (await storage.partitions())[LIVE].count >= appended
        assert await storage.find_damage() == []


async def test_cancelled_retention_leaves_an_undamaged_store(url: str) -> None:
    async with open_storage(url) as storage:
        await storage.append([batch(0, COUNT)])
        async with trio.open_nursery() as nursery:

            async def retain() -> None:
                await storage.apply_retention(RetentionPolicy(records_max=10))
                pytest.fail("not cancelled")

            nursery.start_soon(retain)
            while (await storage.partitions())[PARTITION].earliest_sequence == 0:
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        info = (await storage.partitions())[PARTITION]
        assert 0 < info.earliest_sequence < COUNT - 10
        assert info.content_bytes == 20 * info.count
        assert await storage.find_damage() == []
        assert await storage.apply_retention(RetentionPolicy(records_max=10)) == {PARTITION: COUNT - 10}


async def test_large_contents_are_dropped_one_by_one(url: str) -> None:
    contents = [b"." * 2**20 for _ in range(8)]
    async with open_storage(url) as storage:
        await storage.append([RecordBatch(PARTITION, 0, contents)])
        with traced(storage) as statements:
            assert await storage.apply_retention(RetentionPolicy(bytes_max=2**21)) == {PARTITION: 6}
        assert sum(statement.startswith("DELETE") for statement in statements) == 6


async def test_trim_continues_past_a_gap_and_a_missing_end(url: str, tmp_path: Path) -> None:
    async with open_storage(url) as storage:
        await storage.append([batch(0, 1000)])
        with closing(sqlite3.connect(tmp_path / "store.db")) as connection, connection:
            connection.execute("DELETE FROM records WHERE sequence BETWEEN 100 AND 199 OR sequence >= 900")
        await storage.trim(PARTITION, 150)
        assert (await storage.partitions())[PARTITION].earliest_sequence == 150
        assert await storage.apply_retention(RetentionPolicy(records_max=50)) == {PARTITION: 1000}
        assert (await storage.partitions()) == {PARTITION: PartitionInfo(1000, 1000)}
        assert await storage.find_damage() == []
        await storage.append([batch(1000, 1)])


async def test_reset_with_many_records_and_a_concurrent_append(url: str) -> None:
    async with open_storage(url) as storage:
        await storage.append([batch(0, COUNT)])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(storage.reset_to, PARTITION, COUNT + 100)
            await trio.lowlevel.checkpoint()
            nursery.start_soon(storage.append, [batch(COUNT, 5)])
        infos = await storage.partitions()
        assert infos == {PARTITION: PartitionInfo(COUNT + 100, COUNT + 100)}
        await storage.append([batch(COUNT + 100, 1)])
        assert await storage.find_damage() == []
