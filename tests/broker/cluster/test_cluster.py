"""Clusters of broker processes whose brokers are killed, stopped and cut off, under clients of Kafka."""

from __future__ import annotations

import sys
from pathlib import Path

import attrs
import pytest
import trio

from tests.broker.cluster import producer_client
from tests.broker.cluster.brokers import TOWER, ProcessCluster, find_leaders, find_replicas, list_brokers, open_cluster
from tests.broker.cluster.checker import check
from tests.broker.cluster.faults import FAULTS, NETWORK_FAULTS, Fault
from tests.broker.cluster.histories import load
from tests.broker.cluster.network import find_obstacle, split
from tests.broker.cluster.run import TOPIC, Run, Size, read_contents, start_client, wait_in_sync
from tests.chaos.processes import Node

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="needs /proc"),
    pytest.mark.timeout(600),
]

needs_namespaces = pytest.mark.skipif(bool(find_obstacle()), reason=find_obstacle() or "there are namespaces")

SMALL = Size(brokers=3, logs=6, producers=2, groups=1, rate=1000, is_split=False)

FAILOVER_S = 2.0

KILLS = 3

CUT_S = 14.0

MORE = 200
"""So many further records show that a log goes on: more than can have been on their way."""


async def run_faults(size: Size, folder: Path, *faults: Fault) -> Run:
    """Run faults, and check that no promise is broken."""
    run = Run(size, faults, folder)
    problems = await run.run(0.0)
    assert problems == [], "\n".join((*problems, (folder / "timeline.txt").read_text()))
    return run


@pytest.mark.parametrize("kind", [each for each in FAULTS if each not in NETWORK_FAULTS])
async def test_nothing_is_lost_by_a_fault_of_processes(kind: str, tmp_path: Path) -> None:
    run = await run_faults(SMALL, tmp_path, Fault(kind, 2.0, 3.0, choice=2, severity=0.5))
    assert [each["kind"] for each in run.result["faults"]] == [kind]
    assert run.result["records"]["acknowledged"] > 0


@needs_namespaces
@pytest.mark.parametrize("availability", ["majority", "branch"])
@pytest.mark.parametrize("kind", NETWORK_FAULTS)
async def test_nothing_is_lost_by_a_fault_of_the_network(kind: str, availability: str, tmp_path: Path) -> None:
    size = attrs.evolve(SMALL, is_split=True, availability=availability)
    await run_faults(size, tmp_path, Fault(kind, 2.0, 5.0, choice=3, severity=0.5))


async def test_other_brokers_lead_two_seconds_after_one_is_killed(tmp_path: Path) -> None:
    """The shortest of some times counts: this machine may have other things to do."""
    async with open_cluster(tmp_path, 3) as cluster:
        await cluster.create_topic(TOPIC, 12)
        times = []
        for _ in range(KILLS):
            victim = next(iter(cluster.brokers.values()))
            await wait_leading(cluster, victim.number)
            await cluster.kill(victim)
            times.append(await cluster.wait_until(lambda: is_led(cluster, 12), "not every log has a living leader"))
            await cluster.start(victim)
        assert min(times) < FAILOVER_S, times


def is_led(cluster: ProcessCluster, logs: int) -> bool:
    """Return whether all running brokers know a running leader of each log."""
    running = {each.number for each in cluster.running()}
    told = [find_leaders(each.servers, TOPIC) for each in cluster.running()]
    return all(len(each) == logs and set(each.values()) <= running for each in told)


async def wait_leading(cluster: ProcessCluster, number: int) -> None:
    """Wait until a broker leads a log."""
    servers = next(iter(cluster.brokers.values())).servers
    await cluster.wait_until(lambda: number in find_leaders(servers, TOPIC).values(), f"broker {number} leads no log")


