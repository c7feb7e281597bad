"""The largest record is stored and comes back by each way that records take; a larger one is refused by `send`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import trio

import dafka
from dafka import Config, ProducerRecord
from dafka.config import RECORD_BYTES_MAX
from dafka.errors import RecordError
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
                await producer.send_many([value, b"small", value])
                await producer.send_many([whole])
                await producer.wait_stored()
                live = [await consumer.next_record() for _ in range(4)]
            async with cluster.consumer(["hello"]) as consumer:
                fetched = [await consumer.next_record() for _ in range(4)]
    for received in (live, fetched):
        assert [record.value for record in received] == [value, b"small", value, whole.value]
        assert (received[3].key, received[3].headers) == (b"k", (("h", b"1"),))


async def test_the_largest_record_of_the_default_settings_is_stored() -> None:
    config = Config().with_store(storage="memory:").with_consumer(offset_reset="earliest")
    with trio.fail_after(DEADLINE_S):
        async with open_cluster(config) as cluster:
            async with cluster.producer("hello") as producer:
                await producer.send(bytes(RECORD_BYTES_MAX))
                await producer.wait_stored()
            async with cluster.consumer(["hello"]) as consumer:
                assert (await consumer.next_record()).value == bytes(RECORD_BYTES_MAX)


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
async def test_a_larger_record_is_refused(record: ProducerRecord, size: int) -> None:
    expected = rf"expected at most {LIMIT} bytes \(\[node\] message_bytes_max\), not {size}$"
    async with dafka.open_producer("hello", small(Config()).with_node(bind="tcp://127.0.0.1:*")) as producer:
        with pytest.raises(RecordError, match=expected):
            await producer.send_many([record])
