"""Compaction in a running cluster: of each key, every reader gets the last record, and no record counts as lost."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from dafka import Config, Consumer, Store, open_reader
from dafka.config import StoreConfig
from dafka.errors import StorageError, StorageLostError
from dafka.protocol import RecordsCompacted, StorageFailed
from dafka.records import Partition, ProducerRecord, Record, RecordBatch
from dafka.roles.compactor import CLEAN_ENDS, Compactor
from dafka.roles.statistics import TopicCounts
from dafka.storage import open_storage, read_range
from dafka.testing import Cluster, open_cluster
from tests.roles.helpers import DEADLINE_S, open_store, wait_event
from tests.seeds import each_seed
from tests.waiting import wait_until

COUNT, KEYS = 3000, 50

STORAGES = ["memory:", "sqlite:{}/dafka.db", "filelog:{}/log?segment_bytes=10000"]


def compacting(config: Config | None = None) -> Config:
    return (config or Config()).with_store(
        compact_topics=("prices", "users.*"),
        compaction_interval_ms=20,
        compaction_rate_bytes=0,
        compaction_dirty_percent=10,
        retention_records=10,
        retention_interval_ms=20,
    )


def make_records(first: int, end: int) -> list[ProducerRecord]:
    return [ProducerRecord(b"%d" % number, b"key %d" % (number % KEYS)) for number in range(first, end)]


async def publish(cluster: Cluster, topic: str = "prices") -> None:
    """Publish records of which all but the last of each key are superseded, and a few more that roll segments."""
    async with cluster.producer(topic) as producer:
        for first in range(0, COUNT, 300):  # one append after the other, so that a file log begins new segments
            await producer.send_many(make_records(first, first + 300))
            await producer.wait_acknowledged()


def store_of(cluster: Cluster) -> Store:
    assert cluster.store is not None
    return cluster.store


async def wait_compacted(store: Store, records: int = COUNT // 2) -> None:
    await wait_until(lambda: store.statistics().records_compacted >= records)


def last_values(records: Iterable[Record]) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in records}


EXPECTED = {b"key %d" % (number % KEYS): b"%d" % number for number in range(COUNT - KEYS, COUNT)}


async def receive_all(consumer: Consumer) -> list[Record]:
    """Return the records up to the last one."""
    found: list[Record] = []
    with trio.fail_after(DEADLINE_S):
        while not found or found[-1].sequence < COUNT - 1:
            found += await consumer.next_batch()
    assert [record.sequence for record in found] == sorted({record.sequence for record in found})
    return found


@pytest.mark.parametrize("storage", STORAGES)
async def test_every_reader_gets_the_last_record_of_each_key_and_none_is_lost(storage: str, tmp_path: Path) -> None:
    async with open_cluster(compacting(), storage=storage.format(tmp_path)) as cluster:
        await publish(cluster)
        store = store_of(cluster)
        event = await wait_event(store.events, RecordsCompacted)
        assert str(event).startswith("Compaction removed ")
        await wait_compacted(store)
        async with cluster.consumer(["prices"]) as consumer:
            found = await receive_all(consumer)
            check_compacted(found)
            assert (consumer.statistics().records_unrecoverable, consumer.statistics().lag) == (0, {})
            assert all(record.value == b"%d" % record.sequence for record in found)
        assert store.statistics().records_dropped == 0, "retention does not apply to compacted topics"
        await check_range(cluster)
        (tmp_path / "late").mkdir()
        for url in STORAGES:
            await check_late_store(cluster, url.format(tmp_path / "late"))


def check_compacted(found: list[Record]) -> None:
    assert last_values(found) == EXPECTED
    assert len(found) <= COUNT - COUNT // 2


async def check_range(cluster: Cluster) -> None:
    """Read the partition by its records, and by all sequences."""
    async with open_reader(["prices"], cluster.config) as reader:
        with trio.fail_after(DEADLINE_S):
            await reader.wait_ready()
            (partition,) = reader.ends()
            records = reader.read(partition, 0, COUNT)
            check_compacted([record async for batch in records for record in batch])
            records.close()
            records = reader.read(partition, 0, COUNT)
            sequence = 0
            while (batch := await records.next_sequences()) is not None:
                assert batch.first_sequence == sequence
                sequence = batch.end_sequence
            assert sequence == COUNT


async def check_late_store(cluster: Cluster, url: str) -> None:
    """A store that comes late holds the same records."""
    async with open_store(cluster.config.with_store(compact_topics=(), retention_records=0), url) as late:
        await wait_until(lambda: [*late.statistics().topics.values()] == [TopicCounts(1, COUNT)])
        assert late.statistics().missing_records == 0
        (partition,) = await late._storage.partitions()
        found: list[Record] = []
        sequence = 0
        while sequence < COUNT:
            batch = await late._storage.read(partition, sequence, COUNT)
            assert batch is not None
            found += batch
            sequence = batch.end_sequence
        check_compacted(found)
        assert await late._storage.find_damage() == []


async def test_other_topics_are_not_compacted_and_plain_nodes_get_empty_records_instead() -> None:
    async with open_cluster(compacting().with_store(retention_records=0), storage="memory:") as cluster:
        await publish(cluster)
        await publish(cluster, "other")
        await wait_compacted(store_of(cluster))
        async with cluster.consumer(["other"]) as consumer:
            assert len(await receive_all(consumer)) == COUNT
        plain = cluster.config.with_node(record_batches="off").with_consumer(offset_reset="earliest")
        async with cluster.consumer(["prices"], plain) as consumer:
            found = await receive_all(consumer)
            assert [record.sequence for record in found] == list(range(COUNT))
            assert last_values(record for record in found if record.key is not None) == EXPECTED
            assert {record.value for record in found if record.key is None} == {b""}


async def test_topics_of_brokers_are_compacted_by_nobody_and_others_at_each_interval(
    autojump_clock: trio.testing.MockClock,
) -> None:
    done: list[tuple[float, str]] = []
    began = trio.current_time()

    async def partitions(topic: str) -> list[str]:
        await trio.lowlevel.checkpoint()
        return [topic]

    async def compact(topic: str) -> None:
        await trio.lowlevel.checkpoint()
        done.append((trio.current_time() - began, topic))

    durable = ("orders", "$index", "$group/billing")
    store: Any = SimpleNamespace(
        _config=StoreConfig(compact_topics=("*",), compaction_interval_ms=7000),
        _machine=SimpleNamespace(stored=SimpleNamespace(durable=durable)),
        _storage=SimpleNamespace(partitions=partitions),
        compactor=SimpleNamespace(compact=compact),
    )
    with trio.move_on_after(10):
        await Store._compact(store)
    assert [topic for _, topic in done] == ["orders", "$group/billing"] * 2
    assert [time for time, _ in done] == pytest.approx([0, 0, 7, 7])


async def test_a_clean_end_that_cannot_be_saved_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the process would skip records that it compacts again after its next start."""
    partition = Partition("prices", "A")
    async with open_storage("memory:") as storage:
        compactor = Compactor(storage, Config().store, lambda _: None)
        await compactor.save_clean_end(partition, 3)

        async def fail(*_: object) -> None:
            raise StorageError("disk full")

        with monkeypatch.context() as patched:
            patched.setattr(storage, "save_positions", fail)
            with pytest.raises(StorageError, match="disk full"):
                await compactor.save_clean_end(partition, 9)
        assert await compactor.clean_end(partition) == 3
        await compactor.save_clean_end(partition, 9)
        assert await compactor.clean_end(partition) == 9
        assert await storage.load_positions(CLEAN_ENDS) == {partition: 9}


