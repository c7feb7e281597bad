"""Opening a storage in files: what is one and what is not, who may write it, and what another process sees of it."""

# ruff: noqa: ASYNC220, ASYNC240  (short programs and small files in tests)
from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import attrs
import pytest
import trio
from crc32c import crc32c

from dafka.errors import StorageBusyError, StorageError, StorageFormatError
from dafka.records import Partition, RecordBatch
from dafka.storage import PartitionInfo, RetentionPolicy, open_storage
from dafka.storage.sqlite.schema import APPLICATION_ID, SCHEMA_VERSION
from tests.storage.records import PARTITION, batch

DEADLINE_S = 60


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


# What is not a storage


def make_folder(path: Path) -> None:
    path.mkdir()
    (path / "notes.txt").write_text("mine")


def execute(*statements: str) -> Callable[[Path], object]:
    """Return what runs statements in a database."""

    def make(path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection:
            for statement in statements:
                connection.execute(statement)

    return make


def begin_file_log(path: Path) -> None:
    """Leave what a writer leaves that is killed while it creates a file log."""
    path.mkdir()
    (path / "filelog.lock").touch()
    (path / ".filelog.json.tmp").touch()


def make_marker(version: int, crc_version: int) -> Callable[[Path], object]:
    """Return what makes a file log of a version, with the checksum of a version."""

    def make(path: Path) -> None:
        path.mkdir()
        identity = "A" * 32
        crc = crc32c(f"dafka file log {crc_version} {identity}".encode())
        text = f'{{"format": "dafka file log", "version": {version}, "identity": "{identity}", "crc32c": {crc}}}'
        (path / "filelog.json").write_text(text)

    return make


@attrs.frozen
class Place:
    """Something that is not a storage, and what is said about it to a reader, a writer, or both."""

    scheme: str
    make: Callable[[Path], object]
    message: str
    read_only: tuple[bool, ...] = (False, True)
    error: type[StorageError] = StorageFormatError


NEWER = SCHEMA_VERSION + 1
NEWER_SCHEMA = f"{{}} has schema version {NEWER}, expected {SCHEMA_VERSION}; use the dafka that wrote it"
READER = (True,)
PLACES = [
    Place("sqlite", lambda path: path.write_text("text," * 4000), "{} is not a dafka store: file is not a database"),
    Place("sqlite", Path.mkdir, "{} is a folder, not a dafka store"),
    Place(
        "sqlite", execute("CREATE TABLE records (id)"), "{} is not a dafka store, but the database of another program"
    ),
    Place(
        "sqlite", execute(f"PRAGMA application_id = {APPLICATION_ID}", f"PRAGMA user_version = {NEWER}"), NEWER_SCHEMA
    ),
    Place("sqlite", lambda path: None, "{} does not exist", READER, StorageError),
    Place("sqlite", Path.touch, "{} is not a dafka store, but an empty database", READER),
    Place("sqlite", execute("PRAGMA journal_mode = WAL"), "{} is not a dafka store, but an empty database", READER),
    Place("filelog", make_folder, "{} is not a file log: it has no filelog.json"),
    Place("filelog", lambda path: path.write_text("mine"), "{} is not a file log: expected a folder"),
    Place("filelog", make_marker(3, 2), "{} cannot be opened: filelog.json is damaged, or not that of a file log"),
    Place("filelog", make_marker(3, 3), "{} has version 3, expected 2; use the dafka that wrote it"),
    Place("filelog", lambda path: None, "{} does not exist", READER, StorageError),
    Place("filelog", Path.mkdir, "{} is not a file log: it has no filelog.json", READER),
    Place("filelog", begin_file_log, "{} is not a file log: it has no filelog.json", READER),
]


def contents(folder: Path) -> dict[str, bytes | None]:
    """Return all files, but for those in which the readers of a database note what they read."""
    found = {str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}
    return {name: content for name, content in found.items() if not name.endswith(("-wal", "-shm"))}


@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{place.scheme}, {place.message}")
async def test_what_is_not_a_storage_is_refused_and_not_changed(place: Place, tmp_path: Path) -> None:
    """A place where nothing is yet becomes a storage for a writer."""
    path = tmp_path / "place"
    place.make(path)
    before = contents(tmp_path)
    for read_only in (*place.read_only, *place.read_only):
        error = await failure(f"{place.scheme}:{path}", read_only=read_only)
        assert type(error) is place.error
        assert str(error).startswith(place.message.format(path))
        assert contents(tmp_path) == before
    if place.read_only == READER:
        await make_store(f"{place.scheme}:{path}")


@pytest.mark.parametrize(
    ("denied", "reason"),
    [(os.R_OK, "{}/s is not readable for this user"), (os.W_OK, "the folder {} is not writable, which SQLite needs")],
)
async def test_a_database_that_sqlite_cannot_open_is_refused_with_the_reason(
    denied: int, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:{tmp_path}/s"
    await make_store(url)
    (tmp_path / "s-wal").unlink(missing_ok=True)
    (tmp_path / "s-wal").mkdir()
    monkeypatch.setattr(os, "access", lambda _, mode: mode != denied)
    error = await failure(url, read_only=True)
    assert str(error).startswith(f"{tmp_path}/s: unable to open database file: {reason.format(tmp_path)}")


@pytest.mark.parametrize("scheme", ["sqlite", "filelog"])
async def test_a_missing_folder_is_not_created(scheme: str, tmp_path: Path) -> None:
    error = await failure(f"{scheme}:{tmp_path}/missing/s")
    expected = f"cannot open {tmp_path}/missing/s: folder {tmp_path}/missing does not exist; create it first"
    assert str(error) == expected
    assert list(tmp_path.iterdir()) == []


NO_FOLDER = "expected a folder, as in filelog:dafka-log"
FSYNC = "fsync: expected batch, never or a number of milliseconds, not"
SYNCHRONOUS = "synchronous: expected FULL or EXTRA or NORMAL or OFF, not"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("filelog:", NO_FOLDER),
        ("filelog:?fsync=never", NO_FOLDER),
        ("filelog:x?fsync=", f"{FSYNC} ''"),
        ("filelog:x?fsync=0", f"{FSYNC} '0'"),
        ("filelog:x?segment_bytes=0", "segment_bytes: expected a whole number of at least 1, not '0'"),
        ("filelog:x?size=1", "unknown option 'size', expected segment_bytes or segment_ms or fsync"),
        *((f"sqlite:{place}", "expected a path, as in sqlite:dafka.db") for place in ("", "?synchronous=FULL", "a\0b")),
        *((f"sqlite:x?synchronous={each}", f"{SYNCHRONOUS} {each!r}") for each in ("", "2", "FULL;DROP TABLE records")),
        ("sqlite:x?cache=1&synchronous=FULL", "unknown option 'cache', expected synchronous"),
    ],
)
async def test_an_invalid_location_is_refused(
    url: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert str(await failure(url)) == f"storage '{url.partition(':')[0]}:': {message}"
    assert list(tmp_path.iterdir()) == []


# Writers and readers


@pytest.fixture(params=["sqlite", "filelog"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"{request.param}:{tmp_path}/store"


async def test_a_second_writer_is_refused_at_once(url: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("store")
    async with open_storage(url):
        for other in (url, url.replace("/store", "/link")):
            with trio.fail_after(DEADLINE_S):
                error = await failure(other)
            assert type(error) is StorageBusyError
            assert str(error).startswith(other.partition(":")[2])
            assert str(error).endswith(" is in use by another writer; stop it first")
    with pytest.raises(ZeroDivisionError):
        async with open_storage(url):
            raise ZeroDivisionError
    await make_store(url)


async def test_a_reader_cannot_write(url: str) -> None:
    await make_store(url)
    async with open_storage(url, read_only=True) as storage:
        for change in (
            lambda: storage.append([batch(3, 4)]),
            lambda: storage.trim(PARTITION, 1),
            lambda: storage.reset_to(PARTITION, 9),
            lambda: storage.apply_retention(RetentionPolicy(records_max=0)),
            lambda: storage.save_positions("name", {PARTITION: 1}),
        ):
            with pytest.raises(StorageError, match="was opened read-only; open it for writing"):
                await change()
        assert (await storage.partitions())[PARTITION].end_sequence == 3


async def test_a_reader_continues_when_another_writer_follows(url: str, tmp_path: Path) -> None:
    await make_store(url)
    other = Partition("orders", "B")
    async with open_storage(url, read_only=True) as reader:
        assert await reader.read(PARTITION, 0, 10) == batch(0, 3)
        async with open_storage(url) as writer:
            assert reader.identity == writer.identity
            await writer.append([batch(3, 5), RecordBatch(other, 0, [b"0"])])
        assert await reader.read(PARTITION, 0, 10) == batch(0, 5)
        for catalog in tmp_path.glob("store/catalog.names"):
            catalog.unlink()
        async with open_storage(url) as writer:  # a file log builds its catalog again
            await writer.append([batch(5, 7)])
            assert await reader.read(PARTITION, 5, 10) == batch(5, 7)
            assert (await reader.partitions()).keys() == {PARTITION, other}


FOLLOW = """
import sys, trio
from dafka.storage import open_storage

async def main(url, last):
    end = 0
    async with open_storage(url, read_only=True) as storage:
        while end < last:
            for partition, info in (await storage.partitions("orders")).items():
                assert info.end_sequence >= end and info.end_sequence % 20 == 0, info
                sequence = max(end, info.earliest_sequence)
                while sequence < info.end_sequence:
                    batch = await storage.read(partition, sequence, 17)
                    if batch is None:  # trimmed meanwhile
                        before, sequence = sequence, (await storage.partitions())[partition].earliest_sequence
                        assert sequence > before
                        continue
                    for record in batch:
                        assert record.sequence == sequence and record.value == b"%d" % sequence, record
                        sequence += 1
                assert await storage.find_sequence_by_time(partition, 0) >= info.earliest_sequence
                end = info.end_sequence
            print(end, flush=True)
    await trio.to_thread.run_sync(sys.stdin.readline)
    async with open_storage(url):
        print("open", flush=True)
        await trio.sleep_forever()

trio.run(main, sys.argv[1], int(sys.argv[2]))
"""


async def test_another_process_sees_complete_appends_and_its_lock_ends_with_it(url: str, tmp_path: Path) -> None:
    """Meanwhile records are trimmed, and the catalog of a file log is lost. Then that process becomes the writer."""
    last = 2000
    await make_store(url, 20)
    command = [sys.executable, "-c", FOLLOW, url, str(last)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"20\n"
            options = "?segment_bytes=700&fsync=never" if url.startswith("filelog") else "?synchronous=OFF"
            async with open_storage(url + options) as storage:
                for first in range(20, last, 20):
                    await storage.append([batch(first, first + 20)])
                    if first % 300 == 0:
                        await storage.trim(PARTITION, first - 150)
                    if first == last // 2:
                        for catalog in tmp_path.glob("store/catalog.heads"):
                            catalog.unlink()
                while await trio.to_thread.run_sync(process.stdout.readline) != b"%d\n" % last:
                    assert process.poll() is None
            process.stdin.write(b"\n")
            process.stdin.flush()
            assert process.stdout.readline() == b"open\n"
            with trio.fail_after(DEADLINE_S):
                assert type(await failure(url)) is StorageBusyError
        finally:
            process.kill()
    async with open_storage(url) as storage:
        await storage.append([batch(last, last + 1)])
        info = (await storage.partitions())[PARTITION]
    assert info == PartitionInfo(1650, last + 1, info.content_bytes, info.earliest_stored_at, info.latest_stored_at)
