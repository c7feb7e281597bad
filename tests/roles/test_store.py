from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
import trio.testing

from dafka import Config, Partition, Producer, RecordBatch, serve_store
from dafka.errors import AddressInUseError, StorageBusyError, StorageError
from dafka.protocol import StorageFailed
from dafka.protocol.store_events import StorageRecovered
from dafka.records import RECORD_MEMORY_BYTES
from dafka.storage import open_storage
from dafka.storage.memory import MemoryStorage
from dafka.testing import Cluster, open_cluster
from tests.roles.helpers import (
    AN_HOUR_MS,
    DEADLINE_S,
    contents,
    open_store,
    open_store_process,
    receive_partition,
    wait_event,
)
from tests.waiting import wait_until

QUIET = Config().with_producer(head_interval_ms=AN_HOUR_MS)
"""Nothing is found by waiting for a HEAD."""


def acknowledged(producer: Producer) -> int:
    statistics = producer.statistics()
    return statistics.next_sequence - statistics.unacknowledged


async def wait_stored(producer: Producer) -> None:
    with trio.fail_after(DEADLINE_S):
        await producer.wait_stored()


async def stored_end(path: Path, partition: Partition) -> int:
    """Check each record of the partition in the file, and return where it ends."""
    async with open_storage(f"sqlite:{path}", read_only=True) as opened:
        end = (await opened.partitions())[partition].end_sequence
        found: list[bytes | None] = []
        while len(found) < end:
            batch = await opened.read(partition, len(found), end)
            assert batch is not None
            found += batch.values
    assert found == contents(0, end)
    return end


async def test_a_killed_store_has_all_acknowledged_records_and_fetches_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with open_cluster(storage=None) as cluster, cluster.producer("hello") as producer:
        async with open_store_process(cluster.config, path) as (process, greeting):
            with trio.fail_after(DEADLINE_S):
                while acknowledged(producer) <= 2000:
                    begin = producer.statistics().next_sequence
                    await producer.send_many(contents(begin, begin + 100))
            process.send_signal(signal.SIGKILL)
            at_death = acknowledged(producer)
            await process.wait()
        assert await stored_end(path, producer.partition) >= at_death
        begin = producer.statistics().next_sequence
        end = begin + 1000
        await producer.send_many(contents(begin, end))
        async with open_store(cluster.config, f"sqlite:{path}") as store:
            assert store.address in greeting, "the store's address changes"
            await wait_stored(producer)
            async with cluster.consumer(["hello"]) as consumer:
                await receive_partition(consumer, 0, end)
        assert await stored_end(path, producer.partition) == end


async def test_a_store_that_was_down_catches_up_from_another_after_the_producer_left(tmp_path: Path) -> None:
    storage = f"sqlite:{tmp_path / 'away.db'}"
    async with open_storage(storage) as opened:
        await opened.append([RecordBatch(Partition("hello", "OLD"), 0, contents(0, 10))])
    async with open_cluster(QUIET) as cluster:
        async with cluster.producer("hello") as producer:
            await producer.send_many(contents(0, 3000))
        async with open_store(cluster.config, storage) as away:
            await wait_until(lambda: away.statistics().records_stored >= 3000)
            assert away.statistics().lag == {}
    assert await stored_end(tmp_path / "away.db", producer.partition) == 3000


async def test_failing_storage_acknowledges_nothing_until_it_recovers(monkeypatch: pytest.MonkeyPatch) -> None:
    is_full = True
    append = MemoryStorage.append

    async def append_unless_full(self: MemoryStorage, batches: Sequence[RecordBatch]) -> None:
        if is_full:
            raise StorageError("disk full")
        await append(self, batches)

    monkeypatch.setattr(MemoryStorage, "append", append_unless_full)
    async with open_cluster(Config().with_store(retry_ms=20)) as cluster:
        store = cluster.store
        assert store is not None
        async with cluster.producer("hello") as producer:
            await producer.send_many(contents(0, 1000))
            assert await wait_event(store.events, StorageFailed) == StorageFailed("disk full")
            await producer.send_many(contents(1000, 2000))
            await wait_until(lambda: store.statistics().lag == {producer.partition: 2000})
            assert acknowledged(producer) == 0
            assert store.health().unready == "the storage fails: disk full"
            async with cluster.consumer(["hello"]) as consumer:
                await receive_partition(consumer, 0, 2000)
            is_full = False
            await wait_event(store.events, StorageRecovered)
            await wait_stored(producer)
        assert store.statistics().records_stored == 2000
        assert store.health().unready == ""
        assert store.statistics().lag == {}
        async with cluster.consumer(["hello"]) as consumer:
            await receive_partition(consumer, 0, 2000)


