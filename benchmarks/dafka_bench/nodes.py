"""The job `nodes`: many producers that start at once, and their cost while they are idle and while they send.

Several producers share a process, because one interpreter for each would be measured instead of them. The stores and
the tower have a process each. All producers' processes are ready before the first producer opens.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import attrs
import trio

from dafka.exceptions import unwrap_group
from dafka_bench.client import COUNT, PACE, Task
from dafka_bench.processes import Client, MeasuredProcess, Snapshot
from dafka_bench.results import BenchError, Measurement
from dafka_bench.systems.base import Cluster

RATE = 10
"""How many records per second each producer sends in the last part of the job."""

MIB = 2**20


@attrs.frozen
class NodesOptions:
    """The options of the job `nodes`.

    Attributes:
        producers: The numbers of producers, one cluster after the other.
        stores: The number of stores.
        per_process: The number of producers in a process.
        timeout_s: The timeout until the first record of every producer is stored.
        rest_s: How long the cluster rests before it counts as idle. Dafka's idle nodes become quiet step by step.
        idle_s: How long resources are measured when idle. Dafka's idle nodes speak each 30 s.
        observed_s: How long resources are measured when sending, after half this time.
    """

    producers: Sequence[int] = (10, 100, 300, 1000)
    stores: int = 2
    per_process: int = 20
    timeout_s: float = 120.0
    rest_s: float = 45.0
    idle_s: float = 60.0
    observed_s: float = 10.0


async def measure_nodes(cluster: Cluster, producers: int, options: NodesOptions) -> AsyncIterator[Measurement]:
    """Measure one number of producers in a new cluster.

    Args:
        cluster: The cluster, with its stores and its tower.
        producers: The number of producers.
        options: The options of the job.

    Yields:
        The measurements.

    Raises:
        BenchError: A process ended, or the records were not stored in time.
    """
    groups = [
        await cluster.producer(Task(records=1, rate=RATE, producers=size))
        for size in _split(producers, options.per_process)
    ]
    further = await cluster.producer(Task(records=1, rate=RATE, producers=1))
    watched = _Watched(groups, cluster.servers[:-1], cluster.servers[-1])
    for client in (*groups, further):
        await client.wait_ready()

    before = watched.snapshots()
    title = "1 producer" if producers == 1 else f"{producers:,} producers"

    def figure(name: str, unit: str, value: float) -> Measurement:
        return Measurement(f"{title}, {name}", unit, value, producers)

    seconds = await _start(groups, producers, title, options.timeout_s)
    yield figure("every first record stored", "s", seconds)
    yield figure("used by all processes until then", "CPU s", watched.cpu_s(before))
    seconds = await _start([further], 1, f"{title}, one further", options.timeout_s)
    yield figure("a further producer's first record stored", "ms", seconds * 1000)

    await trio.sleep(options.rest_s)
    for name, unit, value in [*await watched.observe(producers, options.idle_s), *watched.descriptors()]:
        yield figure(f"idle, {name}", unit, value)

    for group in groups:
        await group.send_command(PACE)
    await trio.sleep(options.observed_s / 2)
    acknowledged = await _count_acknowledged(groups)
    for name, unit, value in await watched.observe(producers, options.observed_s):
        yield figure(f"at {RATE}/s each, {name}", unit, value)
    rates = [
        (last["records"] - first["records"]) * 1e9 / (last["at"] - first["at"])
        for first, last in zip(acknowledged, await _count_acknowledged(groups), strict=True)
    ]
    yield figure(f"at {RATE}/s each, stored", "records/s", sum(rates))


@attrs.frozen
class _Watched:
    """The processes whose resources are measured."""

    groups: Sequence[MeasuredProcess]
    stores: Sequence[MeasuredProcess]
    tower: MeasuredProcess

    def snapshots(self) -> list[Snapshot]:
        return [process.snapshot() for process in (*self.groups, *self.stores, self.tower)]

    def cpu_s(self, before: Sequence[Snapshot]) -> float:
        """Return the processor time that all processes have used since."""
        return sum(now.cpu_s for now in self.snapshots()) - sum(then.cpu_s for then in before)

    async def observe(self, producers: int, observed_s: float) -> list[tuple[str, str, float]]:
        """Measure the processes for a while, and return the name, the unit and the value of every figure."""
        kinds = {"producer": self.groups, "store": self.stores, "tower": [self.tower]}
        counts = {"producer": producers, "store": len(self.stores), "tower": 1}
        started = time.perf_counter()
        before = {kind: [process.snapshot() for process in processes] for kind, processes in kinds.items()}
        await trio.sleep(observed_s)
        seconds = time.perf_counter() - started
        after = {kind: [process.snapshot() for process in processes] for kind, processes in kinds.items()}
        figures = []
        for kind, count in counts.items():
            spent = sum(now.cpu_s - then.cpu_s for then, now in zip(before[kind], after[kind], strict=True))
            figures.append((f"each {kind}", "% of a core", 100 * spent / seconds / count))
        for kind, count in counts.items():
            resident = sum(now.resident_bytes for now in after[kind])
            figures.append((f"each {kind}", "MiB", resident / MIB / count))
        return figures

    def descriptors(self) -> list[tuple[str, str, float]]:
        """Return figures of the open files and connections of a process."""
        kinds = {"producers' process": self.groups, "store": self.stores, "tower": [self.tower]}
        return [
            (f"each {kind}", "descriptors", max(process.snapshot().descriptors for process in processes))
            for kind, processes in kinds.items()
        ]


async def _start(groups: Sequence[Client], producers: int, title: str, timeout_s: float) -> float:
    """Start the producers at once, and return the seconds until the first record of each is stored."""
    stored: list[int] = []

    async def follow(group: Client) -> None:
        while True:
            event, values = await group.next_event()
            if event == "first-stored":
                stored.append(int(values["at"]))
                if len(stored) == producers:
                    nursery.cancel_scope.cancel()

    started = time.perf_counter_ns()
    for group in groups:
        await group.go()
    with unwrap_group(), trio.move_on_after(timeout_s):
        async with trio.open_nursery() as nursery:
            for group in groups:
                nursery.start_soon(follow, group)
    if len(stored) < producers:
        raise BenchError(f"{title}: {len(stored):,} of {producers:,} stored after {timeout_s:g} s")
    return (max(stored) - started) / 1e9


async def _count_acknowledged(groups: Sequence[Client]) -> list[dict[str, Any]]:
    for group in groups:
        await group.send_command(COUNT)
    return [await group.wait_event("acknowledged") for group in groups]


def _split(producers: int, per_process: int) -> Iterator[int]:
    """Yield the number of producers of each process."""
    for number in range(math.ceil(producers / per_process)):
        yield min(per_process, producers - number * per_process)
