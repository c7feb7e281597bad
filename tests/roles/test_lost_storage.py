from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import trio

from dafka import Store, serve_store
from dafka.cli.daemons import serve_store_with_restarts
from dafka.errors import StorageLostError
from dafka.exceptions import unwrap_group
from dafka.protocol import StorageLost
from dafka.storage import open_storage
from dafka.storage.memory import MemoryStorage
from dafka.storage.sqlite.storage import SqliteStorage
from dafka.testing import Cluster, open_cluster
from tests.roles.helpers import DEADLINE_S, contents, open_store, wait_event
from tests.waiting import wait_until


def remove(path: Path) -> None:
    for each in path.parent.glob(f"{path.name}*"):
        shutil.rmtree(each) if each.is_dir() else each.unlink()


async def serve(url: str, cluster: Cluster, use: Callable[[Store], Awaitable[None]]) -> None:
    """Run a store until it ends by itself."""
    with unwrap_group(), trio.fail_after(DEADLINE_S):
        async with open_store(cluster.config, url) as store:
            await use(store)
            await trio.sleep_forever()


def noting(kept: list[Store]) -> Callable[[Store], AbstractContextManager[None]]:
    """Add each store that runs to the list."""

    @contextmanager
    def running(store: Store) -> Iterator[None]:
        kept.append(store)
        yield

    return running


@pytest.mark.parametrize("scheme", ["sqlite", "filelog"])
async def test_store_ends_and_acknowledges_nothing_more(scheme: str, tmp_path: Path) -> None:
    async def use(store: Store) -> None:
        await producer.send_many(contents(0, 100))
        await producer.wait_stored()
        remove(tmp_path / "store")
        await producer.send_many(contents(100, 200))
        event = await wait_event(store.events, StorageLost)
        assert str(event).startswith("Storage lost; nothing more is acknowledged: ")

    async with open_cluster(storage=None) as cluster:
        with trio.CancelScope() as scope:
            async with cluster.producer("hello") as producer:
                with pytest.raises(StorageLostError, match="was removed or replaced"):
                    await serve(f"{scheme}:{tmp_path}/store", cluster, use)
                assert producer.statistics().unacknowledged == 100
                scope.cancel()


@pytest.mark.parametrize("scheme", ["sqlite", "filelog"])
async def test_kept_store_begins_anew_and_has_what_another_store_holds(
    scheme: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The producer no longer holds the records, and no operator intervenes."""
    kept: list[Store] = []
    url = f"{scheme}:{tmp_path}/store"
    async with open_cluster() as cluster, trio.open_nursery() as nursery:
        config = cluster.config.with_store(storage=url)
        first = await nursery.start(serve_store_with_restarts, config, noting(kept))
        async with cluster.producer("hello") as producer:
            await producer.send_many(contents(0, 5000))
            await producer.wait_stored()
            await wait_until(lambda: first.statistics().records_stored == 5000)
        remove(tmp_path / "store")
        await wait_until(lambda: len(kept) == 2 and kept[1].statistics().records_stored == 5000)
        assert kept[1].address != first.address
        assert caplog.text.count(f"Opening {url} again, and fetching what other nodes hold") == 1
        async with open_storage(url, read_only=True) as storage:
            batch = await storage.read(producer.partition, 0, 5000)
            assert batch is not None
            assert list(batch.values) == contents(0, 5000)
        nursery.cancel_scope.cancel()


async def test_kept_store_tries_on_while_its_storage_cannot_be_opened(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept: list[Store] = []
    folder = tmp_path / "disk"
    folder.mkdir()
    async with open_cluster(storage=None) as cluster, trio.open_nursery() as nursery:
        config = cluster.config.with_store(storage=f"sqlite:{folder}/store", retry_ms=20)
        await nursery.start(serve_store_with_restarts, config, noting(kept))
        shutil.rmtree(folder)
        await wait_until(lambda: "does not exist; create it first" in caplog.text)
        await trio.sleep(0.1)
        assert caplog.text.count("again; retrying:") == 1
        assert len(kept) == 1
        folder.mkdir()
        await wait_until(lambda: len(kept) == 2)
        nursery.cancel_scope.cancel()


async def test_a_loss_that_retention_notices_ends_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise StorageLostError("the storage was removed")

    monkeypatch.setattr(MemoryStorage, "apply_retention", fail)
    async with open_cluster(storage=None) as cluster, cluster.producer("hello") as producer:
        config = cluster.config.with_store(storage="memory:", retention_records=5, retention_interval_ms=20)
        await producer.send(b"0")
        with trio.fail_after(DEADLINE_S), pytest.raises(StorageLostError, match="the storage was removed"):
            await serve_store(config)


async def test_a_loss_that_two_tasks_notice_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running: set[str] = set()

    def fail_together(call: str) -> Callable[..., Awaitable[None]]:
        async def fail(*_: object) -> None:
            running.add(call)
            with trio.CancelScope(shield=True):
                await wait_until(lambda: len(running) == 2)
            raise StorageLostError("the storage was removed")

        return fail

    for call in ("append", "check_not_removed"):
        monkeypatch.setattr(SqliteStorage, call, fail_together(call))
    async with open_cluster(storage=None) as cluster:
        with trio.CancelScope() as scope:
            async with cluster.producer("hello") as producer:
                await producer.send(b"0")
                with pytest.raises(StorageLostError, match="the storage was removed"):
                    await serve_store(cluster.config.with_store(storage=f"sqlite:{tmp_path}/store"))
                scope.cancel()
