"""A broker whose disk is almost full takes no records of clients, and everything that the cluster needs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from dafka.broker.core.partition_address import INDEX_TOPIC
from dafka.broker.log.space_reserve import CHECK_S
from dafka.config import Config
from dafka.errors import StorageError
from dafka.records import Partition
from dafka.storage.disk_space import DiskSpace, measure_disk
from tests.broker.nodes.test_broker import open_broker
from tests.broker.replication.virtual_cluster import (
    VirtualCluster,
    batch,
    open_virtual_cluster,
    running_broker,
    wait_for,
)
from tests.waiting import wait_until

RESERVE = 2**28
FREE = DiskSpace(2**40, 2**39)


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The free space of each broker's disk; enough for those that are not in it."""
    found: dict[str, int] = {}

    def measure(_url: str) -> DiskSpace:
        return FREE._replace(free=found.get(running_broker(), FREE.free))

    for module in ("log.space_reserve", "replication.reassignment"):
        monkeypatch.setattr(f"dafka.broker.{module}.measure_disk", measure)
    return found


async def is_refused(cluster: VirtualCluster, name: str) -> bool:
    """Return whether a broker refuses records of clients in all ways."""
    storage = cluster.brokers[name].storage
    try:
        await storage.wait_capacity()
    except StorageError:
        assert storage.problem
        return True
    assert not storage.problem
    return False


async def test_a_full_cluster_can_delete_topics_and_elect_leaders_and_then_goes_on(
    free: dict[str, int], autojump_clock: MockClock
) -> None:
    async with open_virtual_cluster("ABC", "ABC", delete_delay_ms=0) as cluster:
        await cluster.create("payments", "ABC")
        await cluster.append("A", b"x")
        free.update(dict.fromkeys("ABC", RESERVE - 1))
        await trio.sleep(1)
        assert [await is_refused(cluster, each) for each in "ABC"] == [True] * 3
        native = cluster.produce(0, b"n")
        stored = await cluster.disks["B"].partitions("orders")
        await cluster.stop("A")
        await cluster.wait_leader("BC", "payments")
        first = cluster.brokers["B"]
        await wait_for(lambda: first.controller_address != "")
        await first.admin.delete_topic("payments")
        assert await cluster.disks["B"].partitions("orders") == stored
        assert native not in stored
        free.clear()
        await wait_for(lambda: not any(each.storage.problem for each in cluster.brokers.values()))
        leader = await cluster.wait_leader("BC")
        cluster.produce(0, b"n")  # the producer sends it again
        await wait_for(lambda: cluster.log(leader).high_watermark == 2)
        await cluster.append(leader, b"y")
        assert sorted(await cluster.read(leader)) == [b"n", b"x", b"y"]


async def test_another_broker_leads_the_logs_of_a_full_one_which_copies_nothing_more(
    free: dict[str, int], autojump_clock: MockClock
) -> None:
    async with open_virtual_cluster("ABC", "ABC", preferred_leader_after_ms=1000) as cluster:
        await cluster.append("A", b"x")
        await wait_for(lambda: cluster.in_sync() == "ABC")
        free["A"] = RESERVE - 1
        leader = await cluster.wait_leader("BC")
        before = await cluster.disks["A"].partitions()
        await cluster.append(leader, b"y")
        log = cluster.log(leader)
        await trio.sleep(5)
        after = await cluster.disks["A"].partitions()
        of_log = {log.leader_partition, log.index_partition, Partition(INDEX_TOPIC, log.leader_partition.address)}
        assert {each: after.get(each) for each in of_log} == {each: before.get(each) for each in of_log}
        free["A"] = 2 * RESERVE
        await wait_for(lambda: cluster.in_sync() == "ABC")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of a few megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=16m", "dafka-test", str(folder)]
    if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


async def test_a_broker_on_a_small_disk_keeps_its_reserve_and_frees_space(small_disk: Path) -> None:
    url, reserve = f"filelog:{small_disk}/log", 4 * 2**20
    with trio.fail_after(60):
        config = Config().with_broker(reserve_bytes=reserve, delete_delay_ms=0)
        async with open_broker(url, config) as (_, broker):
            await broker.admin.create_topic("orders", 1)
            (log,) = broker.logs("orders")
            while not broker.storage.problem:
                await broker.writer.append(log, batch(os.urandom(2**16))).wait_offset()
                await trio.sleep(CHECK_S / 10)
            found = measure_disk(url)
            assert found is not None
            assert reserve / 2 < found.free < 1.1 * reserve
            with pytest.raises(StorageError, match="reserve_bytes"):
                await broker.storage.wait_capacity()
            await broker.admin.delete_topic("orders")
            await wait_until(lambda: not broker.storage.problem)
