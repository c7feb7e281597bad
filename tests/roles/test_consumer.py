from __future__ import annotations

import inspect
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import trio
import trio.testing

from dafka import Config, Consumer, Partition, Producer, ProducerRecord, RecordBatch, open_consumer
from dafka.errors import ConfigError, DiscoveryError, StorageError, UnansweredError
from dafka.roles import open_reader
from dafka.storage.memory import MemoryStorage
from dafka.testing import Cluster, open_cluster
from tests.roles.helpers import DEADLINE_S, contents, receive_partition
from tests.roles.libdafka_store import open_libdafka_store


@pytest.fixture
def dafka_config() -> Config:
    return Config().with_beacon(interval_ms=100)


@pytest.fixture
async def producer(dafka_cluster: Cluster) -> AsyncIterator[Producer]:
    """Open a producer with 100 records in the store."""
    async with dafka_cluster.producer("hello") as producer:
        await producer.send_many(contents(0, 100))
        await producer.wait_stored()
        yield producer


def latest(cluster: Cluster) -> Config:
    """Return a `latest` configuration that waits longer to settle, for busy machines."""
    return cluster.config.with_consumer(offset_reset="latest").with_beacon(settle_ms=500)


async def test_latest_gives_subscriptions_time_to_arrive_after_it_has_settled(
    dafka_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled_at = math.inf
    wait_settled = Consumer.wait_settled

    async def note_time(self: Consumer) -> None:
        nonlocal settled_at
        await wait_settled(self)
        settled_at = trio.current_time()

    monkeypatch.setattr(Consumer, "wait_settled", note_time)
    async with dafka_cluster.consumer(["hello"], latest(dafka_cluster)):
        assert trio.current_time() - settled_at >= 0.5


async def test_latest_in_an_empty_cluster_is_opened_without_a_tower() -> None:
    config = Config().with_node(bind="tcp://127.0.0.1:*", discovery="static:tcp://127.0.0.1:1")
    with trio.fail_after(DEADLINE_S):
        async with open_consumer(["hello"], config) as consumer:
            assert consumer.positions() == {}


async def test_saving_positions_without_a_storage_is_refused(dafka_cluster: Cluster) -> None:
    async with dafka_cluster.consumer(["hello"]) as consumer:
        with pytest.raises(ConfigError, match="positions"):
            await consumer.save_positions()


@pytest.mark.parametrize("settings", [{"name": "billing"}, {"positions": "memory:"}])
async def test_name_and_positions_go_together(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="expected both `name` and `positions`, or neither"):
        async with open_consumer(["hello"], Config().with_consumer(**settings)):
            pass


@pytest.mark.parametrize("topics", ["hello", [""], ["x" * 256], ["fine", "\ud800"], [b"hello"]])
async def test_invalid_topics_are_refused(topics: object) -> None:
    with pytest.raises(ConfigError, match="topic"):
        async with open_consumer(topics):  # type: ignore[arg-type]
            pass


async def test_use_after_the_block_is_an_error(dafka_cluster: Cluster, producer: Producer) -> None:
    async with dafka_cluster.consumer(["hello"]) as consumer:
        assert (await consumer.next_record()).value == b"0"
        records, batches = aiter(consumer), consumer.batches()

    async def run(call: Callable[[], object]) -> None:
        result = call()
        if inspect.isawaitable(result):
            await result

    calls: tuple[Callable[[], object], ...] = (
        lambda: anext(records),
        lambda: anext(batches),
        consumer.next_record,
        consumer.next_batch,
        consumer.ends,
        consumer.save_positions,
        lambda: consumer.seek_tail(1),
        lambda: consumer.seek_time(0),
        lambda: consumer.positions_at(0),
        lambda: consumer.seek({}),
        lambda: consumer.subscribe("other"),
        lambda: consumer.unsubscribe("hello"),
        lambda: consumer.pause("hello"),
        lambda: consumer.resume("hello"),
    )
    with trio.fail_after(DEADLINE_S):
        for call in calls:
            with pytest.raises(trio.ClosedResourceError):
                await run(call)


async def test_an_exception_leaves_the_block_unwrapped(dafka_cluster: Cluster) -> None:
    with pytest.raises(ZeroDivisionError, match="the program's own"):
        async with dafka_cluster.consumer(["hello"]):
            raise ZeroDivisionError("the program's own")


async def test_a_bounded_read_that_waits_notices_that_nothing_is_left(
    dafka_cluster: Cluster, producer: Producer
) -> None:
    async with dafka_cluster.consumer(["hello"]) as consumer:
        await receive_partition(consumer, 0, 100)
        with trio.fail_after(DEADLINE_S):
            async with trio.open_nursery() as nursery:

                async def read() -> None:
                    assert [batch async for batch in consumer.batches(until={producer.partition: 110})] == []

                nursery.start_soon(read)
                await trio.testing.wait_all_tasks_blocked(0.05)
                consumer.seek({producer.partition: 110})


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        ({Partition("world", "A" * 32): 0}, "expected a topic that the consumer is subscribed to"),
        ({Partition("hello", "A" * 32): -1}, "expected a sequence from 0 on"),
        ({"hello": 1}, "expected a Partition"),
    ],
)
async def test_wrong_positions_to_seek_or_to_end_at_are_refused(
    dafka_cluster: Cluster, positions: Any, message: str
) -> None:
    async with dafka_cluster.consumer(["hello"]) as consumer:
        with pytest.raises(ConfigError, match=message):
            consumer.seek(positions)
        with pytest.raises(ConfigError, match=message):
            consumer.batches(until=positions)
        with pytest.raises(ConfigError, match="count: expected a whole number"):
            await consumer.seek_tail(-1)


