"""Whole records on their way through a spool and a store."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from dafka.errors import UnacknowledgedError
from dafka.records import ProducerRecord
from dafka.testing import open_cluster
from tests.roles.helpers import DEADLINE_S, open_store

RECORDS = [
    ProducerRecord(b"0", timestamp=5),
    ProducerRecord(None, b"key", (("a", b"1"), ("a", None), ("b", b"\xff\0")), 7),
    ProducerRecord(b"", b"", (), 0),
]


async def test_a_spool_and_a_store_keep_whole_records(tmp_path: Path) -> None:
    async with open_cluster(storage=None) as cluster:
        config = cluster.config.with_producer(spool=f"sqlite:{tmp_path}/spool.db", close_timeout_ms=1, min_stores=1)
        with pytest.raises(UnacknowledgedError):
            async with cluster.producer("hello", config) as producer:
                await producer.send_many(RECORDS)
        storage = f"sqlite:{tmp_path}/store.db"
        with trio.fail_after(DEADLINE_S):
            resumed = config.with_producer(close_timeout_ms=60_000)
            async with open_store(cluster.config, storage), cluster.producer("hello", resumed) as producer:
                await producer.wait_stored()
            async with open_store(cluster.config, storage), cluster.consumer(["hello"]) as consumer:
                for expected in RECORDS:
                    record = await consumer.next_record()
                    assert (record.value, record.key, record.headers) == (
                        expected.value,
                        expected.key,
                        expected.headers,
                    )
                    if expected.key is not None:  # RFC 46's commands carry no timestamps of values
                        assert record.timestamp == expected.timestamp