async def test_the_replicas_of_a_broker_that_is_lost_are_made_anew_elsewhere(tmp_path: Path) -> None:
    async with open_cluster(tmp_path, 4, broker={"replace_replicas_after_ms": 1000}) as cluster:
        await cluster.create_topic(TOPIC, 6)
        lost, *others = cluster.brokers.values()
        await cluster.kill(lost)
        await cluster.wait_until(
            lambda: all(
                len(brokers) == 3 and lost.number not in brokers
                for each in others
                for brokers in (find_replicas(each.servers, TOPIC) or {0: []}).values()
            ),
            "the lost broker still keeps logs",
        )


async def test_a_broker_that_is_added_takes_the_place_of_one_that_is_taken_away(tmp_path: Path) -> None:
    """The broker that is taken away does not come back: others keep its logs after `replace_replicas_after_ms`."""
    async with open_cluster(tmp_path, 3, broker={"replace_replicas_after_ms": 2000}) as cluster:
        await cluster.create_topic(TOPIC, 6)
        producers = await start_producers(cluster, 1, 6)
        added = await cluster.add(broker={"replace_replicas_after_ms": 2000})
        await cluster.start(added)
        await cluster.wait_members()
        gone = next(iter(cluster.brokers.values()))
        await cluster.remove(gone)
        living = {each.number for each in cluster.running()}
        await cluster.wait_until(
            lambda: all(set(each) == living for each in (find_replicas(added.servers, TOPIC) or {0: []}).values()),
            "the broker that was added does not keep all logs",
        )
        await wait_in_sync(cluster, 6, 3)
        for each in producers:
            await each.terminate(60)
        await read_contents(cluster, 6)
        assert cluster.timeline.problems == []
    assert check(load(tmp_path)) == []


@needs_namespaces
@pytest.mark.parametrize("availability", ["majority", "branch"])
async def test_each_side_of_a_split_does_what_the_policy_allows(availability: str, tmp_path: Path) -> None:
    """One broker, the tower and a producer are on one side; two brokers and another producer are on the other."""
    async with open_cluster(tmp_path, 3, is_split=True) as cluster:
        await cluster.create_topic(TOPIC, 3, availability=availability)
        producers = await start_producers(cluster, 2, 3)
        alone, *others = cluster.brokers
        await cluster.network.cut(split([alone, TOWER, "producer-0"], [*others, "producer-1"]))
        await wait_acknowledged(cluster, 1)
        if availability == "branch":
            await wait_acknowledged(cluster, 0)
        else:
            refused = count_acknowledged(tmp_path, 0)
            await wait_acknowledged(cluster, 1)
            assert count_acknowledged(tmp_path, 0) == refused
        await cluster.network.cut(())
        await wait_acknowledged(cluster, 0)
        for each in producers:
            await each.terminate(60)
        await wait_in_sync(cluster, 3, 3)
        await read_contents(cluster, 3)
        assert cluster.timeline.problems == []
    assert check(load(tmp_path), is_majority=availability == "majority") == []


@needs_namespaces
async def test_brokers_hear_each_other_soon_after_a_network_was_cut_for_long(tmp_path: Path) -> None:
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


async def start_producers(cluster: ProcessCluster, count: int, logs: int) -> list[Node]:
    """Start producers, and wait until each has records acknowledged."""
    common = {"servers": cluster.servers, "topic": TOPIC, "folder": str(cluster.folder), "logs": logs, "rate": 500}
    started = [
        await start_client(cluster, producer_client, f"producer-{number}", {**common, "number": number})
        for number in range(count)
    ]
    for each in started:
        await cluster.wait_ready(each)
    return started


def count_acknowledged(folder: Path, producer: int) -> dict[int, int]:
    """Return how many records of a producer are acknowledged, by log."""
    return {
        number: sum(run.length for run in log.acknowledged if run.producer == producer) for number, log in load(folder)
    }


async def wait_acknowledged(cluster: ProcessCluster, producer: int) -> None:
    """Wait until further records of a producer are acknowledged in each log, which were sent meanwhile."""
    before = count_acknowledged(cluster.folder, producer)

    def is_more() -> bool:
        after = count_acknowledged(cluster.folder, producer)
        return all(after[log] >= count + MORE for log, count in before.items())

    await cluster.wait_until(is_more, f"producer {producer} gets no further acknowledgements in all logs")
