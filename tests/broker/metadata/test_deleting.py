"""The records of a deleted topic end where any broker has heard its producers: later ones belong to the next topic."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from dafka import wire
from dafka.broker.metadata.controller import CLOSE_S
from dafka.records import Partition, RecordBatch
from tests.broker.metadata.test_agreement import controller
from tests.broker.replication.virtual_cluster import VirtualCluster, open_virtual_cluster, wait_for


def produce_at(
    cluster: VirtualCluster, name: str, first_sequence: int, *values: bytes, address: str = "D"
) -> Partition:
    """Publish records of a producer that only one broker receives."""
    partition = Partition("orders", address * 32)
    run = wire.RecordRun(RecordBatch(partition, first_sequence, values, timestamps=[1] * len(values)))
    cluster.sockets[name].arrive([run])
    return partition


@pytest.mark.parametrize("ahead", range(3))
async def test_a_topic_ends_after_the_last_records_that_any_broker_has(autojump_clock: MockClock, ahead: int) -> None:
    async with open_virtual_cluster("ABC", "ABC") as cluster:
        partition = cluster.produce(0, b"0", b"1")
        await wait_for(
            lambda: all(each.storage.ends("orders").get(partition) == 2 for each in cluster.brokers.values())
        )
        leader = controller(cluster)
        name = sorted("ABC", key=lambda each: each != leader)[ahead]
        produce_at(cluster, name, 2, b"2", b"3")
        other = produce_at(cluster, name, 0, b"other", address="E")
        await cluster.brokers["A"].admin.delete_topic("orders")
        starts = {partition: 4, other: 1}
        await wait_for(lambda: all(each.tables.state.producer_starts == starts for each in cluster.brokers.values()))
        await cluster.brokers["B"].admin.create_topic("orders")
        cluster.produce(3, b"3", b"4")
        await wait_for(lambda: cluster.leader() != "" and cluster.log(cluster.leader()).high_watermark > 0)
        assert await cluster.read(cluster.leader()) == [b"4"]


async def test_a_broker_that_cannot_be_asked_delays_the_end_of_a_topic_for_a_while(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("ABC", "ABC") as cluster:
        leader = controller(cluster)
        silent = min({*"ABC"} - {leader})
        state = cluster.brokers[leader].tables.state
        cluster.cut(silent, "ABC".replace(silent, ""))
        begun = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cluster.brokers[leader].admin.delete_topic, "orders")
            await wait_for(lambda: bool(state.deleting))
            await wait_for(lambda: not state.deleting)
        assert trio.current_time() - begun < CLOSE_S + 2
