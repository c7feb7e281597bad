"""A run: a cluster of brokers with clients, faults for a time, and the check of what was promised."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import attrs
import trio

from tests.broker.cluster import consumer_client, producer_client, reader_client
from tests.broker.cluster.brokers import ProcessCluster, find_in_sync, find_replicas, has_read_all, open_cluster
from tests.broker.cluster.checker import Finding, check, summarize
from tests.broker.cluster.faults import FAILOVERS, Fault, Faults
from tests.broker.cluster.histories import CONTENTS, Log, load
from tests.broker.cluster.pauses import Pause, by_fault, find_pauses
from tests.broker.cluster.replicas import compare, read_all
from tests.chaos.processes import Node

TOPIC = "orders"

PAUSE_MAX_S = 5.0
"""The longest pause that a fault may cause that leaves each log more than half of its replicas."""

CONVERGED_S = 60.0
"""Seconds after the last fault within which all replicas must be in sync, and all groups must have everything."""

END_S = 60.0

CLIENT_NICENESS = "10"
"""librdkafka polls without a pause while requests wait for a broker that does not answer."""

BURST_S = 0.05
"""Seconds of records that a producer sends to one log before it goes to the next, as sticky partitioners do."""

BURST_MIN = 50
"""The fewest records that it sends to one log before it goes to the next."""

QUIET_S = 12.0
"""Replicas that stay where they are for so long have been balanced: brokers look for moves every five seconds."""

SETTLE_S = 180.0
"""Seconds within which replicas must have been balanced after the last fault; as long as the run took, if it is longer.

