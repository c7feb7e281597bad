"""Brokers that stop hand over their logs, on a clock that jumps."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from dafka.broker.core.metadata.cluster_state import METADATA_TOPIC
from dafka.broker.replication import handover
from dafka.broker.replication.handover import CHECK_S, HAND_OVER_S, NOTICE_S, TakeLeadership
from dafka.broker.replication.leader import IN_SYNC_S
from dafka.errors import NotLeaderError
from tests.broker.replication.virtual_cluster import VirtualCluster, batch, open_virtual_cluster, wait_for

TIMEOUT_S = 1.0
"""The default of `leader_timeout_ms`."""

PLACEMENT = ("ABC", "ACB", "BCA", "CAB", "AB", "BC", "CA", "A") * 2
"""The replicas of each log, the preferred one first."""

EVERY = range(len(PLACEMENT))
SHARED = [number for number, replicas in enumerate(PLACEMENT) if len(replicas) > 1]
LASTING = [number for number, replicas in enumerate(PLACEMENT) if len(replicas) > 2]
"""The logs that go on without one of their replicas."""


class Producers:
    """Producers of all logs, which send each record to the leader until it is committed."""

    def __init__(self, cluster: VirtualCluster) -> None:
        self.cluster = cluster
        self.committed: defaultdict[int, list[tuple[float, bytes]]] = defaultdict(list)

    async def run(self, number: int) -> None:
        count = 0
        while True:
            await trio.sleep(0.05)
            leader = self.cluster.leader(number=number)
            if not leader:
                continue
            value = b"%d" % count
            try:
                await self.cluster.append(leader, value, number=number)
            except (NotLeaderError, KeyError):
                continue
            self.committed[number].append((trio.current_time(), value))
            count += 1

    def longest_pause(self, number: int) -> float:
        times = [at for at, _ in self.committed[number]]
        return max(after - before for before, after in pairwise(times))

    async def check_all_stored(self) -> None:
        for number, found in self.committed.items():
            values = await self.cluster.read(self.cluster.leader(number=number), number=number)
            distinct = list(dict.fromkeys(values))  # a record whose outcome was unknown was sent again
            assert [value for _, value in found] == distinct[: len(found)]


@pytest.mark.parametrize("availability", ["majority", "branch"])
async def test_others_lead_at_once_when_a_broker_stops_and_preferred_ones_lead_again_when_it_is_back(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, availability: str
) -> None:
    """Each of them is asked once for each log, and a message names few logs."""
    monkeypatch.setattr(handover, "LOGS_MAX", 2)
    asked = list[str]()
    settings: dict[str, Any] = {"preferred_leader_after_ms": 3000}
    async with (
        open_virtual_cluster("ABC", *PLACEMENT, topic={"availability": availability}, **settings) as cluster,
        trio.open_nursery() as nursery,
    ):
        producers = Producers(cluster)
        for number in EVERY:
            nursery.start_soon(producers.run, number)
        before = [cluster.leader(number=each) for each in EVERY]
        stopped = cluster.leader(METADATA_TOPIC)
        await trio.sleep(1)
        messenger, began = cluster.brokers[stopped].messenger, trio.current_time()

        def send(broker: str, message: Any, send: Any = messenger.send) -> None:
            assert len(message.logs) <= 2
            asked.extend(message.logs)
            send(broker, message)

        monkeypatch.setattr(messenger, "send", send)
        await cluster.brokers[stopped].handover.run()
        assert len(asked) == len(set(asked))
        assert trio.current_time() < began + TIMEOUT_S / 2
        logs = [cluster.log(stopped, number=each) for each in SHARED] + [cluster.log(stopped, METADATA_TOPIC)]
        assert {each.leadership.leader[:1] for each in logs} == set("ABC".replace(stopped, "")), "clients learn them"
        await cluster.stop(stopped)
        await trio.sleep(2 * TIMEOUT_S)
        assert all(cluster.leader(number=each) for each in LASTING)
        if availability == "majority":  # with "branch", nothing is committed until the broker counts as dead
            assert max(map(producers.longest_pause, LASTING)) < TIMEOUT_S / 2
        await cluster.start(stopped, **settings)
        await wait_for(lambda: [cluster.leader(number=each) for each in EVERY] == before)
        assert [cluster.replicas(number=each) for each in EVERY] == ["".join(sorted(each)) for each in PLACEMENT]
        nursery.cancel_scope.cancel()
        await producers.check_all_stored()


@pytest.mark.parametrize("apart_s", [0.0, CHECK_S, NOTICE_S / 2])
async def test_brokers_that_all_stop_do_not_wait_for_each_other(autojump_clock: MockClock, apart_s: float) -> None:
    async with open_virtual_cluster("ABC", *PLACEMENT) as cluster, trio.open_nursery() as nursery:
        began = trio.current_time()
        for name in "ABC":
            nursery.start_soon(cluster.hand_over, name)
            await trio.sleep(apart_s)
        await wait_for(lambda: not cluster.brokers)
        assert trio.current_time() < began + 2 * apart_s + NOTICE_S


async def test_a_broker_alone_and_the_last_one_do_not_wait(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("ABC", *PLACEMENT) as cluster:
        await cluster.hand_over("A")
        await cluster.hand_over("B")
        began = trio.current_time()
        await cluster.brokers["C"].handover.run()
        assert trio.current_time() == began
    async with open_virtual_cluster("A", "A") as cluster:
        began = trio.current_time()
        await cluster.brokers["A"].handover.run()
        assert trio.current_time() == began


@pytest.mark.parametrize(("slow", "leader"), [("C", "B"), ("BC", "A")])
async def test_only_replicas_in_sync_take_over(autojump_clock: MockClock, slow: str, leader: str) -> None:
    async with open_virtual_cluster("ABC", "ACB") as cluster:
        assert cluster.leader() == "A"
        for each in slow:
            cluster.disks[each].append_s = 1000
        cluster.brokers["A"].writer.append(cluster.log("A"), batch(b"x"))
        await trio.sleep(IN_SYNC_S + 2 * TIMEOUT_S)
        await cluster.brokers["A"].handover.run()
        assert cluster.log("A").leadership.leader[:1] == leader


async def test_a_broker_does_not_wait_long_for_one_that_does_not_take_over(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("ABC", "ABC", "ABC") as cluster:
        cluster.disks["B"].append_s = cluster.disks["C"].append_s = 1000
        began = trio.current_time()
        await cluster.brokers["A"].handover.run()
        assert trio.current_time() == pytest.approx(began + HAND_OVER_S)


@pytest.mark.parametrize("is_stopping", [False, True])
async def test_a_broker_that_stops_takes_over_nothing(autojump_clock: MockClock, is_stopping: bool) -> None:
    async with open_virtual_cluster("ABC", "ACB") as cluster:
        cluster.brokers["B"].membership.update_registration(is_stopping=is_stopping)
        name = cluster.replicated("A").name
        cluster.brokers["A"].messenger.send("B" * 32, TakeLeadership(("unknown/0", name)))
        await trio.sleep(TIMEOUT_S)
        assert cluster.leader() == ("A" if is_stopping else "B")
