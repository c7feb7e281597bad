"""Brokers of two versions of dafka in one cluster: what belongs to the later one is written only when all have it."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.metadata.commands import DrainBroker, SetFeatureLevel
from dafka.broker.core.metadata.features import FeatureLevels, FeatureSupport
from dafka.broker.node import BrokerNode
from dafka.errors import ConfigError, RefusedChangeError, StorageFormatError
from dafka.exceptions import unwrap_group
from tests.broker.metadata.test_agreement import controller
from tests.broker.replication.virtual_cluster import VirtualCluster, batch, open_virtual_cluster, wait_for

DRAINING = {DrainBroker.KIND: 2}
"""The later version has this command, and the former one does not know it."""

OLD = FeatureSupport(FeatureLevels(1, 1), DRAINING)
NEW = FeatureSupport(FeatureLevels(1, 2), DRAINING)


async def use_new_command(cluster: VirtualCluster, name: str, *, is_draining: bool = True) -> None:
    await cluster.brokers[name].admin.change(DrainBroker("A" * 32, is_draining))


def levels(cluster: VirtualCluster) -> set[int]:
    return {each.tables.state.members.feature_level for each in cluster.brokers.values()}


async def test_a_cluster_is_upgraded_one_broker_after_the_other(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("ABC", "ABC", support=OLD) as cluster:
        values = []
        for upgraded in ("", "A", "B", "C"):
            if upgraded:
                await cluster.stop(upgraded)
                await wait_for(lambda: controller(cluster) != "")
                await cluster.start(upgraded, support=NEW)
            assert levels(cluster) == {1}
            leader = await cluster.wait_leader("ABC")
            values.append(upgraded.encode())
            await cluster.append(leader, values[-1])
            for each in cluster.brokers if upgraded != "C" else "":
                with pytest.raises(RefusedChangeError, match=r"is not supported by broker [0-2]") as refused:
                    await cluster.brokers[each].admin.change(SetFeatureLevel(2))
                assert refused.value.error_code == ErrorCode.INVALID_UPDATE_VERSION
            if upgraded:
                with pytest.raises(RefusedChangeError, match="has the feature level 1, and this needs the level 2"):
                    await use_new_command(cluster, upgraded)
            await cluster.brokers[leader].admin.create_topic(f"by-{upgraded or 'nobody'}")
        await cluster.brokers["B"].admin.change(SetFeatureLevel(2))
        await wait_for(lambda: levels(cluster) == {2})
        await use_new_command(cluster, "C")
        with pytest.raises(RefusedChangeError, match="never lowered"):
            await cluster.brokers["A"].admin.change(SetFeatureLevel(1))
        await wait_for(lambda: cluster.leader() in {"B", "C"})
        assert await cluster.read(cluster.leader()) == values
        states = [each.tables.state for each in cluster.brokers.values()]
        await wait_for(lambda: states[0].records == states[1].records == states[2].records)


async def test_a_broker_that_does_not_support_the_level_is_refused(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("ABC", "ABC", support=NEW) as cluster:
        assert levels(cluster) == {2}, "a new cluster has the highest level that its brokers support"
        await cluster.append(await cluster.wait_leader("ABC"), b"1")
        await cluster.stop("C")
        before = await cluster.disks["C"].partitions()
        for name in "CDD":
            with pytest.raises(
                (ConfigError, StorageFormatError),
                match="the feature level 2, and this broker supports 1: update dafka on this",
            ):
                await cluster.run(name, {"support": OLD})
        assert await cluster.disks["C"].partitions() == before, "nothing is deleted"
        await cluster.start("C", support=NEW)
        await cluster.start("D", support=NEW)
        await use_new_command(cluster, "D")


async def test_a_command_that_is_not_known_is_not_skipped(autojump_clock: MockClock) -> None:
    brokers: list[BrokerNode] = []
    offsets: list[int] = []

    async def write_unknown_command() -> None:
        with unwrap_group():
            async with open_virtual_cluster("ABC") as cluster:
                brokers.extend(cluster.brokers.values())
                leader = cluster.brokers[controller(cluster)]
                assert leader.metadata.log is not None
                unknown = batch(b'{"version":1,"kind":"new","command":{}}')
                offsets.append(await leader.writer.append(leader.metadata.log, unknown).wait_offset())
                await trio.sleep_forever()

    with pytest.raises(StorageFormatError, match="a command 'new' that this version of dafka does not know"):
        await write_unknown_command()
    assert all(each.tables.state.applied <= offsets[0] for each in brokers)
