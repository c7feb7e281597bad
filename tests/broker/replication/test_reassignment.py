"""Replicas that follow the brokers of a cluster: some come, are drained, die, or are named by an operator."""

from __future__ import annotations

from functools import partial
from typing import Any

from trio.testing import MockClock

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.partition_address import INDEX_TOPIC
from dafka.broker.replication.preferred_leader import PreferredLeaderElections
from tests.broker.replication.virtual_cluster import VirtualCluster, open_virtual_cluster, wait_for

QUICK: dict[str, Any] = {
    "preferred_leader_after_ms": 500,
    "replace_replicas_after_ms": 1000,
    "delete_delay_ms": 1000,
}


def kept(cluster: VirtualCluster, topic: str, count: int) -> list[str]:
    return [cluster.replicas(topic, number) for number in range(count)]


async def test_a_broker_alone_shares_its_logs_with_those_that_come(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster() as cluster:
        await cluster.start("A", **QUICK)
        await cluster.brokers["A"].admin.create_topic("orders", 2)
        for number in range(2):
            await cluster.append("A", b"a", b"b", number=number)
        await cluster.start("B", "C", **QUICK)
        await wait_for(lambda: [cluster.in_sync("orders", number) for number in range(2)] == ["ABC", "ABC"])
        await cluster.stop("A")
        for number in range(2):
            leader = await cluster.wait_leader("BC", "orders", number)
            assert await cluster.read(leader, number=number) == [b"a", b"b"]


async def test_a_drained_broker_hands_over_its_logs_and_keeps_nothing(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster() as cluster:
        await cluster.start("A", "B", "C", "D", **QUICK)
        await cluster.brokers["A"].admin.create_topic("orders", 4)
        await wait_for(lambda: all(cluster.leader("orders", number) for number in range(4)))
        for number in range(4):
            await cluster.append(cluster.leader("orders", number), b"x", number=number)
        drained = cluster.brokers["A"]
        await drained.admin.set_draining(drained.address, is_draining=True)
        await wait_for(lambda: all(each and "A" not in each for each in kept(cluster, "orders", 4)))
        await wait_for(lambda: all(cluster.is_metadata(each.address) for each in drained.storage.ends(INDEX_TOPIC)))
        await wait_for(lambda: not drained.storage.ends("orders"))
        assert kept(cluster, "orders", 4) == ["BCD"] * 4
        for number in range(4):
            assert await cluster.read(cluster.leader("orders", number), number=number) == [b"x"]


async def test_the_preferred_replica_leads_when_it_is_asked_for(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("ABC", "ABC", "BCA", preferred_leader_after_ms=3_600_000) as cluster:
        elections = {
            name: PreferredLeaderElections(each.log_table, each.replicator, each.messenger)
            for name, each in cluster.brokers.items()
        }
        assert await elections["B"].elect_preferred(cluster.log("B"), 10) == ErrorCode.ELECTION_NOT_NEEDED
        await cluster.stop("A")
        await cluster.wait_leader("BC")
        found = await elections["B"].elect_preferred(cluster.log("B"), 10)
        assert found == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        (again,) = await cluster.start("A", preferred_leader_after_ms=3_600_000)
        PreferredLeaderElections(again.log_table, again.replicator, again.messenger)
        await wait_for(lambda: cluster.in_sync() == "ABC")
        asked = next(each for each in "BC" if each != cluster.leader())
        assert await elections[asked].elect_preferred(cluster.log(asked), 10) == ErrorCode.NONE
        assert cluster.leader() == "A"
        assert cluster.leader("orders", 1) == "B"


async def test_all_brokers_name_the_preferred_replica_first(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("ABC", "ABC") as cluster:
        for order in ("CAB", "BCA"):
            replicas = tuple(each * 32 for each in order)
            await cluster.brokers["A"].admin.change_replicas(cluster.log("A"), replicas)
            await wait_for(partial(is_named_by_all, cluster, replicas))


def is_named_by_all(cluster: VirtualCluster, replicas: tuple[str, ...]) -> bool:
    return all(cluster.log(each).leadership.replicas == replicas for each in "ABC")