The rate at which brokers copy logs is limited, and logs are as long as the run."""


@attrs.frozen(kw_only=True)
class Size:
    """The size of a run. `rate` is that of all producers together, in records per second."""

    brokers: int = 5
    logs: int = 24
    replicas: int = 3
    producers: int = 4
    groups: int = 2
    members: int = 2
    rate: float = 20_000
    value_bytes: int = 100
    availability: str = "majority"
    storage: str = "filelog"
    is_split: bool = True


class Run:
    """One run, in a folder of its own.

    Attributes:
        problems: What was promised, and was not kept.
        late: What took too long. Other programs on the machine may be to blame, so tests do not look at it.
        result: Figures for the summary.
    """

    def __init__(self, size: Size, faults: Sequence[Fault], folder: Path, echo: TextIO | None = None) -> None:
        self.problems: list[str] = []
        self.late: list[str] = []
        self.result: dict[str, Any] = {}
        self._size = size
        self._plan = faults
        self._folder = folder
        self._echo = echo
        self._producers: list[Node] = []
        self._readers: list[Node] = []
        self._replicas: dict[int, list[str]] = {}
        self._faults: Faults

    async def run(self, length_s: float) -> list[str]:
        """Run for at least `length_s` seconds, or until the last fault is healed. Return the problems."""
        size = self._size
        opened = open_cluster(
            self._folder,
            size.brokers,
            is_split=size.is_split,
            echo=self._echo,
            scheme=size.storage,
            broker={"replicas": size.replicas},
        )
        async with opened as cluster:
            try:
                await self._run(cluster, length_s)
            except TimeoutError as error:
                cluster.timeline.problem(str(error))
            finally:
                self._measure(cluster)
                self.problems += cluster.timeline.problems
        if self._replicas:
            await self._check()
        self.result["problems"] = self.problems
        return self.problems

    async def _run(self, cluster: ProcessCluster, length_s: float) -> None:
        size = self._size
        await cluster.create_topic(TOPIC, size.logs, size.replicas, size.availability)
        await self._start_clients(cluster)
        cluster.timeline.note("every client is ready")
        self._faults = Faults(cluster, [node.name for node in (*self._producers, *self._readers)])
        begun = trio.current_time()
        await self._faults.run(self._plan)
        await trio.sleep_until(begun + length_s)
        cluster.timeline.note("no more faults")
        ended = trio.current_time()
        async with trio.open_nursery() as nursery:
            for node in self._producers:
                nursery.start_soon(node.terminate, END_S)
        cluster.timeline.note(f"producers have ended after {trio.current_time() - ended:.1f} s")
        await wait_in_sync(cluster, size.logs, size.replicas)
        await read_contents(cluster, size.logs, max(CONVERGED_S, trio.current_time() - begun))
        await self._end_readers(cluster)
        found = await wait_settled(cluster, size.logs, size.replicas, max(SETTLE_S, ended - begun))
        self._replicas = {log: sorted(f"broker-{number}" for number in numbers) for log, numbers in found.items()}
        async with trio.open_nursery() as nursery:
            for broker in cluster.running():
                broker.node.look()
                nursery.start_soon(broker.node.terminate, END_S)

    async def _start_clients(self, cluster: ProcessCluster) -> None:
        size = self._size
        common = {"servers": cluster.servers, "topic": TOPIC, "folder": str(self._folder)}
        for number in range(size.producers):
            numbers = {"number": number, "logs": size.logs, "value_bytes": size.value_bytes}
            rate = size.rate / size.producers
            options = {**common, **numbers, "rate": rate, "burst": max(BURST_MIN, round(rate * BURST_S))}
            self._producers.append(await start_client(cluster, producer_client, f"producer-{number}", options))
        for group in range(size.groups):
            for member in range(size.members):
                name = f"group-{group}-{member}"
                # Members reach both sides of a split: where these have branches, a position must name its own.
                own = {"group": f"group-{group}", "member": name, "names_epochs": size.availability == "branch"}
                self._readers.append(await start_client(cluster, consumer_client, name, common | own))
        self._readers.append(await start_client(cluster, reader_client, "reader", common | {"logs": size.logs}))
        for node in (*self._producers, *self._readers):
            await cluster.wait_ready(node)

    async def _end_readers(self, cluster: ProcessCluster) -> None:
        """Wait until the groups have reached the ends of all logs, and end their members."""
        groups = [f"group-{number}" for number in range(self._size.groups)]

        def reached() -> bool:
            return all(has_read_all(cluster.servers, group, TOPIC, self._size.logs) for group in groups)

        try:
            await cluster.wait_until(reached, "not every group has reached the ends of all logs", CONVERGED_S)
        finally:
            async with trio.open_nursery() as nursery:
                for node in self._readers:
                    node.look()
                    nursery.start_soon(node.terminate, END_S)

    def _measure(self, cluster: ProcessCluster) -> None:
        for broker in cluster.brokers.values():
            broker.node.look()
        nodes = [*(each.node for each in cluster.brokers.values()), *self._producers, *self._readers]
        self.result |= {
            "seconds": round(cluster.timeline.now, 1),
            "starts": {node.name: node.starts for node in nodes},
            "cpu_s": {node.name: round(node.cpu_s, 1) for node in nodes},
            "memory_mib": {node.name: round(node.memory.peak / 2**20) for node in nodes},
        }

    async def _check(self) -> None:
        """Check the histories and the storages."""
        begun = time.monotonic()
        pauses: list[Pause] = []
        counts = {"acknowledged": 0, "in_logs": 0, "given_again": 0}

        def logs() -> Iterator[tuple[int, Log]]:
            for number, log in load(self._folder):
                pauses.extend(find_pauses(number, log))
                counts["acknowledged"] += sum(run.length for run in log.acknowledged)
                counts["in_logs"] += sum(run.length for run in log.contents)
                counts["given_again"] += sum(group.again for group in log.groups.values())
                yield number, log

        def find() -> list[Finding]:
            return check(logs(), is_majority=self._size.availability == "majority")

        self.problems += summarize(await trio.to_thread.run_sync(find))
        self._report_pauses(pauses)
        names = sorted({name for brokers in self._replicas.values() for name in brokers})
        holdings = await read_all(TOPIC, {name: f"{self._size.storage}:{self._folder / name}" for name in names})
        self.problems += compare(holdings, self._replicas)
        self.result |= {"records": counts, "checked_s": round(time.monotonic() - begun, 1)}

    def _report_pauses(self, pauses: Sequence[Pause]) -> None:
        reported = []
        for fault, pause in by_fault(pauses, self._faults.applied):
            text = fault.text if fault is not None else "no fault"
            reported.append({"fault": text, "pause_s": round(pause.length, 2), "log": pause.log})
            if (fault is None or fault.kind in FAILOVERS) and pause.length > PAUSE_MAX_S:
                self.late.append(f"a record of log {pause.log} waited for {pause.length:.1f} s: {text}")
        self.result |= {"longest_pauses": reported, "late": self.late}
        self.result["faults"] = [attrs.asdict(each) for each in self._faults.applied]


async def wait_in_sync(cluster: ProcessCluster, logs: int, replicas: int) -> None:
    """Wait until all running brokers say the same of all logs, and that all their replicas are in sync."""

    def is_in_sync() -> bool:
        told = [find_in_sync(each.servers, TOPIC) for each in cluster.running()]
        sets = [{log: set(brokers) for log, brokers in each.items()} for each in told]
        wanted = min(replicas, len(cluster.running()))
        return (
            all(each == sets[0] for each in sets)
            and len(sets[0]) == logs
            and all(len(each) >= wanted for each in sets[0].values())
        )

    took_s = await cluster.wait_until(is_in_sync, "replicas are not in sync", CONVERGED_S)
    cluster.timeline.note(f"all replicas are in sync {took_s:.1f} s later")


async def wait_settled(
    cluster: ProcessCluster, logs: int, replicas: int, within_s: float = SETTLE_S
) -> dict[int, list[int]]:
    """Wait until brokers have balanced replicas, so that no more of them move, and return those of each log."""
    with trio.move_on_after(within_s):
        while True:
            before = find_replicas(cluster.running()[0].servers, TOPIC)
            await wait_in_sync(cluster, logs, replicas)
            await trio.sleep(QUIET_S)
            after = [find_replicas(each.servers, TOPIC) for each in cluster.running()]
            is_balanced = all(len(each) == min(replicas, len(after)) for each in before.values())
            if before and is_balanced and all(each == before for each in after):
                return before
    raise TimeoutError(f"brokers still move replicas {within_s:.0f} s after the last fault")


async def read_contents(cluster: ProcessCluster, logs: int, within_s: float = CONVERGED_S) -> None:
    """Read every log from its first record to its end; again if a log goes on in another branch meanwhile."""
    place = await cluster.network.add(CONTENTS)
    options = {"servers": cluster.servers, "topic": TOPIC, "folder": str(cluster.folder), "logs": logs}
    options |= {"name": CONTENTS, "is_whole": True}
    command = [sys.executable, "-m", reader_client.__name__, json.dumps(options)]
    status = reader_client.TRUNCATED
    with trio.move_on_after(within_s):
        while status == reader_client.TRUNCATED:
            for path in cluster.folder.glob(f"{CONTENTS}.*"):
                path.unlink()
            read = await trio.run_process([*place.prefix, *command], check=False, capture_stdout=True)
            status = read.returncode
    cluster.timeline.note("all logs were read")
    if status:
        cluster.timeline.problem("a log could not be read to its end")


async def start_client(cluster: ProcessCluster, module: Any, name: str, options: dict[str, Any]) -> Node:
    """Start a client in a place of its own. It leaves the processors to brokers, as one on another machine does."""
    place = await cluster.network.add(name)
    command = ("nice", "-n", CLIENT_NICENESS, sys.executable, "-m", module.__name__, json.dumps(options))
    node = cluster.run(name, place, command, module.READY)
    node.start()
    return node