async def test_a_partition_that_cannot_be_compacted_is_reported_once_until_it_could_be() -> None:
    """The loss of the storage is none of these failures: it ends the store."""
    reports: list[str] = []
    one, other = Partition("prices", "A"), Partition("prices", "B")
    storage: Any = object()  # one that cannot remove single records
    compactor = Compactor(storage, Config().store, lambda event: reports.append(str(event)))

    async def work(error: StorageError | None) -> None:
        await trio.lowlevel.checkpoint()
        if error:
            raise error

    reason = "this storage cannot remove single records; use sqlite:, filelog: or memory:"
    await compactor.compact(one)
    for partition, error in ((one, "full"), (other, "full"), (other, ""), (one, "full"), (other, "again")):
        await compactor.attempt(partition, partial(work, StorageError(error) if error else None))
    expected = [(one, reason), (other, "full"), (other, "again")]
    assert reports == [str(StorageFailed(f"compaction of {partition}: {text}")) for partition, text in expected]
    with pytest.raises(StorageLostError):
        await compactor.attempt(one, partial(work, StorageLostError("removed")))
    assert len(reports) == 3


async def test_compaction_reads_at_most_the_rate_and_takes_at_most_a_quarter_of_the_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    waits: list[float] = []
    steps = [(0.0, 500), (2.0, 500), (0.1, 500), (3.0, 10_000)]
    for rate in (1000, 0):
        storage: Any = None
        compactor = Compactor(storage, Config().with_store(compaction_rate_bytes=rate).store, lambda _: None)

        async def work(compactor: Compactor = compactor) -> None:
            for seconds, size in steps:
                await trio.sleep(seconds)
                before = trio.current_time()
                await compactor.throttle(size)
                waits.append(trio.current_time() - before)

        await trio.sleep(100)  # between two compactions
        await compactor.attempt(Partition("prices", "A"), work)
    assert waits == pytest.approx([0.5, 6, 0.5, 10, 0, 0, 0, 0])


async def compact_again_and_again(seed: int) -> None:
    draw, partition, end = Random(seed), Partition("prices", "A"), 0
    settings = Config().with_store(compaction_rate_bytes=0, compaction_dirty_percent=0).store
    async with open_storage("memory:") as storage:
        compactor = Compactor(storage, settings, lambda _: None)
        for _ in range(20):
            keys: list[bytes | None] = [b"%d" % draw.randrange(4) for _ in range(draw.randint(1, 6))]
            await storage.append([RecordBatch(partition, end, [b"value"] * len(keys), keys=keys)])
            end += len(keys)
            if draw.random() < 0.3:  # the store starts again
                compactor = Compactor(storage, settings, lambda _: None)
            await compactor.compact(partition)
            clean_end = await compactor.clean_end(partition)
            assert clean_end == end - 1
            held = [each async for batch in read_range(storage, partition, 0, clean_end) for each in batch]
            assert len({each.key for each in held}) == len(held)


@each_seed(20)
def test_of_each_key_one_record_is_left_whatever_was_compacted_before(seed: int) -> None:
    trio.run(compact_again_and_again, seed)
