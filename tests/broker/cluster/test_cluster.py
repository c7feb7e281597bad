"""Clusters of broker processes under each fault of processes, disks, clocks and the network, with a client of Kafka."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from itertools import count
from pathlib import Path
from random import Random

import pytest
import trio

from tests.broker.cluster.brokers import (
    READY_S,
    TOWER,
    BrokerNode,
    ProcessCluster,
    find_replicas,
    list_brokers,
    open_cluster,
)
from tests.broker.cluster.disks import DISK_FAULTS
from tests.broker.cluster.faults import NETWORK_FAULTS, PROCESS_FAULTS, Faults
from tests.broker.cluster.network import deafen, find_obstacle, isolate, mute, ring, split
from tests.broker.cluster.traffic import IDEMPOTENT, PLAIN, TOPIC, Traffic, find_problems
from tests.broker.cluster.workload import Workload

OBSTACLE = find_obstacle()

LOGS = 6

ROUNDS = int(os.environ.get("DAFKA_FAULT_ROUNDS", "1"))
"""How often each fault is applied."""

MINUTES = float(os.environ.get("DAFKA_FAULT_MINUTES", "0"))
"""For how long faults are applied, instead of rounds, if it is not 0."""

SEED = int(os.environ.get("DAFKA_FAULT_SEED", "1"))
BROKERS = int(os.environ.get("DAFKA_FAULT_BROKERS", "5"))
STORAGE = os.environ.get("DAFKA_FAULT_STORAGE", "filelog")

FAULT_S = (1.0, 8.0)
"""How long a fault lasts: usually longer than others need to lead the logs of a broker."""

CUT_S = 14.0

on_processes = [
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="needs /proc"),
    pytest.mark.timeout(1800 + 1800 * ROUNDS + 120 * MINUTES),
]


async def apply_faults(cluster: ProcessCluster, workload: Workload, draw: Random, kinds: Sequence[str]) -> None:
    """Apply faults, some of them two at once, or before the cluster has recovered from the one before."""
    faults, begun = Faults(cluster, draw), trio.current_time()
    for turn in count(1):
        for kind in draw.sample(kinds, len(kinds)):
            if MINUTES and trio.current_time() > begun + 60 * MINUTES:
                return
            async with AsyncExitStack() as applied:
                await applied.enter_async_context(faults.apply(kind))
                if kind in PROCESS_FAULTS and cluster.network.can_split and draw.random() < 0.3:
                    await applied.enter_async_context(faults.apply(draw.choice(NETWORK_FAULTS)))
                await trio.sleep(draw.uniform(*FAULT_S))
            if draw.random() < 0.6:
                await workload.wait_more(cluster, kind)
        if not MINUTES and turn >= ROUNDS:
            return


class TestProcesses:
    """Faults of the network need network namespaces, and are left out without them."""

    pytestmark = on_processes

    async def test_no_fault_loses_doubles_moves_or_reveals_a_record_or_changes_a_topic(self, tmp_path: Path) -> None:
        kinds = [*PROCESS_FAULTS, *DISK_FAULTS, *(() if OBSTACLE else NETWORK_FAULTS)]
        async with open_cluster(tmp_path, BROKERS, is_split=not OBSTACLE, storage=STORAGE) as cluster:
            workload = await Workload.create(cluster, LOGS, Random(SEED))
            async with workload.run(cluster):
                await apply_faults(cluster, workload, Random(SEED), kinds)
            assert "\n".join(await workload.find_problems(cluster)) == ""

    async def test_a_branch_loses_no_acknowledged_record_by_any_fault(self, tmp_path: Path) -> None:
        kinds = [*PROCESS_FAULTS, *(() if OBSTACLE else NETWORK_FAULTS)]
        async with open_cluster(tmp_path, BROKERS, is_split=not OBSTACLE, storage=STORAGE) as cluster:
            await cluster.create_topic(TOPIC, LOGS, availability="branch")
            workload = Workload([Traffic(cluster.servers, LOGS, IDEMPOTENT, can_diverge=True)])
            async with workload.run(cluster):
                await apply_faults(cluster, workload, Random(SEED), kinds)
            assert "\n".join(await workload.find_problems(cluster)) == ""

    async def test_each_record_is_stored_once_while_brokers_are_restarted_and_drained_and_others_lead(
        self, tmp_path: Path
    ) -> None:
        """The producer has no id: brokers answer all requests before they end, and before others lead their logs."""
        async with open_cluster(tmp_path, 5, is_split=not OBSTACLE) as cluster:
            await cluster.create_topic(TOPIC, LOGS)
            first, second, third, *_ = cluster.brokers.values()
            workload = Workload([Traffic(cluster.servers, LOGS, PLAIN)])
            workload.senders[0].can_double = False
            async with workload.run(cluster):
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
                    await cluster.prefer(TOPIC, kept)
            assert await workload.find_problems(cluster) == []

    @pytest.mark.skipif(bool(OBSTACLE), reason=OBSTACLE or "there are namespaces")
    async def test_brokers_hear_each_other_soon_after_a_network_was_cut_for_long(self, tmp_path: Path) -> None:
        """TCP alone would send again 25 seconds after the cut, if that has lasted longer than 13."""
        async with open_cluster(tmp_path, 3, is_split=not OBSTACLE) as cluster:
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


@pytest.mark.parametrize(
    ("records", "found"),
    [
        ([(0, 0), (1, 1), (2, 2), (3, 3)], []),
        ([(0, 0), (1, 1), (2, 2)], []),
        ([(0, 0), (1, 2), (2, 3)], ["lost", "moved"]),
        ([(0, 0), (1, 1), (2, 2), (3, 3), (4, 3)], ["doubled"]),
        ([(0, 0), (1, 1), (2, 2), (3, 2)], ["doubled"]),
        ([(0, 1), (1, 0), (2, 2)], ["moved"]),
        ([(0, 0), (1, 1), (2, 2), (3, 4)], ["never sent"]),
    ],
)
def test_what_is_lost_doubled_moved_or_never_sent_is_found(records: list[tuple[int, int]], found: list[str]) -> None:
    """Of four records that were sent, the first three are acknowledged, the second one without its offset."""
    for can_diverge in (False, True):
        traffic = Traffic("", 1, IDEMPOTENT, can_diverge=can_diverge)
        traffic.sent, traffic.offsets = [4], [{0: 0, 1: None, 2: 2}]
        problems = find_problems(traffic, [[(offset, b"%d" % number) for offset, number in records]])
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
