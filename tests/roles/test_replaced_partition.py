"""A producer whose only store began anew continues as a new partition, and loses nothing that is sent afterward."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from dafka import Config, Store, roles, wire
from dafka.cli.daemons import serve_store_with_restarts
from dafka.errors import AddressInUseError, StorageError, StorageSequenceError
from dafka.events import PartitionReplaced
from dafka.protocol import StorageFailed
from dafka.records import Partition, RecordBatch
from dafka.roles import open_producer, producer_partition
from dafka.roles.producer_partition import (
    copy_spooled_partition,
    find_spooled_partition,
    make_machine,
    open_spooled_machine,
    replace_spooled_partition,
)
from dafka.roles.sockets import NodeSockets, open_sockets
from dafka.storage import PartitionInfo, open_storage, read_range
from dafka.storage.memory import MemoryStorage
from dafka.testing import Cluster, open_cluster
from tests.ports import free_endpoints
from tests.roles.helpers import DEADLINE_S, contents, wait_event
from tests.waiting import wait_until

QUICK = Config().with_beacon(interval_ms=100, timeout_ms=1000).with_producer(new_partition_after_ms=300)


def remove(path: Path) -> None:
    for each in path.parent.glob(f"{path.name}*"):
        each.unlink()


@asynccontextmanager
async def open_restarting_store(cluster: Cluster, path: Path) -> AsyncIterator[None]:
    """Run a store as `dafka store` does: it begins anew when its file is deleted."""

    @contextmanager
    def watch(_: Store) -> Iterator[None]:
        yield

    async with trio.open_nursery() as nursery:
        await nursery.start(serve_store_with_restarts, cluster.config.with_store(storage=f"sqlite:{path}"), watch)
        yield
        nursery.cancel_scope.cancel()


async def held(path: Path) -> dict[Partition, list[bytes | None]]:
    async with open_storage(f"sqlite:{path}", read_only=True) as storage:
        found = {}
        for partition, info in (await storage.partitions()).items():
            batch = await storage.read(partition, 0, info.end_sequence)
            found[partition] = [] if batch is None else list(batch.values)
        return found


@pytest.mark.parametrize("has_spool", [False, True], ids=["memory", "spool"])
async def test_records_flow_again_after_the_file_was_deleted(*, has_spool: bool, tmp_path: Path) -> None:
    path, spool = tmp_path / "store.db", f"sqlite:{tmp_path}/spool.db" if has_spool else ""
    async with open_cluster(QUICK, storage=None) as cluster, open_restarting_store(cluster, path):
        config = cluster.config.with_producer(spool=spool)
        async with cluster.producer("hello", config) as producer:
            await producer.send_many(contents(0, 100))
            await producer.wait_stored()
            before, address = producer.partition, producer.address
            remove(path)
            await producer.send_many(contents(100, 200))
            with trio.fail_after(DEADLINE_S):
                await producer.wait_stored()
            event = await wait_event(producer.events, PartitionReplaced)
            assert (event.partition, event.replacement) == (before, producer.address)
            assert producer.address != address
            assert producer.partition == Partition("hello", producer.address)
            async with cluster.consumer(["hello"]) as consumer:
                await producer.send_many(contents(200, 300))
                await producer.wait_stored()
                batch = await consumer.next_batch()
                assert batch.partition == producer.partition
            assert producer.statistics().partitions_replaced == 1
            first = 200 - event.records
            assert first <= 100
        found = await held(path)
        assert found[producer.partition] == contents(first, 300)
        assert len(found.get(before, [])) == 0
        if has_spool:  # the next start continues the new partition
            async with cluster.producer("hello", config) as again:
                assert again.partition == producer.partition
                assert await again.send_many(contents(300, 310)) == range(300 - first, 310 - first)
            assert (await held(path))[again.partition] == contents(first, 310)


async def test_a_partition_whose_address_the_program_gave_is_never_replaced() -> None:
    """The program counts its sequences, so a new partition would confuse it. No limit is 0 seconds."""
    config = QUICK.with_node(bind="tcp://127.0.0.1:*").with_producer(min_stores=0, close_timeout_ms=0)
    for address, after_s in ((None, 0.3), ("A" * 32, 0.0)):
        async with open_producer("hello", config, address=address) as producer:
            assert producer._machine._stranded_detector._after_s == after_s


async def test_waiting_for_stores_ends_although_the_partition_was_replaced_twice() -> None:
    """The test receives the ACKs for the producer, and decides when its partition cannot be continued."""
    async with open_cluster(QUICK, storage=None) as cluster, cluster.producer("hello") as producer:

        def receive_ack(sequence: int) -> None:
            ack = wire.Ack(producer.partition.address, "hello", sequence, "STORE")
            producer._node.receive([ack], trio.current_time())

        async def replace() -> None:
            former = producer.partition
            producer._stranded.set()
            await wait_until(lambda: producer.partition != former)
            await producer.wait_settled()

        with trio.fail_after(DEADLINE_S):
            await producer.wait_settled()
            await producer.send_many(contents(0, 3))
            receive_ack(1)
            await replace()  # record 2 is the first one of the new partition
            await producer.send_many(contents(3, 5))
            receive_ack(1)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(producer.wait_stored)
                await trio.testing.wait_all_tasks_blocked()
                await replace()
                assert len(nursery.child_tasks) == 1
                assert producer.statistics().unacknowledged == 1
                receive_ack(0)


async def test_the_new_partition_has_the_same_port_once_that_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system may free a port later than its socket is closed."""
    path, attempts = tmp_path / "store.db", 0
    async with open_cluster(QUICK, storage=None) as cluster, open_restarting_store(cluster, path):
        (endpoint,) = free_endpoints(1)
        config = cluster.config.with_node(bind=endpoint)
        async with cluster.producer("hello", config) as producer:
            await producer.send(b"0")
            await producer.wait_stored()

            @asynccontextmanager
            async def fail_at_first(*arguments: Any) -> AsyncIterator[NodeSockets]:
                nonlocal attempts
                attempts += 1
                if attempts <= 50:
                    raise AddressInUseError(endpoint)
                async with open_sockets(*arguments) as sockets:
                    yield sockets

            monkeypatch.setattr(roles.producer, "open_sockets", fail_at_first)
            monkeypatch.setattr(roles.producer, "REBIND_S", 0)
            remove(path)
            await producer.send(b"1")
            with trio.fail_after(DEADLINE_S):
                await producer.wait_stored()
            assert producer.statistics().partitions_replaced == 1
            assert producer.endpoint == endpoint


