"""Logs with the availability "branch": each side goes on by itself, and afterwards the log has the records of both."""

from __future__ import annotations

from pathlib import Path

import pytest

from dafka.broker.core.log.log import Log
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.partition_address import name_log
from dafka.broker.node import BrokerNode
from tests.broker.nodes.broker_cluster import BrokerCluster, append, open_broker_cluster, read
from tests.waiting import wait_until

pytestmark = pytest.mark.trio

QUICK = {"leader_timeout_ms": 300, "replace_replicas_after_ms": 60_000}


async def lead_alone(cluster: BrokerCluster, name: str, *values: bytes) -> None:
    """Let one broker of two lead the log alone, which appends some records."""
    ((leader, log),) = await cluster.wait_led("orders")
    assert leader is cluster.brokers[name]
    for each in values:
        await append(leader, log, each)


async def make_branches(cluster: BrokerCluster) -> None:
    """Let two brokers append `a0` and `a1`, and `b0` and `b1`, which have `both` before. Afterwards both run."""
    brokers = await cluster.start_all("a", "b", **QUICK)
    await brokers[0].create_topic("orders", 1, {"availability": "branch"}, replica_count=2).wait()
    ((leader, log),) = await cluster.wait_led("orders")
    await append(leader, log, b"both")
    await wait_until(lambda: all(find_end(each) == 1 for each in brokers))
    await cluster.stop("b")
    await lead_alone(cluster, "a", b"a0", b"a1")
    await cluster.stop("a")
    await cluster.start("b", **QUICK)
    await lead_alone(cluster, "b", b"b0", b"b1")
    await cluster.start("a", **QUICK)


def find_end(broker: BrokerNode) -> int:
    """Return up to which offset a broker holds the log."""
    log = broker.replicator.logs.find(name_log(broker.log_table.topics["orders"].topic_id, 0))
    return -1 if log is None else log.replica.local_epochs.log_end().end_offset


async def find_contents(cluster: BrokerCluster) -> list[bytes]:
    """Return the records of the log when both brokers keep the same."""

    def is_whole() -> bool:
        led = cluster.logs("orders")
        return len(led) == 1 and led[0][1].high_watermark == 5 and len(led[0][1].leadership.in_sync) == 2

    await wait_until(is_whole)
    ((leader, log),) = cluster.logs("orders")
    return await read(leader, log)


def find_order(values: list[bytes], side: bytes) -> list[bytes]:
    return [each for each in values if each.startswith(side)]


async def test_the_log_has_the_records_of_both_sides(tmp_path: Path) -> None:
    async with open_broker_cluster(tmp_path) as cluster:
        await make_branches(cluster)
        values = await find_contents(cluster)
        assert sorted(values) == [b"a0", b"a1", b"b0", b"b1", b"both"]
        assert values[0] == b"both"
        assert find_order(values, b"a") == [b"a0", b"a1"]


async def test_a_leader_that_begins_anew_appends_the_records_of_other_branches_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a leader has appended to a branch that does not go on is not in the log."""
    heal, lost = LogTable.merge_divergent, list[Log]()

    def lose(log_table: LogTable, log: Log, entries: object) -> None:
        if log.topic == "orders" and not lost:
            lost.append(log)
            return
        heal(log_table, log, entries)  # type: ignore[arg-type]

    monkeypatch.setattr(LogTable, "merge_divergent", lose)
    async with open_broker_cluster(tmp_path) as cluster:
        await make_branches(cluster)
        await wait_until(lambda: bool(lost))
        (leader,) = (each for each in cluster.brokers.values() if lost[0] in each.log_table.logs("orders"))
        begin_anew(leader)
        assert sorted(await find_contents(cluster)) == [b"a0", b"a1", b"b0", b"b1", b"both"]


def begin_anew(leader: BrokerNode) -> None:
    """Let the leader of the log begin another branch with the same replicas."""
    log = leader.replicator.logs.find(name_log(leader.log_table.topics["orders"].topic_id, 0))
    assert log is not None
    leader.replicator.act(leader.replicator.logs.change_replicas(log, log.replica.replicas))
