"""Retention in a running cluster: nodes that fetch dropped records, and new stores, learn that they were dropped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from dafka import Config, Consumer, Store
from dafka.config import DialectName
from dafka.errors import StorageError
from dafka.protocol import PartitionHalted, RecordsDropped, RecordsUnrecoverable, StorageFailed
from dafka.storage import RetentionPolicy, open_storage
from dafka.storage.memory import MemoryStorage
from dafka.testing import Cluster, open_cluster
from tests.roles.helpers import DEADLINE_S, assert_nothing_more, contents, open_store, receive_partition, wait_event
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
