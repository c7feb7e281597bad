"""A cluster that has lost most of its voters goes on from the storage of one broker, and the former voters stay out."""

from __future__ import annotations

from contextlib import nullcontext

import attrs
import pytest
import trio
from trio.testing import MockClock

from dafka.broker.core.cluster_status import explain_leaderless
from dafka.broker.core.metadata.cluster_state import ClusterState
from dafka.broker.core.metadata.store_record import StoreRecord
from dafka.broker.core.replication.records import NO_EPOCH_END, LeaderAndEpoch
from dafka.broker.metadata import controller as controllers
from dafka.broker.metadata.recovery import StoredMetadata, check_survivor, read_metadata, recover
from dafka.errors import ConfigError, RefusedChangeError
from tests.broker.core.entries import epoch_end
from tests.broker.metadata.test_agreement import agree, controller, voters
from tests.broker.metadata.test_forgetting import forget
from tests.broker.replication.virtual_cluster import VirtualCluster, open_virtual_cluster, wait_for


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controllers, "VOTER_AFTER_S", 3.0)


async def recover_from(cluster: VirtualCluster, name: str, others: str = "") -> None:
    """Recover the cluster from the disk of a stopped broker, as the command does."""
    found = await read_metadata(cluster.disks[name])
    check_survivor(found, {each: await read_metadata(cluster.disks[each]) for each in others})
    await recover(cluster.disks[name], found)


async def create(cluster: VirtualCluster, name: str, topic: str) -> None:
    await cluster.brokers[name].admin.create_topic(topic, placement=[[name * 32]])


