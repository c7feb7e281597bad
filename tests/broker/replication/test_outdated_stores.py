"""Stores that have forgotten what they had written: their brokers go on under another id, and nothing is lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from dafka.broker.core.cluster_status import explain_leaderless
from dafka.broker.core.metadata.brokers import BROKERS_TOPIC
from dafka.broker.core.metadata.store_check import FORMER_RUNS_S
from dafka.broker.core.partition_address import INDEX_TOPIC
from dafka.broker.core.replication import local_log
from dafka.broker.core.replication.records import BRANCHES_TOPIC
from dafka.broker.metadata import controller as controllers
from dafka.broker.metadata.recovery import check_survivor, read_metadata, recover
from dafka.errors import RefusedChangeError
from dafka.records import Partition
from dafka.storage import Damage
from tests.broker.replication.virtual_cluster import VirtualCluster, open_virtual_cluster, wait_for

SETTINGS: dict[str, Any] = {"replicas": 3, "replace_replicas_after_ms": 10_000}


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controllers, "VOTER_AFTER_S", 3.0)


def address(cluster: VirtualCluster, name: str) -> str:
    return cluster.brokers[name].address


async def check_all_have(cluster: VirtualCluster, *values: bytes) -> None:
    """Check that three brokers become replicas, and that each of them stores these records, and no others."""
    await wait_for(lambda: len(cluster.in_sync()) == 3)
    leader = cluster.leader()
    await wait_for(lambda: cluster.log(leader).high_watermark == len(values))
    assert await cluster.read(leader) == list(values)
    replicas = cluster.log(leader).leadership.replicas
    for name in [name for name, each in cluster.brokers.items() if each.address in replicas]:
        partitions = cluster.brokers[name].storage.ends("orders")
        assert sorted([each for partition in partitions for each in await cluster.stored(name, partition)]) == [*values]


@pytest.mark.parametrize(
    ("is_leader", "loses"),
    [
        (True, "the last moment"),  # others cannot know what a follower has stored in the last moment
        *((is_leader, loses) for is_leader in (True, False) for loses in ("a day", "a day with a restart")),
    ],
)
async def test_a_store_that_has_forgotten_records_does_not_vote_for_a_leader_without_them(
    autojump_clock: MockClock, loses: str, *, is_leader: bool
) -> None:
    """All brokers are killed, and one of three comes back with an older disk while another one stays away."""
    async with open_virtual_cluster("ABC", "ABC", **SETTINGS) as cluster:
        leader = cluster.leader()
        followers = sorted({*"ABC"} - {leader})
        name, other = (leader, followers[0]) if is_leader else (followers[0], followers[1])
        away = next(each for each in "ABC" if each not in {name, other})
        await cluster.append(leader, b"a")
        former = cluster.brokers[name].brokers.own
        disk = cluster.disks[name].copy()
        if loses == "a day with a restart":
            await cluster.stop(name)
            await cluster.start(name, **SETTINGS)
            leader = await cluster.wait_leader("ABC")
        await cluster.append(leader, b"b")
        if loses != "the last moment":
            await trio.sleep(2)
        await cluster.stop(*"ABC")
        cluster.disks[name] = disk
        await cluster.start(name, other, are_cut=True, **SETTINGS)
        await wait_for(lambda: address(cluster, name) != former.address)
        await trio.sleep(10)
        assert cluster.leader() == "", "the brokers that have the records are no majority"
        await cluster.start(away, **SETTINGS)
        assert cluster.brokers[name].brokers.own.number == former.number
        await check_all_have(cluster, b"a", b"b")
        assert await cluster.append(cluster.leader(), b"c") == 2
        await check_all_have(cluster, b"a", b"b", b"c")
        begun = trio.current_time()
        await cluster.stop(name)
        await cluster.start(name, **SETTINGS)
        await cluster.brokers[name].joining.is_accepted.wait()
        assert trio.current_time() - begun < FORMER_RUNS_S, "the former id counts only once"


@pytest.mark.parametrize(
    ("topic", "sign"), [("orders", "checkpoint"), (INDEX_TOPIC, "checkpoint"), ("orders", "repair")]
)
async def test_a_store_that_has_lost_the_end_of_one_partition_of_another_broker_becomes_another(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, topic: str, sign: str
) -> None:
    """No other broker can tell: the partition is not its own, and its counter is whole."""
    monkeypatch.setattr(local_log, "CHECKPOINT_RECORDS", 1 if sign == "checkpoint" else 1000)
    async with open_virtual_cluster("ABC", "ABC", **SETTINGS) as cluster:
        await cluster.append(cluster.leader(), b"a")
        leader = cluster.leader()
        name = next(each for each in "ABC" if each != leader)
        former = address(cluster, name)
        partition = Partition(topic, cluster.log(leader).leader_partition.address)
        before = cluster.disks[name].copy()
        await cluster.append(leader, b"b")
        await trio.sleep(6)
        await cluster.stop(name)
        await cluster.start(name, are_cut=True, **SETTINGS)
        assert address(cluster, name) == former
        await cluster.stop(*"ABC")
        cluster.disks[name].take_back(before, partition)
        if sign == "repair":
            cluster.disks[name].repairs = [Damage("a file", "lost", partition, 1, 2, is_lost=True)]
        await cluster.start(*"ABC", **SETTINGS)
        assert address(cluster, name) != former
        await check_all_have(cluster, b"a", b"b")


@pytest.mark.parametrize("cloned", "ABC")
async def test_of_two_copies_of_a_store_the_second_one_to_start_becomes_another(
    autojump_clock: MockClock, cloned: str
) -> None:
    """One of these brokers is the controller, which registers the clone of its own store."""
    async with open_virtual_cluster("ABC", "ABC", **SETTINGS) as cluster:
        await cluster.append(cluster.leader(), b"a")
        cluster.disks["D"] = cluster.disks[cloned].copy()
        await cluster.start("D", **SETTINGS)
        assert address(cluster, cloned) == cloned * 32 != address(cluster, "D")
        numbers = {each.brokers.own.number for each in cluster.brokers.values()}
        assert numbers == {0, 1, 2, 3}
        assert cluster.in_sync() == cluster.replicas() == "ABC"
        await check_all_have(cluster, b"a")


@pytest.mark.parametrize("hears", [False, True])
async def test_a_clone_that_nobody_has_heard_never_displaces_the_store(
    autojump_clock: MockClock, *, hears: bool
) -> None:
    """It has written under the id of the other one, which has written less."""
    async with open_virtual_cluster("ABC", "ABC", **SETTINGS) as cluster:
        await cluster.append(cluster.leader(), b"a")
        cluster.disks["D"] = cluster.disks["C"].copy()
        cluster.cut("D", "ABC", is_one_way=hears)
        cluster.nursery.start_soon(partial(cluster.start, "D", are_cut=True, **SETTINGS))
        await trio.sleep(20)
        assert (cluster.sockets["D"].address == "C" * 32) != hears
        cluster.heal()
        await wait_for(lambda: "D" in cluster.sockets and cluster.sockets["D"].address != "C" * 32)
        await wait_for(lambda: "D" in cluster.brokers and cluster.brokers["D"].joining.has_joined.is_set())
        await trio.sleep(10)
        assert address(cluster, "C") == "C" * 32
        assert sorted(each.brokers.own.number for each in cluster.brokers.values()) == [0, 1, 2, 3]
        await check_all_have(cluster, b"a")
        for topic in (BRANCHES_TOPIC, BROKERS_TOPIC):
            partition = Partition(topic, "C" * 32)
            assert await cluster.stored("C", partition)
            assert await cluster.stored("D", partition) == await cluster.stored("C", partition)


async def test_a_clone_never_takes_the_place_of_a_store_that_is_cut_off_when_it_registers(
    autojump_clock: MockClock,
) -> None:
    async with open_virtual_cluster("ABC", "ABC", **SETTINGS) as cluster:
        await cluster.append(cluster.leader(), b"a")
        cluster.disks["D"] = cluster.disks["C"].copy()
        cluster.nursery.start_soon(partial(cluster.start, "D", are_cut=True, **SETTINGS))
        await wait_for(lambda: "D" in cluster.sockets and cluster.sockets["D"].address != "C" * 32)
        cluster.cut("CD", "AB")
        await trio.sleep(5)
        cluster.heal("AD", "BD")
        await wait_for(lambda: "D" in cluster.brokers and cluster.brokers["D"].joining.has_joined.is_set())
        cluster.heal()
        await wait_for(lambda: cluster.in_sync() == "ABC")
        assert address(cluster, "C") == "C" * 32
        assert sorted(each.brokers.own.number for each in cluster.brokers.values()) == [0, 1, 2, 3]
        await check_all_have(cluster, b"a")


async def test_stores_that_have_dropped_a_deleted_topic_keep_their_ids(autojump_clock: MockClock) -> None:
    """A broker with an older disk does not know that it is deleted, and still has its records."""
    settings = {**SETTINGS, "delete_delay_ms": 1000}
    async with open_virtual_cluster() as cluster:
        await cluster.start(*"ABC", **settings)
        await cluster.create("orders", "ABC")
        await cluster.append("A", b"a")
        await wait_for(lambda: cluster.in_sync() == "ABC")
        disk = cluster.disks["C"].copy()
        await cluster.brokers["A"].admin.delete_topic("orders")
        await trio.sleep(5)
        await cluster.stop(*"ABC")
        assert not {each for each in await cluster.disks["A"].partitions() if each.topic == "orders"}
        cluster.disks["C"] = disk
        await cluster.start(*"CAB", **settings)
        assert [address(cluster, each) for each in "AB"] == ["A" * 32, "B" * 32]
        assert address(cluster, "C") != "C" * 32


async def forget_last_start(cluster: VirtualCluster, name: str, then: Callable[[], Awaitable[object]]) -> None:
    """Do something, and have a broker come back under another id, with the disk that it had before."""
    disk, former = cluster.disks[name].copy(), address(cluster, name)
    await then()
    await trio.sleep(2)
    await cluster.stop(name)
    cluster.disks[name] = disk
    await cluster.start(name, are_cut=True, **SETTINGS)
    await wait_for(lambda: name in cluster.brokers and address(cluster, name) != former)


async def test_a_log_that_only_a_forgetful_store_has_is_recovered_there(autojump_clock: MockClock) -> None:
    """The store has another id since then, and the status names the command."""
    async with open_virtual_cluster("ABC", "C", **SETTINGS) as cluster:
        await cluster.append("C", b"a")
        await forget_last_start(cluster, "C", lambda: cluster.append("C", b"b"))
        node = cluster.brokers["A"]
        await wait_for(lambda: node.brokers.is_alive(address(cluster, "C")))
        number = cluster.brokers["C"].brokers.own.number
        assert explain_leaderless(cluster.log("A"), node.tables) == (
            "1 of its 1 voters has been forgotten, "
            f"`dafka topic recover orders --log 0 --from {number}` continues it with what that broker has"
        )
        with pytest.raises(RefusedChangeError, match="has never stored log 0 of orders"):
            await node.admin.recover_log(cluster.log("A"), "B" * 32)
        await node.admin.recover_log(cluster.log("A"), address(cluster, "C"))
        await cluster.wait_leader("C")
        assert await cluster.read("C") == [b"a"]
        assert await cluster.append("C", b"c") == 1


@pytest.mark.parametrize("survivor", ["own", "other"])
async def test_a_cluster_whose_only_voter_has_forgotten_something_is_recovered(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, survivor: str
) -> None:
    async with open_virtual_cluster("AB", "AB", **SETTINGS) as cluster:
        await cluster.append(cluster.leader(), b"a")
        (voter,) = [name for name in "AB" if name * 32 in cluster.brokers["A"].quorum.voters]
        (other,) = {*"AB"} - {voter}
        await forget_last_start(cluster, voter, lambda: cluster.brokers[voter].admin.create_topic("later"))
        await trio.sleep(30)
        assert not cluster.brokers[other].quorum.controller
        assert "recover the cluster with `dafka cluster recover`" in caplog.text
        await cluster.stop("A", "B")
        name = voter if survivor == "own" else other
        found = {each: await read_metadata(cluster.disks[each]) for each in "AB"}
        check_survivor(found[name], found)
        await recover(cluster.disks[name], found[name])
        await cluster.start(name, are_cut=True, **SETTINGS)
        await wait_for(lambda: cluster.brokers[name].controller.is_active)
        await cluster.start(*({*"AB"} - {name}), are_cut=True, **SETTINGS)
        await wait_for(lambda: all(each.joining.is_accepted.is_set() for each in cluster.brokers.values()))
        assert {each.number for each in cluster.brokers[name].tables.state.brokers.values()} == {0, 1}
        assert "later" in cluster.brokers[name].topics
