"""Consumers and readers that begin at a time: over sockets, with stores that search their storages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest
import trio

from dafka import Config, Partition, Producer, ProducerRecord, RecordBatch
from dafka.errors import ConfigError, DiscoveryError, StorageError, UnansweredError
from dafka.roles import open_reader
from dafka.storage.memory import MemoryStorage
from dafka.testing import Cluster, open_cluster
from tests.roles.helpers import contents, receive_partition
from tests.roles.libdafka_store import open_libdafka_store

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