# The spool of a producer whose partition was replaced: the partition that the next start continues

FIRST, SECOND, THIRD = (Partition("hello", name * 32) for name in "9A5")


async def make_spool() -> MemoryStorage:
    spool = MemoryStorage()
    await spool.append([RecordBatch(FIRST, 0, contents(0, 10))])
    return spool


async def spooled(spool: MemoryStorage, partition: Partition) -> list[bytes | None]:
    return [value async for each in read_range(spool, partition, 0, 10) for value in each.values]


async def test_a_spool_continues_the_last_replacement_of_its_topic() -> None:
    spool = await make_spool()
    await copy_spooled_partition(spool, FIRST, 4, SECOND)
    assert await spooled(spool, SECOND) == contents(4, 10)
    await copy_spooled_partition(spool, SECOND, 1, THIRD)
    assert await spooled(spool, THIRD) == contents(5, 10)
    other = Partition("other", "F" * 32)
    await spool.append([RecordBatch(other, 0, contents(0, 1))])
    await copy_spooled_partition(spool, other, 0, Partition("other", "0" * 32))
    assert await find_spooled_partition(spool, "hello") == THIRD
    assert await spooled(spool, FIRST) == await spooled(spool, SECOND) == []


class FullSpool(MemoryStorage):
    """A spool that fails after a number of calls."""

    calls_left = 100

    async def append(self, batches: Sequence[RecordBatch]) -> None:
        self._count()
        await super().append(batches)

    async def read(self, *arguments: Any, **options: Any) -> RecordBatch | None:
        batch = await super().read(*arguments, **options)
        return None if batch is None else batch.between(batch.first_sequence, batch.first_sequence + 2)

    async def save_positions(self, name: str, positions: Mapping[Partition, int]) -> None:
        self._count()
        await super().save_positions(name, positions)

    def _count(self) -> None:
        self.calls_left -= 1
        if self.calls_left < 0:
            raise StorageError("database or disk is full")


