"""Simulated stores of a group's topic."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.groups.processes import OwnLog, Process
    from tests.groups.world import World

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
