"""Everybody reads what is in the cold tier: a consumer, a store that catches up, a client of Kafka, and DuckDB."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from itertools import combinations_with_replacement
from pathlib import Path
from random import Random

import duckdb
import pytest
import trio

from dafka.batches import check_crc, encode_batch
from dafka.config import Config
from dafka.packed_bytes import PackedContents
from dafka.records import Partition, RecordBatch
from dafka.roles import Store, serve_store
from dafka.storage import CompactsPartitions, Storage, open_storage, read_range
from dafka.storage.capabilities import Compacted
from dafka.storage.cold.tiered import TieredStorage
from dafka.testing import kafka, open_cluster
from tests.kafka.server.clients import Confluent, Message
from tests.power.runs import no_wait
from tests.storage.cold.stores import TIME, A, B, batch, open_tiered
from tests.waiting import poll_until, wait_until

COUNT = 2000
CONTENTS = [b"%099d." % number for number in range(COUNT)]
DEADLINE_S = 60
HOUR_MS = 3_600_000


def cold_config(folder: Path) -> Config:
    """Return a configuration whose store keeps 10 kB of each partition, and moves the rest at once."""
    return Config().with_cold(
        storage=f"file://{folder}/bucket", local_retention_bytes=10_000, segment_bytes=20_000, interval_ms=10
    )


def count_cold(store: Store | None) -> int:
    assert store is not None
    cold = store.statistics().cold
    return 0 if cold is None else cold.records


async def test_a_consumer_and_another_store_get_what_was_moved(tmp_path: Path) -> None:
    config = cold_config(tmp_path)
    with trio.fail_after(DEADLINE_S):
        async with open_cluster(config, storage=f"filelog:{tmp_path}/log?fsync=never") as cluster:
            async with cluster.producer("orders") as producer:
                for start in range(0, COUNT, 100):
                    await producer.send_many(CONTENTS[start : start + 100])
                    await producer.wait_stored()
            await wait_until(lambda: count_cold(cluster.store) >= COUNT // 2)
            received: list[bytes | None] = []
            async with cluster.consumer(["orders"]) as consumer:
                async for batch in consumer.batches():
                    received += batch.values
                    if len(received) == COUNT:
                        break
            assert received == CONTENTS
            other = cluster.config.with_cold(storage="").with_store(storage=f"sqlite:{tmp_path}/other.db")
            async with trio.open_nursery() as nursery:
                store = await nursery.start(serve_store, other)
                await wait_until(lambda: store.statistics().records_stored == COUNT)
                nursery.cancel_scope.cancel()


def test_a_client_of_kafka_reads_what_was_moved(tmp_path: Path) -> None:
    with kafka(f"filelog:{tmp_path}/log?fsync=never", cold_config(tmp_path)) as running:
        written = [Message(content) for content in CONTENTS]
        Confluent(batch_num_messages=100).write(running.bootstrap_servers, "orders", written, "none")
        poll_until(lambda: len(list(tmp_path.rglob("*.parquet"))) >= 5)
        assert Confluent().read(running.bootstrap_servers, "orders", COUNT) == written


async def test_transactions_are_known_in_the_cold_tier(tmp_path: Path) -> None:
    """A consumer that reads only what was committed finds out from the record batches which records to leave out."""
    producers = [None, (7, 2), (7, 2), (7, 3), None, (8, 3), None]
    end = 10 * len(producers)
    hot = f"filelog:{tmp_path}/log"
    async with open_tiered(tmp_path, hot, local_retention_bytes=0, cold_segment_bytes=3_500) as storage:
        for first, producer in zip(range(0, end, 10), producers, strict=True):
            values, (number, epoch) = CONTENTS[first : first + 10], producer or (-1, -1)
            data = encode_batch(
                first,
                values,
                timestamps=5,
                producer_id=number,
                producer_epoch=epoch,
                is_transactional=producer is not None,
            )
            await storage.append([RecordBatch(A, first, values, timestamps=[5] * 10, encoded=(data,))])
        assert await storage.move_due() == 2
        for first, count in combinations_with_replacement(range(0, end, 5), 2):
            found = await storage.read(A, first, max(count, 1))
            assert found is not None
            wanted = [producers[each // 10] for each in range(first, found.end_sequence)]
            headers = [check_crc(data) for data in found.encoded]
            shown = [
                (each.producer_id, each.producer_epoch) if each.is_transactional else None
                for each in headers
                for _ in range(each.count)
            ]
            assert shown == (wanted if any(wanted) else []), (first, count)
            assert not headers or headers[0].base_offset == first


async def test_internal_topics_stay_hot(tmp_path: Path) -> None:
    partition = Partition("$topics", "A")
    async with open_tiered(tmp_path) as storage:
        await storage.append([RecordBatch(partition, 0, CONTENTS)])
        assert await storage.move_due() == 0


@pytest.mark.parametrize(
    ("segment_ms", "segment_bytes", "moved"),
    [(HOUR_MS, 10**6, 0), (HOUR_MS - 1, 10**6, 5), (HOUR_MS, 6, 0), (HOUR_MS, 5, 5)],
)
async def test_records_move_when_they_are_old_enough(
    segment_ms: int, segment_bytes: int, moved: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few records wait for others for `cold_segment_ms`, and then move all the same."""
    monkeypatch.setattr(time, "time_ns", lambda: TIME * 1_000_000)
    hot = f"sqlite:{tmp_path}/store.db"
    async with open_tiered(
        tmp_path,
        hot,
        local_retention_bytes=None,
        local_retention_ms=HOUR_MS,
        cold_segment_bytes=segment_bytes,
        cold_segment_ms=segment_ms,
    ) as storage:
        times = [TIME - 2 * HOUR_MS] * 5 + [TIME - HOUR_MS] * 5
        await storage.append([RecordBatch(A, 0, [b"x"] * 10, stored_at=times)])
        await storage.move_due()
        assert storage.cold_end(A) == moved
    async with open_storage(hot, read_only=True) as reader:
        assert isinstance(reader, TieredStorage)
        assert (await reader.partitions())[A].count == 10
        assert await reader.find_sequence_by_time(A, TIME - HOUR_MS) == 5


