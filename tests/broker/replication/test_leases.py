"""No two brokers hold the lease of a log at the same time, whatever happens to links and processes."""

from __future__ import annotations

from itertools import combinations
from random import Random

import pytest
import trio
from trio.testing import MockClock

from tests.broker.replication.virtual_cluster import VirtualCluster, open_virtual_cluster, wait_for

STEPS = 10
NAMES = "ABC"


def holders(cluster: VirtualCluster) -> list[str]:
    """Return the brokers that answer readers what is the latest in the log."""
    return [name for name, each in cluster.brokers.items() if each.leases.holds_lease(cluster.log(name))]


async def check(cluster: VirtualCluster) -> None:
    while True:
        logs = [each.log_table.find_log("orders", 0) for each in cluster.brokers.values()]
        assert None in logs or len(holders(cluster)) <= 1
        await trio.sleep(0.01)


@pytest.mark.parametrize("seed", range(6))
async def test_one_broker_at_most_answers_what_is_the_latest(seed: int, autojump_clock: MockClock) -> None:
    random = Random(seed)
    async with open_virtual_cluster(NAMES, NAMES) as cluster, trio.open_nursery() as nursery:
        nursery.start_soon(check, cluster)
        for _ in range(STEPS):
            step = random.choice(("cut", "cut", "restart", "restart", "heal"))
            if step == "cut":
                one, other = random.choice([*combinations(NAMES, 2)])
                cluster.cut(one, other, is_one_way=random.random() < 0.5)
            elif step == "heal":
                cluster.heal()
            else:
                name = random.choice(NAMES)
                await cluster.stop(name)
                await cluster.start(name, are_cut=True)
            await trio.sleep(random.choice((0.05, 0.3, 1.0, 2.0)))
        cluster.heal()
        await wait_for(lambda: cluster.leader() != "" and cluster.in_sync() == NAMES)
        await wait_for(lambda: holders(cluster) == [cluster.leader()])
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("number", range(8))
async def test_a_broker_that_restarts_keeps_what_the_leader_relies_on(number: int, autojump_clock: MockClock) -> None:
    """Another broker asks for its vote, which hears the leader as little as it does now."""
    async with open_virtual_cluster(NAMES, NAMES) as cluster, trio.open_nursery() as nursery:
        nursery.start_soon(check, cluster)
        await trio.sleep(1)
        cluster.cut("A", "C")
        await trio.sleep(2 + number / 8)
        cluster.cut("A", "B")
        await cluster.stop("B")
        await cluster.start("B", are_cut=True)
        assert await cluster.wait_leader("BC")
        nursery.cancel_scope.cancel()
