"""Topics for brokers only: clients and nodes cannot use them, and no limit drops their records."""

from __future__ import annotations

from pathlib import Path

import attrs

from dafka import Config
from dafka.records import Partition, RecordBatch
from dafka.storage import open_storage
from tests.broker.nodes.test_broker import STORAGES, encode, open_broker, read_all, wait_end
from tests.waiting import wait_until

TOPIC = "$state"


async def test_internal_topic_keeps_its_records_and_is_hidden(tmp_path: Path) -> None:
    url = STORAGES[0].format(tmp_path)
    config = Config()
    config = attrs.evolve(config, store=attrs.evolve(config.store, retention_records=1, retention_interval_ms=20))
    async with open_broker(url, config) as (_, broker):
        await broker.create_topic("orders", 1).wait()
        logs = await broker.ensure_internal_topic(TOPIC, 2)
        assert [log.number for log in logs] == [0, 1]
        assert list(await broker.ensure_internal_topic(TOPIC, 2)) == list(logs)
        for log in (logs[1], *broker.logs("orders")):
            assert await broker.writer.append(log, encode([b"1", b"2", b"3"])).wait_offset() == 0
        (orders,) = broker.logs("orders")
        await wait_until(lambda: orders.index.start_offset >= 2)
        assert [record.value for record in await read_all(broker, logs[1])] == [b"1", b"2", b"3"]
        assert TOPIC not in broker.inventory.topics_without_logs()
    async with open_broker(url, config) as (_, broker):
        logs = await broker.ensure_internal_topic(TOPIC, 2)
        assert [record.value for record in await read_all(broker, logs[1])] == [b"1", b"2", b"3"]


async def test_records_of_nodes_are_in_no_log_of_an_internal_topic(tmp_path: Path) -> None:
    url = STORAGES[0].format(tmp_path)
    async with open_storage(url) as storage:
        await storage.append([RecordBatch(Partition(each, "A" * 32), 0, [b"forged"]) for each in (TOPIC, "orders")])
    async with open_broker(url) as (_, broker):
        (log,) = await broker.ensure_internal_topic(TOPIC, 1)
        await wait_end(broker, "orders", 1)
        assert log.high_watermark == 0
        assert await broker.writer.append(log, encode([b"own"])).wait_offset() == 0
    async with open_broker(url) as (_, broker):
        (log,) = await broker.ensure_internal_topic(TOPIC, 1)
        assert [record.value for record in await read_all(broker, log)] == [b"own"]