async def test_the_survivor_is_the_only_voter_and_others_join_it_again(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("ABC", replicas=1) as cluster:
        await create(cluster, "A", "kept")
        await agree(cluster)
        await cluster.stop("A", "B", "C")
        found = await read_metadata(cluster.disks["C"])
        assert (len(found.voters), found.log_end.end_offset, found.recovery) == (3, found.record.applied, 0)
        with pytest.raises(ConfigError, match="2 of the 3 voters on metadata are left, which is enough: start their"):
            await recover_from(cluster, "C", "A")
        await recover_from(cluster, "C")
        await cluster.start("C", are_cut=True)
        await wait_for(lambda: controller(cluster) == "C")
        assert voters(cluster.brokers["C"]) == "C"
        await create(cluster, "C", "later")
        await cluster.stop("C")
        await cluster.start("C", are_cut=True)
        await wait_for(lambda: controller(cluster) == "C")
        await cluster.start("A", "B", are_cut=True)
        await agree(cluster)
        assert all(list(each.topics) == ["kept", "later"] for each in cluster.brokers.values())
        await wait_for(lambda: {voters(each) for each in cluster.brokers.values()} == {"ABC"})
        await trio.sleep(2)
        await cluster.stop("C")
        await create(cluster, "A", "last")


def test_a_cluster_is_recovered_from_the_store_that_knows_most_if_too_few_voters_are_left() -> None:
    end, state = epoch_end(LeaderAndEpoch(1024, "a"), 7), ClusterState()
    own = StoredMetadata("a", StoreRecord("C", ("a",)), state, end, ("a", "b", "c"), 2)
    other, later = attrs.evolve(own, store_id="d"), epoch_end(LeaderAndEpoch(1024, "a"), 8)
    cases: list[tuple[StoredMetadata, str]] = [
        (other, ""),
        (attrs.evolve(other, recovery=1, log_end=later), ""),
        (attrs.evolve(other, log_end=later), "url has more of the log"),
        (attrs.evolve(other, recovery=3, log_end=NO_EPOCH_END), "url has more of the log"),
        (attrs.evolve(other, record=StoreRecord("E", ("a",))), "url belongs to another cluster, E"),
        (attrs.evolve(other, record=StoreRecord("C", ("a",), pending_recovery=1)), "is recovered from url already"),
        (attrs.evolve(own, store_id="b"), "2 of the 3 voters on metadata are left, which is enough"),
    ]
    check_survivor(own, {})
    for found, problem in cases:
        with pytest.raises(ConfigError, match=problem) if problem else nullcontext():
            check_survivor(own, {"url": found})
    state.forgotten_ids.add("a")
    with pytest.raises(ConfigError, match="the cluster has forgotten this store"):
        check_survivor(own, {})


async def test_former_voters_that_knew_more_end_and_decide_nothing(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("ABC", replicas=1) as cluster:
        await create(cluster, "A", "kept")
        await agree(cluster)
        await cluster.stop("C")
        await create(cluster, "A", "lost")
        await agree(cluster)
        await cluster.stop("A", "B")
        with pytest.raises(ConfigError, match="A has more of the log of metadata: recover the cluster from"):
            await recover_from(cluster, "C", "AB")
        await recover_from(cluster, "C")
        await cluster.start("C", are_cut=True)
        await wait_for(lambda: controller(cluster) == "C")
        await create(cluster, "C", "later")
        cluster.cut("AB", "C")
        ended = trio.Event()
        messages: list[str] = []

        async def run(name: str) -> None:
            with pytest.raises(ConfigError) as caught:
                await cluster.run(name, {"replicas": 1})
            messages.append(str(caught.value))
            if len(messages) == 2:
                ended.set()

        for name in "AB":
            cluster.nursery.start_soon(run, name)
        await trio.sleep(10)  # they go on as the former cluster, as long as they do not hear of the recovery
        cluster.heal()
        with trio.fail_after(60):
            await ended.wait()
        assert all("recovered without the last" in each for each in messages)
        assert list(cluster.brokers["C"].topics) == ["kept", "later"]
        assert voters(cluster.brokers["C"]) == "C"


async def test_a_cluster_whose_voters_are_alive_is_not_recovered(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("ABC", replicas=1) as cluster:
        await cluster.stop("C")
        await create(cluster, "A", "later")
        with pytest.raises(ConfigError, match="A has more of the log of metadata"):
            await recover_from(cluster, "C", "A")
        await recover_from(cluster, "C")
        for _ in range(2):
            await cluster.start("C")
            await trio.sleep(10)
            await agree(cluster)
            assert {voters(each) for each in cluster.brokers.values()} == {"ABC"}
            assert list(cluster.brokers["C"].topics) == ["later"]
            await cluster.stop("C")


@pytest.mark.parametrize("order", ["BC", "CB"])
@pytest.mark.parametrize("restarts", [0, 3])
async def test_of_two_recoveries_the_cluster_continues_one(
    order: str, restarts: int, autojump_clock: MockClock
) -> None:
    """The one that is first has a second voter, more changes, and later leader epochs if it starts again."""
    async with open_virtual_cluster("ABC", replicas=1) as cluster:
        first, second = order[0], order[1]
        await cluster.stop("A", "B", "C")
        for name in order:
            await recover_from(cluster, name)
        with pytest.raises(ConfigError, match=f"the cluster is recovered from {first} already"):
            await recover_from(cluster, second, first)
        cluster.cut(first + "A", second)
        ended: list[str] = []

        async def run(name: str) -> None:
            try:
                await cluster.run(name, {"replicas": 1})
            except ConfigError as error:
                ended.append(f"{name}: {error}")
                del cluster.brokers[name]

        async def start(name: str) -> None:
            del cluster.starting[name]
            cluster.nursery.start_soon(run, name)
            await wait_for(lambda: name in cluster.starting and cluster.starting[name].has_started.is_set())
            cluster.brokers[name] = cluster.starting[name]

        await start(first)
        await wait_for(lambda: cluster.brokers[first].controller.is_active)
        for _ in range(restarts):
            await cluster.stop(first)
            await start(first)
            await wait_for(lambda: cluster.brokers[first].controller.is_active)
        await start("A")
        await create(cluster, first, "of-first")
        await agree(cluster)
        await start(second)
        await wait_for(lambda: cluster.brokers[second].controller.is_active)
        await create(cluster, second, "of-second")
        cluster.heal()
        await trio.sleep(30)
        assert all(": the cluster was recovered without the last" in each for each in ended)
        (winner,) = set(order) - {each[0] for each in ended}
        await wait_for(lambda: controller(cluster) != "")
        await create(cluster, winner, "last")
        await agree(cluster)


# Single logs


async def test_a_log_continues_from_the_replica_that_is_left(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("ABCDE", "ABC", "CDE", replicas=3) as cluster:
        values = [b"%d" % each for each in range(20)]
        for each in values:
            await cluster.append(await cluster.wait_leader("ABC"), each)
        await wait_for(lambda: cluster.replicated("C").replica.local_epochs.log_end().end_offset == len(values))
        log = cluster.log("D")
        with pytest.raises(RefusedChangeError, match="log 0 of orders has a quorum, so it continues without"):
            await cluster.brokers["D"].admin.recover_log(log, "C" * 32)
        await cluster.stop("A", "B")
        await wait_for(lambda: all(len(each.brokers.living()) == 3 for each in cluster.brokers.values()))
        numbers = {name: each.brokers.own.number for name, each in cluster.brokers.items()}
        for name, reason in [("D", f"broker {numbers['D']} has never stored log 0 of orders"), ("A", "is not alive")]:
            with pytest.raises(RefusedChangeError, match=reason):
                await cluster.brokers["D"].admin.recover_log(log, name * 32)
        await forget(cluster, "D", "A", accepts_loss=True)
        await cluster.brokers["D"].admin.recover_log(log, "C" * 32)
        assert await cluster.append(await cluster.wait_leader("C"), b"later") == len(values)
        await wait_for(lambda: cluster.in_sync() == cluster.replicas() == "CDE")
        await cluster.start("B", are_cut=True)
        await trio.sleep(20)
        assert cluster.replicas() == "CDE", "the broker that is back does not become a replica by itself"
        await cluster.stop("C")
        leader = await cluster.wait_leader("DE")
        assert await cluster.read(leader) == [*values, b"later"]
        assert await cluster.append(leader, b"last") == len(values) + 1
        first = min(cluster.replicated(leader).replica.epoch_tree.starts)
        partition = cluster.replicated(leader).leader_partition(first)
        assert cluster.brokers["B"].storage.durable_end(partition) == len(values), "its copy stays"


async def test_a_present_replica_is_advised_before_a_former_one(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("ABC", replicas=1) as cluster:
        former, lost, left = sorted(cluster.brokers, key=lambda each: cluster.brokers[each].brokers.own.number)
        await cluster.create("orders", former)
        await cluster.brokers[lost].admin.change_replicas(cluster.log(lost), [lost * 32, left * 32])
        await wait_for(lambda: cluster.replicas() == cluster.in_sync() == "".join(sorted(lost + left)))
        await cluster.stop(lost)
        await forget(cluster, former, lost, accepts_loss=True)
        node = cluster.brokers[left]
        assert f"--from {node.brokers.own.number}` continues" in explain_leaderless(cluster.log(left), node.tables)


async def test_a_log_whose_brokers_are_all_forgotten_continues_without_records(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("ABC", "C", replicas=2) as cluster:
        await cluster.append("C", b"lost", b"lost")
        await cluster.stop("C")
        await forget(cluster, "A", "C", accepts_loss=True)
        node = cluster.brokers["A"]
        number = min(each.number for each in node.brokers.all())
        assert explain_leaderless(cluster.log("A"), node.tables) == (
            "1 of its 1 voters has been forgotten, "
            f"`dafka topic recover orders --log 0 --from {number}` continues it without records"
        )
        await node.admin.recover_log(cluster.log("A"), "B" * 32)
        assert await cluster.append(await cluster.wait_leader("B"), b"new") == 0
        await wait_for(lambda: cluster.in_sync() == cluster.replicas() == "AB")
        await cluster.stop("B")
        await cluster.start("B", are_cut=True)
        leader = await cluster.wait_leader("AB")
        assert await cluster.append(leader, b"newer") == 1
        assert await cluster.read(leader) == [b"new", b"newer"]
