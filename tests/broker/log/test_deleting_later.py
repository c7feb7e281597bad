"""Records of deleted topics and of former replicas are kept for a while, and nobody sees them meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from dafka.records import Partition
from tests.broker.replication.virtual_cluster import VirtualCluster, open_virtual_cluster, wait_for

DELAY_S = 16
SETTINGS: dict[str, Any] = {"delete_delay_ms": DELAY_S * 1000, "replicas": 3}


async def delete(cluster: VirtualCluster) -> None:
    await cluster.brokers["A"].admin.delete_topic("orders")


async def move(cluster: VirtualCluster) -> None:
    cluster.brokers["A"].replicator.reassigner.prefer_leaders(cluster.replicated("A"))
    await cluster.brokers["A"].admin.change_replicas(cluster.log("A"), [each * 32 for each in "ACE"])
    await wait_for(lambda: cluster.replicas() == "ACE")
    await cluster.append("A", b"z")


@pytest.mark.parametrize("change", [delete, move])
@pytest.mark.parametrize("is_restarted", [False, True])
async def test_records_are_deleted_a_while_after_a_command_whatever_happens_meanwhile(
    change: Callable[[VirtualCluster], Any], is_restarted: bool, autojump_clock: MockClock
) -> None:
    async with open_virtual_cluster("ABCE", "ABC", **SETTINGS) as cluster:
        native = cluster.produce(0, b"n")
        await wait_for(lambda: cluster.log("A").high_watermark == 1)
        await cluster.append("A", b"x", b"y")
        own, index, disk = cluster.log("A").leader_partition, cluster.log("A").index_partition, cluster.disks["B"]
        await wait_for(lambda: cluster.earliest("B", own) == [0] and cluster.in_sync() == "ABC")
        topic_id = cluster.brokers["A"].topics["orders"].topic_id
        await change(cluster)

        async def kept() -> set[Partition]:
            infos = await disk.partitions()
            return {each for each, info in infos.items() if info.count and (topic_id in each.address or each == native)}

        await trio.sleep(DELAY_S * 0.75)
        assert await kept() >= {own, index, native}
        if is_restarted:
            await cluster.stop("B")
            await cluster.start("B", **SETTINGS)
            await trio.sleep(DELAY_S * 0.75)
            assert await kept() >= {own, index, native}
        machine = cluster.brokers["B"].inventory._machine
        if change is delete:
            assert own not in machine.reassembler.cursors
            assert not machine.stored.durable_end(own), "no other node hears of it"
            assert not (await cluster.brokers["B"].inventory.partitions("orders"))[1:]
        with trio.fail_after(2 * DELAY_S):
            while await kept() != ({native} if change is move else set()):  # noqa: ASYNC110 (a storage tells of nothing)
                await trio.sleep(0.1)
