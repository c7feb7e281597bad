"""Retention in a running cluster: nodes that fetch dropped records, and new stores, learn that they were dropped."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from prometheus_client import generate_latest

from dafka import Config, Consumer, Store, open_producer
from dafka.config import DialectName
from dafka.errors import ConfigError, StorageError, UnacknowledgedError
from dafka.events import PartitionsForgotten, StoreFull, StoreHasRoom
from dafka.operations import Monitor
from dafka.operations.metrics import make_registry
from dafka.protocol import PartitionHalted, RecordsDropped, RecordsUnrecoverable, StorageFailed
from dafka.records import Partition, RecordBatch
from dafka.storage import RetentionPolicy, open_storage
from dafka.storage.memory import MemoryStorage
from dafka.testing import Cluster, open_cluster
from tests.roles.helpers import (
    DEADLINE_S,
    assert_nothing_more,
    contents,
    open_store,
    receive_partition,
    wait_event,
)
from tests.waiting import wait_until

COUNT, KEPT = 1000, 100


def retaining(config: Config | None = None) -> Config:
    """Return the configuration of a store with retention, which keeps `KEPT` records."""
    return (config or Config()).with_store(retention_records=KEPT, retention_interval_ms=20)


def store_of(cluster: Cluster) -> Store:
    assert cluster.store is not None
    return cluster.store


async def publish(cluster: Cluster, count: int = COUNT) -> None:
    async with cluster.producer("hello") as producer:
        await producer.send_many(contents(0, count))


async def wait_dropped(store: Store) -> None:
    await wait_until(lambda: store.statistics().records_dropped >= COUNT - KEPT)


async def expect_rest(consumer: Consumer, first: int = 0) -> None:
    """The consumer learns that the records from `first` on are lost, and receives the last ones."""
    event = await wait_event(consumer.events, RecordsUnrecoverable)
    assert (event.first_sequence, event.end_sequence) == (first, COUNT - KEPT)
    assert str(event).startswith(
        f"Records {first} to {COUNT - KEPT - 1} of hello/{event.partition.address} are unrecoverable: "
    )
    await receive_partition(consumer, COUNT - KEPT, COUNT)
    assert consumer.statistics().records_unrecoverable == COUNT - KEPT - first
    assert_nothing_more(consumer)


@pytest.mark.parametrize("wire", ["rfc46", "libdafka"])
async def test_consumer_starts_at_the_earliest_record_and_reports_the_lost_ones_erratum_26(wire: DialectName) -> None:
    async with open_cluster(retaining().with_node(wire=wire)) as cluster:
        await publish(cluster)
        await wait_dropped(store_of(cluster))
        dropped = 0
        with trio.fail_after(DEADLINE_S):
            async for event in store_of(cluster).events:  # it may have begun before all was stored
                if isinstance(event, RecordsDropped):
                    assert event.partitions == 1
                    dropped += event.records
                    if dropped >= COUNT - KEPT:
                        break
        assert dropped == COUNT - KEPT
        async with cluster.consumer(["hello"]) as consumer:
            await expect_rest(consumer)


@pytest.mark.parametrize("has_retention", [True, False])
async def test_store_that_was_away_continues_or_keeps_its_records(has_retention: bool, tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'store.db'}"
    async with open_cluster(storage=None) as cluster, cluster.producer("hello") as producer:
        limits: dict[str, Any] = {"retention_records": 2 * COUNT, "retention_interval_ms": 20} if has_retention else {}
        config = cluster.config.with_store(**limits)
        async with open_store(retaining(cluster.config)) as store:
            async with open_store(config, url) as away:
                await producer.send_many(contents(0, 50))
                await wait_until(lambda: away.statistics().records_stored == 50)
            await producer.send_many(contents(50, COUNT))
            await wait_dropped(store)
            async with open_store(config, url) as returned:
                if has_retention:
                    await wait_until(lambda: returned.statistics().records_stored == KEPT)
                    event: RecordsUnrecoverable | PartitionHalted = await wait_event(
                        returned.events, RecordsUnrecoverable
                    )
                else:
                    event = await wait_event(returned.events, PartitionHalted)
                assert (event.first_sequence, event.end_sequence) == (50, COUNT - KEPT)
    async with open_storage(url, read_only=True) as storage:
        info = (await storage.partitions())[producer.partition]
    held = (COUNT - KEPT, COUNT) if has_retention else (0, 50)
    assert (info.earliest_sequence, info.end_sequence) == held


async def test_retention_that_fails_is_reported_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = iter([StorageError("no room to trim"), StorageError("no room to trim")])
    retain = MemoryStorage.apply_retention

    async def fail_first(self: MemoryStorage, retention: RetentionPolicy, topic: str | None = None) -> object:
        for error in failures:
            raise error
        return await retain(self, retention, topic)

    monkeypatch.setattr(MemoryStorage, "apply_retention", fail_first)
    async with open_cluster(retaining()) as cluster:
        await publish(cluster)
        assert (await wait_event(store_of(cluster).events, StorageFailed)).reason == "no room to trim"
        await wait_dropped(store_of(cluster))


async def test_a_topic_that_comes_while_records_are_dropped_is_kept_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    retain = MemoryStorage.apply_retention

    async def retain_later(self: MemoryStorage, policy: RetentionPolicy, topic: str | None = None) -> object:
        while not await self.partitions("hello"):  # noqa: ASYNC110 (a storage tells of nothing)
            await trio.sleep(0.001)
        return await retain(self, policy, topic)

    monkeypatch.setattr(MemoryStorage, "apply_retention", retain_later)
    async with open_cluster(retaining().with_store(compact_topics=("hello",))) as cluster:
        await publish(cluster)
        async with cluster.producer("other") as producer:
            await producer.send_many(contents(0, COUNT))
        await wait_dropped(store_of(cluster))
        (held,) = (await store_of(cluster)._storage.partitions("hello")).values()
        assert held.count == COUNT


# Real stores forget partitions that have ended, and say when they are full


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


# Topics that brokers need: nodes do not publish to them, and stores keep them whole

SYSTEM = [Partition(topic, "4F0C") for topic in ("$topics", "$logs", "$brokers", "$coordinators")]
GROUP = Partition("$group/billing", "4F0C")
ORDERS = Partition("orders", "4F0C")


@pytest.mark.parametrize("partition", SYSTEM, ids=str)
async def test_nodes_do_not_publish_to_system_topics(partition: Partition) -> None:
    with pytest.raises(ConfigError, match="is a system topic"):
        async with open_producer(partition.topic):
            raise AssertionError("the producer was opened")


async def test_limits_of_a_store_do_not_apply_to_system_topics(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/store.db"
    partitions = [*SYSTEM, GROUP, ORDERS]
    async with open_storage(url) as storage:
        await storage.append([RecordBatch(each, 0, [b"value"] * 10, keys=[b"key"] * 10) for each in partitions])
    config = Config().with_store(retention_records=1, retention_interval_ms=20)
    async with open_cluster(config, storage=None) as cluster, open_store(cluster.config, url) as store:
        await wait_until(lambda: store.statistics().records_dropped >= 18)
    async with open_storage(url, read_only=True) as storage:
        held = await storage.partitions()
        assert [held[each].count for each in SYSTEM] == [10] * len(SYSTEM)
