"""The faults of a cluster of brokers, each of which lasts for a block, and is healed at its end."""

from __future__ import annotations

import resource
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from random import Random

import trio

from tests.broker.cluster.brokers import TOWER, BrokerNode, ProcessCluster
from tests.broker.cluster.disks import DISK_FAULTS, DiskFaults
from tests.broker.cluster.network import Pair, deafen, isolate, mute, ring, split
from tests.chaos.processes import Node

PROCESS_FAULTS = ("kill", "kill-two", "kill-all", "restart", "kill-tower", "stop", "full", "clock", "drain")
"""Faults of processes, of their disks and clocks, and a broker that is drained."""

NETWORK_FAULTS = ("isolate", "deafen", "mute", "split", "bridge", "ring", "flap", "slow", "loss")
"""Faults of the network, which need network namespaces."""

CLOCK_MAX_S = 6 * 3600.0
"""How far a clock is set ahead or back at most."""

ENDED = {"kill": 1, "kill-two": 2, "kill-all": 99, "restart": 1}
"""How many brokers end at the same moment."""


class Faults:
    """Applies faults to a cluster, whose brokers are drawn for them."""

    def __init__(self, cluster: ProcessCluster, draw: Random) -> None:
        self._cluster = cluster
        self._draw = draw
        self._disks = DiskFaults(cluster, draw)

    @asynccontextmanager
    async def apply(self, kind: str) -> AsyncIterator[None]:
        brokers = self._draw.sample(list(self._cluster.brokers.values()), len(self._cluster.brokers))
        self._cluster.timeline.fault(f"{kind}: {' '.join(each.name for each in brokers)}")
        async with self._begin(kind, brokers):
            yield
        self._cluster.timeline.healed(kind)

    def _begin(self, kind: str, brokers: list[BrokerNode]) -> AbstractAsyncContextManager[None]:
        if kind in NETWORK_FAULTS:
            return self._disturb(kind, [each.name for each in brokers])
        if kind in DISK_FAULTS:
            return self._disks.apply(kind, brokers[0])
        if kind == "kill-tower":
            return self._end([self._cluster.tower])
        if kind in ENDED:
            return self._end([each.node for each in brokers[: ENDED[kind]]], is_asked=kind == "restart")
        single = {"stop": self._stop, "full": self._fill_disk, "clock": self._set_clock, "drain": self._drain}
        return single[kind](brokers[0])

    @asynccontextmanager
    async def _end(self, nodes: Sequence[Node], *, is_asked: bool = False) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            for node in nodes:
                nursery.start_soon(node.terminate, 30) if is_asked else nursery.start_soon(node.kill)
        yield
        for node in nodes:
            node.start()
        for node in nodes:
            await self._cluster.wait_ready(node)

    @asynccontextmanager
    async def _stop(self, broker: BrokerNode) -> AsyncIterator[None]:
        self._cluster.stop(broker)
        try:
            yield
        finally:
            self._cluster.go_on(broker)

    @asynccontextmanager
    async def _fill_disk(self, broker: BrokerNode) -> AsyncIterator[None]:
        process = broker.node.process_id
        _, hard = resource.prlimit(process, resource.RLIMIT_FSIZE)
        resource.prlimit(process, resource.RLIMIT_FSIZE, (1, hard))
        try:
            yield
        finally:
            with suppress(ProcessLookupError):
                resource.prlimit(process, resource.RLIMIT_FSIZE, (hard, hard))

    @asynccontextmanager
    async def _set_clock(self, broker: BrokerNode) -> AsyncIterator[None]:
        self._cluster.set_clock(broker, self._draw.uniform(-CLOCK_MAX_S, CLOCK_MAX_S))
        try:
            yield
        finally:
            self._cluster.set_clock(broker, 0.0)

    @asynccontextmanager
    async def _drain(self, broker: BrokerNode) -> AsyncIterator[None]:
        await self._cluster.set_draining(broker, is_draining=True)
        yield
        await self._cluster.set_draining(broker, is_draining=False)

    @asynccontextmanager
    async def _disturb(self, kind: str, names: list[str]) -> AsyncIterator[None]:
        network = self._cluster.network
        try:
            async with trio.open_nursery() as nursery:
                if kind == "slow":
                    await network.slow_down(names[:1], int(self._draw.uniform(1e6, 2e7)))
                elif kind == "loss":
                    loss = self._draw.uniform(0.02, 0.2)
                    await network.cut(split(names[:1], [*names[1:], TOWER]), loss=loss)
                elif kind == "flap":
                    nursery.start_soon(self._flap, isolate(names[0], names))
                else:
                    await network.cut(self._pairs(kind, names))
                yield
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await network.cut(())
                await network.slow_down((), 0)

    def _pairs(self, kind: str, names: list[str]) -> set[Pair]:
        half = len(names) // 2
        if kind == "split":
            sides = [names[:half], names[half:]]
            self._draw.choice(sides).append(TOWER)
            return split(*sides)
        if kind == "bridge":
            return split(names[:half], names[half + 1 :])
        if kind == "ring":
            return ring(names)
        return {"isolate": isolate, "deafen": deafen, "mute": mute}[kind](names[0], [*names, TOWER])

    async def _flap(self, pairs: set[Pair]) -> None:
        while True:
            await self._cluster.network.cut(pairs)
            await trio.sleep(self._draw.uniform(0.1, 2.0))
            await self._cluster.network.cut(())
            await trio.sleep(self._draw.uniform(0.1, 2.0))
