"""Stands between one machine and its surroundings: feeds it with what happens, carries out what it asks for.

The actions that a machine gives are carried out at once, before anything else happens to it, so that it never sees
the world half changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from dafka import wire
from dafka.endpoints import PeerEndpoint
from dafka.protocol.actions import Action, Append, Deliver, Notify, Publish, Skip, Subscribe
from dafka.protocol.events import Event, PeerJoined, PeerLeft
from dafka.protocol.machines.machine import Machine
from dafka.protocol.presence.beacons import DiscoveryEvent, Settled
from dafka.protocol.presence.links import CONNECTING_MAX, Links
from dafka.records import RecordBatch


class Surroundings(Protocol):
    """A node's sockets, its program or disk. None of these waits."""

    def send(self, messages: Iterable[wire.BatchedMessage]) -> None:
        """Publishes messages."""

    def subscribe(self, prefix: bytes) -> None:
        """Receives what begins with this prefix."""

    def unsubscribe(self, prefix: bytes) -> None:
        """Undoes one `subscribe`."""

    def connect(self, endpoint: PeerEndpoint) -> bool:
        """Connects to a publisher, in the background and again after every loss; False where that is no endpoint."""

    def disconnect(self, endpoint: PeerEndpoint) -> None:
        """Undoes `connect`."""

    def take(self, batch: RecordBatch) -> None:
        """Takes records in order: for the program, or for the storage."""

    def skip(self, skip: Skip) -> None:
        """Lets a stored partition go on elsewhere; only a store is asked to."""

    def notify(self, event: Event) -> None:
        """Lets the program know."""

    def changed(self) -> None:
        """Something happened to the machine: its deadline and its replies may be others."""


class Driver:
    """Attributes:
    machine: what is driven.
    links: whom the node is connected to.
    """

    def __init__(self, machine: Machine, surroundings: Surroundings, connecting_max: int = CONNECTING_MAX) -> None:
        self.machine = machine
        self.links = Links(connecting_max)
        self._surroundings = surroundings

    def act(self, actions: Iterable[Action]) -> None:
        """Carries out actions, in order; what is to be published goes out together."""
        surroundings = self._surroundings
        outbound: list[wire.BatchedMessage] = []
        for action in actions:
            if isinstance(action, Publish):
                outbound.append(action.message)
            elif isinstance(action, (Deliver, Append)):
                surroundings.take(action.batch)
            elif isinstance(action, Skip):
                surroundings.skip(action)
            elif isinstance(action, Notify):
                surroundings.notify(action.event)
            elif isinstance(action, Subscribe):
                surroundings.subscribe(action.prefix)
            else:
                surroundings.unsubscribe(action.prefix)
        if outbound:
            surroundings.send(outbound)
        surroundings.changed()

    def discovered(self, report: DiscoveryEvent, now: float) -> None:
        """Discovery has something to report."""
        if isinstance(report, Settled):
            self.links.find(now)
            self._settle(now)
            return
        if isinstance(report, PeerJoined):
            if self.links.join(report.endpoint) and not self._connect(report.endpoint, now):
                self.links.leave(report.endpoint)
                return
            self.act(self.machine.peer_joined(report.address, now))
        elif isinstance(report, PeerLeft):
            if self.links.leave(report.endpoint):
                self._surroundings.disconnect(report.endpoint)
            self.act(self.machine.peer_left(report.address, now))
            self._settle(now)
        self._surroundings.notify(report)

    def connected(self, endpoints: Iterable[PeerEndpoint], now: float) -> None:
        """Connections to these endpoints have been made, for the first time or again."""
        self.links.connect(endpoints)
        self._settle(now)

    def tick(self, now: float) -> None:
        """The time that `deadline` named has come."""
        self._settle(now)
        while (endpoint := self.links.turn(now)) is not None:
            self._connect(endpoint, now)
        self.act(self.machine.tick(now))

    def deadline(self) -> float:
        """When `tick` next has something to do."""
        return min(self.machine.deadline(), self.links.deadline())

    def _connect(self, endpoint: PeerEndpoint, now: float) -> bool:
        """Connects, if it is this one's turn; False where that is no endpoint."""
        ended = self.links.begin(endpoint, now)
        if ended is None:
            return True
        for other in ended:
            self._surroundings.disconnect(other)
        if self._surroundings.connect(endpoint):
            return True
        self.machine.discarded["endpoint"] += 1
        return False

    def _settle(self, now: float) -> None:
        if self.links.settle(now):
            self.act(self.machine.settled(now))
