"""Calls of producers and consumers that are cancelled at each of their checkpoints lose and repeat no record."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import pytest
import trio
import trio.testing

from dafka import RecordBatch
from dafka.roles import open_reader
from dafka.storage.sqlite import SqliteStorage
from dafka.testing import open_cluster
from tests.roles.helpers import DEADLINE_S
from tests.roles.test_commits import CancelAt
from tests.waiting import wait_until

RUN = 1024
"""More records than one run: `send_many` publishes several."""


async def cancelled_at(step: int, call: Callable[[], Awaitable[object]]) -> bool:
    """Run a call, and cancel it at a checkpoint; return whether it came to its end before."""
    with trio.CancelScope() as scope:
        instrument = CancelAt(scope, step)
        trio.lowlevel.add_instrument(instrument)
        try:
            await call()
        finally:
            trio.lowlevel.remove_instrument(instrument)
    return not scope.cancelled_caught


@pytest.mark.parametrize("spooled", [False, True])
async def test_a_cancelled_send_has_published_the_first_records_and_no_others(
    spooled: bool, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = SqliteStorage.append

    async def append_slowly(self: SqliteStorage, batches: Sequence[RecordBatch]) -> None:
        await append(self, batches)
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(SqliteStorage, "append", append_slowly)
    async with open_cluster() as cluster:
        config = cluster.config
        if spooled:
            config = config.with_producer(spool=f"sqlite:{tmp_path}/spool.db")
        expected: list[bytes] = []
        async with cluster.consumer(["t"]) as consumer, cluster.producer("t", config) as producer:
            for step in itertools.count(1):
                values = [b"%d %d" % (step, number) for number in range(3 * RUN)]
                is_done = await cancelled_at(step, partial(producer.send_many, values))
                published = producer.statistics().records - len(expected)
                expected += values[:published]
                assert producer.statistics().next_sequence == len(expected)
                if is_done:
                    assert published == len(values)
                    break
            await producer.send(b"last")
            await producer.wait_stored()
            found: list[bytes | None] = []
            with trio.fail_after(DEADLINE_S):
                while len(found) <= len(expected):
                    found += (await consumer.next_batch()).values
            assert found == [*expected, b"last"]


# Roles act before they promise, and release everything that they acquired, also when they end early


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


async def test_every_call_is_a_checkpoint() -> None:
    async with (
        open_cluster() as cluster,
        cluster.producer("hello") as producer,
        cluster.consumer(["hello"], cluster.config.with_consumer(name="a", positions="memory:")) as consumer,
    ):
        calls: tuple[Callable[[], Awaitable[object]], ...] = (
            lambda: producer.send(b"0"),
            lambda: producer.send_many([b"1", b"2"]),
            lambda: producer.send_many([]),
            producer.wait_settled,
            producer.wait_stored,
            producer.wait_stored,
            producer.wait_acknowledged,
            consumer.next_record,
            consumer.next_batch,
            consumer.save_positions,
            consumer.ends,
            lambda: consumer.positions_at(0),
            lambda: consumer.seek_time(0),
            lambda: consumer.seek_tail(1),
        )
        with trio.fail_after(DEADLINE_S):
            for call in calls:
                with trio.testing.assert_checkpoints():
                    await call()
