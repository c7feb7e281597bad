"""Deleting records and topics of a broker while native producers go on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from dafka.broker.core.positions import Offset
from dafka.records import Partition, RecordBatch
from dafka.storage import open_storage
from tests.broker.nodes.test_broker import log_of, open_broker, read_all, values_of, wait_end


@pytest.fixture
def storage(tmp_path: Path) -> str:
    return f"filelog:{tmp_path}/log"


async def test_deleted_records_of_native_producers_are_dropped(storage: str) -> None:
    async with open_broker(storage) as (cluster, broker):
        async with cluster.producer("orders") as producer:
            await producer.send_many([b"%d" % n for n in range(100)])
            await producer.wait_acknowledged()
            log = await wait_end(broker, "orders", 100)
            await broker.deletion.delete_before(log, Offset(60))
            await producer.send(b"100")
            await producer.wait_acknowledged()
            partition = producer.partition
        await wait_end(broker, "orders", 101)
        assert log.index.start_offset == 60
        assert values_of(await read_all(broker, log, 60)) == [b"%d" % n for n in range(60, 101)]
    async with open_storage(storage, read_only=True) as held:
        info = (await held.partitions("orders"))[partition]
        assert (info.earliest_sequence, info.end_sequence) == (60, 101)
    async with open_broker(storage) as (_, broker):
        log = log_of(broker, "orders")
        assert (log.index.start_offset, log.high_watermark) == (60, 101)


async def test_records_are_dropped_only_after_their_deletion_is_durable(
    storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a log could begin again before the records that are left, after the power has failed."""
    async with open_broker(storage) as (cluster, broker):
        async with cluster.producer("orders") as producer:
            await producer.send_many([b"%d" % n for n in range(10)])
            await producer.wait_acknowledged()
            log = await wait_end(broker, "orders", 10)
        await broker.storage.wait_durable()
        held, dropped_after, kept = trio.Event(), list[bool](), broker.storage.storage
        append, trim = kept.append, kept.trim

        async def append_later(batches: Sequence[RecordBatch]) -> None:
            await held.wait()
            await append(batches)

        async def note_trim(partition: Partition, sequence: int) -> None:
            if partition.topic == "orders":
                dropped_after.append(held.is_set())
            await trim(partition, sequence)

        monkeypatch.setattr(kept, "append", append_later)
        monkeypatch.setattr(kept, "trim", note_trim)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(broker.deletion.delete_before, log, Offset(6))
            await wait_all_tasks_blocked(0.05)
            held.set()
        assert dropped_after
        assert all(dropped_after)


async def test_topic_is_created_again_by_a_producer_that_goes_on(storage: str) -> None:
    async with open_broker(storage) as (cluster, broker), cluster.producer("orders") as producer:
        await producer.send_many([b"%d" % n for n in range(10)])
        await producer.wait_acknowledged()
        await wait_end(broker, "orders", 10)
        before = broker.find_topic("orders")
        assert before is not None
        await broker.delete_topic("orders")
        assert broker.find_topic("orders") is None
        await producer.send_many([b"10", b"11"])
        await producer.wait_acknowledged()
        log = await wait_end(broker, "orders", 2)
        after = broker.find_topic("orders")
        assert after is not None
        assert after.topic_id != before.topic_id
        assert values_of(await read_all(broker, log)) == [b"10", b"11"]
