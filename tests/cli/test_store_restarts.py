"""`dafka store` starts again with a new storage when the one that it has is removed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from dafka.cli.daemons import serve_store_with_restarts
from dafka.errors import StorageError
from dafka.roles import Store
from dafka.testing import open_cluster
from tests.waiting import wait_until

DEADLINE_S = 60


async def test_a_store_whose_storage_is_removed_starts_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It retries while its storage cannot be opened. An error of the first start is raised."""
    stores: list[Store] = []
    ended: list[Store] = []

    @contextmanager
    def watch(store: Store) -> Iterator[None]:
        stores.append(store)
        try:
            yield
        finally:
            ended.append(store)

    folder = tmp_path / "folder"
    folder.mkdir()
    with trio.fail_after(DEADLINE_S):
        async with open_cluster(storage=None) as cluster, trio.open_nursery() as nursery:
            config = cluster.config.with_store(storage=f"filelog:{folder}/log", retry_ms=10)
            await nursery.start(serve_store_with_restarts, config, watch)
            async with cluster.producer("orders") as producer:
                await producer.send_many([b"1", b"2"])
                await producer.wait_stored()
                shutil.rmtree(folder)
                await producer.send(b"3")
                await wait_until(lambda: len(ended) == 1 and "does not exist; create it first" in caplog.text)
                folder.mkdir()
                await wait_until(lambda: len(stores) == 2)
                await producer.wait_stored()
            assert stores[0].address != stores[1].address
            nursery.cancel_scope.cancel()
        wrong = cluster.config.with_store(storage=f"filelog:{tmp_path}/missing/log")
        with pytest.raises(StorageError):
            await serve_store_with_restarts(wrong, watch, task_status=trio.TASK_STATUS_IGNORED)
