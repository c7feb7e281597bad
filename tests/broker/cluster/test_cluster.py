"""Clusters of broker processes under each fault of processes, disks, clocks and the network, with a client of Kafka."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable
from functools import partial
from pathlib import Path
from random import Random
from urllib.request import Request, urlopen

import pytest
import trio

from tests.broker.cluster.brokers import (
    READY_S,
    TOWER,
    BrokerNode,
    ProcessCluster,
    find_leaders,
    find_replicas,
    list_brokers,
    open_cluster,
)
from tests.broker.cluster.faults import NETWORK_FAULTS, PROCESS_FAULTS, Faults
from tests.broker.cluster.network import deafen, find_obstacle, isolate, mute, ring, split
from tests.broker.cluster.traffic import IDEMPOTENT, PLAIN, TOPIC, Records, Traffic, find_problems, read_settled

OBSTACLE = find_obstacle()

LOGS = 6

ROUNDS = int(os.environ.get("DAFKA_FAULT_ROUNDS", "1"))
"""How often each fault is applied."""

SEED = int(os.environ.get("DAFKA_FAULT_SEED", "1"))

FAULT_S = 4.0
"""How long a fault lasts: longer than others need to lead the logs of a broker."""

CUT_S = 14.0

on_processes = [
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="needs /proc"),
    pytest.mark.timeout(900 + 600 * ROUNDS),
]


async def run_traffic(cluster: ProcessCluster, traffic: Traffic, what_happens: Awaitable[None]) -> list[str]:
    """Have a producer send records while something happens, and return what is wrong with the logs in the end."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, traffic.run)
        try:
            await wait_more(cluster, traffic, "the start")
            await what_happens
            await cluster.wait_in_sync(TOPIC, LOGS)
        finally:
            traffic.stop()
    found = await trio.to_thread.run_sync(read_settled, cluster.servers, LOGS)
    return [*find_problems(traffic, found), *cluster.timeline.problems]


async def wait_more(cluster: ProcessCluster, traffic: Traffic, after: str) -> None:
    """Wait until records of all logs are acknowledged that were sent after something."""
    sent = list(traffic.sent)
    await cluster.wait_until(lambda: traffic.is_more_acknowledged(sent), f"not every log goes on after {after}")


DOUBLES = pytest.mark.xfail(
    strict=False, reason="issue 43: a batch that reached both sides of a split can be in the log twice afterwards"
)


class TestProcesses:
    """Five brokers. Faults of the network need network namespaces, and are left out without them."""

    pytestmark = on_processes

    @pytest.mark.parametrize("availability", ["majority", pytest.param("branch", marks=DOUBLES)])
    async def test_no_acknowledged_record_is_lost_moved_or_doubled_by_any_fault(
        self, availability: str, tmp_path: Path
    ) -> None:
        draw = Random(SEED)
        kinds = [*PROCESS_FAULTS, *(() if OBSTACLE else NETWORK_FAULTS)] * ROUNDS
        draw.shuffle(kinds)
        async with open_cluster(tmp_path, 5, is_split=not OBSTACLE) as cluster:
            await cluster.create_topic(TOPIC, LOGS, availability=availability)
            traffic = Traffic(cluster.servers, LOGS, IDEMPOTENT, can_diverge=availability == "branch")

            async def apply_all() -> None:
                faults = Faults(cluster, draw)
                for kind in kinds:
                    async with faults.apply(kind):
                        await trio.sleep(FAULT_S)
                    await wait_more(cluster, traffic, kind)

            assert "\n".join(await run_traffic(cluster, traffic, apply_all())) == ""

    async def test_each_record_is_stored_once_while_brokers_are_restarted_and_drained_and_others_lead(
        self, tmp_path: Path
    ) -> None:
        """The producer has no id: brokers answer all requests before they end, and before others lead their logs."""
        async with open_cluster(tmp_path, 5) as cluster:
            await cluster.create_topic(TOPIC, LOGS)
            first, second, third, *_ = cluster.brokers.values()
            traffic = Traffic(cluster.servers, LOGS, PLAIN)

            async def restart_and_move() -> None:
                for broker in (second, third):
                    await cluster.set_draining(broker, is_draining=True)
                    await cluster.wait_until(partial(has_no_logs, first, broker), f"{broker.name} keeps logs")
                    await broker.node.terminate(READY_S)
                    await cluster.start(broker)
                    await cluster.set_draining(broker, is_draining=False)
                for broker in list(cluster.brokers.values()):
                    await broker.node.terminate(READY_S)
                    await cluster.start(broker)
                    await cluster.wait_members()
                    await cluster.wait_in_sync(TOPIC, LOGS)
                kept = await trio.to_thread.run_sync(find_replicas, first.servers, TOPIC)
                for _ in range(3):
                    kept = {log: [*brokers[1:], brokers[0]] for log, brokers in kept.items()}
                    await prefer(cluster, first, kept)

            assert await run_traffic(cluster, traffic, restart_and_move()) == []

    @pytest.mark.skipif(bool(OBSTACLE), reason=OBSTACLE or "there are namespaces")
    async def test_brokers_hear_each_other_soon_after_a_network_was_cut_for_long(self, tmp_path: Path) -> None:
        """TCP alone would send again 25 seconds after the cut, if that has lasted longer than 13."""
        async with open_cluster(tmp_path, 3, is_split=True) as cluster:
            first, *others = cluster.brokers

            def is_heard() -> bool:
                return all(len(list_brokers(cluster.brokers[each].servers)) == 3 for each in others)

            begun = trio.current_time()
            await cluster.network.cut(split([first], [*others, TOWER]))
            await cluster.wait_until(lambda: not is_heard(), "the other brokers hear it still")
            await trio.sleep_until(begun + CUT_S)
            await cluster.network.cut(())
            await cluster.wait_until(is_heard, f"the other brokers do not hear {first} yet", CUT_S / 2)


