"""The largest record is stored and comes back by each way that records take; a larger one is refused by `send`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

import dafka
import dafka.asyncio
from dafka import Config, ProducerRecord, blocking
from dafka.broker.core.metadata.topic_settings import find_setting_problem
from dafka.config import BATCH_BYTES_MAX, RECORD_BYTES_MAX
from dafka.errors import ConfigError, RecordError
from dafka.testing import open_cluster

LIMIT = 300_000
DEADLINE_S = 60
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
        *((storage, record_batches, "none") for storage in STORAGES for record_batches in ("on", "off")),
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
                await producer.send_many([value, b"small", value])
                await producer.send_many([whole])
                await producer.wait_stored()
                live = [await consumer.next_record() for _ in range(4)]
            async with cluster.consumer(["hello"]) as consumer:
                fetched = [await consumer.next_record() for _ in range(4)]
    for received in (live, fetched):
        assert [record.value for record in received] == [value, b"small", value, whole.value]
        assert (received[3].key, received[3].headers) == (b"k", (("h", b"1"),))


@pytest.mark.parametrize("storage", STORAGES)
async def test_the_largest_record_of_the_default_settings_is_stored(tmp_path: Path, storage: str) -> None:
    value = bytes(RECORD_BYTES_MAX)
    config = Config().with_store(storage=storage.format(tmp_path, tmp_path)).with_consumer(offset_reset="earliest")
    with trio.fail_after(DEADLINE_S):
        async with open_cluster(config) as cluster:
            async with cluster.producer("hello") as producer:
                await producer.send(value)
                await producer.wait_stored()
            async with cluster.consumer(["hello"]) as consumer:
                assert (await consumer.next_record()).value == value


def send_blocking(config: Config, record: ProducerRecord) -> None:
    with blocking.open_producer("hello", config) as producer:
        producer.send_many([record])


def send_asyncio(config: Config, record: ProducerRecord) -> None:
    async def program() -> None:
        async with dafka.asyncio.open_producer("hello", config) as producer:
            await producer.send_many([record])

    asyncio.run(program())


def send_trio(config: Config, record: ProducerRecord) -> None:
    async def program() -> None:
        async with dafka.open_producer("hello", config) as producer:
            await producer.send_many([record])

    trio.run(program)


@pytest.mark.parametrize("send", [send_blocking, send_asyncio, send_trio])
@pytest.mark.parametrize(
    ("record", "size"),
    [
        (ProducerRecord(bytes(LIMIT + 1)), LIMIT + 1),
        (ProducerRecord(bytes(LIMIT), b"k"), LIMIT + 1),
        (ProducerRecord(bytes(LIMIT - 12), None, [("h", b"12")]), LIMIT + 1),
        (ProducerRecord(b"", None, [("", None)] * (LIMIT // 10 + 1)), LIMIT // 10 * 10 + 10),
    ],
    ids=["value", "key", "header", "many headers"],
)
def test_a_larger_record_is_refused(
    send: Callable[[Config, ProducerRecord], None], record: ProducerRecord, size: int
) -> None:
    config = small(Config()).with_node(bind="tcp://127.0.0.1:*")
    with pytest.raises(
        RecordError, match=rf"expected at most {LIMIT} bytes \(\[node\] message_bytes_max\), not {size}$"
    ):
        send(config, record)


def test_clients_of_kafka_get_no_larger_limit() -> None:
    for name in ("max.message.bytes", "max.decompressed.message.bytes"):
        assert find_setting_problem(name, str(BATCH_BYTES_MAX)) == ""
        assert "the size of the largest record in a batch" in find_setting_problem(name, str(BATCH_BYTES_MAX + 1))
    for name in ("message_bytes_max", "batch_bytes_max"):
        valid: dict[str, Any] = {name: BATCH_BYTES_MAX}
        Config().with_kafka(**valid)
        with pytest.raises(ConfigError, match=f"{name}: expected a number of bytes from 1 to {BATCH_BYTES_MAX}, or"):
            Config().with_kafka(**{name: valid[name] + 1})


def test_no_larger_limit_can_be_set_than_storages_and_batches_have() -> None:
    with pytest.raises(ConfigError, match=r"message_bytes_max: expected a number of bytes from 1024 to 536870912, or"):
        Config().with_node(message_bytes_max="1GiB")
