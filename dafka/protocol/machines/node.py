"""One node without its sockets: the state machine of a role, and the connections to peers.

The owner of the sockets passes received messages and the time to `Node`. The machine returns actions, and `Node` runs
them at once, before anything else happens: messages and subscriptions go to the sockets (`NodeIO`), records and events
to the role (`NodeCallbacks`). The roles in `dafka.roles` and the simulation in `tests.simulation` both run their nodes
this way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import attrs

from dafka import wire
from dafka.endpoints import ConnectionChange, PeerEndpoint
from dafka.protocol.actions import Action, Append, Deliver, Effect, Notify, Publish, ResetPosition, Subscribe
from dafka.protocol.events import Event, PeerJoined, PeerLeft
from dafka.protocol.presence.beacons import DiscoveryEvent, Settled
from dafka.protocol.presence.connections import CONNECTING_MAX, ConnectionManager
from dafka.protocol.presence.peer_limits import HOSTILE_REASONS
from dafka.records import RecordBatch


class Machine(Protocol):
    """The state machine of a role. It takes events and the time in seconds, and returns actions."""

    discarded: Counter[str]
    """The number of discarded messages, by reason."""

    def start(self, now: float) -> list[Action]:
        """Start the node: subscribe to the messages of the role."""

    def receive(self, messages: Iterable[wire.BatchedMessage], now: float) -> list[Action]:
        """Take messages from the subscriber socket."""

    def receive_subscriptions(self, subscriptions: Iterable[wire.Subscription], now: float) -> list[Action]:
        """Take peers' subscriptions from the publisher socket."""

    def peer_joined(self, address: str, now: float) -> list[Action]:
        """Record a node that discovery found; its address is empty if discovery does not know it."""

    def peer_left(self, address: str, now: float) -> list[Action]:
        """Record that discovery lost a node."""

    def node_settled(self, now: float) -> list[Action]:
        """Record that this node has found the nodes that were running before it."""

    def tick(self, now: float) -> list[Action]:
        """Do what is due at the time that `deadline` returned."""

    def deadline(self) -> float:
        """Return when to call `tick`; infinity if nothing is due."""


class NodeIO(Protocol):
    """The sockets and the timer of a node. No method waits."""

    def publish(self, messages: Sequence[wire.BatchedMessage]) -> None:
        """Send messages on the publisher socket."""

    def subscribe(self, prefix: bytes) -> None:
        """Receive messages that begin with this prefix."""

    def unsubscribe(self, prefix: bytes) -> None:
        """Undo one `subscribe`."""

    def connect(self, endpoint: PeerEndpoint) -> bool:
        """Connect to a publisher in the background, and again after each loss. Return False for an invalid endpoint."""

    def disconnect(self, endpoint: PeerEndpoint) -> None:
        """Undo `connect`."""

    def set_timer(self, deadline: float) -> None:
        """Call `Node.tick` at this time, and no longer at the time set before."""


@attrs.frozen
class NodeCallbacks:
    """The callbacks that a role passes to its node. None of them blocks."""

    on_records: Callable[[RecordBatch], None]
    """Takes records in order, to deliver to the program or to append to the storage."""
    on_reset_position: Callable[[ResetPosition], None]
    """Continues a stored partition at a later sequence."""
    on_event: Callable[[Event], None]
    on_settled: Callable[[], None]
    """Called once, when the node has found its cluster."""
    on_effect: Callable[[Effect], None]
    on_change: Callable[[], None]
    """Called after every input to the machine."""


