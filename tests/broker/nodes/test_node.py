"""A broker's node in virtual time: its topics, what it has stored, and its metrics."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from dafka.broker.core.metadata.topics import LOGS_MAX
from dafka.broker.stored_state import read_state
from dafka.errors import ConfigError
from dafka.records import Partition, RecordBatch
from dafka.storage.memory import MemoryStorage
from tests.broker.replication.virtual_cluster import Disk, open_virtual_cluster, wait_for


async def test_a_topic_has_a_valid_name_that_is_free_and_an_allowed_number_of_logs(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster() as cluster:
        (broker,) = await cluster.start("A")
        await broker.admin.create_topic("orders", 2, {"retention.ms": "5"}, 1)
        topic = broker.find_topic("orders")
        assert topic is not None
        assert (topic.log_count, topic.settings, topic.replica_count) == (2, {"retention.ms": "5"}, 1)
        assert topic.placement == (("A" * 32,), ("A" * 32,))
        for name, count, problem in [
            ("orders", 1, "there is a topic 'orders' already"),
            ("a b", 1, "only ASCII letters"),
            ("many", LOGS_MAX + 1, f"from 1 to {LOGS_MAX} logs, not {LOGS_MAX + 1}"),
            ("many", -1, f"from 1 to {LOGS_MAX} logs, not -1"),
        ]:
            with pytest.raises(ConfigError, match=problem):
                await broker.admin.create_topic(name, count)
        assert list(broker.topics) == ["orders"]
        assert len(broker.logs("orders")) == 2
        assert broker.find_log("orders", 2) is None


async def test_a_topic_gets_more_logs_or_other_settings_and_never_fewer_logs(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster() as cluster:
        (broker,) = await cluster.start("A")
        await cluster.create("orders", "A", "A")
        await broker.admin.change_topic("orders", settings={"retention.ms": "7"})
        await broker.admin.change_topic("orders", log_count=3)
        topic = broker.log_table.topics["orders"]
        assert (topic.log_count, topic.settings) == (3, {"retention.ms": "7"})
        for count in (2, LOGS_MAX + 1):
            with pytest.raises(ConfigError, match=f"can have from 3 to {LOGS_MAX} logs, not {count}"):
                await broker.admin.change_topic("orders", log_count=count)
        await cluster.stop("A")
        (broker,) = await cluster.start("A")
        assert broker.log_table.topics["orders"] == topic


async def test_internal_topics_are_hidden_and_cannot_be_deleted(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster() as cluster:
        first, other = await cluster.start("A", "B")
        made: list[object] = []

        async def ensure(name: str) -> None:
            made.append(await cluster.brokers[name].admin.ensure_internal_topic("$state", 2))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ensure, "A")
            nursery.start_soon(ensure, "B")
        await wait_for(lambda: "$state" in first.log_table.topics and "$state" in other.log_table.topics)
        assert [first.log_table.topics["$state"].topic_id] == [other.log_table.topics["$state"].topic_id]
        assert first.topics == {}
        assert first.find_topic("$state") is None
        assert first.find_log("$state", 0) is None
        assert list(first.logs("$state")) == []
        with pytest.raises(ConfigError):
            await first.admin.delete_topic("$state")
        assert "$state" in first.log_table.topics


async def test_no_limit_drops_records_of_internal_topics_which_nodes_cannot_write(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster() as cluster:
        disk = cluster.disks["A"] = Disk("A")
        await disk.append([RecordBatch(Partition(each, "Z" * 32), 0, [b"node"]) for each in ("$state", "visits")])
        for _ in range(2):
            (broker,) = await cluster.start("A", store_retention_records=1, store_retention_interval_ms=20)
            logs = list(await broker.admin.ensure_internal_topic("$state", 2))
            assert [log.number for log in logs] == [0, 1]
            assert list(await broker.admin.ensure_internal_topic("$state", 2)) == logs
            await wait_for(lambda: cluster.log("A", "visits").high_watermark == 1)
            if not logs[1].high_watermark:
                await cluster.create("orders", "A")
                await cluster.append("A", b"1", b"2", b"3", topic="$state", number=1)
                await cluster.append("A", b"1", b"2", b"3")
            await wait_for(lambda: cluster.log("A").index.start_offset >= 2)
            assert await cluster.read("A", "$state", 1) == [b"1", b"2", b"3"]
            assert logs[0].high_watermark == 0
            assert "$state" not in broker.inventory.topics_without_logs()
            await cluster.stop("A")


async def test_a_store_that_becomes_a_broker_gives_its_records_offsets_the_oldest_partition_first(
    autojump_clock: MockClock,
) -> None:
    async with open_virtual_cluster() as cluster:
        disk = cluster.disks["A"] = Disk("A")
        for number, address in enumerate(("Z", "M", "B")):
            batch = RecordBatch(Partition("orders", address), 0, [b"%d" % number], timestamps=[1])
            await MemoryStorage.append(disk, [batch])
            for run in disk._logs[batch.partition].runs:
                assert run.timestamps is not None
            await trio.sleep(0.01)
        await MemoryStorage.append(disk, [RecordBatch(Partition("a b", "Z"), 0, [b"x"], timestamps=[1])])
        (broker,) = await cluster.start("A")
        await wait_for(lambda: cluster.leader() == "A" and cluster.log("A").high_watermark == 3)
        assert sorted(await cluster.read("A")) == [b"0", b"1", b"2"]
        assert broker.inventory.topics_without_logs() == ["a b"]
        before = await cluster.read("A")
        await cluster.stop("A")
        await cluster.start("A")
        assert await cluster.read("A") == before


async def test_the_state_of_the_cluster_is_read_from_the_storage_of_a_broker(autojump_clock: MockClock) -> None:
    assert await read_state(MemoryStorage()) is None
    async with open_virtual_cluster("AB", "AB") as cluster:
        first = cluster.brokers["A"]
        await cluster.create("gone", "AB")
        await first.admin.delete_topic("gone")
        await wait_for(lambda: list(cluster.brokers["B"].topics) == ["orders"])
        await trio.sleep(1)
        for name in "AB":
            state = await read_state(cluster.disks[name])
            assert state is not None
            assert state.topics == {"orders": first.find_topic("orders")}
            assert state.deleted_ids == first.tables.state.deleted_ids != set()
