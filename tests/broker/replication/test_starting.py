"""How a broker of a cluster starts: what it tells clients at once, and what it writes."""

from __future__ import annotations

from collections import Counter

import trio
from trio.testing import MockClock

from dafka.broker.core.metadata.cluster_state import METADATA_TOPIC
from dafka.broker.core.metadata.store_record import CLUSTER_TOPIC
from dafka.broker.core.partition_address import INDEX_TOPIC
from tests.broker.replication.virtual_cluster import VirtualCluster, open_virtual_cluster, wait_for

PLACEMENT = ("ABC", "BCA", "CAB")
"""The replicas of three logs, each led by another broker."""


async def start_together(cluster: VirtualCluster, names: str = "ABC") -> None:
    async with trio.open_nursery() as nursery:
        for each in names:
            nursery.start_soon(cluster.start, each)


def leaders(cluster: VirtualCluster, name: str) -> list[str]:
    """Return the leaders of the logs, as a broker that starts describes them to clients."""
    node = cluster.starting[name]
    return [node.brokers.leader_of(log.leadership)[:1] for log in node.logs("orders")]


async def test_a_broker_describes_the_cluster_before_others_have_checked_its_storage(
    autojump_clock: MockClock,
) -> None:
    """It does so as it has stored it, with the last leaders, but leads nothing, whether it was stopped or killed."""
    async with open_virtual_cluster("ABC", *PLACEMENT) as cluster:
        await cluster.stop("A")
        moved = [await cluster.wait_leader("BC", number=number) for number in range(3)]
        await cluster.start("A")
        known = cluster.starting["A"]
        await wait_for(lambda: [each.leadership.leader[:1] for each in known.logs("orders")] == moved)
        await cluster.stop("A", "B", "C")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cluster.start, "A")
            await wait_for(lambda: cluster.starting["A"] is not known)
            found = cluster.starting["A"]
            assert leaders(cluster, "A") == moved
            assert not any(log.leadership.is_led for log in found.logs("orders"))
            assert {each.address[0] for each in found.brokers.advertised()} == set("ABC")
            assert not found.has_started.is_set()
            await start_together(cluster, "BC")
        assert [await cluster.wait_leader("ABC", number=number) for number in range(3)]


async def test_a_broker_that_joins_copies_no_logs_before_it_knows_which_it_keeps(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("ABC", *PLACEMENT) as cluster:
        for number in range(3):
            await cluster.append(cluster.leader("orders", number), b"one", b"two", number=number)
        await cluster.start("D")
        kept = {partition.topic for partition in await cluster.disks["D"].partitions()}
        assert kept >= {"$brokers", "$branches", METADATA_TOPIC}
        assert "orders" not in kept
        indexes = [each for each in await cluster.disks["D"].partitions() if each.topic == INDEX_TOPIC]
        assert all(cluster.is_metadata(each.address) for each in indexes)


async def count_start(log_count: int) -> tuple[Counter[str], int]:
    """Return how many records three brokers write when they start again, by topic, and how many tasks then run."""
    async with open_virtual_cluster("ABC", *PLACEMENT * (log_count // 3), preferred_leader_after_ms=10**9) as cluster:
        await cluster.append("A", b"one")
        await cluster.stop("A", "B", "C")
        before = await count_records(cluster)
        await start_together(cluster)
        await wait_for(lambda: all(cluster.leader("orders", number) for number in range(log_count)))
        await trio.sleep(30)
        written = await count_records(cluster)
        written.subtract(before)
        return +written, trio.lowlevel.current_statistics().tasks_living


async def count_records(cluster: VirtualCluster) -> Counter[str]:
    """Return how many records all disks have got of each topic, without those that tell the time or who is alive."""
    found = Counter[str]()
    for disk in cluster.disks.values():
        for partition, info in (await disk.partitions()).items():
            if partition.topic != CLUSTER_TOPIC:
                found[partition.topic] += info.end_sequence
    return found


async def test_what_a_start_writes_and_which_tasks_run_do_not_depend_on_the_number_of_logs(
    autojump_clock: MockClock,
) -> None:
    """Leaders go on in their epochs, and an idle log needs no task."""
    few, many = await count_start(3), await count_start(60)
    assert few == many
