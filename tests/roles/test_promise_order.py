"""Roles act before they promise, and release everything that they acquired, also when they end early."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
import trio.testing

from dafka import RecordBatch
from dafka.errors import StorageError
from dafka.roles import open_reader
from dafka.storage.sqlite import SqliteStorage
from dafka.testing import open_cluster
from tests.roles.helpers import DEADLINE_S, contents, receive_partition
from tests.waiting import wait_until


async def test_records_are_published_after_they_are_durable_in_the_spool(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spooled: list[tuple[int, int]] = []
    append = SqliteStorage.append

    async def append_noting(self: SqliteStorage, batches: Sequence[RecordBatch]) -> None:
        await append(self, batches)
        spooled.append((batches[0].first_sequence, producer.statistics().next_sequence))

    monkeypatch.setattr(SqliteStorage, "append", append_noting)
    async with open_cluster() as cluster:
        config = cluster.config.with_producer(spool=f"sqlite:{tmp_path / 'spool.db'}")
        async with cluster.producer("hello", config) as producer:
            await producer.wait_settled()
            for first in range(0, 40, 10):
                await producer.send_many(contents(first, first + 10))
            await producer.wait_stored()
    assert spooled == [(first, first) for first in range(0, 40, 10)]


async def test_records_that_the_spool_refuses_are_not_published(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    append = SqliteStorage.append
    is_full = True

    async def append_unless_full(self: SqliteStorage, batches: Sequence[RecordBatch]) -> None:
        if is_full:
            raise StorageError("disk full")
        await append(self, batches)

    monkeypatch.setattr(SqliteStorage, "append", append_unless_full)
    async with open_cluster() as cluster:
        config = cluster.config.with_producer(spool=f"sqlite:{tmp_path / 'spool.db'}")
        async with cluster.producer("hello", config) as producer:
            await producer.wait_settled()
            with pytest.raises(StorageError, match="disk full"):
                await producer.send(b"refused")
            assert producer.statistics().next_sequence == producer.statistics().records == 0
            is_full = False
            assert await producer.send(b"0") == 0
            await producer.wait_stored()
            async with cluster.consumer(["hello"]) as consumer:
                await receive_partition(consumer, 0, 1)


async def test_a_send_that_is_cancelled_while_it_is_spooled_is_published(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Otherwise the next record would get a sequence that the spool holds already."""
    append = SqliteStorage.append
    scope = trio.CancelScope()

    async def append_and_cancel(self: SqliteStorage, batches: Sequence[RecordBatch]) -> None:
        await append(self, batches)
        scope.cancel()
        await trio.lowlevel.checkpoint()

    async with open_cluster() as cluster:
        config = cluster.config.with_producer(spool=f"sqlite:{tmp_path / 'spool.db'}")
        async with cluster.producer("hello", config) as producer:
            await producer.wait_settled()
            with monkeypatch.context() as patch, scope:
                patch.setattr(SqliteStorage, "append", append_and_cancel)
                await producer.send(b"0")
            assert scope.cancel_called
            assert await producer.send(b"1") == 1
            async with cluster.consumer(["hello"]) as consumer:
                await receive_partition(consumer, 0, 2)


async def test_a_range_that_is_closed_early_gives_its_share_of_the_buffer_back() -> None:
    async with open_cluster() as cluster:
        async with cluster.producer("orders") as producer:
            await producer.send_many([b"x" * 100] * 20_000)
        config = cluster.config.with_consumer(buffer_bytes_max=20_000)
        async with open_reader(config=config) as reader:
            for _ in range(3):
                records = reader.read(producer.partition, 0, 20_000)
                await wait_until(lambda: reader._machine.capacity.buffered_bytes >= 10_000)
                records.close()
                assert reader._machine.capacity.buffered_bytes == 0
            with trio.fail_after(DEADLINE_S):
                records = reader.read(producer.partition, 0, 20_000)
                assert sum([len(batch) async for batch in records]) == 20_000
                records.close()
