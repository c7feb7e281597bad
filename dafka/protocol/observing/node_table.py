"""The towers and nodes of a cluster, by the beacons that each tower passes on and by what nodes subscribe to."""

from __future__ import annotations

from collections import Counter

import attrs

from dafka import wire
from dafka.endpoints import PeerEndpoint
from dafka.protocol.events import PeerJoined, PeerLeft
from dafka.protocol.observing.cluster_survey import NodeState, NodeView, Sighting, TowerView
from dafka.wire import Command

FORGET_S = 300.0
"""A node that fell silent is shown for so long."""

OWN_COMMANDS = {
    Command.ACK,
    Command.FETCH,
    Command.STORE_HELLO,
    Command.CONSUMER_HELLO,
    Command.DIRECT_RECORD,
    Command.DIRECT_HEAD,
    Command.DIRECT_EARLIEST,
}
"""Those that nodes subscribe to with an address, their own; to ACKs also with others'."""


_NOWHERE = PeerEndpoint("")


@attrs.define
class Entry:
    """One node.

    Attributes:
        is_joined: discovery has found it, and not lost it since.
        publishes: it has sent a HEAD.
        commands: what it has subscribed to with its address.
    """

    first_seen: float
    last_seen: float
    endpoint: PeerEndpoint = _NOWHERE
    is_joined: bool = False
    publishes: bool = False
    commands: set[Command] = attrs.field(factory=set)
    sightings: dict[str, Sighting] = attrs.field(factory=dict)

    @property
    def is_store(self) -> bool:
        """Consumers greet it."""
        return Command.CONSUMER_HELLO in self.commands

    @property
    def is_producer(self) -> bool:
        """It answers FETCHes of its partition, or announces it."""
        return self.publishes or Command.FETCH in self.commands

    @property
    def answers(self) -> bool:
        """A store that says so when it holds nothing (erratum 26), and so when it has told all; libdafka's do not."""
        return Command.DIRECT_EARLIEST in self.commands

    @property
    def roles(self) -> tuple[str, ...]:
        """See `NodeView`."""
        is_consumer = Command.STORE_HELLO in self.commands
        shown = (("store", self.is_store), ("producer", self.is_producer), ("consumer", is_consumer))
        roles = tuple(role for role, is_shown in shown if is_shown)
        if roles:
            return roles
        if Command.DIRECT_RECORD in self.commands:
            return ("store writer",)
        return ("observer",) if Command.DIRECT_EARLIEST in self.commands else ()

    def state(self, now: float, timeout: float) -> NodeState:
        """Is it there?"""
        if not self.is_joined and now >= self.last_seen + timeout:
            return NodeState.SILENT
        return NodeState.UP if self.commands or self.publishes else NodeState.UNCONNECTED


@attrs.define
class _Tower:
    heard_at: float = float("-inf")
    refusal: str = ""


class NodeTable:
    """Attributes:
    entries: the nodes, by address.
    """

    def __init__(self, own_address: str, towers: tuple[str, ...], timeout: float, nodes_max: int) -> None:
        self.entries: dict[str, Entry] = {}
        self._own_address = own_address
        self._towers = {endpoint: _Tower() for endpoint in towers}
        self._timeout = timeout
        self._nodes_max = nodes_max
        self._is_full = False
        self._early: dict[str, set[Command]] = {}

    def tower_heard(self, tower: str, now: float) -> None:
        """This tower has sent something: at the least, each interval, this node's own beacon."""
        self._towers[tower] = _Tower(now)

    def tower_refused(self, tower: str, reason: str) -> None:
        """This tower does not let this node in."""
        self._towers[tower].refusal = reason

    def seen(self, tower: str, beacon: wire.TowerBeacon, now: float) -> None:
        """This tower has told of a node."""
        entry = self._find(beacon.address, now)
        if entry is None or (entry.is_joined and entry.endpoint.key != beacon.key):
            return
        entry.last_seen = now
        if not entry.is_joined:
            entry.endpoint = beacon.peer_endpoint
        former = entry.sightings.get(tower)
        first_seen = now if former is None else former.first_seen
        entry.sightings[tower] = Sighting(tower, beacon.endpoint, first_seen, now)

    def found(self, report: PeerJoined | PeerLeft, now: float) -> Entry | None:
        """Discovery has found a node, or lost it; gives it, where there is room for it."""
        entry = self._find(report.address, now)
        if entry is None:
            return None
        entry.is_joined = isinstance(report, PeerJoined)
        if entry.is_joined:
            entry.endpoint = report.endpoint
            entry.last_seen = now
        return entry

    def subscribed(self, subscription: wire.Subscription) -> Entry | None:
        """A node subscribes to something with its address, as it does where it connects; gives it, where it is known.

        What is no longer wanted by anybody is forgotten of nodes alone that are not known: what one that left was
        stays of interest.
        """
        address, command = subscription.topic, subscription.command
        entry = self.entries.get(address)
        if entry is not None:
            if subscription.active:
                entry.commands.add(command)
            return entry
        if not subscription.active:
            commands = self._early.get(address, set())
            commands.discard(command)
            if not commands:
                self._early.pop(address, None)
        elif address in self._early or len(self._early) < self._nodes_max:
            self._early.setdefault(address, set()).add(command)
        return None

    def forget(self, now: float) -> None:
        """Drops those who have been silent for long; whether there is room then, the next beacons show."""
        self._is_full = False
        for address, entry in list(self.entries.items()):
            if not entry.is_joined and now >= entry.last_seen + FORGET_S:
                del self.entries[address]

    def views(self, now: float) -> tuple[NodeView, ...]:
        """The nodes, in the order of their addresses."""
        return tuple(self._view(address, entry, now) for address, entry in sorted(self.entries.items()))

    def tower_views(self, now: float) -> tuple[TowerView, ...]:
        """The towers, in the order of the configuration."""
        counts = Counter(tower for entry in self.entries.values() for tower in entry.sightings)
        return tuple(
            TowerView(name, now < tower.heard_at + self._timeout, counts[name], tower.refusal)
            for name, tower in self._towers.items()
        )

    def limits(self) -> tuple[str, ...]:
        """A sentence where there are more nodes than are kept."""
        return (f"only {self._nodes_max} nodes are shown: there are more",) if self._is_full else ()

    def _find(self, address: str, now: float) -> Entry | None:
        if not address or address == self._own_address:
            return None
        entry = self.entries.get(address)
        if entry is None:
            if len(self.entries) >= self._nodes_max:
                self._is_full = True
                return None
            entry = self.entries[address] = Entry(now, now, commands=self._early.pop(address, set()))
        return entry

    def _view(self, address: str, entry: Entry, now: float) -> NodeView:
        return NodeView(
            address,
            entry.endpoint.endpoint,
            entry.roles,
            entry.state(now, self._timeout),
            entry.first_seen,
            entry.last_seen,
            tuple(entry.sightings[tower] for tower in self._towers if tower in entry.sightings),
        )
