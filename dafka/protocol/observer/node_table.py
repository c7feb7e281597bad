"""The towers and nodes of a cluster, from the beacons that each tower passes on, and from the nodes' subscriptions."""

from __future__ import annotations

from collections import Counter

import attrs

from dafka import wire
from dafka.endpoints import PeerEndpoint
from dafka.protocol.events import PeerJoined, PeerLeft
from dafka.protocol.observer.cluster_survey import NodeState, NodeView, Sighting, TowerView
from dafka.wire import Command
from dafka.wire.commands import ADDRESSED_COMMANDS

FORGET_S = 300.0
"""Seconds for which a silent node is still shown."""

ENDED_TIMEOUTS = 2
"""The time, in timeouts, for which a tower can introduce a node that has ended, with some margin. A node that was seen
for longer has lived while the observer ran."""

OWN_COMMANDS = ADDRESSED_COMMANDS | {Command.FETCH}
"""Commands that nodes subscribe to with their own address. Only ACKs are also subscribed to with other addresses."""


@attrs.define
class NodeEntry:
    """The facts known about one node."""

    first_seen: float
    last_seen: float
    endpoint: PeerEndpoint = attrs.field(factory=lambda: PeerEndpoint(""))
    is_joined: bool = False
    """Whether discovery has found it, and not lost it since."""
    publishes: bool = False
    """Whether it has sent a HEAD."""
    commands: set[Command] = attrs.field(factory=set)
    """The commands that it has subscribed to with its address."""
    sightings: dict[str, Sighting] = attrs.field(factory=dict)
    """The report of each tower that has seen it."""

    @property
    def is_store(self) -> bool:
        """Whether it is a store: consumers greet it."""
        return Command.CONSUMER_HELLO in self.commands

    @property
    def is_libdafka_store(self) -> bool:
        """Whether it is the reading half of a libdafka store, which takes no records."""
        return self.is_store and not self.can_answer and Command.DIRECT_RECORD not in self.commands

    @property
    def is_producer(self) -> bool:
        """Whether it is a producer: it answers FETCHes of its partition, or announces it."""
        return self.publishes or Command.FETCH in self.commands

    @property
    def can_answer(self) -> bool:
        """Whether it is a store that reports when it has answered (erratum 26); libdafka's do not."""
        return Command.DIRECT_EARLIEST in self.commands

    @property
    def lists_topics(self) -> bool:
        """Whether it is a store that lists its topics (erratum 27); libdafka's do not."""
        return Command.GET_TOPICS in self.commands

    @property
    def roles(self) -> tuple[str, ...]:
        """Its roles; see `NodeView`."""
        is_consumer = Command.STORE_HELLO in self.commands
        shown = (("store", self.is_store), ("producer", self.is_producer), ("consumer", is_consumer))
        roles = tuple(role for role, is_shown in shown if is_shown)
        if roles:
            return roles
        if Command.DIRECT_RECORD in self.commands:
            return ("store writer",)
        return ("observer",) if Command.DIRECT_EARLIEST in self.commands else ()

    @property
    def has_connected(self) -> bool:
        """Whether it has ever connected to the observer."""
        return bool(self.commands) or self.publishes

    def has_lived(self, timeout: float) -> bool:
        """Return whether the node is known to have lived while the observer ran."""
        return self.has_connected or self.last_seen - self.first_seen >= ENDED_TIMEOUTS * timeout

    def state(self, now: float, timeout: float) -> NodeState:
        """Return whether the node is present."""
        if not self.is_joined and now >= self.last_seen + timeout:
            return NodeState.SILENT
        return NodeState.UP if self.has_connected else NodeState.UNCONNECTED


@attrs.define
class _Tower:
    heard_at: float = float("-inf")
    refusal: str = ""