def has_no_logs(asked: BrokerNode, broker: BrokerNode) -> bool:
    found = find_replicas(asked.servers, TOPIC)
    return bool(found) and all(broker.number not in brokers for brokers in found.values())


async def prefer(cluster: ProcessCluster, asked: BrokerNode, kept: dict[int, list[int]]) -> None:
    """Have brokers keep logs, the first of which is to lead, and wait until it does."""

    def ask() -> None:
        for log, brokers in kept.items():
            body, head = json.dumps({"replicas": brokers}).encode(), {"Content-Type": "application/json"}
            request = Request(f"{asked.url}/topics/{TOPIC}/logs/{log}/replicas", body, head, method="PUT")
            with urlopen(request, timeout=READY_S) as answer:
                answer.read()

    leaders = {log: brokers[0] for log, brokers in kept.items()}
    await trio.to_thread.run_sync(ask)
    await cluster.wait_until(lambda: find_leaders(asked.servers, TOPIC) == leaders, "the preferred brokers do not lead")


@pytest.mark.parametrize(
    ("records", "found"),
    [
        ([(0, 0), (1, 1), (2, 2), (3, 3)], []),
        ([(0, 0), (1, 1), (2, 2)], []),
        ([(0, 0), (1, 2), (2, 3)], ["lost", "moved"]),
        ([(0, 0), (1, 1), (2, 2), (3, 3), (4, 3)], ["doubled"]),
        ([(0, 0), (1, 1), (2, 2), (3, 2)], ["doubled", "moved"]),
        ([(0, 1), (1, 0), (2, 2)], ["moved"]),
        ([(0, 0), (1, 1), (2, 2), (3, 4)], ["never sent"]),
    ],
)
def test_what_is_lost_doubled_moved_or_never_sent_is_found(records: Records, found: list[str]) -> None:
    """Of four records that were sent, the first three are acknowledged, the second one without its offset."""
    for can_diverge in (False, True):
        traffic = Traffic("", 1, {}, can_diverge=can_diverge)
        traffic.sent, traffic.offsets = [4], [{0: 0, 1: None, 2: 2}]
        problems = find_problems(traffic, [records])
        assert [how for how in ("lost", "doubled", "moved", "never sent") if how in " ".join(problems)] == [
            each for each in found if each != "moved" or not can_diverge
        ]


def test_shapes_of_splits() -> None:
    assert split("ab", "c") == {("a", "c"), ("b", "c"), ("c", "a"), ("c", "b")}
    assert isolate("a", "abc") == {("a", "b"), ("a", "c"), ("b", "a"), ("c", "a")}
    assert deafen("a", "abc") == {("b", "a"), ("c", "a")}
    assert mute("a", "abc") == {("a", "b"), ("a", "c")}
    assert ring("abcd") == {("a", "c"), ("c", "a"), ("b", "d"), ("d", "b")}
    assert ring("abc") == set()
