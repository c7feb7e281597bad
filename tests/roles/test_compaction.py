"""Compaction in a running cluster: of each key, every reader gets the last record, and no record counts as lost."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
import trio

from dafka import Config, Consumer, Store, open_reader
from dafka.protocol import RecordsCompacted, RecordsUnrecoverable
from dafka.records import ProducerRecord, Record
from dafka.roles.statistics import TopicCounts
from dafka.testing import Cluster, open_cluster
from tests.roles.helpers import DEADLINE_S, open_store, wait_event
from tests.waiting import wait_until

COUNT, KEYS = 3000, 50

STORAGES = ["memory:", "sqlite:{}/dafka.db", "filelog:{}/log?segment_bytes=10000"]


def compacting(config: Config | None = None) -> Config:
    return (config or Config()).with_store(
        compact_topics=("prices", "users.*"),
        compaction_interval_ms=20,
        compaction_rate_bytes=0,
        compaction_dirty_percent=10,
        retention_records=10,
        retention_interval_ms=20,
    )


def make_records(first: int, end: int) -> list[ProducerRecord]:
    return [ProducerRecord(b"%d" % number, b"key %d" % (number % KEYS)) for number in range(first, end)]


async def publish(cluster: Cluster, topic: str = "prices") -> None:
    """Publish records of which all but the last of each key are superseded, and a few more that roll segments."""
    async with cluster.producer(topic) as producer:
        for first in range(0, COUNT, 300):  # one append after the other, so that a file log begins new segments
            await producer.send_many(make_records(first, first + 300))
            await producer.wait_acknowledged()


def store_of(cluster: Cluster) -> Store:
    assert cluster.store is not None
    return cluster.store


async def wait_compacted(store: Store, records: int = COUNT // 2) -> None:
    await wait_until(lambda: store.statistics().records_compacted >= records)


def last_values(records: Iterable[Record]) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in records}


EXPECTED = {b"key %d" % (number % KEYS): b"%d" % number for number in range(COUNT - KEYS, COUNT)}


async def receive_all(consumer: Consumer) -> list[Record]:
    """Return the records up to the last one."""
    found: list[Record] = []
    with trio.fail_after(DEADLINE_S):
        while not found or found[-1].sequence < COUNT - 1:
            found += await consumer.next_batch()
    assert [record.sequence for record in found] == sorted({record.sequence for record in found})
    return found


@pytest.mark.parametrize("storage", STORAGES)
async def test_late_consumer_gets_the_last_record_of_each_key_and_none_is_lost(storage: str, tmp_path: Path) -> None:
    async with open_cluster(compacting(), storage=storage.format(tmp_path)) as cluster:
        await publish(cluster)
        store = store_of(cluster)
        event = await wait_event(store.events, RecordsCompacted)
        assert str(event).startswith("Compaction removed ")
        await wait_compacted(store)
        async with cluster.consumer(["prices"]) as consumer:
            found = await receive_all(consumer)
            assert last_values(found) == EXPECTED
            assert len(found) <= COUNT - COUNT // 2
            assert consumer.statistics().records_unrecoverable == 0
            assert consumer.statistics().lag == {}
            for record in found:
                assert record.value == b"%d" % record.sequence
        assert store.statistics().records_dropped == 0, "retention does not apply to compacted topics"


async def test_other_topics_are_not_compacted() -> None:
    async with open_cluster(compacting().with_store(retention_records=0), storage="memory:") as cluster:
        await publish(cluster, "other")
        await publish(cluster, "users.eu")
        await wait_compacted(store_of(cluster))
        async with cluster.consumer(["other"]) as consumer:
            assert len(await receive_all(consumer)) == COUNT


@pytest.mark.parametrize("storage", STORAGES)
async def test_store_that_comes_late_holds_the_same_records(storage: str, tmp_path: Path) -> None:
    async with open_cluster(compacting(), storage=storage.format(tmp_path)) as cluster:
        await publish(cluster)
        await wait_compacted(store_of(cluster))
        for number, replica in enumerate(STORAGES):
            (tmp_path / str(number)).mkdir()
            url = replica.format(tmp_path / str(number))
            async with open_store(cluster.config.with_store(compact_topics=(), retention_records=0), url) as late:
                await wait_until(lambda late=late: [*late.statistics().topics.values()] == [TopicCounts(1, COUNT)])  # type: ignore[misc]
                assert late.statistics().missing_records == 0
                (partition,) = await late._storage.partitions()
                found: list[Record] = []
                sequence = 0
                while sequence < COUNT:
                    batch = await late._storage.read(partition, sequence, COUNT)
                    assert batch is not None
                    found += batch
                    sequence = batch.end_sequence
                assert last_values(found) == EXPECTED
                assert len(found) <= COUNT - COUNT // 2
                assert await late._storage.find_damage() == []


async def test_reader_of_a_range_is_told_what_was_removed() -> None:
    async with open_cluster(compacting(), storage="memory:") as cluster:
        await publish(cluster)
        await wait_compacted(store_of(cluster))
        async with open_reader(["prices"], cluster.config) as reader:
            with trio.fail_after(DEADLINE_S):
                await reader.wait_ready()
                (partition,) = reader.ends()
                records = reader.read(partition, 0, COUNT)
                found = [record async for batch in records for record in batch]
                records.close()
                assert last_values(found) == EXPECTED
                records = reader.read(partition, 0, COUNT)
                sequence = 0
                while (batch := await records.next_sequences()) is not None:
                    assert batch.first_sequence == sequence
                    sequence = batch.end_sequence
                assert sequence == COUNT


async def test_nodes_without_record_batches_get_empty_records_instead() -> None:
    async with open_cluster(compacting(), storage="memory:") as cluster:
        await publish(cluster)
        await wait_compacted(store_of(cluster))
        plain = cluster.config.with_node(record_batches="off").with_consumer(offset_reset="earliest")
        async with cluster.consumer(["prices"], plain) as consumer:
            found = await receive_all(consumer)
            assert [record.sequence for record in found] == list(range(COUNT))
            assert last_values(record for record in found if record.key is not None) == EXPECTED
            assert {record.value for record in found if record.key is None} == {b""}


async def test_removed_records_are_not_reported_as_lost() -> None:
    async with open_cluster(compacting(), storage="memory:") as cluster:
        await publish(cluster)
        await wait_compacted(store_of(cluster))
        async with cluster.consumer(["prices"]) as consumer:
            await receive_all(consumer)
            with trio.move_on_after(0):
                async for event in consumer.events:
                    assert not isinstance(event, RecordsUnrecoverable)
