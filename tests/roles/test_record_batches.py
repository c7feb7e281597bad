"""Records that travel by the batch: in which form, for how long they wait, and that nothing of them is lost."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
import trio
import trio.testing

import dafka
from dafka import Config, Partition, Producer, ProducerRecord, Record, RecordBatch, wire
from dafka.batches import ENCODED_BYTES_MAX
from dafka.config import RecordBatches
from dafka.errors import RecordError
from dafka.roles.linger import LINGER_RECORDS_MAX, Linger
from dafka.testing import Cluster, open_cluster
from tests.roles.helpers import DEADLINE_S

RECORDS = [
    ProducerRecord(b"value"),
    ProducerRecord(b"value", b"key", (("name", b"one"), ("name", None), ("", b"")), 1_700_000_000_000),
    ProducerRecord(None, b"key"),
    ProducerRecord(b"", b"", (), 0),
    ProducerRecord(b"\xda\xfc\xa5\x01 begins as an envelope does"),
]


async def receive_records(cluster: Cluster, config: Config, producer: Producer, count: int) -> Sequence[Record]:
    found: list[Record] = []
    async with cluster.consumer(["hello"], config.with_consumer(offset_reset="earliest")) as consumer:
        with trio.fail_after(DEADLINE_S):
            while len(found) < count:
                found += [each for each in await consumer.next_batch() if each.partition == producer.partition]
    return found


async def test_a_head_does_not_overtake_records_that_wait(dafka_cluster: Cluster) -> None:
    config = dafka_cluster.config.with_producer(linger_ms=3_600_000, head_interval_ms=50)
    async with dafka_cluster.producer("hello", config) as producer, dafka_cluster.consumer(["t"], config) as consumer:
        await producer.send(b"0")
        with trio.fail_after(DEADLINE_S):
            await producer.wait_stored()
        lingers = [each._sockets._linger._linger_s for each in (producer, consumer)]
    assert lingers == [3600, 0], "other roles publish at once"


def run_of(first: int, sizes: Sequence[int], requestor: str | None = None) -> wire.RecordRun:
    values = [bytes(size) for size in sizes]
    return wire.RecordRun(RecordBatch(Partition("hello", "A"), first, values), requestor)


@pytest.mark.parametrize("linger_s", [0.0, 3.0])
async def test_everything_is_sent_in_order_and_records_wait_as_long_as_others_before_them(
    linger_s: float, autojump_clock: trio.testing.MockClock
) -> None:
    """A model of a producer's output: random messages at random times; each change of time sends what is due."""
    draw = random.Random(7)
    sent: list[tuple[float, wire.BatchedMessage]] = []
    waiting: list[int] = []
    expected: list[tuple[float, wire.BatchedMessage]] = []
    due = math.inf
    first = 0

    def flush(time: float) -> None:
        nonlocal due
        if waiting:
            expected.append((time, run_of(first - len(waiting), waiting)))
        waiting.clear()
        due = math.inf

    linger = Linger(linger_s, lambda messages: sent.extend((trio.current_time(), each) for each in messages))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(linger.run)
        for _ in range(400):
            await trio.sleep(draw.choice([0, 0, 0.51, 1.27, 5]))  # their sums are never the time that records wait
            now = trio.current_time()
            if due <= now:
                flush(due)
            kind = draw.randrange(10)
            if kind == 0:
                message: wire.BatchedMessage = wire.Ack("A", "hello", first, "STORE")
            elif kind == 1:
                message = run_of(0, [1, 2], "CONSUMER")  # an answer to a FETCH
            else:
                count, size = draw.choice([(1, 10), (3, 0), (LINGER_RECORDS_MAX // 2, 1), (2, ENCODED_BYTES_MAX // 4)])
                message = run_of(first, [size] * count)
            linger.publish([message])
            if kind < 2 or not linger_s:
                flush(now)
                expected.append((now, message))
                first += len(message.batch) if kind >= 2 and isinstance(message, wire.RecordRun) else 0
            else:
                due = now + linger_s if not waiting else due
                waiting += [size] * count
                first += count
                if len(waiting) >= LINGER_RECORDS_MAX or sum(waiting) >= ENCODED_BYTES_MAX:
                    flush(now)
        nursery.cancel_scope.cancel()
    flush(trio.current_time())
    assert [message for _, message in sent] == [message for _, message in expected]
    assert [time for time, _ in sent] == pytest.approx([time for time, _ in expected])


@pytest.mark.parametrize("storage", ["memory:", "sqlite", "filelog"])
@pytest.mark.parametrize("record_batches", get_args(RecordBatches))
async def test_no_part_of_a_record_is_lost_live_and_late(
    storage: str, record_batches: RecordBatches, tmp_path_factory: pytest.TempPathFactory
) -> None:
    url = storage if storage == "memory:" else f"{storage}:{tmp_path_factory.mktemp('store') / 'records'}"
    found: list[Record] = []
    async with (
        open_cluster(Config().with_node(record_batches=record_batches), storage=url) as cluster,
        cluster.consumer(["hello"]) as live,
        cluster.producer("hello") as producer,
    ):
        await producer.send_many(RECORDS)
        with trio.fail_after(DEADLINE_S):
            while len(found) < len(RECORDS):
                found += await live.next_batch()
        late = await receive_records(cluster, cluster.config, producer, len(RECORDS))
    for records in (found, late):
        assert [(each.value, each.key, each.headers) for each in records] == [
            (each.value, each.key, tuple(each.headers)) for each in RECORDS
        ]
        # Over RFC 46's commands, the time of a record with nothing but a value is not sent.
        assert [each.timestamp for each in records if each.key == b"key" and each.value is not None] == [
            1_700_000_000_000
        ]
        assert records[3].timestamp == 0
        assert (records[0].timestamp is not None) == (record_batches == "on")


# The largest record is stored and comes back by each way that records take; a larger one is refused by `send`

LIMIT = 300_000
STORAGES = ["memory:", "sqlite:{}/s.db", "filelog:{}/log", "tiered:sqlite:{}/s.db?cold=file://{}/cold"]


def small(config: Config) -> Config:
    """Return settings with a small limit, and with budgets that are much smaller than the largest record."""
    return (
        config.with_node(message_bytes_max=LIMIT)
        .with_producer(unacknowledged_bytes_max=1000)
        .with_consumer(buffer_bytes_max=1000, offset_reset="earliest")
        .with_store(pending_bytes_max=1000)
        .with_fetch(ahead_bytes_max=1000)
    )


@pytest.mark.parametrize(
    ("storage", "record_batches", "compression"),
    [
        *((storage, "on", "none") for storage in STORAGES),
        ("sqlite:{}/s.db", "off", "none"),
        *(("memory:", "on", compression) for compression in ("gzip", "snappy", "lz4", "zstd")),
    ],
)
async def test_the_largest_record_is_stored_and_comes_back(
    tmp_path: Path, storage: str, record_batches: Any, compression: Any
) -> None:
    config = small(Config()).with_store(storage=storage.format(tmp_path, tmp_path))
    config = config.with_node(record_batches=record_batches).with_producer(compression=compression)
    value = os.urandom(LIMIT)
    whole = ProducerRecord(os.urandom(LIMIT - 1 - 2 - 10), b"k", [("h", b"1")])
    with trio.fail_after(DEADLINE_S):
        async with open_cluster(config) as cluster:
            async with cluster.producer("hello") as producer, cluster.consumer(["hello"]) as consumer:
                await producer.send_many([value, b"small", value, value, value])  # more bytes than one run
                await producer.send_many([whole])
                await producer.wait_stored()
                live = [await consumer.next_record() for _ in range(6)]
            async with cluster.consumer(["hello"]) as consumer:
                fetched = [await consumer.next_record() for _ in range(6)]
    for received in (live, fetched):
        assert [record.value for record in received] == [value, b"small", value, value, value, whole.value]
        assert (received[5].key, received[5].headers) == (b"k", (("h", b"1"),))


async def test_a_larger_record_is_refused_and_leaves_no_gap() -> None:
    async with dafka.open_producer("hello", small(Config()).with_node(bind="tcp://127.0.0.1:*")) as producer:
        with pytest.raises(RecordError, match=rf"expected at most {LIMIT} bytes .*, not {LIMIT + 1}$"):
            await producer.send_many([ProducerRecord(b"0"), ProducerRecord(bytes(LIMIT), b"k")])
        assert producer.statistics().next_sequence == 0
