"""The records of a deleted topic end where any broker has heard its producers: later ones belong to the next topic."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from dafka.broker.core.node_machine import BrokerMachine
from dafka.broker.metadata.controller import CLOSE_S, ProducerEndsRequest
from dafka.records import Partition
from tests.broker.metadata.test_agreement import controller
from tests.broker.replication.virtual_cluster import VirtualCluster, open_virtual_cluster, wait_for


async def delete(cluster: VirtualCluster) -> float:
    """Delete the topic at its controller. Return how long it takes until its records have an end."""
    broker = cluster.brokers[controller(cluster)]
    begun, state = trio.current_time(), broker.tables.state
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.admin.delete_topic, "orders")
        await wait_for(lambda: bool(state.deleting))
        await wait_for(lambda: not state.deleting)
        return trio.current_time() - begun


@pytest.mark.parametrize("ahead", range(3))
async def test_a_topic_ends_after_the_last_records_that_any_broker_has(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    async with open_virtual_cluster("ABC", "ABC") as cluster:
        partition = cluster.produce(0, b"0", b"1")
        brokers, leader = list(cluster.brokers.values()), controller(cluster)
        await wait_for(lambda: all(each.storage.ends("orders").get(partition) == 2 for each in brokers))
        name = sorted("ABC", key=lambda each: each != leader)[ahead]
        find = BrokerMachine.next_sequence

        def find_more(machine: BrokerMachine, found: Partition) -> int:
            return find(machine, found) + 2 * (found == partition and machine.address == name * 32)

        with monkeypatch.context() as patch:
            patch.setattr(BrokerMachine, "next_sequence", find_more)
            assert await delete(cluster) < CLOSE_S
        await wait_for(lambda: all(each.tables.state.producer_starts == {partition: 4} for each in brokers))
        await cluster.brokers["B"].admin.create_topic("orders")
        cluster.produce(2, b"2", b"3", b"4")
        await wait_for(lambda: cluster.leader() != "" and cluster.log(cluster.leader()).high_watermark > 0)
        assert await cluster.read(cluster.leader()) == [b"4"]


async def test_a_broker_that_does_not_answer_delays_the_end_of_a_topic_for_a_while(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("ABC", "ABC") as cluster:
        silent = min({*"ABC"} - {controller(cluster)})
        cluster.brokers[silent].messenger.on(ProducerEndsRequest, lambda *_: None)
        assert CLOSE_S <= await delete(cluster) < CLOSE_S + 1
