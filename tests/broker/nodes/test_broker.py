"""A broker among other nodes, over real sockets: the order of native records, and records that its clients append."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from dafka import Config, Consumer, Partition, Record
from dafka.batches import Compression, decode_records
from dafka.broker.core.log.log import Log
from dafka.broker.core.positions import Offset
from dafka.broker.node import BrokerNode
from dafka.broker.startup import serve_broker
from dafka.roles import serve_store
from dafka.roles.statistics import TopicCounts
from dafka.testing.cluster import Cluster, open_cluster
from tests.broker.replication.virtual_cluster import batch
from tests.waiting import wait_until

DEADLINE_S = 60

STORAGES = ["sqlite:{}/broker.db", "filelog:{}/log"]


@pytest.fixture
def storage(tmp_path: Path) -> str:
    return STORAGES[0].format(tmp_path)


@asynccontextmanager
async def open_broker(storage: str, config: Config | None = None) -> AsyncIterator[tuple[Cluster, BrokerNode]]:
    """Run a tower and a broker."""
    async with open_cluster(config, storage=None) as cluster, trio.open_nursery() as nursery:
        broker: BrokerNode = await nursery.start(serve_broker, cluster.config.with_store(storage=storage))
        yield cluster, broker
        nursery.cancel_scope.cancel()


def log_of(broker: BrokerNode, topic: str, number: int = 0) -> Log:
    log = broker.log_table.find_log(topic, number)
    assert log is not None
    return log


async def wait_end(broker: BrokerNode, topic: str, end: int, number: int = 0) -> Log:
    """Wait until a log reaches an offset."""
    with trio.fail_after(DEADLINE_S):
        while (log := broker.log_table.find_log(topic, number)) is None:  # noqa: ASYNC110
            await trio.sleep(0.01)
        while log.high_watermark < end:
            with broker.watchers.watching([log]) as advanced:
                if log.high_watermark < end:
                    await advanced.wait()
    return log


async def read_all(broker: BrokerNode, log: Log, offset: int = 0) -> list[Record]:
    """Read a log from an offset on. The sequences of the records are their offsets."""
    found: list[Record] = []
    while offset < log.high_watermark:
        batches = await broker.reader.read(log, Offset(offset), log.high_watermark, 10_000)
        assert batches
        for data in batches:
            records = decode_records(Partition(log.topic, "log"), data, bytes_max=2**20)
            found += records
            offset = records.end_sequence
    return found


async def take(consumer: Consumer, count: int) -> list[Record]:
    records: list[Record] = []
    while len(records) < count:
        records += await consumer.next_batch()
    return records


def values_of(records: Iterable[Record]) -> list[bytes | None]:
    return [record.value for record in records]


async def test_consumers_get_what_clients_append(storage: str) -> None:
    async with open_broker(storage) as (cluster, broker), cluster.consumer(["orders"]) as consumer:
        await consumer.wait_settled()
        await broker.admin.create_topic("orders")
        log = log_of(broker, "orders")
        batches = batch(b"a", b"b", keys=[b"k", None], headers=[[("h", b"1")], []])
        assert await broker.writer.append(log, batches).wait_offset() == 0
        assert await broker.writer.append(log, batch(b"c", compression=Compression.GZIP)).wait_offset() == 2
        with trio.fail_after(DEADLINE_S):
            first, second, third = await take(consumer, 3)
        assert [first.value, second.value, third.value] == [b"a", b"b", b"c"]
        assert first.key == b"k"
        assert first.headers == (("h", b"1"),)
        assert first.timestamp == 1000
        assert first.partition == log.leader_partition
        assert values_of(await read_all(broker, log)) == [b"a", b"b", b"c"]
    async with open_broker(storage) as (cluster, broker), cluster.consumer(["orders"]) as consumer:
        with trio.fail_after(DEADLINE_S):  # a consumer that comes later fetches them
            assert values_of(await take(consumer, 3)) == [b"a", b"b", b"c"]


async def test_other_stores_keep_what_clients_append(tmp_path: Path) -> None:
    async with open_broker(f"filelog:{tmp_path}/broker") as (cluster, broker), trio.open_nursery() as nursery:
        store = await nursery.start(serve_store, cluster.config.with_store(storage="memory:"))
        await broker.admin.create_topic("orders")
        await broker.writer.append(log_of(broker, "orders"), batch(b"a", b"b")).wait_offset()
        await wait_until(lambda: store.statistics().topics.get("orders", TopicCounts(0, 0)).records == 2)
        nursery.cancel_scope.cancel()


async def test_offsets_survive_a_restart(tmp_path: Path) -> None:
    storage = f"filelog:{tmp_path}/log"
    expected: list[bytes] = []
    for run in range(3):
        async with open_broker(storage) as (cluster, broker):
            if not run:
                await broker.admin.create_topic("orders")
            log = log_of(broker, "orders")
            assert log.high_watermark == len(expected)
            assert values_of(await read_all(broker, log)) == expected
            for number in range(5):
                appended = broker.writer.append(log, batch(b"%d-%d" % (run, number)))
                assert await appended.wait_offset() == len(expected)
                expected.append(b"%d-%d" % (run, number))
            async with cluster.producer("orders") as producer:
                await producer.send(b"native %d" % run)
                await producer.wait_acknowledged()
            expected.append(b"native %d" % run)
            await wait_end(broker, "orders", len(expected))


async def test_kill_leaves_no_acknowledged_record_without_its_offset(tmp_path: Path) -> None:
    storage = f"filelog:{tmp_path}/log"
    program = [sys.executable, "-m", "tests.broker.nodes.test_broker", storage]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:  # noqa: ASYNC220
        assert process.stdout is not None
        for _ in range(20):
            acknowledged = int(await trio.to_thread.run_sync(process.stdout.readline))
        process.kill()
        rest = process.stdout.read().split()
        acknowledged = int(rest[-1]) if rest else acknowledged
    async with open_broker(storage) as (_, broker):
        log = log_of(broker, "orders")
        assert log.high_watermark > acknowledged
        records = await read_all(broker, log)
        assert values_of(records) == [b"%d" % n for n in range(log.high_watermark)]


async def append_until_killed(storage: str) -> None:
    """Append numbers, and print the offset of each one that is durable."""
    async with open_broker(storage) as (_, broker):
        await broker.admin.create_topic("orders")
        log = log_of(broker, "orders")
        while True:
            print(await broker.writer.append(log, batch(b"%d" % log.high_watermark)).wait_offset(), flush=True)


if __name__ == "__main__":
    trio.run(append_until_killed, sys.argv[1])
