"""Topics that are deleted and made again, under brokers that are started again or were away meanwhile."""

from __future__ import annotations

from contextlib import suppress
from itertools import permutations
from pathlib import Path

import pytest
import trio

from dafka.broker.core.log.log_table import index_partition, leader_partition
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.partition_address import INDEX_TOPIC
from dafka.broker.node import BrokerNode
from dafka.errors import NotLeaderError, TopicDeletedError
from dafka.records import RecordBatch
from dafka.storage import open_storage
from tests.broker.nodes.broker_cluster import (
    PATIENCE_S,
    BrokerCluster,
    append,
    distinct,
    make_batch,
    open_broker_cluster,
    read,
)
from tests.waiting import wait_until

NAMES = ("a", "b", "c")
SCHEMES = ["filelog", "sqlite"]


def topics_of(cluster: BrokerCluster) -> list[tuple[str, str]]:
    """Return the names and ids of the topics; fail unless all brokers know the same."""
    (found,) = {
        tuple(sorted((each.name, each.topic_id) for each in broker.topics.values()))
        for broker in cluster.brokers.values()
    }
    return list(found)


async def recreate(broker: BrokerNode, name: str) -> None:
    if broker.find_topic(name) is not None:
        await broker.delete_topic(name)
    await broker.create_topic(name).wait()


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_lone_broker_keeps_the_newest_topic_through_restarts(tmp_path: Path, scheme: str) -> None:
    async with open_broker_cluster(tmp_path, scheme) as cluster:
        for number in range(6):
            broker = await cluster.start("a")
            if number:
                (log,) = broker.logs("orders")
                assert await read(broker, log) == [b"%d" % (number - 1)]
                assert [each for each in broker.topics if each != "orders"] == []
            for _ in range(2):
                await recreate(broker, "orders")
                await recreate(broker, "gone")
            await broker.delete_topic("gone")
            (log,) = broker.logs("orders")
            assert await append(broker, log, b"%d" % number) == 0
            await cluster.stop("a")


@pytest.mark.parametrize("order", list(permutations(NAMES))[:2], ids="".join)
async def test_several_brokers_keep_the_newest_topic_through_restarts(tmp_path: Path, order: tuple[str, ...]) -> None:
    async with open_broker_cluster(tmp_path) as cluster:
        brokers = await cluster.start_all(*NAMES)
        for each in brokers:
            await recreate(each, "orders")
            await wait_until(lambda: len({str(broker.find_topic("orders")) for broker in brokers}) == 1)
        await cluster.append("orders", 0, b"kept")
        before = topics_of(cluster)
        for name in NAMES:
            await cluster.stop(name)
        for name in order:
            await cluster.start(name)
        ((leader, log),) = await cluster.wait_led("orders")
        assert topics_of(cluster) == before
        assert set(await read(leader, log)) == {b"kept"}


async def test_broker_that_was_away_learns_of_deletion_and_new_topic_together(tmp_path: Path) -> None:
    async with open_broker_cluster(tmp_path) as cluster:
        (first, *_) = await cluster.start_all(*NAMES)
        await first.create_topic("orders").wait()
        await cluster.append("orders", 0, b"old")
        await cluster.stop("c")
        await recreate(first, "orders")
        await cluster.wait_led("orders")
        await cluster.append("orders", 0, b"new")
        away = await cluster.start("c")
        await wait_until(lambda: str(away.find_topic("orders")) == str(first.find_topic("orders")))
        ((leader, log),) = await cluster.wait_led("orders")
        assert set(await read(leader, log)) == {b"new"}


