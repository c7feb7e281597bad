"""Simulated stores of a group's topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tests.groups.world import World

SYNC_S = 0.3
"""Seconds between two looks of a store at what others have."""


class Log(Protocol):
    """The partition of one member in the group's topic, at the member itself.

    Attributes:
        address: Its name.
        values: Its records.
        is_open: Whether the member still answers for it.
    """

    address: str
    values: list[bytes]
    is_open: bool

    @property
    def host(self) -> str:
        """The process of the member."""

    def acknowledge(self, store: str, end: int) -> None:
        """Take an acknowledgement."""


class Store:
    """A store."""

    def __init__(self, name: str, world: World) -> None:
        self.name = name
        self.logs: dict[str, list[bytes]] = {}
        self.is_up = True
        self.followers: list[Reader] = []
        self._world = world
        self._sources: dict[str, Log] = {}
        self._written_at = 0.0
        world.later(0.0, self._sync)

    def receive(self, log: Log, first: int, values: list[bytes]) -> None:
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
                end = len(held)
                world.send(self.name, log.host, lambda: log.acknowledge(self.name, end))
            for reader in self.followers:
                world.send(self.name, reader.host, lambda reader=reader: reader.hint(self, address))  # type: ignore[misc]

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
                        world.send(self.name, log.host, lambda log=log, end=held: log.acknowledge(self.name, end))  # type: ignore[misc]
            for other in world.stores:
                if other is not self and other.is_up and world.is_linked(self.name, other.name):
                    for address, values in other.logs.items():
                        held = len(self.logs.get(address, []))
                        if held < len(values):
                            self._append(address, held, values[held:])
        world.later(world.draw.uniform(0.5, 1.5) * SYNC_S, self._sync)


class Reader(Protocol):
    """A process that reads the group's topic.

    Attributes:
        host: Its name.
    """

    host: str

    def hint(self, store: Store, address: str) -> None:
        """Note that a store holds further records of a member."""