async def test_a_stopped_store_writes_and_acknowledges_received_records(monkeypatch: pytest.MonkeyPatch) -> None:
    may_append = trio.Event()
    append = MemoryStorage.append

    async def append_slowly(self: MemoryStorage, batches: Sequence[RecordBatch]) -> None:
        await may_append.wait()
        await append(self, batches)

    monkeypatch.setattr(MemoryStorage, "append", append_slowly)
    async with open_cluster(storage=None) as cluster, cluster.producer("hello") as producer:
        async with trio.open_nursery() as nursery:
            async with open_store(cluster.config.with_node(grace_ms=60_000)) as store:
                await producer.send_many(contents(0, 1000))
                await wait_until(lambda: store.statistics().lag == {producer.partition: 1000})
                await wait_until(lambda: store.statistics().pending_bytes >= 1000 * RECORD_MEMORY_BYTES)
                nursery.start_soon(_set_when_blocked, may_append)
            assert store.statistics().records_stored == 1000
        await wait_stored(producer)


async def _set_when_blocked(event: trio.Event) -> None:
    await trio.testing.wait_all_tasks_blocked(0.05)
    event.set()


async def test_store_that_restarts_counts_once(tmp_path: Path) -> None:
    async with open_cluster(storage=None) as cluster:
        config = cluster.config.with_producer(min_stores=2)
        async with cluster.producer("hello", config) as producer:
            for end in (10, 20):
                async with open_store(cluster.config, f"sqlite:{tmp_path / 'a.db'}") as store:
                    await producer.send_many(contents(end - 10, end))
                    await wait_until(lambda store=store: store.statistics().records_stored == 10)  # type: ignore[misc]
                assert acknowledged(producer) == 0
            async with (
                open_store(cluster.config, f"sqlite:{tmp_path / 'a.db'}"),
                open_store(cluster.config, f"sqlite:{tmp_path / 'b.db'}"),
            ):
                await wait_stored(producer)


async def test_statistics_count_stored_and_sent_records(dafka_cluster: Cluster) -> None:
    store = dafka_cluster.store
    assert store is not None
    async with dafka_cluster.producer("a") as first, dafka_cluster.producer("b") as second:
        await first.send_many([b"x" * 10] * 50)
        await second.send_many([b"y"] * 7)
        await wait_stored(first)
        await wait_stored(second)
        async with dafka_cluster.consumer(["a"]) as consumer:
            with trio.fail_after(DEADLINE_S):
                while consumer.statistics().records < 50:
                    await consumer.next_batch()
        statistics = store.statistics()
    assert (statistics.partitions, statistics.records_stored, statistics.bytes_stored) == (2, 57, 507)
    assert (statistics.pending_bytes, statistics.lag) == (0, {})
    assert 1 <= statistics.commits <= 57
    assert statistics.fetches_received >= 1
    assert 50 <= statistics.records_sent <= 50 * statistics.fetches_received
    assert statistics.discarded == {}


async def test_storage_in_use_is_a_storage_busy_error(tmp_path: Path) -> None:
    storage = f"sqlite:{tmp_path / 'store.db'}"
    async with open_cluster(storage=storage) as cluster:
        with pytest.raises(StorageBusyError):
            await serve_store(cluster.config)


async def test_taken_endpoint_is_an_address_in_use_error(dafka_cluster: Cluster) -> None:
    assert dafka_cluster.store is not None
    with pytest.raises(AddressInUseError):
        await serve_store(dafka_cluster.config.with_node(bind=dafka_cluster.store.endpoint))


async def test_a_store_learns_what_its_bounded_storage_has_dropped() -> None:
    async with open_cluster(storage="memory:?records_max=10") as cluster:
        async with cluster.producer("hello") as producer:
            await producer.send_many(contents(0, 20))
            await producer.wait_stored()
            await producer.send_many(contents(20, 30))
        assert cluster.store is not None
        config = cluster.config.with_consumer(offset_reset="earliest")
        async with cluster.consumer(["hello"], config) as consumer:
            with trio.fail_after(DEADLINE_S):
                batch = await consumer.next_batch()
        assert batch.first_sequence == 20
        assert cluster.store.statistics().records_dropped == 20
