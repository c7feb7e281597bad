from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import attrs
import pytest
import trio

from dafka.errors import StorageError
from dafka.records import Partition, RecordBatch
from dafka.storage import (
    DeletesPartitions,
    PartitionInfo,
    Storage,
    open_storage,
    read_range,
)
from dafka.storage.sqlite import SqliteStorage
from dafka.storage.sqlite.inserting import INSERT_BYTES_MAX, INSERT_RECORDS_MAX
from dafka.storage.sqlite.reading import READ_RECORDS_MAX

PARTITION = Partition("orders", "A" * 32)


def batch(first_sequence: int, count: int, size: int = 0, partition: Partition = PARTITION) -> RecordBatch:
    contents = [(b"%d" % sequence).ljust(size, b".") for sequence in range(first_sequence, first_sequence + count)]
    return RecordBatch(partition, first_sequence, contents)


async def held(storage: Storage) -> dict[Partition, PartitionInfo]:
    """Return what is held, without the times."""
    infos = await storage.partitions()
    return {
        partition: attrs.evolve(info, earliest_stored_at=None, latest_stored_at=None)
        for partition, info in infos.items()
    }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def url(path: Path) -> str:
    return f"sqlite:{path}"


# Writers and readers


async def test_appends_run_one_after_the_other(url: str) -> None:
    async with open_storage(url) as storage:
        for number in range(30):
            partition = Partition("orders", f"{number}")
            async with trio.open_nursery() as nursery:
                for sequence in range(4):
                    nursery.start_soon(storage.append, [batch(sequence, 1, partition=partition)])
                    await trio.lowlevel.checkpoint()  # so that they start in order
            assert await storage.read(partition, 0, 10) == batch(0, 4, partition=partition)


# What is not a store


# Options


@pytest.mark.parametrize(("option", "level"), [("", 2), ("?synchronous=NORMAL", 1), ("?synchronous=extra", 3)])
async def test_synchronous_is_set_on_the_writing_connection(url: str, option: str, level: int) -> None:
    async with open_storage(url + option) as storage:
        assert isinstance(storage, SqliteStorage)
        assert storage._writer is not None
        assert storage._writer.execute("PRAGMA synchronous").fetchone() == (level,)
        assert storage._writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)


# Durability


async def test_full_disk_changes_nothing_and_the_next_write_succeeds(url: str, path: Path) -> None:
    new = Partition("orders", "B" * 32)
    async with open_storage(url) as storage:
        assert isinstance(storage, SqliteStorage)
        assert storage._writer is not None
        await storage.append([batch(0, 10, 100)])
        storage._writer.execute("PRAGMA max_page_count = 50")
        for _ in range(2):
            with pytest.raises(StorageError, match=f"^{path}: database or disk is full$"):
                await storage.append([batch(0, 5, partition=new), batch(10, 200, 10_000)])
        assert await held(storage) == {PARTITION: PartitionInfo(0, 10, 1000)}
        storage._writer.execute("PRAGMA max_page_count = 1000000")
        await storage.append([batch(0, 5, partition=new), batch(10, 200, 10_000)])
        assert await storage.read(new, 0, 10) == batch(0, 5, partition=new)
        assert await storage.read(PARTITION, 10, 50) == batch(10, 50, 10_000)


# Sequences


async def test_records_are_stored_in_the_order_of_their_sequences(url: str, path: Path) -> None:
    partitions = [Partition("orders", "1"), Partition("orders", "2")]
    async with open_storage(url) as storage:
        for first_sequence in range(0, 30, 10):
            await storage.append([batch(first_sequence, 10, partition=partition) for partition in partitions])
    with closing(sqlite3.connect(path)) as connection:
        columns = connection.execute("PRAGMA table_info(records)").fetchall()
        key = sorted((place, name) for _, name, _, _, _, place in columns if place)
        assert [name for _, name in key] == ["partition_id", "sequence"]
        rows = connection.execute("SELECT partition_id, sequence, content, typeof(sequence) FROM records").fetchall()
    assert rows == [(id_, n, b"%d" % n, "integer") for id_ in (1, 2) for n in range(30)]


async def test_batch_of_more_records_than_one_insert(url: str) -> None:
    count = 2 * INSERT_RECORDS_MAX + 7
    async with open_storage(url) as storage:
        await storage.append([batch(0, count)])
        sequence = 0
        async for found in read_range(storage, PARTITION, 0, count):
            assert found == batch(sequence, len(found))
            assert len(found) <= READ_RECORDS_MAX
            sequence = found.end_sequence
    assert sequence == count


async def test_batch_of_more_bytes_than_one_insert(url: str) -> None:
    sizes = [INSERT_BYTES_MAX - 2, 0, 3, INSERT_BYTES_MAX + 1, 0, 5, 2**20, INSERT_BYTES_MAX]
    contents = [(b"%d" % sequence).ljust(size, b".") for sequence, size in enumerate(sizes)]
    contents[1] = b""
    async with open_storage(url) as storage:
        await storage.append([RecordBatch(PARTITION, 0, contents)])
        for sequence, content in enumerate(contents):
            found = await storage.read(PARTITION, sequence, 1)
            assert found is not None
            assert list(found.values) == [content]
        assert (await storage.partitions())[PARTITION].content_bytes == sum(map(len, contents))


async def test_sequence_beyond_signed_64_bits_is_refused(url: str) -> None:
    async with open_storage(url) as storage:
        await storage.append([batch(2**63 - 4, 2)])
        for last in (batch(2**63 - 2, 2), batch(2**63, 1, partition=Partition("orders", "B"))):
            with pytest.raises(StorageError, match="too large for SQLite"):
                await storage.append([last])
        with pytest.raises(StorageError, match="too large for SQLite"):
            await storage.reset_to(PARTITION, 2**63)
        with pytest.raises(StorageError, match="too large"):
            await storage.save_positions("name", {PARTITION: 2**64})
        assert await storage.load_positions("name") == {}
        assert await held(storage) == {PARTITION: PartitionInfo(2**63 - 4, 2**63 - 2, 38)}


async def test_a_reader_does_not_mistake_a_new_partition_for_a_deleted_one(tmp_path: Path) -> None:
    """SQLite gives the row of a new partition the key of the one that was deleted last."""
    url = f"sqlite:{tmp_path}/store.db"
    first, second = Partition("orders", "A"), Partition("bills", "B")
    async with open_storage(url) as storage, open_storage(url, read_only=True) as reader:
        await storage.append([RecordBatch(first, 0, [b"first"])])
        assert set(await reader.partitions()) == {first}
        assert isinstance(storage, DeletesPartitions)
        await storage.delete_partitions([first])
        await storage.append([RecordBatch(second, 0, [b"second"])])
        assert set(await reader.partitions()) == {second}
        assert await reader.read(first, 0, 1) is None
