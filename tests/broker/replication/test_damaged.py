"""Damaged records on the disk of one broker: nobody gets them, another broker leads, and the replica is copied anew."""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from dafka.errors import StorageCorruptError
from tests.broker.replication.virtual_cluster import VirtualCluster, open_virtual_cluster, wait_for

SETTINGS: dict[str, Any] = {"replicas": 3, "heartbeat_ms": 100, "delete_delay_ms": 1000}


async def read_all(cluster: VirtualCluster, count: int) -> list[bytes]:
    """Read the first records of the log as a client does: from its leader, again after an error."""
    found: list[bytes] = []
    with trio.fail_after(120):
        while len(found) < count:
            leader = cluster.leader()
            try:
                found += await cluster.read(leader, offset=len(found)) if leader else []
            except StorageCorruptError:
                await trio.sleep(0.1)
            await trio.sleep(0.01)
    return found


async def append_again_and_again(cluster: VirtualCluster, appended: list[bytes]) -> None:
    """Append records until cancelled, and collect the acknowledged ones."""
    while True:
        await trio.sleep(1)
        leader, value = cluster.leader(), b"%d" % len(appended)
        with trio.move_on_after(1):
            if leader and await cluster.append(leader, value) == len(appended):
                appended.append(value)


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("seed", range(3))
async def test_damage_on_one_disk_is_given_to_nobody_and_mended_from_the_others(
    autojump_clock: MockClock, seed: int, *, is_restarted: bool
) -> None:
    draw = random.Random(seed)
    async with open_virtual_cluster("ABC", "ABC", **SETTINGS) as cluster:
        values = [b"%d" % number for number in range(30)]
        for value in values:
            await cluster.append(cluster.leader(), value)
        name = cluster.leader() if draw.random() < 0.5 else draw.choice("ABC")
        disk, log = cluster.disks[name], cluster.log(cluster.leader())
        if is_restarted:
            await cluster.stop(name)
        ends = {each: info.end_sequence for each, info in (await disk.partitions()).items()}
        partitions = [each for each in ends if each.address == log.leader_partition.address]
        for partition in (draw.choice(partitions) for _ in range(draw.randint(1, 3))):
            disk.damaged.add((partition, draw.randrange(ends[partition])))
        if is_restarted:
            await cluster.start(name, **SETTINGS)
        assert await read_all(cluster, len(values)) == values
        cluster.nursery.start_soon(append_again_and_again, cluster, values)
        await wait_for(lambda: not cluster.brokers[name].damaged.names)
        await wait_for(lambda: cluster.in_sync() == "ABC")
        assert (await read_all(cluster, len(values)))[: len(values)] == values


async def test_a_damaged_record_that_no_other_broker_has_is_an_error_for_its_readers(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("AB", "A", **SETTINGS) as cluster:
        for value in (b"a", b"b", b"c"):
            await cluster.append("A", value)
        cluster.disks["A"].damaged.add((cluster.log("A").leader_partition, 1))
        assert await cluster.read("A") == [b"a"]
        with pytest.raises(StorageCorruptError, match="sequence 1"):
            await cluster.read("A", offset=1)
        assert await cluster.read("A", offset=2) == [b"c"]
        await trio.sleep(60)
        assert cluster.leader() == cluster.replicas() == "A"
