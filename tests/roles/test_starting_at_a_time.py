"""Consumers and readers that begin at a time: over sockets, with stores that search their storages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio

from dafka import Config, Partition, Producer, ProducerRecord
from dafka.errors import ConfigError, DiscoveryError, UnansweredError
from dafka.roles import open_reader
from dafka.roles.store import StoreRetention
from dafka.storage import made_at
from dafka.testing import Cluster, open_cluster
from tests.roles.helpers import AN_HOUR_MS, DEADLINE_S, contents, open_store, receive, receive_partition
from tests.roles.libdafka_store import open_libdafka_store
from tests.waiting import wait_until

BEGIN_MS = 1_700_000_000_000
"""The time at which the first record of `timed` was made."""


def timed(*minutes: float) -> list[ProducerRecord]:
    """Return records that were made at these minutes after `BEGIN_MS`."""
    return [
        ProducerRecord(b"%d" % number, timestamp=BEGIN_MS + int(minute * 60_000))
        for number, minute in enumerate(minutes)
    ]


def minute(number: float) -> datetime:
    return datetime.fromtimestamp((BEGIN_MS + number * 60_000) / 1000, UTC)


@asynccontextmanager
async def producing(cluster: Cluster, *minutes: float) -> AsyncIterator[Producer]:
    """Open a producer of `hello` whose records are stored."""
    async with cluster.producer("hello") as producer:
        await producer.send_many(timed(*minutes))
        await producer.wait_stored()
        yield producer


@pytest.mark.parametrize("config", [Config().with_node(wire="rfc46"), Config().with_node(wire="libdafka")])
async def test_each_partition_begins_with_its_first_record_of_the_time(config: Config) -> None:
    async with (
        open_cluster(config) as cluster,
        producing(cluster, *range(10)),
        producing(cluster, *range(5, 25)),
        producing(cluster, *range(100)) as later,
        cluster.consumer(["hello"], start=minute(8)) as consumer,
    ):
        received = await receive(consumer, 2 + 17 + 92)
        assert {batches[0].first_sequence for batches in received.values()} == {8, 3}
        assert received[later.partition][0].first_sequence == 8
        assert consumer.lag() == dict.fromkeys(received, 0)


@pytest.mark.parametrize("storage", ["memory:", "sqlite:{}/store.db", "filelog:{}/log"])
async def test_out_of_order_times_begin_with_the_first_record_at_or_after_the_time(
    storage: str, tmp_path: Path
) -> None:
    async with (
        open_cluster(storage=storage.format(tmp_path)) as cluster,
        producing(cluster, 0, 5, 1, 9, 3) as producer,
        open_reader(["hello"], cluster.config) as reader,
    ):
        for time, position in ((0, 0), (0.5, 1), (5, 1), (5.5, 3), (9, 3), (9.5, 5)):
            assert await reader.positions_at(minute(time)) == {producer.partition: position}


async def test_a_long_search_goes_on_chunk_by_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made_at, "CHUNK_RECORDS", 3)
    async with (
        open_cluster() as cluster,
        producing(cluster, *range(20)),
        producing(cluster, *range(10)),
        cluster.consumer(["hello"]) as consumer,
    ):
        assert sorted((await consumer.positions_at(minute(15))).values()) == [10, 15]


async def test_records_without_a_timestamp_count_as_made_when_they_were_stored() -> None:
    async with open_cluster(Config().with_node(record_batches="off")) as cluster:
        async with cluster.producer("hello") as producer:
            await producer.send_many(contents(0, 100))
            await producer.wait_stored()
        async with cluster.consumer(["hello"], start=timedelta(hours=1)) as consumer:
            await receive_partition(consumer, 0, 100)
        async with cluster.consumer(["hello"]) as consumer:
            future = datetime.now(UTC) + timedelta(hours=1)
            assert await consumer.positions_at(future) == {producer.partition: 100}


async def test_the_earliest_answer_of_several_stores_counts() -> None:
    async with open_cluster() as cluster, open_store(cluster.config.with_store(retention_records=10)) as other:
        async with producing(cluster, *range(50)) as producer:
            await wait_until(lambda: other.statistics().records_stored == 50)
        await StoreRetention(other._storage, other._config, other._machine.stored).apply()
        other._machine.records_trimmed({producer.partition: 40})
        async with cluster.consumer(["hello"], start=minute(20)) as consumer:
            await receive_partition(consumer, 20, 50)


async def test_a_partition_that_begins_later_begins_at_its_first_record() -> None:
    async with (
        open_cluster() as cluster,
        cluster.consumer(["hello"], start=timedelta(hours=-1)) as consumer,
        cluster.producer("hello") as producer,
    ):
        await producer.send_many(contents(0, 10))
        await receive_partition(consumer, 0, 10)


async def test_a_topic_that_is_subscribed_to_later_begins_at_the_time_too() -> None:
    async with (
        open_cluster() as cluster,
        producing(cluster, *range(10)),
        cluster.consumer(["world"], start=minute(8)) as consumer,
    ):
        consumer.subscribe("hello")
        await receive_partition(consumer, 8, 10)


async def test_given_and_saved_positions_come_before_the_time(tmp_path: Path) -> None:
    positions = f"sqlite:{tmp_path}/positions.db"
    async with open_cluster() as cluster, producing(cluster, *range(10)) as producer:
        config = cluster.config.with_consumer(name="billing", positions=positions)
        async with cluster.consumer(["hello"], config, positions={producer.partition: 4}) as consumer:
            await receive_partition(consumer, 4, 10)
            consumer.seek({producer.partition: 6})
            await consumer.save_positions()
        async with cluster.consumer(["hello"], config, start=minute(8)) as consumer:
            await receive_partition(consumer, 6, 10)
            await consumer.seek_time(minute(8))
            await receive_partition(consumer, 8, 10)


async def test_seeking_a_time_back_and_forth() -> None:
    async with open_cluster() as cluster, producing(cluster, *range(20)), cluster.consumer(["hello"]) as consumer:
        await receive_partition(consumer, 0, 20)
        for time, first in ((15, 15), (3.5, 4), (0, 0), (19, 19)):
            await consumer.seek_time(minute(time))
            await receive_partition(consumer, first, 20)
        await consumer.seek_time(minute(20))
        ends = await consumer.ends()
        with trio.fail_after(DEADLINE_S):
            assert [batch async for batch in consumer.batches(until=ends)] == []


async def test_a_bounded_read_waits_until_it_is_known_where_partitions_begin() -> None:
    async with (
        open_cluster() as cluster,
        producing(cluster, *range(20)),
        cluster.consumer(["hello"], start=minute(12)) as consumer,
    ):
        ends = await consumer.ends()
        with trio.fail_after(DEADLINE_S):
            assert sum([len(batch) async for batch in consumer.batches(until=ends)]) == 8


async def test_seeking_before_it_is_known_where_a_partition_begins() -> None:
    async with (
        open_cluster() as cluster,
        producing(cluster, *range(20)) as producer,
        cluster.consumer(["hello"], start=minute(12)) as consumer,
    ):
        consumer.seek({producer.partition: 5})
        await receive_partition(consumer, 5, 20)


async def test_without_a_store_opening_fails() -> None:
    config = Config().with_node(tower_timeout_ms=300)
    async with open_cluster(config, storage=None) as cluster:
        with pytest.raises(DiscoveryError, match=r"no store was found within 0\.3 s through the tower at tcp://"):
            async with cluster.consumer(["hello"], start=timedelta(hours=2)):
                pass
        async with cluster.consumer(["hello"]) as consumer:
            with pytest.raises(DiscoveryError, match="no store was found"):
                await consumer.seek_time(timedelta(hours=2))


async def test_stores_of_libdafka_cannot_find_records_by_time() -> None:
    config = Config().with_node(tower_timeout_ms=1000)
    async with open_cluster(config, storage=None) as cluster, open_libdafka_store(cluster.config) as store:
        store.records[Partition("hello", "A" * 32)] = contents(0, 10)
        with pytest.raises(UnansweredError, match="cannot find records by time; begin at the earliest"):
            async with cluster.consumer(["hello"], start=timedelta(hours=2)):
                pass
        assert store.unreadable == []


@pytest.mark.parametrize(
    ("time", "expected"),
    [
        (datetime(2026, 1, 1), "a time zone"),
        ("2h", "a datetime, a timedelta, or milliseconds"),
        (1.5, "a datetime, a timedelta, or milliseconds"),
        (2**64, "milliseconds since 1970"),
    ],
)
async def test_an_invalid_time_is_refused(dafka_cluster: Cluster, time: object, expected: str) -> None:
    with pytest.raises(ConfigError, match=f"time: expected {expected}"):
        async with dafka_cluster.consumer(["hello"], start=time):  # type: ignore[arg-type]
            pass


async def test_a_time_before_1970_is_the_beginning(dafka_cluster: Cluster) -> None:
    async with producing(dafka_cluster, 0) as producer, dafka_cluster.consumer(["hello"]) as consumer:
        assert await consumer.positions_at(-AN_HOUR_MS) == {producer.partition: 0}
