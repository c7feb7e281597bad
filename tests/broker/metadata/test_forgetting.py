"""Brokers that are lost for good are forgotten: others take their place, and their stores never come back."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from dafka.broker.core.replication.records import (
    BRANCHES_TOPIC,
    NO_EPOCH_END,
    LeaderAndEpoch,
    Vote,
    encode_control,
    key_of,
)
from dafka.broker.metadata import controller as controllers
from dafka.errors import ConfigError, RefusedChangeError
from dafka.records import Partition
from tests.broker.metadata.test_agreement import controller, voters
from tests.broker.replication.virtual_cluster import VirtualCluster, batch, open_virtual_cluster, wait_for


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controllers, "VOTER_AFTER_S", 3.0)


async def forget(cluster: VirtualCluster, at: str, name: str, *, accepts_loss: bool = False) -> None:
    """Have a broker request that another one is forgotten, and wait until all have forgotten it."""
    await wait_for(lambda: all(not each.brokers.is_alive(name * 32) for each in cluster.brokers.values()))
    await cluster.brokers[at].admin.forget_broker(name * 32, accepts_loss=accepts_loss)
    await wait_for(lambda: all(name * 32 not in each.tables.state.brokers for each in cluster.brokers.values()))


async def test_a_lost_broker_is_replaced_and_its_store_never_returns(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("ABC", "ABC", replicas=3, replace_replicas_after_ms=10_000) as cluster:
        values = [b"%d" % each for each in range(20)]
        for each in values:
            await cluster.append(cluster.leader(), each)
        number = cluster.brokers["C"].brokers.own.number
        await cluster.stop("C")
        await forget(cluster, "B", "C")
        assert voters(cluster.brokers["A"]) == "ABC", "there are never fewer voters"
        (fourth,) = await cluster.start("D", replicas=3, replace_replicas_after_ms=10_000)
        assert fourth.brokers.own.number == number, "its number is free"
        await wait_for(lambda: {voters(each) for each in cluster.brokers.values()} == {"ABD"})
        await wait_for(lambda: cluster.replicas() == cluster.in_sync() == "ABD")
        for _ in range(2):
            with pytest.raises(ConfigError, match=f"has forgotten this store \\({'C' * 32}\\), .* an empty storage"):
                await cluster.run("C", {})
        await cluster.stop("B")
        leader = await cluster.wait_leader("AD")
        assert await cluster.append(leader, b"later") == len(values)
        assert await cluster.read(leader) == [*values, b"later"]
        await cluster.brokers["A"].admin.create_topic("later")


async def test_votes_and_acknowledgements_of_a_forgotten_store_do_not_count(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("ABC", "ABC", replicas=3) as cluster:
        await cluster.stop("C")
        await forget(cluster, "A", "C")
        leader = await cluster.wait_leader("AB")
        replicator, replica = cluster.brokers[leader].replicator, cluster.replicated(leader).replica
        epoch = replica.latest.leader_epoch
        index = cluster.replicated(leader).index_partition(epoch)
        cluster.cut("A", "B")
        pending = cluster.brokers[leader].writer.append(cluster.log(leader), batch(b"x"))
        await wait_for(lambda: replica.local_epochs.end_of(epoch) == 1)
        replicator.record_acknowledgements({(index, "C" * 32): cluster.brokers[leader].storage.durable_end(index)})
        assert replica.high_watermark == 0
        vote = Vote(cluster.replicated(leader).name, LeaderAndEpoch(2**20, "C" * 32), NO_EPOCH_END, ())
        key = key_of(vote).encode()
        replicator.learn(Partition(BRANCHES_TOPIC, "C" * 32), [(key, encode_control(vote))])
        assert not replica.has_voted("C" * 32, 0)
        cluster.heal()
        assert await pending.wait_offset() == 0


async def test_a_broker_is_not_forgotten_while_it_is_alive_or_logs_need_it(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("ABC", "C", "ABC", "AC", replicas=1) as cluster:
        number = cluster.brokers["C"].brokers.own.number
        for name in "ABC":
            with pytest.raises(RefusedChangeError, match=f"broker {number} is alive: drain it, and stop it before"):
                await cluster.brokers[name].admin.forget_broker("C" * 32)
        described = cluster.brokers["A"].admin.describe_removal("C" * 32)
        others = {each.log.number: {name[0] for name in each.others} for each in described}
        assert others == {0: set(), 1: {*"AB"}, 2: {"A"}}
        assert [each.is_led for each in described] == [cluster.leader(number=n) == "C" for n in range(3)]
        assert described[0].is_led
        await cluster.stop("C")
        for name in "AB":
            with pytest.raises(
                RefusedChangeError, match=f"without broker {number}, 2 logs .*: orders/0, orders/2; .* accept"
            ):
                await forget(cluster, name, "C")
        with pytest.raises(RefusedChangeError, match="there is no such broker"):
            await cluster.brokers["A"].admin.forget_broker("X" * 32)
        assert [
            (each.log.number, each.has_quorum) for each in cluster.brokers["B"].admin.describe_removal("C" * 32)
        ] == [
            (0, False),
            (1, True),
            (2, False),
        ]
        await forget(cluster, "B", "C", accepts_loss=True)
        await cluster.append(await cluster.wait_leader("AB", number=1), b"x", number=1)
        await cluster.brokers["A"].admin.forget_broker("C" * 32)


async def test_a_drained_voter_is_replaced_also_if_it_is_the_controller(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("AB", replicas=1) as cluster:
        former = controller(cluster)
        (other,) = set("AB") - {former}
        await cluster.brokers[other].admin.set_draining(former * 32, is_draining=True)
        await wait_for(lambda: voters(cluster.brokers[former]) == other)
        await wait_for(lambda: controller(cluster) == other)
        await cluster.stop(former)
        await trio.sleep(5)
        await cluster.brokers[other].admin.create_topic("later")
