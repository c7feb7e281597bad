from __future__ import annotations

from pathlib import Path

import pytest
import trio

from dafka import Config
from dafka.config import DialectName
from dafka.testing import Cluster, open_cluster
from dafka.transport import choose_loops
from tests.roles.helpers import (
    AN_HOUR_MS,
    DEADLINE_S,
    assert_nothing_more,
    assert_run,
    contents,
    receive,
    receive_partition,
)

COUNT = 5000

PATIENT = Config().with_fetch(retry_ms=AN_HOUR_MS, retry_max_ms=AN_HOUR_MS)
"""Nothing is found by asking a second time."""


@pytest.mark.parametrize("wire", ["rfc46", "libdafka"])
@pytest.mark.parametrize("storage", ["memory:", "sqlite:store.db"])
async def test_live_and_late_consumers_receive_every_record_in_order(
    wire: DialectName, storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with open_cluster(Config().with_node(wire=wire), storage=storage) as cluster:
        async with cluster.consumer(["hello"]) as live, cluster.producer("hello") as producer:
            assert await producer.send_many(contents(0, COUNT)) == range(COUNT)
            assert await producer.send(b"%d" % COUNT) == COUNT
            await receive_partition(live, 0, COUNT + 1)
        async with cluster.consumer(["hello"]) as late:
            received = await receive(late, COUNT + 1)
            assert list(received) == [producer.partition]
            assert_run(received[producer.partition], 0, COUNT + 1)
            assert_nothing_more(late)


@pytest.mark.parametrize("topic", ["h", "hello world", "é😀", "\udcff", "x" * 254])
async def test_topics_are_any_text_and_do_not_mix(topic: str, dafka_cluster: Cluster) -> None:
    """A ZeroMQ subscription to `hello` brings `hello2`, too."""
    async with dafka_cluster.producer(topic) as producer, dafka_cluster.producer(topic + "2") as other:
        await other.send_many([b"another topic's"] * 100)
        await other.wait_stored()
        async with dafka_cluster.consumer([topic]) as consumer:
            for first in range(0, 100, 10):
                await other.send(b"another topic's")
                await other.wait_stored()
                await producer.send_many(contents(first, first + 10))
                await receive_partition(consumer, first, first + 10)
            assert consumer.positions().keys() == consumer.statistics().positions.keys() == {producer.partition}


async def test_consumer_that_does_not_keep_up_loses_nothing_and_holds_little() -> None:
    config = PATIENT.with_producer(head_interval_ms=AN_HOUR_MS).with_node(record_batches="off")
    config = config.with_consumer(buffer_bytes_max=2000, silence_ms=AN_HOUR_MS)
    async with (
        open_cluster(config) as cluster,
        cluster.consumer(["hello"]) as consumer,
        cluster.producer("hello") as producer,
    ):
        await consumer.wait_settled()  # a FETCH that nobody takes yet would be repeated after an hour
        await producer.wait_settled()
        await producer.send_many(contents(0, 1000))
        await receive_partition(consumer, 0, 1000)  # from now on, no live record is lost on its way
        for first in range(1000, 50_000, 1000):
            await producer.send_many(contents(first, first + 1000))
        with trio.fail_after(DEADLINE_S):
            await producer.wait_stored()
        assert consumer.statistics().buffered_bytes < 2000 + choose_loops().receive_count_max * 100
        await receive_partition(consumer, 1000, 50_000)
