"""Deleting records and topics: while native producers go on, and when and where the records are dropped."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from dafka.broker.core.log.offset_assigner import OffsetAssigner
from dafka.broker.core.positions import Offset, RecordSequence
from dafka.broker.log.durable_waits import FAILING_S
from dafka.errors import StorageError, TopicDeletedError
from dafka.records import Partition, RecordBatch
from tests.broker.nodes.test_broker import open_broker, read_all, values_of, wait_end
from tests.broker.replication.virtual_cluster import batch, open_virtual_cluster, wait_for


@pytest.fixture
def storage(tmp_path: Path) -> str:
    return f"filelog:{tmp_path}/log"


async def test_topic_is_created_again_by_a_producer_that_goes_on(storage: str) -> None:
    async with open_broker(storage) as (cluster, broker), cluster.producer("orders") as producer:
        await producer.send_many([b"%d" % n for n in range(10)])
        await producer.wait_acknowledged()
        await wait_end(broker, "orders", 10)
        before = broker.find_topic("orders")
        assert before is not None
        await broker.admin.delete_topic("orders")
        assert broker.find_topic("orders") is None
        await producer.send_many([b"10", b"11"])
        await producer.wait_acknowledged()
        log = await wait_end(broker, "orders", 2)
        after = broker.find_topic("orders")
        assert after is not None
        assert after.topic_id != before.topic_id
        assert values_of(await read_all(broker, log)) == [b"10", b"11"]


async def test_records_are_not_deleted_from_a_topic_that_is_deleted_meanwhile(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster() as cluster, trio.open_nursery() as nursery:
        (broker,) = await cluster.start("A")
        await cluster.create("orders", "A")
        await cluster.append("A", b"x", b"y")

        async def remove() -> None:
            broker.log_table.remove_topic("orders")

        nursery.start_soon(remove)
        with pytest.raises(TopicDeletedError):
            await broker.deletion.delete_before(cluster.log("A"), Offset(1))


async def test_requests_are_refused_while_the_storage_fails_and_accepted_when_it_works_again(
    autojump_clock: MockClock,
) -> None:
    async with open_virtual_cluster("A", "A") as cluster:
        storage, disk = cluster.brokers["A"].storage, cluster.disks["A"]
        for _ in range(2):
            disk.is_full = True
            storage.write_state("$checkpoints", [(b"k", b"v")])
            await trio.sleep(FAILING_S / 2)
            storage.waits.check()
            await trio.sleep(FAILING_S)
            with pytest.raises(StorageError, match="no space left"):
                await cluster.brokers["A"].deletion.delete_before(cluster.log("A"), Offset(9))
            disk.is_full = False
            await cluster.append("A", b"x")
            storage.waits.check()
        assert cluster.log("A").index.start_offset == 0, "what was refused has no effect"


async def test_storage_gives_room_and_offsets_when_records_are_durable_and_drops_what_it_can(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_virtual_cluster("A", "A", store_pending_bytes_max=5000) as cluster:
        await cluster.create("payments", "A")
        await cluster.append("A", b"x", b"y", topic="payments")
        disk, log, other = cluster.disks["A"], cluster.log("A"), cluster.log("A", "payments").leader_partition
        storage, writer = cluster.brokers["A"].storage, cluster.brokers["A"].writer
        disk.append_s = 3
        writer.append(log, batch(b"small"))
        began = trio.current_time()
        await storage.wait_capacity()
        assert trio.current_time() == began
        large = writer.append(log, batch(*[b"v" * 500] * 10))
        await storage.wait_capacity()
        assert large.durable.is_set()
        assert 3 <= trio.current_time() - began < 10
        native = RecordBatch(Partition("orders", "D" * 32), 0, [b"n"] * 4, timestamps=[1] * 4)
        await disk.append([native])
        await storage.assign_offsets(log, native)
        assert log.index.find("D" * 32, RecordSequence(native.first_sequence)) == 11
        trim = disk.trim

        async def trim_own(partition: Partition, sequence: int) -> None:
            if partition == other:
                raise StorageError("it fails once")
            await trim(partition, sequence)

        monkeypatch.setattr(disk, "trim", trim_own)
        with pytest.raises(StorageError):
            await storage.trim({log.leader_partition: 99, other: 1})
        assert cluster.earliest("A", log.leader_partition, other) == [11, 0]
        await storage.trim({log.leader_partition: 5})
        assert cluster.earliest("A", log.leader_partition, other) == [11, 0]
        disk.is_full = True
        writer.append(log, batch(*[b"v" * 500] * 10))
        for least_s, most_s in ((FAILING_S, 3 * FAILING_S), (0, 0)):
            began = trio.current_time()
            with pytest.raises(StorageError, match="no space left"):
                await storage.wait_capacity()
            assert least_s <= trio.current_time() - began <= most_s


async def test_a_broker_catches_up_with_an_index_that_was_written_again(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dafka.broker.log.stages.OffsetAssigner", partial(OffsetAssigner, rewrite_entries=5))
    monkeypatch.setattr("dafka.broker.core.replication.local_log.REWRITE_RECORDS", 2)
    values = [b"%d" % number for number in range(100)]
    async with open_virtual_cluster("ABC", "ABC", store_retention_interval_ms=100) as cluster:
        await cluster.stop("C")
        for value in values:
            await cluster.append("A", value)
        await wait_for(lambda: cluster.earliest("B", cluster.log("A").index_partition)[0] > 50)
        await cluster.start("C", store_retention_interval_ms=100)
        await wait_for(lambda: cluster.in_sync() == "ABC")
        await cluster.stop("A", "B")
        await cluster.start("B")
        assert await cluster.read(await cluster.wait_leader("BC")) == values
    assert "unrecoverable" not in caplog.text, "nobody misses what was before"