# Consumers and readers that begin at a time: over sockets, with stores that search their storages

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
async def producing(cluster: Cluster, *minutes: float, topic: str = "hello") -> AsyncIterator[Producer]:
    """Open a producer whose records are stored."""
    async with cluster.producer(topic) as producer:
        await producer.send_many(timed(*minutes))
        await producer.wait_stored()
        yield producer


async def test_seeking_a_time_leads_to_the_first_record_of_a_partition_that_is_not_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    append, is_full = MemoryStorage.append, True

    async def refuse_or_append(self: MemoryStorage, batches: Sequence[RecordBatch]) -> None:
        if is_full:
            raise StorageError("the disk is full")
        await append(self, batches)

    monkeypatch.setattr(MemoryStorage, "append", refuse_or_append)
    async with (
        open_cluster(Config().with_store(retry_ms=20)) as cluster,
        cluster.producer("hello") as producer,
        cluster.consumer(["hello"]) as consumer,
    ):
        await producer.send_many(timed(*range(10)))
        await receive_partition(consumer, 0, 10)
        await consumer.seek_time(minute(8))
        await receive_partition(consumer, 0, 10)
        is_full = False


async def test_without_a_store_opening_fails() -> None:
    config = Config().with_node(tower_timeout_ms=2000)
    async with open_cluster(config, storage=None) as cluster:
        with pytest.raises(DiscoveryError, match=r"no store was found within 2 s through the tower at tcp://"):
            async with cluster.consumer(["hello"], start=timedelta(hours=2)):
                pass
        async with cluster.consumer(["hello"]) as consumer:
            await consumer.wait_settled()
            with pytest.raises(DiscoveryError, match="no store was found"):
                await consumer.seek_time(timedelta(hours=2))


async def test_stores_of_libdafka_cannot_find_records_by_time() -> None:
    config = Config().with_node(tower_timeout_ms=2000)
    async with open_cluster(config, storage=None) as cluster, open_libdafka_store(cluster.config) as store:
        store.records[Partition("hello", "A" * 32)] = contents(0, 10)
        with pytest.raises(UnansweredError, match="cannot find records by time; begin at the earliest"):
            async with cluster.consumer(["hello"], start=timedelta(hours=2)):
                pass
        assert store.unreadable == []


async def test_a_store_that_does_not_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def find_never(*_: object) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(MemoryStorage, "find_sequence_by_time", find_never)
    async with (
        open_cluster() as cluster,
        producing(cluster, *range(10)),
        open_reader(["hello"], cluster.config) as reader,
    ):
        with pytest.raises(UnansweredError, match=r"not every store answered within 0\.1 s where") as caught:
            await reader.positions_at(minute(8), 0.1)
        assert caught.value.stores == 1


async def test_a_consumer_sleeps_until_records_come(dafka_cluster: Cluster) -> None:
    async with dafka_cluster.consumer(["nothing"]) as consumer:
        for wait in (consumer.next_record, consumer.next_batch):
            with trio.fail_after(DEADLINE_S):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(wait)
                    await trio.testing.wait_all_tasks_blocked()
                    nursery.cancel_scope.cancel()
