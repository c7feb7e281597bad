"""The faults of a cluster of brokers: drawn from a seed, applied one at a time, and healed."""

from __future__ import annotations

import resource
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from random import Random

import attrs
import trio

from tests.broker.cluster.brokers import TOWER, BrokerNode, ProcessCluster
from tests.broker.cluster.history import now
from tests.broker.cluster.network import Pair, deafen, isolate, mute, split
from tests.chaos.processes import Node

PROCESS_FAULTS = ("kill", "kill-two", "kill-all", "restart", "stop", "kill-tower", "full", "clock", "drain")
"""Faults of processes, of their disks and clocks, and a broker that is drained."""

CLOCK_MAX_S = 6 * 3600.0
"""By how much a clock is set ahead or back at most."""

NETWORK_FAULTS = (
    "isolate",
    "cut-off",
    "split",
    "split-clients",
    "bridge",
    "ring",
    "deafen",
    "mute",
    "flap",
    "slow",
    "loss",
)
"""Faults of the network, which need network namespaces."""

FAULTS = (*PROCESS_FAULTS, *NETWORK_FAULTS)

FAILOVERS = frozenset(("kill", "restart", "stop", "isolate", "cut-off", "mute", "deafen", "clock", "drain"))
"""Faults that leave each log more than half of its replicas, to which all clients can speak: it goes on soon."""


@attrs.frozen
class Fault:
    """A fault, with its time in seconds after the start.

    The broker and other details are drawn from `choice`. `severity` is between 0 and 1.
    """

    kind: str
    at_s: float
    duration_s: float
    choice: int
    severity: float


@attrs.frozen
class Applied:
    """A fault that was applied, with its times by the clock of the history.

    Attributes:
        kind: Its kind.
        text: What was done.
        begun: When.
        healed: When it was undone.
    """

    kind: str
    text: str
    begun: float
    healed: float


def plan(
    seed: int,
    length_s: float,
    only: Sequence[str] = FAULTS,
    *,
    calm_s: float = 8.0,
    gap_s: tuple[float, float] = (8.0, 20.0),
    duration_s: tuple[float, float] = (2.0, 15.0),
) -> list[Fault]:
    """Return the faults of a run of this length: all kinds nearly equally often, in a changing order."""
    random = Random(seed)
    faults: list[Fault] = []
    at_s, bag = calm_s, list[str]()
    while only and at_s < length_s - calm_s:
        if not bag:
            bag = random.sample(list(only), len(only))
        fault = Fault(bag.pop(), at_s, random.uniform(*duration_s), random.randrange(2**31), random.random())
        faults.append(fault)
        at_s += fault.duration_s + random.uniform(*gap_s)
    return faults


