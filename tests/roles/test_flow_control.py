"""A slow node does not slow down others: it receives what it can take, and fetches the rest later."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio

from dafka import Config, RecordBatch
from dafka.storage.memory import MemoryStorage
from dafka.testing import open_cluster
from tests.roles.helpers import DEADLINE_S, assert_nothing_more, contents, receive_partition
from tests.waiting import wait_until

COUNT, SIZE = 20_000, 200

BUFFER_BYTES = 100_000


def padded(first: int, end: int) -> list[bytes]:
    return [content.ljust(SIZE, b".") for content in contents(first, end)]


async def test_a_slow_consumer_slows_no_one_stays_small_and_catches_up() -> None:
    async with open_cluster(Config().with_producer(high_watermark=1000)) as cluster:
        slow_config = cluster.config.with_consumer(
            buffer_bytes_max=BUFFER_BYTES, offset_reset="earliest", high_watermark=1000
        )
        async with cluster.producer("hello") as producer, cluster.consumer(["hello"], slow_config) as slow:
            async with cluster.consumer(["hello"]) as quick:
                with trio.fail_after(DEADLINE_S):
                    for first in range(0, COUNT, 1000):
                        await producer.send_many(padded(first, first + 1000))
                        received = 0
                        while received < 1000:
                            received += len(await quick.next_batch())
                    await producer.wait_stored()
            assert slow.statistics().records == 0
            assert slow.statistics().buffered_bytes <= BUFFER_BYTES + 1000 * (SIZE + 64)
            sequence = 0
            with trio.fail_after(DEADLINE_S):
                while sequence < COUNT:
                    batch = await slow.next_batch()
                    assert batch.first_sequence == sequence
                    assert list(batch.values) == padded(sequence, batch.end_sequence)
                    sequence = batch.end_sequence
            assert slow.statistics().fetches_sent > 0
            assert_nothing_more(slow)


async def test_producer_waits_for_slow_stores_and_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    append = MemoryStorage.append
    gate = trio.Event()

    async def append_when_let(self: MemoryStorage, batches: Sequence[RecordBatch]) -> None:
        await gate.wait()
        await append(self, batches)

    monkeypatch.setattr(MemoryStorage, "append", append_when_let)
    config = Config().with_producer(unacknowledged_bytes_max=500_000)
    async with open_cluster(config) as cluster, cluster.producer("hello") as producer:
        async with trio.open_nursery() as nursery:

            async def send_all() -> None:
                for first in range(0, COUNT, 1000):
                    await producer.send_many(padded(first, first + 1000))

            nursery.start_soon(send_all)
            await wait_until(lambda: producer.statistics().unacknowledged * SIZE >= 500_000)
            held = producer.statistics().unacknowledged
            assert held * SIZE <= 500_000 + 1000 * SIZE
            gate.set()
        await producer.wait_stored()
        async with cluster.consumer(["hello"]) as consumer:
            received = 0
            with trio.fail_after(DEADLINE_S):
                while received < COUNT:
                    received += len(await consumer.next_batch())
            assert received == COUNT


async def test_catching_up_is_complete_while_live_records_come() -> None:
    async with open_cluster() as cluster, cluster.producer("hello") as producer:
        await producer.send_many(contents(0, COUNT))
        await producer.wait_stored()
        async with cluster.consumer(["hello"]) as consumer, trio.open_nursery() as nursery:
            nursery.start_soon(producer.send_many, contents(COUNT, 2 * COUNT))
            await receive_partition(consumer, 0, 2 * COUNT)
