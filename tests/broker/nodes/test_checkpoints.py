"""Checkpoints of brokers: what need not be read again when one is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from dafka.broker.core.partition_address import name_log
from dafka.broker.core.replication.checkpoints import CHECKPOINTS_TOPIC, decode_checkpoint
from dafka.broker.core.replication.replicated_logs import ReplicatedLog
from dafka.broker.node import BrokerNode
from dafka.records import Partition
from dafka.storage import DeletesPartitions, open_storage
from tests.broker.nodes.broker_cluster import BrokerCluster, distinct, open_broker_cluster, read, record_read_indexes
from tests.waiting import wait_until

pytestmark = pytest.mark.trio


@pytest.fixture
def records_read(monkeypatch: pytest.MonkeyPatch) -> list[Partition]:
    """The partition of each index record that a broker has read to start."""
    monkeypatch.setattr("dafka.broker.replication.checkpoints.WRITE_S", 0.05)
    return record_read_indexes(monkeypatch, "replication.replica_loader")


def log_of(broker: BrokerNode) -> ReplicatedLog:
    log = broker.replicator.logs.find(name_log(broker.log_table.topics["orders"].topic_id, 0))
    assert log is not None
    return log


async def end_a_branch(cluster: BrokerCluster) -> tuple[str, Partition]:
    """Let another broker lead after the first one, and return what that is called, and the index of its branch."""
    first, *_ = await cluster.start_all("a", "b", "c")
    await first.create_topic("orders").wait()
    await cluster.append("orders", 0, b"1")
    await cluster.append("orders", 0, b"2")
    ((leader, log),) = await cluster.wait_led("orders")
    name, ended = cluster.name_of(leader), log.index_partition
    await cluster.stop(name)
    await cluster.append("orders", 0, b"3")
    await cluster.start(name)
    await wait_until(lambda: is_in_sync(cluster))
    return name, ended


def is_in_sync(cluster: BrokerCluster) -> bool:
    return any(len(log.leadership.in_sync) == 3 for _, log in cluster.logs("orders"))


def checkpointed_end(broker: BrokerNode, index: Partition) -> int:
    found = broker.storage.state(CHECKPOINTS_TOPIC).get(index.address.encode())
    return 0 if found is None else decode_checkpoint(found).index_end


async def test_a_broker_that_starts_reads_no_index_that_a_checkpoint_covers(
    tmp_path: Path, records_read: list[Partition]
) -> None:
    async with open_broker_cluster(tmp_path) as cluster:
        name, ended = await end_a_branch(cluster)
        await wait_until(lambda: all(checkpointed_end(each, ended) == 2 for each in cluster.brokers.values()))
        for restarted in [name, *(other for other in cluster.brokers if other != name)]:
            before = log_of(cluster.brokers[restarted]).local_log.ends()
            await cluster.stop(restarted)
            records_read.clear()
            broker = await cluster.start(restarted)
            assert ended not in records_read
            held = log_of(broker).local_log
            assert {branch: held.ends()[branch] for branch in before} == before
            await wait_until(lambda: is_in_sync(cluster))
        await cluster.append("orders", 0, b"4")
        for broker, log in cluster.logs("orders"):
            assert distinct(await read(broker, log)) == [b"1", b"2", b"3", b"4"]


async def test_a_checkpoint_does_not_count_where_records_were_lost(
    tmp_path: Path, records_read: list[Partition]
) -> None:
    async with open_broker_cluster(tmp_path) as cluster:
        _, ended = await end_a_branch(cluster)
        name, broker = next(each for each in cluster.brokers.items() if not each[1].policy.owns(ended))
        await wait_until(lambda: checkpointed_end(broker, ended) == 2)
        await cluster.stop(name)
        async with open_storage(f"filelog:{tmp_path / name}") as storage:
            assert isinstance(storage, DeletesPartitions)
            await storage.delete_partitions([Partition("orders", ended.address)])
        records_read.clear()
        again = await cluster.start(name)
        assert ended in records_read
        await wait_until(lambda: again.storage.durable_end(Partition("orders", ended.address)) == 2)  # fetched again
        log = log_of(again)
        await wait_until(lambda: log.replica.local_epochs.is_complete(log.replica.latest.leader_epoch))
