"""Real stores forget partitions that have ended, and say when they are full."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from prometheus_client import generate_latest

from dafka import Config, Store
from dafka.errors import UnacknowledgedError
from dafka.events import PartitionsForgotten, StoreFull, StoreHasRoom
from dafka.operations import Monitor
from dafka.operations.metrics import make_registry
from dafka.storage import open_storage
from dafka.testing import Cluster, open_cluster
from tests.roles.helpers import DEADLINE_S, contents, open_store, wait_event
from tests.waiting import wait_until


def forgetting(config: Config) -> Config:
    """Return the configuration of a store that drops all records after a moment, and then forgets partitions."""
    return config.with_store(retention_ms=50, retention_interval_ms=20, forget_empty_after_ms=100)


@asynccontextmanager
async def open_forgetting(url: str) -> AsyncIterator[tuple[Cluster, Store]]:
    async with open_cluster(storage=None) as cluster, open_store(forgetting(cluster.config), url) as store:
        yield cluster, store


@pytest.mark.parametrize("url", ["sqlite:{}/s.db", "filelog:{}/log", "memory:"])
async def test_partitions_of_producers_that_are_gone_are_forgotten(url: str, tmp_path: Path) -> None:
    async with open_forgetting(url.format(tmp_path)) as (cluster, store):
        for _ in range(3):
            async with cluster.producer("hello") as producer:
                await producer.send_many(contents(0, 10))
        forgotten = 0
        with trio.fail_after(DEADLINE_S):
            async for event in store.events:
                forgotten += event.partitions if isinstance(event, PartitionsForgotten) else 0
                if forgotten == 3:
                    break
        assert store.statistics().partitions == 0
    if not url.startswith("memory"):
        async with open_storage(url.format(tmp_path), read_only=True) as storage:
            assert await storage.partitions() == {}


async def test_a_storage_that_cannot_delete_keeps_ended_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    class DeletesNothing: ...

    # Python remembers which classes satisfy a protocol, so removing the method from a class would not be noticed.
    monkeypatch.setattr("dafka.roles.store.DeletesPartitions", DeletesNothing)
    async with open_forgetting("memory:") as (cluster, store):
        async with cluster.producer("hello") as producer:
            await producer.send(b"0")
        await wait_until(lambda: store.statistics().records_dropped == 1)
        await trio.sleep(1)
        assert store.statistics().partitions == 1


async def test_a_store_forgets_what_had_ended_before_it_was_restarted(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/s.db"
    async with open_cluster(storage=url) as cluster, cluster.producer("hello") as producer:
        await producer.send(b"0")
    async with open_storage(url) as storage:
        await storage.trim(producer.partition, 1)
    async with open_forgetting(url) as (_, store):
        await wait_until(lambda: store.statistics().partitions == 0)


async def test_a_full_store_says_so_and_recovers(caplog: pytest.LogCaptureFixture) -> None:
    async with open_cluster(storage=None) as cluster:
        config = forgetting(cluster.config).with_node(partitions_max=1)
        async with open_store(config, "memory:") as store:
            monitor = Monitor("store")
            monitor.add(store)
            await store.wait_settled()
            assert monitor.health().unready == ""
            async with cluster.producer("hello") as first:
                await first.send(b"first")
                event = await wait_event(store.events, StoreFull)
                assert (event.limit, store.statistics().is_full) == (1, True)
                assert monitor.health().unready == f"store: {event}"
                assert str(event) in caplog.messages
                assert b'dafka_full_stores{role="store"} 1.0' in generate_latest(make_registry(monitor))
                # A running producer counts although its records have expired.
                await wait_until(lambda: store.statistics().records_dropped == 1)
                with pytest.raises(UnacknowledgedError):
                    async with cluster.producer("hello", cluster.config.with_producer(close_timeout_ms=300)) as second:
                        await second.send(b"second")
            await wait_event(store.events, StoreHasRoom)
            assert monitor.health().unready == ""
            async with cluster.producer("hello") as third:
                await third.send(b"third")