class NodeTable:
    """The towers and nodes that an observer, which is left out, knows.

    A node without beacons, or a tower, counts as silent after `timeout` seconds.
    """

    def __init__(self, own_address: str, towers: tuple[str, ...], timeout: float, nodes_max: int) -> None:
        self.entries: dict[str, NodeEntry] = {}
        self._own_address = own_address
        self._towers = {endpoint: _Tower() for endpoint in towers}
        self._timeout = timeout
        self._nodes_max = nodes_max
        self._is_full = False
        self._early: dict[str, set[Command]] = {}

    def tower_heard(self, tower: str, now: float) -> None:
        """Record a message of a tower, which sends at least this node's own beacon in each interval."""
        self._towers[tower] = _Tower(now)

    def tower_refused(self, tower: str, reason: str) -> None:
        """Record that a tower rejects the observer."""
        self._towers[tower].refusal = reason

    def record_beacon(self, tower: str, beacon: wire.TowerBeacon, now: float) -> None:
        """Record that a tower has passed on the beacon of a node."""
        entry = self._find(beacon.address, now)
        if entry is None or (entry.is_joined and entry.endpoint.key != beacon.key):
            return
        entry.last_seen = now
        if not entry.is_joined:
            entry.endpoint = beacon.peer_endpoint
        former = entry.sightings.get(tower)
        first_seen = now if former is None else former.first_seen
        entry.sightings[tower] = Sighting(tower, beacon.endpoint, first_seen, now)

    def record_discovery(self, report: PeerJoined | PeerLeft, now: float) -> NodeEntry | None:
        """Record that discovery found or lost a node; return its entry, or None if there is no room for it."""
        entry = self._find(report.address, now)
        if entry is None:
            return None
        entry.is_joined = isinstance(report, PeerJoined)
        if entry.is_joined:
            entry.endpoint = report.endpoint
            entry.last_seen = now
        return entry

    def record_subscription(self, subscription: wire.Subscription) -> NodeEntry | None:
        """Record that a node subscribes to one of `OWN_COMMANDS` with its address, as nodes do when they connect.

        Subscriptions of nodes that are not known yet are kept, until they unsubscribe. The roles of a node that has
        left are kept. Return the entry of the node, or None if it is not known yet.
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

    def forget_silent(self, now: float) -> None:
        """Forget nodes that have been silent for long.

        A node that may have ended before the observer started is forgotten as soon as it is silent.
        """
        self._is_full = False
        for address, entry in list(self.entries.items()):
            kept_s = FORGET_S if entry.has_lived(self._timeout) else self._timeout
            if not entry.is_joined and now >= entry.last_seen + kept_s:
                del self.entries[address]

    def views(self, now: float) -> tuple[NodeView, ...]:
        """Return the nodes, ordered by address."""
        return tuple(self._view(address, entry, now) for address, entry in sorted(self.entries.items()))

    def tower_views(self, now: float) -> tuple[TowerView, ...]:
        """Return the towers, in the order of the configuration."""
        counts = Counter(tower for entry in self.entries.values() for tower in entry.sightings)
        return tuple(
            TowerView(name, now < tower.heard_at + self._timeout, counts[name], tower.refusal)
            for name, tower in self._towers.items()
        )

    def limits(self) -> tuple[str, ...]:
        """Return a sentence if the limit of nodes was reached."""
        return (f"only {self._nodes_max} nodes are shown: there are more",) if self._is_full else ()

    def _find(self, address: str, now: float) -> NodeEntry | None:
        if not address or address == self._own_address:
            return None
        entry = self.entries.get(address)
        if entry is None:
            if len(self.entries) >= self._nodes_max:
                self._is_full = True
                return None
            entry = self.entries[address] = NodeEntry(now, now, commands=self._early.pop(address, set()))
        return entry

    def _view(self, address: str, entry: NodeEntry, now: float) -> NodeView:
        return NodeView(
            address,
            entry.endpoint.endpoint,
            entry.roles,
            entry.state(now, self._timeout),
            entry.first_seen,
            entry.last_seen,
            tuple(entry.sightings[tower] for tower in self._towers if tower in entry.sightings),
        )