class Node:
    """One node: a machine, driven by the messages of its sockets and the events of its discovery."""

    def __init__(
        self, machine: Machine, io: NodeIO, callbacks: NodeCallbacks, connecting_max: int = CONNECTING_MAX
    ) -> None:
        self._machine = machine
        self._io = io
        self._callbacks = callbacks
        self._connections = ConnectionManager(connecting_max)
        self._invalid_endpoints = 0
        self._late: dict[PeerEndpoint, PeerLeft] = {}
        """The peers that discovery has lost but whose connections live, by endpoint."""

    @property
    def peers(self) -> int:
        """The number of nodes that this one is connected to, or connecting to."""
        return len(self._connections)

    @property
    def is_settled(self) -> bool:
        """Whether this node has found the nodes that were running before it, and is connected to them."""
        return self._connections.is_settled

    def discarded(self) -> Counter[str]:
        """Return the number of discarded messages and of invalid endpoints, by reason."""
        return self._machine.discarded + Counter({"endpoint": self._invalid_endpoints})

    def hostile_count(self) -> int:
        """Return the number of discarded messages that no correct node sends."""
        discarded = self._machine.discarded
        return sum(discarded[reason] for reason in HOSTILE_REASONS)

    def act(self, actions: Iterable[Action]) -> None:
        """Run actions in order; their messages are sent together."""
        io, callbacks = self._io, self._callbacks
        outbound: list[wire.BatchedMessage] = []
        effects: list[Effect] = []
        for action in actions:
            if isinstance(action, Publish):
                outbound.append(action.message)
            elif isinstance(action, (Deliver, Append)):
                callbacks.on_records(action.batch)
            elif isinstance(action, ResetPosition):
                callbacks.on_reset_position(action)
            elif isinstance(action, Notify):
                callbacks.on_event(action.event)
            elif isinstance(action, Subscribe):
                io.subscribe(action.prefix)
            elif isinstance(action, Effect):
                effects.append(action)
            else:
                io.unsubscribe(action.prefix)
        if outbound:
            io.publish(outbound)
        io.set_timer(self.deadline())
        for effect in effects:
            callbacks.on_effect(effect)
        callbacks.on_change()

    def start(self, now: float) -> None:
        """Start the node."""
        self.act(self._machine.start(now))

    def receive(self, messages: Iterable[wire.BatchedMessage], now: float) -> None:
        """Take messages from the subscriber socket."""
        self.act(self._machine.receive(messages, now))

    def receive_subscriptions(self, subscriptions: Iterable[wire.Subscription], now: float) -> None:
        """Take peers' subscriptions from the publisher socket."""
        self.act(self._machine.receive_subscriptions(subscriptions, now))

    def discovered(self, report: DiscoveryEvent, now: float) -> None:
        """Process the events of discovery. A lost peer is kept while its connection shows that it lives."""
        if isinstance(report, Settled):
            self._connections.peers_found(now)
            self._settle(now)
        elif isinstance(report, PeerJoined):
            self._peer_joined(report, now)
        elif not isinstance(report, PeerLeft):
            self._callbacks.on_event(report)
        elif not report.is_unwanted and self._connections.shows_life(
            report.endpoint, now, is_tower_silent=report.is_tower_silent
        ):
            self._late[report.endpoint] = report
        else:
            self._peer_left(report, now)
        self._io.set_timer(self.deadline())

    def connections_changed(self, changes: Sequence[ConnectionChange], now: float) -> None:
        """Record that connections to peers were made, for the first time or again, or were lost."""
        self._connections.record_changes(changes, now)
        for change in changes:
            if not change.is_made and (late := self._late.pop(change.peer, None)) is not None:
                self._peer_left(late, now)
        self._settle(now)
        self._io.set_timer(self.deadline())

    def tick(self, now: float) -> None:
        """Do what is due at the time that `deadline` returned."""
        self._settle(now)
        while (endpoint := self._connections.next_queued(now)) is not None:
            self._connect(endpoint, now)
        self.act(self._machine.tick(now))

    def deadline(self) -> float:
        """Return when to call `tick`; infinity if nothing is due."""
        return min(self._machine.deadline(), self._connections.deadline())

    def _peer_joined(self, report: PeerJoined, now: float) -> None:
        known = self._late.get(report.endpoint)
        if known is not None and known.address == report.address:
            del self._late[report.endpoint]  # it is still there
            return
        for late in [each for each in self._late.values() if _is_replaced(each, report)]:
            del self._late[late.endpoint]
            self._peer_left(late, now)
        if self._connections.add_peer(report.endpoint) and not self._connect(report.endpoint, now):
            self._connections.remove_peer(report.endpoint)
            return
        self.act(self._machine.peer_joined(report.address, now))
        self._callbacks.on_event(report)

    def _peer_left(self, report: PeerLeft, now: float) -> None:
        if self._connections.remove_peer(report.endpoint):
            self._io.disconnect(report.endpoint)
        self.act(self._machine.peer_left(report.address, now))
        self._settle(now)
        self._callbacks.on_event(report)

    def _connect(self, endpoint: PeerEndpoint, now: float) -> bool:
        """Connect, now or later when there is room. Return False if the endpoint is invalid."""
        replaced = self._connections.begin_connecting(endpoint, now)
        if replaced is None:
            return True
        for other in replaced:
            self._io.disconnect(other)
        if self._io.connect(endpoint):
            return True
        self._invalid_endpoints += 1
        return False

    def _settle(self, now: float) -> None:
        if self._connections.try_settle(now):
            self.act(self._machine.node_settled(now))
            self._callbacks.on_settled()


def _is_replaced(late: PeerLeft, joined: PeerJoined) -> bool:
    """Return whether a node that joined takes the place of a late one: it has the same address, or endpoint."""
    return late.endpoint == joined.endpoint or (bool(late.address) and late.address == joined.address)
