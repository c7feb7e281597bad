"""Several brokers with the same logs: elections, what remains when a broker dies, and how divergent logs are merged."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from dafka.broker.core.log.offset_assigner import OffsetAssigner
from dafka.broker.core.partition_address import INDEX_TOPIC
from dafka.roles import open_producer
from tests.broker.nodes.broker_cluster import (
    append,
    distinct,
    open_broker_cluster,
    read,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.trio

NAMES = ("a", "b", "c")


def values(count: int, prefix: str = "") -> list[bytes]:
    return [f"{prefix}{number}".encode() for number in range(count)]


async def test_a_log_goes_on_when_its_leader_stops(tmp_path: Path) -> None:
    async with open_broker_cluster(tmp_path, "sqlite") as cluster:
        first, *_ = await cluster.start_all(*NAMES)
        await first.create_topic("orders", 3).wait()
        for number in range(3):
            await cluster.append("orders", number, *values(10))
        (leader, _), *_ = await cluster.wait_led("orders", 3)
        (stopped,) = [name for name, each in cluster.brokers.items() if each is leader]
        await cluster.stop(stopped)
        for number in range(3):
            await cluster.append("orders", number, b"later")
        for broker, log in await cluster.wait_led("orders", 3):
            assert distinct(await read(broker, log)) == [*values(10), b"later"]
        again = await cluster.start(stopped)
        (partition,) = {log.index_partition for _, log in cluster.logs("orders") if log.number == 0}
        await wait_until(lambda: again.storage.durable_end(partition) > 0)
        assert len(cluster.brokers) == 3


async def test_records_of_producers_are_in_the_same_order_whoever_leads(tmp_path: Path) -> None:
    async with open_broker_cluster(tmp_path) as cluster:
        await cluster.start_all(*NAMES)
        async with open_producer("orders", cluster.config) as producer:
            for value in values(50):
                await producer.send(value)
            # Brokers that do not know of each other yet may both create the topic; one of the two remains.
            await wait_until(lambda: [log.high_watermark for _, log in cluster.logs("orders")] == [50])
            ((leader, log),) = await cluster.wait_led("orders")
            await append(leader, log, b"own")
            before = await read(leader, log)
            (name,) = [each for each, broker in cluster.brokers.items() if broker is leader]
            await cluster.stop(name)
            for value in values(50, "later "):
                await producer.send(value)
            await wait_until(lambda: [log.high_watermark for _, log in cluster.logs("orders")] == [101])
            ((leader, log),) = await cluster.wait_led("orders")
        assert (await read(leader, log)) == [*before, *values(50, "later ")]


async def test_a_broker_catches_up_with_an_index_that_was_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dafka.broker.log.stages.OffsetAssigner", partial(OffsetAssigner, rewrite_entries=5))
    monkeypatch.setattr("dafka.broker.core.replication.local_log.REWRITE_RECORDS", 2)
    async with open_broker_cluster(tmp_path) as cluster:
        cluster.config = cluster.config.with_store(retention_interval_ms=100)
        first, *_ = await cluster.start_all(*NAMES)
        await first.create_topic("orders").wait()
        ((leader, log),) = await cluster.wait_led("orders")
        await append(leader, log, *values(10))
        away = next(name for name in NAMES if cluster.brokers[name] is not leader)
        await cluster.stop(away)
        for value in values(200):
            await append(leader, log, value)
        there = [each for each in cluster.brokers.values() if each is not leader]
        await wait_until(
            lambda: all(max(each.storage.earliest(INDEX_TOPIC).values(), default=0) > 50 for each in there)
        )
        again = await cluster.start(away)  # which may be preferred, and lead the log at once
        await wait_until(
            lambda: any(
                again.address in log.leadership.in_sync and log.high_watermark == 210
                for _, log in cluster.logs("orders")
            )
        )
        ((leader, log),) = await cluster.wait_led("orders")
        if leader is not again:
            await cluster.stop(cluster.name_of(leader))
            ((leader, log),) = await cluster.wait_led("orders")
        assert await read(leader, log) == [*values(10), *values(200)]
    assert "unrecoverable" not in caplog.text, "nobody misses what was before"