async def test_topics_that_are_compacted_stay_hot(tmp_path: Path) -> None:
    """A tombstone must not be removed while an object has an earlier value of its key."""
    async with open_tiered(tmp_path, f"sqlite:{tmp_path}/store.db", local_retention_bytes=0) as storage:
        assert isinstance(storage, CompactsPartitions)
        await storage.append([RecordBatch(A, 0, CONTENTS[:50]), RecordBatch(B, 0, CONTENTS[:50])])
        assert await storage.find_compactable(A, 0) is not None
        assert await storage.move_due() == 0
        await storage.compact(B, 40, lambda batch: b"\1" * len(batch), no_wait)
        storage.offloader.hot_topics.clear()  # as when another store has compacted the topic
        assert await storage.move_due() > 0
        assert (storage.cold_end(A), storage.cold_end(B)) == (50, 0)
        await storage.append([RecordBatch(A, 50, CONTENTS[50:100])])
        assert await storage.find_compactable(A, 0) is None
        assert await storage.compact(A, 100, lambda batch: b"\1" * len(batch), no_wait) == Compacted()


QUESTIONS: list[Callable[[Storage], Awaitable[object]]] = [
    lambda storage: storage.find_sequence_by_time(A, TIME + 15),
    lambda storage: storage.find_partition(A),
    lambda storage: storage.partitions(),
    lambda storage: storage.read(A, 15, 1),
    lambda storage: storage.find_damage(),
]


@pytest.mark.parametrize("ask", QUESTIONS)
async def test_the_first_question_to_a_reader_is_answered_with_what_was_moved_meanwhile(
    ask: Callable[[Storage], Awaitable[object]], tmp_path: Path
) -> None:
    hot = f"sqlite:{tmp_path}/store.db"
    async with open_tiered(tmp_path, hot) as storage, open_tiered(tmp_path, hot, read_only=True) as reader:
        await storage.append([batch(A, 0, 50)])
        assert await storage.move_due() == 4
        lose_last_object(tmp_path)
        assert await ask(reader) == await ask(storage)


def lose_last_object(folder: Path) -> None:
    sorted(folder.rglob("*.parquet"))[-1].unlink()


VALUE_BYTES = 1000
VOLUME_RECORDS = 5000
MB = 10**6


def make_values(first: int, noise: bytes) -> PackedContents:
    """Return values that begin with their sequence; the rest hardly compresses."""
    parts = []
    for sequence in range(first, first + VOLUME_RECORDS):
        at = sequence * 7919 % (len(noise) - VALUE_BYTES)
        parts.append(b"%020d" % sequence + noise[at : at + VALUE_BYTES - 20])
    return PackedContents(b"".join(parts), VALUE_BYTES.to_bytes(4, "big") * VOLUME_RECORDS)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("total", "hot", "segment"),
    [(20 * MB, 2 * MB, 2 * MB), pytest.param(1000 * MB, 100 * MB, 64 * 2**20, marks=pytest.mark.long)],
)
async def test_all_of_a_volume_is_read_in_order(total: int, hot: int, segment: int, tmp_path: Path) -> None:
    limits = f"local_retention_bytes={hot}&cold_segment_bytes={segment}&cold_interval_ms=3600000"
    url = f"tiered:filelog:{tmp_path}/log?fsync=never&cold=file://{tmp_path}/bucket&{limits}"
    noise, count = Random(1).randbytes(2**24), total // VALUE_BYTES
    async with open_storage(url) as storage:
        assert isinstance(storage, TieredStorage)
        for first in range(0, count, VOLUME_RECORDS):
            await storage.append([RecordBatch(A, first, make_values(first, noise))])
            if first % (100 * VOLUME_RECORDS) == 0 or first + VOLUME_RECORDS == count:
                await storage.move_due()
    async with open_storage(url, read_only=True) as storage:
        assert isinstance(storage, TieredStorage)
        sequence = 0
        async for batch in read_range(storage, A, 0, count):
            assert batch.first_sequence == sequence
            sequence = batch.end_sequence
            assert [int((value or b"")[:20]) for value in batch.values] == [*range(batch.first_sequence, sequence)]
        assert sequence == count
        cold_end = storage.cold_end(A)
        paths = [each.removeprefix("file://") for each in storage.object_urls()]
    query = 'SELECT count(*), sum("offset"), sum(octet_length(value)), sum(CAST(decode(value[:20]) AS BIGINT)) '
    found = duckdb.execute(f"{query} FROM read_parquet(?)", [paths]).fetchone()
    offsets = cold_end * (cold_end - 1) // 2
    assert count - hot // VALUE_BYTES - segment // VALUE_BYTES <= cold_end
    assert found == (cold_end, offsets, cold_end * VALUE_BYTES, offsets)
