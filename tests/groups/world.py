"""A simulated world for a group: stores, links that fail, processes that freeze and die, and clocks that drift.

Time is real time; each process has a clock of its own, which runs a little faster or slower and never stops. A store
makes records durable, in order, and tells readers only of durable ones, as `dafka.protocol.machines.store` does.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from tests.groups.processes import OwnLog, Process


@attrs.frozen(kw_only=True)
class Plan:
    """How rough a world is.

    Attributes:
        stores: The number of stores.
        members: The number of processes that may be members.
        partitions: The number of partitions.
        required: How many stores must confirm; 0: more than half of those seen.
        trouble_s: For how long things go wrong.
        calm_s: For how long nothing goes wrong after that.
        loss: The probability that a message is lost.
        slow_s: How long a message takes on average.
        fault_s: Seconds between two faults on average.
    """

    stores: int
    members: int
    partitions: int
    required: int = 0
    trouble_s: float = 40.0
    calm_s: float = 30.0
    loss: float = 0.0
    slow_s: float = 0.01
    fault_s: float = 3.0


class World:
    """Time, a network and stores."""

    def __init__(self, seed: int, plan: Plan) -> None:
        self.draw = random.Random(seed)
        self.plan = plan
        self.now = 0.0
        self.cut: set[frozenset[str]] = set()
        self.ends: dict[str, int] = {f"p{number}": 0 for number in range(plan.partitions)}
        self.is_calm = False
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self.stores = [Store(f"s{number}", self) for number in range(plan.stores)]

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + max(delay_s, 0.0), next(self._order), call))

    def run_until(self, end: float) -> None:
        while self._events and self._events[0][0] <= end:
            self.now, _, call = heapq.heappop(self._events)
            call()
        self.now = end

    def send(self, sender: str, receiver: str, deliver: Callable[[], None]) -> None:
        """Deliver a message, unless the link is cut at either end of its way, or it is lost."""
        if not self.is_linked(sender, receiver) or self.draw.random() < self.plan.loss * (not self.is_calm):
            return

        def arrive() -> None:
            if self.is_linked(sender, receiver):
                deliver()

        self.later(self.draw.expovariate(1 / self.plan.slow_s), arrive)

    def is_linked(self, one: str, other: str) -> bool:
        return frozenset((one, other)) not in self.cut

    def produce(self) -> None:
        """Publish records of the data partitions, for as long as there is trouble."""
        for name in self.ends:
            if self.draw.random() < 0.5:
                self.ends[name] += self.draw.randint(1, 20)
        if not self.is_calm:
            self.later(self.draw.uniform(0.05, 1.0), self.produce)


SYNC_S = 0.3
"""Seconds between two looks of a store at what others have."""


class Store:
    """A store."""

    def __init__(self, name: str, world: World) -> None:
        self.name = name
        self.logs: dict[str, list[bytes]] = {}
        self.is_up = True
        self.followers: list[Process] = []
        self._world = world
        self._sources: dict[str, OwnLog] = {}
        self._written_at = 0.0
        world.later(0.0, self._sync)

    def receive(self, log: OwnLog, first: int, values: list[bytes]) -> None:
        """Take records of a member, and acknowledge them when they are durable."""
        self._sources[log.address] = log
        if self.is_up:
            self._append(log.address, first, values)

    def _append(self, address: str, first: int, values: list[bytes]) -> None:
        """Make records durable after a moment, in the order of the calls."""
        world = self._world
        self._written_at = max(self._written_at, world.now + world.draw.uniform(0.0005, 0.02))

        def durable() -> None:
            if not self.is_up:
                return
            held = self.logs.setdefault(address, [])
            if first > len(held):
                return  # a gap: the next look at the others fills it
            held.extend(values[len(held) - first :])
            log = self._sources.get(address)
            if log is not None and log.is_open:
                world.send(self.name, log.host, partial(log.acknowledge, self.name, len(held)))
            for reader in self.followers:
                world.send(self.name, reader.host, partial(reader.hint, self, address))

        world.later(self._written_at - world.now, durable)

    def _sync(self) -> None:
        """Fetch what this store lacks from members and other stores."""
        world = self._world
        if self.is_up:
            for log in list(self._sources.values()):
                if log.is_open and world.is_linked(self.name, log.host):
                    held = len(self.logs.get(log.address, []))
                    if held < len(log.values):
                        self._append(log.address, held, log.values[held:])
                    elif held:
                        world.send(self.name, log.host, partial(log.acknowledge, self.name, held))
            for other in world.stores:
                if other is not self and other.is_up and world.is_linked(self.name, other.name):
                    for address, values in other.logs.items():
                        held = len(self.logs.get(address, []))
                        if held < len(values):
                            self._append(address, held, values[held:])
        world.later(world.draw.uniform(0.5, 1.5) * SYNC_S, self._sync)