@pytest.mark.parametrize("count", [1, 3])
async def test_appends_that_wait_end_when_their_topic_is_deleted(tmp_path: Path, count: int) -> None:
    async with open_broker_cluster(tmp_path) as cluster:
        await cluster.start_all(*NAMES[:count])
        for _ in range(5):
            broker = cluster.brokers["a"]
            await broker.create_topic("orders").wait()
            ((leader, log),) = await cluster.wait_led("orders")
            appended = leader.writer.append(log, make_batch(b"x"))
            await broker.delete_topic("orders")
            with trio.fail_after(PATIENCE_S), suppress(TopicDeletedError, NotLeaderError):  # or it was in time
                await appended.wait_offset()
            await wait_until(lambda: not any(each.topics for each in cluster.brokers.values()))
            with pytest.raises(NotLeaderError):
                leader.writer.append(log, make_batch(b"y"))


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_partitions_that_no_topic_names_are_kept(tmp_path: Path, scheme: str) -> None:
    """They may belong to a topic that another broker knows, or whose record is lost."""
    async with open_broker_cluster(tmp_path, scheme) as cluster:
        broker = await cluster.start("a")
        await broker.create_topic("orders").wait()
        (log,) = broker.logs("orders")
        await append(broker, log, b"own")
        address = broker.address
        await cluster.stop("a")
        unknown = Topic("orders", "1D" * 16)
        orphan, index = leader_partition(address, unknown, 0), index_partition(address, unknown, 0)
        async with open_storage(f"{scheme}:{tmp_path / 'a'}") as storage:
            await storage.append(
                [RecordBatch(each, 0, [b"orphan"] * 3, timestamps=[1] * 3) for each in (orphan, index)]
            )
        for _ in range(2):
            broker = await cluster.start("a")
            (log,) = broker.logs("orders")
            assert await read(broker, log) == [b"own"]
            assert broker.inventory.orphans() == {orphan: 3}
            await cluster.stop("a")
        async with open_storage(f"{scheme}:{tmp_path / 'a'}", read_only=True) as storage:
            assert (await storage.partitions("orders"))[orphan].count == 3
            assert (await storage.partitions(INDEX_TOPIC))[index].count == 3


async def test_deletion_that_was_recorded_is_finished_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def drop_nothing(*_arguments: object) -> None:
        pass

    async with open_broker_cluster(tmp_path) as cluster:
        broker = await cluster.start("a")
        await broker.create_topic("orders").wait()
        (log,) = broker.logs("orders")
        await append(broker, log, b"x")
        with monkeypatch.context() as patched:
            patched.setattr(broker.deletion, "drop_topic", drop_nothing)  # as if the broker were killed before
            await broker.delete_topic("orders")
            await cluster.stop("a")
        broker = await cluster.start("a")
        assert broker.find_topic("orders") is None
        await wait_until(lambda: not broker.storage.ends("orders"))
        await cluster.stop("a")
        async with open_storage(f"filelog:{tmp_path / 'a'}", read_only=True) as storage:
            assert await storage.partitions("orders") == {}


async def test_leader_epochs_of_a_topic_go_on_behind_those_of_a_deleted_one_of_its_name(tmp_path: Path) -> None:
    """Clients such as librdkafka know logs by names, and ignore a leader of an earlier epoch."""
    async with open_broker_cluster(tmp_path) as cluster:
        await cluster.start_all(*NAMES)
        for _ in range(2):
            await cluster.brokers["a"].create_topic("orders").wait()
            ((leader, _),) = await cluster.wait_led("orders")
            await cluster.append("orders", 0, b"old")
            first = cluster.name_of(leader)
            await cluster.stop(first)
            ((_, log),) = await cluster.wait_led("orders")
            epoch = log.leadership.epoch
            assert epoch > 0
            await cluster.start(first)
            await cluster.brokers["a"].delete_topic("orders")
            await wait_until(lambda: not any(each.topics for each in cluster.brokers.values()))
            await cluster.brokers["b"].create_topic("orders").wait()
            ((leader, log),) = await cluster.wait_led("orders")
            assert log.leadership.epoch > epoch
            await cluster.append("orders", 0, b"new")
            for name in NAMES:
                await cluster.stop(name)
            await cluster.start_all(*NAMES)
            ((leader, log),) = await cluster.wait_led("orders")
            assert log.leadership.epoch > epoch
            assert distinct(await read(leader, log)) == [b"new"]
            await cluster.brokers["c"].delete_topic("orders")
            await wait_until(lambda: not any(each.topics for each in cluster.brokers.values()))