class Faults:
    """Applies faults to a cluster.

    Args:
        cluster: The cluster.
        clients: The names of its clients' places in the network.

    Attributes:
        applied: The faults so far.
    """

    def __init__(self, cluster: ProcessCluster, clients: Sequence[str]) -> None:
        self.applied: list[Applied] = []
        self._cluster = cluster
        self._clients = list(clients)

    async def run(self, faults: Sequence[Fault]) -> None:
        """Apply faults in order, each not before its time. If one takes longer, all that follow are later."""
        begun = trio.current_time()
        for fault in faults:
            await trio.sleep_until(begun + fault.at_s)
            await self.do(fault)
            begun = max(begun, trio.current_time() - fault.at_s - fault.duration_s)

    async def do(self, fault: Fault) -> None:
        """Apply one fault, and heal it."""
        random = Random(fault.choice)
        brokers = random.sample(list(self._cluster.brokers.values()), len(self._cluster.brokers))
        begun = now()
        if fault.kind in NETWORK_FAULTS:
            text = await self._disturb(fault, brokers, random)
        else:
            text = await self._end_processes(fault, brokers)
        self.applied.append(Applied(fault.kind, text, begun, now()))

    async def _end_processes(self, fault: Fault, brokers: list[BrokerNode]) -> str:
        single = {"stop": self._stop, "full": self._fill_disk, "clock": self._set_clock, "drain": self._drain}
        if fault.kind in single:
            return await single[fault.kind](brokers[0], fault)
        count = {"kill-two": 2, "kill-all": len(brokers)}.get(fault.kind, 1)
        nodes = [self._cluster.tower] if fault.kind == "kill-tower" else [each.node for each in brokers[:count]]
        names = ", ".join(sorted(node.name for node in nodes))
        how = "ended" if fault.kind == "restart" else "killed"
        text = self._begin(f"{fault.kind}: {names} {how}, and started again after {fault.duration_s:.1f} s")
        await _all(nodes, lambda node: node.terminate(30) if fault.kind == "restart" else node.kill())
        await trio.sleep(fault.duration_s)
        for node in nodes:
            node.start()
        await _all(nodes, self._cluster.wait_ready)
        self._cluster.timeline.healed(f"ready again: {names}")
        return text

    async def _stop(self, broker: BrokerNode, fault: Fault) -> str:
        text = self._begin(f"stop: {broker.name} stops for {fault.duration_s:.1f} s")
        self._cluster.stop(broker)
        try:
            await trio.sleep(fault.duration_s)
        finally:
            self._cluster.go_on(broker)
        self._cluster.timeline.healed(f"{broker.name} goes on")
        return text

    async def _fill_disk(self, broker: BrokerNode, fault: Fault) -> str:
        """Let every write to a file fail."""
        text = self._begin(f"full: the disk of {broker.name} is full for {fault.duration_s:.1f} s")
        process = broker.node.process_id
        _, hard = resource.prlimit(process, resource.RLIMIT_FSIZE)
        resource.prlimit(process, resource.RLIMIT_FSIZE, (1, hard))
        try:
            await trio.sleep(fault.duration_s)
        finally:
            with suppress(ProcessLookupError):
                resource.prlimit(process, resource.RLIMIT_FSIZE, (hard, hard))
        self._cluster.timeline.healed(f"the disk of {broker.name} has room again")
        return text

    async def _set_clock(self, broker: BrokerNode, fault: Fault) -> str:
        """Set the clock ahead or back, and later right again."""
        ahead_s = (2 * fault.severity - 1) * CLOCK_MAX_S
        way = "ahead" if ahead_s > 0 else "back"
        text = self._begin(
            f"clock: that of {broker.name} is set {way} by {abs(ahead_s):.0f} s, for {fault.duration_s:.1f} s"
        )
        self._cluster.set_clock(broker, ahead_s)
        try:
            await trio.sleep(fault.duration_s)
        finally:
            self._cluster.set_clock(broker, 0.0)
        self._cluster.timeline.healed(f"the clock of {broker.name} is right again")
        return text

    async def _drain(self, broker: BrokerNode, fault: Fault) -> str:
        text = self._begin(f"drain: {broker.name} is drained for {fault.duration_s:.1f} s")
        await self._cluster.set_draining(broker, is_draining=True)
        await trio.sleep(fault.duration_s)
        await self._cluster.set_draining(broker, is_draining=False)
        self._cluster.timeline.healed(f"{broker.name} is drained no more")
        return text

    async def _disturb(self, fault: Fault, brokers: list[BrokerNode], random: Random) -> str:
        names = [each.name for each in brokers]
        chosen, network = names[0], self._cluster.network
        text = self._begin(f"{fault.kind} for {fault.duration_s:.1f} s, {', '.join(names)}")
        try:
            if fault.kind == "slow":
                await network.slow_down([chosen], int(1e6 + 2e7 * fault.severity))
            elif fault.kind == "loss":
                await network.cut(split([chosen], [*names[1:], TOWER]), loss=0.02 + 0.2 * fault.severity)
            elif fault.kind == "flap":
                await self._flap(fault, isolate(chosen, names), random)
            else:
                await network.cut(self._pairs(fault.kind, names, random))
            if fault.kind != "flap":
                await trio.sleep(fault.duration_s)
        finally:
            with trio.CancelScope(shield=True):
                await network.cut(())
                await network.slow_down((), 0)
        self._cluster.timeline.healed(f"{fault.kind} is over")
        return text

    def _pairs(self, kind: str, names: list[str], random: Random) -> set[Pair]:
        """Return who does not hear whom."""
        chosen, everybody = names[0], [*names, TOWER]
        half = len(names) // 2
        if kind.startswith("split"):
            sides = [names[:half], names[half:]]
            for each in (TOWER, *(self._clients if kind == "split-clients" else ())):
                random.choice(sides).append(each)
            return split(*sides)
        if kind == "bridge":
            return split(names[:half], names[half + 1 :])
        if kind == "ring":
            return ring(names)
        if kind == "cut-off":
            return isolate(chosen, [*everybody, *self._clients])
        return {"isolate": isolate, "deafen": deafen, "mute": mute}[kind](chosen, everybody)

    async def _flap(self, fault: Fault, pairs: set[Pair], random: Random) -> None:
        """Let a split come and go."""
        end = trio.current_time() + fault.duration_s
        while trio.current_time() < end:
            await self._cluster.network.cut(pairs)
            await trio.sleep(random.uniform(0.1, 2.0))
            await self._cluster.network.cut(())
            await trio.sleep(random.uniform(0.1, 2.0))

    def _begin(self, text: str) -> str:
        self._cluster.timeline.fault(text)
        return text


def ring(names: Sequence[str]) -> set[Pair]:
    """Return the pairs of a ring, in which each node hears only the next one on either side."""
    count = len(names)
    near = {(one, (one + step) % count) for one in range(count) for step in (-1, 0, 1)}
    near = {(one, other % count) for one, other in near}
    return {(names[one], names[other]) for one in range(count) for other in range(count) if (one, other) not in near}


async def _all(nodes: Sequence[Node], do: Callable[[Node], Awaitable[None]]) -> None:
    """Do something with several nodes at the same time."""
    async with trio.open_nursery() as nursery:
        for node in nodes:
            nursery.start_soon(do, node)
