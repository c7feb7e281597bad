"""What every storage of this package promises beyond the contract: times of appends, threads, cancellation, locks."""

# ruff: noqa: ASYNC240  (small files in tests)
from __future__ import annotations

import inspect
import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest
import trio
from filelock import FileLock

from dafka.errors import StorageBusyError, StorageError
from dafka.records import RecordBatch
from dafka.storage import RetentionPolicy, Storage, open_storage, plugin_helpers
from dafka.storage.filelog import FilelogStorage
from dafka.storage.memory import MemoryStorage
from dafka.storage.plugin_helpers import writer_lock
from dafka.storage.sqlite import SqliteStorage
from tests.storage.records import OTHER, PARTITION, batch

URLS = {"memory": "memory:", "sqlite": "sqlite:{folder}/store.db", "filelog": "filelog:{folder}/log"}
DEADLINE_S = 60


@pytest.fixture(params=URLS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return URLS[request.param].format(folder=tmp_path)


@pytest.mark.parametrize("kind", [MemoryStorage, SqliteStorage, FilelogStorage])
def test_every_storage_has_the_defaults_of_the_interface(kind: type[Storage]) -> None:
    """A caller that knows only the interface reads without times, and up to the same size, from every storage."""
    for name in ("append", "read", "trim", "reset_to", "apply_retention", "find_sequence_by_time", "partitions"):
        expected = inspect.signature(getattr(Storage, name)).parameters.values()
        found = inspect.signature(getattr(kind, name)).parameters.values()
        assert [(each.name, each.kind, each.default) for each in found] == [
            (each.name, each.kind, each.default) for each in expected
        ]


@pytest.mark.parametrize("scheme", ["sqlite", "filelog"])
async def test_a_storage_at_any_path_has_an_identity_of_its_own(scheme: str, tmp_path: Path) -> None:
    names = ("a b#c%41&d.db", "é.db", "\udcff.db")
    identities = []
    for name in (*names, *names):
        async with open_storage(f"{scheme}:{tmp_path / name}") as storage:
            identities.append(storage.identity)
        assert (tmp_path / name).exists()
    assert identities[:3] == identities[3:]
    assert len(set(identities)) == 3
    assert all(len(each) == 32 for each in identities)


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Let the operating system refuse to write files beyond a size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(("scheme", "message"), [("sqlite", "disk I/O error"), ("filelog", "File too large")])
async def test_a_write_error_changes_nothing_and_the_next_write_succeeds(
    scheme: str, message: str, tmp_path: Path
) -> None:
    large = RecordBatch(PARTITION, 10, [b"." * 10_000] * 200)
    async with open_storage(f"{scheme}:{tmp_path}/store") as storage:
        await storage.append([batch(0, 10)])
        before = await storage.partitions()
        segments = {path: path.stat().st_size for path in tmp_path.rglob("*.log")}
        with file_size_limit(2**20):
            for _ in range(2):
                with pytest.raises(StorageError, match=f"^/.*: {message}$"):
                    await storage.append([batch(0, 5, OTHER), large])
            assert await storage.partitions() == before
            assert {path: path.stat().st_size for path in tmp_path.rglob("*.log")} == segments
            assert await storage.read(PARTITION, 10, 1) is None
            await storage.append([batch(10, 11)])
        await storage.append([attrs.evolve(large, first_sequence=11), batch(0, 5, OTHER)])
        assert await storage.read(PARTITION, 11, 50) == attrs.evolve(large, first_sequence=11).between(11, 61)
        assert await storage.read(OTHER, 0, 9) == batch(0, 5, OTHER)
        assert await storage.find_damage() == []
    async with open_storage(f"{scheme}:{tmp_path}/store") as storage:
        assert not storage.repairs


async def test_a_storage_does_not_wait_for_the_threads_of_others(url: str) -> None:
    """Programs use trio's default threads for anything, such as names of hosts that take a minute to resolve."""
    async with open_storage(url) as storage:
        await storage.append([batch(0, 5)])
        limiter = trio.to_thread.current_default_thread_limiter()
        before = limiter.total_tokens
        limiter.total_tokens = 1
        try:
            async with limiter:
                with trio.fail_after(DEADLINE_S):
                    await storage.append([batch(5, 6)])
                    await storage.read(PARTITION, 0, 10)
                    await storage.find_sequence_by_time(PARTITION, 0)
                    await storage.partitions()
                    await storage.statistics()
                    await storage.save_positions("name", {PARTITION: 1})
                    await storage.load_positions("name")
                    await storage.position_names()
                    await storage.trim(PARTITION, 1)
                    await storage.apply_retention(RetentionPolicy(records_max=2))
                    await storage.reset_to(PARTITION, 10)
                    await storage.flush()
        finally:
            limiter.total_tokens = before


def open_files(folder: Path) -> list[str]:
    links = []
    for name in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue
    return [each for each in links if each.startswith(str(folder))]


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("scheme", ["sqlite", "filelog"])
async def test_a_cancelled_program_closes_its_storages(scheme: str, read_only: bool, tmp_path: Path) -> None:
    url = URLS[scheme].format(folder=tmp_path)
    async with open_storage(url) as storage:
        await storage.append([batch(0, 5)])
    with trio.CancelScope() as scope:
        async with open_storage(url, read_only=read_only) as storage:
            await storage.read(PARTITION, 0, 10)
            if not read_only:
                await storage.append([batch(5, 6)])
            assert open_files(tmp_path) != []
            scope.cancel()
            await trio.sleep_forever()
    assert open_files(tmp_path) == []
    async with open_storage(url) as storage:
        assert (await storage.partitions())[PARTITION].end_sequence == (5 if read_only else 6)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store")


@pytest.fixture
def kept_locks(monkeypatch: pytest.MonkeyPatch) -> list[FileLock]:
    """Keep every lock: one that the garbage collector frees is released in any case."""
    kept: list[FileLock] = []

    def make(lock_path: str, *, thread_local: bool = True) -> FileLock:
        kept.append(FileLock(lock_path, thread_local=thread_local))
        return kept[-1]

    monkeypatch.setattr(plugin_helpers, "FileLock", make)
    return kept


def is_locked(path: str) -> bool:
    try:
        with writer_lock(path):
            return False
    except StorageBusyError:
        return True


@pytest.mark.usefixtures("kept_locks")
def test_a_lock_is_released_in_another_thread_and_by_an_error(path: str) -> None:
    lock = writer_lock(path)
    lock.__enter__()
    assert is_locked(path)
    thread = threading.Thread(target=lock.__exit__, args=(None, None, None))
    thread.start()
    thread.join()
    assert not is_locked(path)

    def fail() -> Iterator[None]:
        with writer_lock(path):
            assert is_locked(path)
            yield
            raise KeyError

    with pytest.raises(KeyError):
        list(fail())
    assert not is_locked(path)
