# ruff: noqa: ASYNC240  (small files in tests)
from __future__ import annotations

import os
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO

import attrs
import pytest
import trio

from dafka.errors import StorageBusyError, StorageError, StorageFormatError
from dafka.records import Partition, RecordBatch
from dafka.storage import (
    DeletesPartitions,
    PartitionInfo,
    RetentionPolicy,
    Storage,
    open_storage,
    read_range,
)
from dafka.storage.sqlite import SqliteStorage
from dafka.storage.sqlite.inserting import INSERT_BYTES_MAX, INSERT_RECORDS_MAX
from dafka.storage.sqlite.reading import READ_RECORDS_MAX
from dafka.storage.sqlite.schema import SCHEMA_VERSION

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


async def make_store(url: str, count: int = 3) -> None:
    async with open_storage(url) as storage:
        await storage.append([batch(0, count)])


async def failure(url: str, *, read_only: bool = False) -> StorageError:
    """Return the error of opening a storage, and check that it is one line."""
    with pytest.raises(StorageError) as caught:
        async with open_storage(url, read_only=read_only):
            pass
    assert "\n" not in str(caught.value)
    return caught.value


@contextmanager
def another_process(program: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", program, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def output(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdout is not None
    return process.stdout


# Writers and readers


async def test_second_writer_in_this_process_is_refused_at_once(url: str, path: Path) -> None:
    async with open_storage(url):
        with trio.fail_after(10):
            error = await failure(url)
    assert type(error) is StorageBusyError
    assert str(error) == f"{path} is in use by another writer; stop it first"


async def test_second_writer_through_a_symbolic_link_is_refused(url: str, path: Path) -> None:
    link = path.with_name("link.db")
    link.symlink_to(path.name)
    async with open_storage(url):
        assert type(await failure(f"sqlite:{link}")) is StorageBusyError


HOLD = """
import sys, trio
from dafka.storage import open_storage

async def main():
    async with open_storage(sys.argv[1]):
        print("open", flush=True)
        await trio.to_thread.run_sync(sys.stdin.read)

trio.run(main)
"""


async def test_lock_of_another_process_is_refused_at_once_and_ends_with_it(url: str) -> None:
    with another_process(HOLD, url) as process:
        assert output(process).readline() == b"open\n"
        with trio.fail_after(10):
            assert type(await failure(url)) is StorageBusyError
        process.kill()
        process.wait()
        await make_store(url)


async def test_lock_is_released_after_the_block(url: str) -> None:
    await make_store(url)
    with pytest.raises(ZeroDivisionError):
        async with open_storage(url):
            raise ZeroDivisionError
    with trio.CancelScope() as scope:
        async with open_storage(url):
            scope.cancel()
            await trio.sleep_forever()
    async with open_storage(url) as storage:
        await storage.append([batch(3, 1)])


async def test_lock_is_released_if_opening_fails(path: Path) -> None:
    path.write_text("not a database, but long enough to be taken for one" * 100)
    for _ in range(2):
        assert type(await failure(f"sqlite:{path}")) is StorageFormatError


READ = """
import sys, trio
from dafka.records import Partition
from dafka.storage import open_storage, read_range

async def main():
    end = 0
    async with open_storage(sys.argv[1], read_only=True) as storage:
        while end < 2000:
            for partition, info in (await storage.partitions("orders")).items():
                assert info.end_sequence >= end and info.end_sequence % 20 == 0, info
                sequence = end
                async for batch in read_range(storage, partition, end, info.end_sequence):
                    for record in batch:
                        assert record.sequence == sequence and record.value == b"%d" % sequence, record
                        sequence += 1
                assert sequence == info.end_sequence
                end = sequence
            print(end, flush=True)

trio.run(main)
"""


async def test_readers_in_another_process_see_only_complete_appends(url: str) -> None:
    await make_store(url, 20)
    with another_process(READ, url) as process:
        assert output(process).readline() == b"20\n"
        async with open_storage(url) as storage:
            for first_sequence in range(20, 2000, 20):
                await storage.append([batch(first_sequence, 20)])
        lines = (await trio.to_thread.run_sync(output(process).read)).split()
        assert process.wait() == 0
    assert lines[-1] == b"2000"


async def test_reader_continues_after_the_writer_has_closed(url: str) -> None:
    await make_store(url)
    async with open_storage(url, read_only=True) as reader:
        assert await reader.read(PARTITION, 0, 10) == batch(0, 3)
        async with open_storage(url) as writer:
            await writer.append([batch(3, 2)])
            assert reader.identity == writer.identity
        assert await reader.read(PARTITION, 0, 10) == batch(0, 5)


async def test_reader_cannot_write(url: str, path: Path) -> None:
    await make_store(url)
    async with open_storage(url, read_only=True) as storage:
        with pytest.raises(StorageError, match="was opened read-only; open it for writing"):
            await storage.append([batch(3, 1)])
        with pytest.raises(StorageError, match="was opened read-only; open it for writing"):
            await storage.trim(PARTITION, 1)
        with pytest.raises(StorageError, match="was opened read-only; open it for writing"):
            await storage.save_positions("name", {PARTITION: 1})
        with pytest.raises(StorageError, match="was opened read-only; open it for writing"):
            await storage.apply_retention(RetentionPolicy(records_max=1))
        with pytest.raises(StorageError, match="was opened read-only; open it for writing"):
            await storage.reset_to(PARTITION, 10)
        with pytest.raises(StorageError, match="was opened read-only; open it for writing"):
            await storage.flush()
        assert await held(storage) == {PARTITION: PartitionInfo(0, 3, 3)}


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


@pytest.mark.parametrize("read_only", [False, True])
async def test_text_file_is_not_a_store(path: Path, read_only: bool) -> None:
    path.write_text("sequence,content\n" * 1000)
    error = await failure(f"sqlite:{path}", read_only=read_only)
    assert type(error) is StorageFormatError
    assert str(error) == f"{path} is not a dafka store: file is not a database"
    assert path.read_text() == "sequence,content\n" * 1000
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("read_only", [False, True])
async def test_database_of_another_program_is_not_a_store(path: Path, read_only: bool) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE records (id)")
    data = path.read_bytes()
    error = await failure(f"sqlite:{path}", read_only=read_only)
    assert type(error) is StorageFormatError
    assert str(error) == f"{path} is not a dafka store, but the database of another program"
    assert path.read_bytes() == data
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("read_only", [False, True])
async def test_folder_is_not_a_store(tmp_path: Path, read_only: bool) -> None:
    error = await failure(f"sqlite:{tmp_path}", read_only=read_only)
    assert type(error) is StorageFormatError
    assert str(error) == f"{tmp_path} is a folder, not a dafka store"


async def test_missing_folder_is_not_created(tmp_path: Path) -> None:
    error = await failure(f"sqlite:{tmp_path}/missing/store.db")
    assert (
        str(error)
        == f"cannot open {tmp_path}/missing/store.db: folder {tmp_path}/missing does not exist; create it first"
    )
    assert not (tmp_path / "missing").exists()


async def test_missing_file_is_not_created_by_a_reader(url: str, path: Path) -> None:
    error = await failure(url, read_only=True)
    assert str(error) == f"{path} does not exist"
    assert not path.exists()


async def test_empty_file_becomes_a_store_for_a_writer_only(url: str, path: Path) -> None:
    path.touch()
    error = await failure(url, read_only=True)
    assert type(error) is StorageFormatError
    assert str(error) == f"{path} is not a dafka store, but an empty database"
    await make_store(url)


@pytest.mark.parametrize("read_only", [False, True])
async def test_newer_schema_is_refused(url: str, path: Path, read_only: bool) -> None:
    await make_store(url)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    error = await failure(url, read_only=read_only)
    assert type(error) is StorageFormatError
    assert str(error) == (
        f"{path} has schema version {SCHEMA_VERSION + 1}, expected {SCHEMA_VERSION}; use the dafka that wrote it"
    )


async def test_store_killed_while_it_was_created_is_created_again(url: str, path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")  # its tables come with the next transaction
    await make_store(url)


async def test_path_may_contain_any_character(tmp_path: Path) -> None:
    for name in ("a b#c%41&d.db", "é.db", "\udcff.db"):
        await make_store(f"sqlite:{tmp_path / name}")
        assert (tmp_path / name).stat().st_size > 0


@pytest.mark.parametrize("place", ["", "?synchronous=FULL", "a\0b"])
async def test_location_without_a_path_is_refused(place: str) -> None:
    assert str(await failure(f"sqlite:{place}")) == "storage 'sqlite:': expected a path, as in sqlite:dafka.db"


# Options


@pytest.mark.parametrize(("option", "level"), [("", 2), ("?synchronous=NORMAL", 1), ("?synchronous=extra", 3)])
async def test_synchronous_is_set_on_the_writing_connection(url: str, option: str, level: int) -> None:
    async with open_storage(url + option) as storage:
        assert isinstance(storage, SqliteStorage)
        assert storage._writer is not None
        assert storage._writer.execute("PRAGMA synchronous").fetchone() == (level,)
        assert storage._writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.parametrize("option", ["synchronous=", "synchronous=2", "synchronous=FULL;DROP TABLE records"])
async def test_invalid_value_of_an_option_is_refused(url: str, path: Path, option: str) -> None:
    error = await failure(f"{url}?{option}")
    assert str(error) == (
        f"storage 'sqlite:': synchronous: expected FULL or EXTRA or NORMAL or OFF, not {option.partition('=')[2]!r}"
    )
    assert not path.exists()


async def test_unknown_option_is_refused(url: str, path: Path) -> None:
    error = await failure(f"{url}?cache=1&synchronous=FULL")
    assert str(error) == "storage 'sqlite:': unknown option 'cache', expected synchronous"
    assert not path.exists()


# Durability


async def test_each_store_has_its_own_identity(tmp_path: Path) -> None:
    identities = []
    for name in ("a.db", "b.db", "a.db"):
        async with open_storage(f"sqlite:{tmp_path / name}") as storage:
            identities.append(storage.identity)
    assert identities[0] == identities[2] != identities[1]
    assert len(identities[0]) == 32


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Let the operating system refuse to write files beyond a size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_write_error_changes_nothing_and_the_next_write_succeeds(url: str, path: Path) -> None:
    async with open_storage(url) as storage:
        await storage.append([batch(0, 10, 100)])
        with file_size_limit(2**20):
            for _ in range(2):
                with pytest.raises(StorageError, match=f"^{path}: disk I/O error$"):
                    await storage.append([batch(10, 200, 10_000)])
            assert await held(storage) == {PARTITION: PartitionInfo(0, 10, 1000)}
            await storage.append([batch(10, 1, 100)])
        await storage.append([batch(11, 200, 10_000)])
        assert await storage.read(PARTITION, 0, 11) == batch(0, 11, 100)
        assert await storage.read(PARTITION, 11, 100) == batch(11, 100, 10_000)


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


async def test_closing_leaves_no_open_file(url: str) -> None:
    await make_store(url)
    before = sorted(os.listdir("/proc/self/fd"))
    await make_store_again(url)
    assert sorted(os.listdir("/proc/self/fd")) == before


async def make_store_again(url: str) -> None:
    async with open_storage(url) as storage:
        await storage.append([batch(3, 1)])
        await storage.read(PARTITION, 0, 1)


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