async def test_a_replacement_that_failed_anywhere_is_completed() -> None:
    for first, calls in itertools.product(range(11), range(8)):
        spool = FullSpool()
        await spool.append([RecordBatch(FIRST, 0, contents(0, 10))])
        spool.calls_left = calls
        with suppress(StorageError):
            await copy_spooled_partition(spool, FIRST, first, SECOND)
        is_done = await find_spooled_partition(spool, "hello") == SECOND
        assert is_done == (calls > (11 - first) // 2)
        if not is_done:
            assert await MemoryStorage.read(spool, FIRST, 0, 10) == RecordBatch(FIRST, 0, contents(0, 10))
        spool.calls_left = 100
        if not is_done:
            await copy_spooled_partition(spool, FIRST, first, SECOND)
        held = await spool.find_partition(SECOND) or PartitionInfo()
        assert (held.earliest_sequence, held.end_sequence) == (0, 10 - first)
        found = [value async for each in read_range(spool, SECOND, 0, 10) for value in each.values]
        assert found == contents(first, 10)
        assert await find_spooled_partition(spool, "hello") == SECOND


async def test_a_replacement_is_tried_again_each_second_until_it_succeeds(
    autojump_clock: trio.testing.MockClock,
) -> None:
    spool, reports = FullSpool(), list[object]()
    await spool.append([RecordBatch(FIRST, 0, contents(0, 10))])
    spool.calls_left = 0

    async def empty_the_disk() -> None:
        await trio.sleep(2.5)
        spool.calls_left = 100

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(empty_the_disk)
        await replace_spooled_partition(spool, FIRST, 4, SECOND, reports.append)
    assert trio.current_time() - began == pytest.approx(3)
    assert reports == [StorageFailed("database or disk is full")] * 3
    assert await find_spooled_partition(spool, "hello") == SECOND


async def test_a_spool_is_continued_at_its_end_if_it_holds_what_was_acknowledged() -> None:
    """What was trimmed was acknowledged, too. A spool that ends earlier is an older copy."""
    for end, acknowledged, earliest in itertools.product(range(4), range(5), range(4)):
        spool = MemoryStorage()
        partition = Partition("hello", spool.identity)
        if end:
            await spool.append([RecordBatch(partition, 0, contents(0, end))])
            await spool.trim(partition, min(earliest, end))
        await spool.save_positions("acknowledged", {partition: acknowledged})
        if acknowledged > end:
            with pytest.raises(StorageSequenceError, match=f"ends at {end}, before .* \\(up to {acknowledged}\\)"):
                await open_spooled_machine(Config(), spool, "hello")
        else:
            machine = await open_spooled_machine(Config(), spool, "hello")
            assert (machine.partition, machine.next_sequence) == (partition, end)
            assert machine.acknowledged_end == max(acknowledged, min(earliest, end))


def test_each_new_partition_waits_twice_as_long_for_the_next_one_up_to_a_thousand_times() -> None:
    config = Config().with_producer(new_partition_after_ms=300)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(producer_partition, "ProducerMachine", lambda *_, **settings: settings["stranded_after_s"])
        waits: list[Any] = [make_machine(config, FIRST, replaced=number) for number in range(13)]
        assert waits == pytest.approx([0.3 * min(2**number, 1024) for number in range(13)])
        waits = [make_machine(config, FIRST, is_named=True, replaced=1)]
        assert waits == [0.0]
