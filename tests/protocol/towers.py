"""Nodes and a tower without sockets: what each sends arrives at once, or is lost."""

from __future__ import annotations

import random
from collections.abc import Sequence

from dafka import wire
from dafka.config import Config
from dafka.endpoints import MessageSource, PeerEndpoint
from dafka.protocol import (
    BeaconAction,
    BeaconMachine,
    KeyIdentity,
    PeerJoined,
    PeerLeft,
    SendToTower,
    SubscribeAtTower,
    TowerMachine,
    UnsubscribeAtTower,
)
from dafka.wire import BEACON, REGISTRATION, WELCOME, Role

BOTH_FORMS = (REGISTRATION, BEACON)


class Cluster:
    """A tower and nodes whose messages arrive at once. A node that is not listening loses them."""

    def __init__(self, config: Config | None = None, *, identity: KeyIdentity | None = None) -> None:
        self.now = 0.0
        self.config = config or Config()
        self.nodes: dict[str, Member] = {}
        self.added = 0
        self.connected = True
        self.ended: set[int] = set()
        """The numbers of connections to the tower that have ended."""
        self.identity = identity
        self.restart_tower(1)

    def restart_tower(self, life: int) -> None:
        self.tower = TowerMachine(self.config, "10.0.0.254", self._is_connected, self.identity, life.to_bytes(8, "big"))

    def _is_connected(self, number: int) -> bool:
        return self.connected and number not in self.ended

    def add(self, name: str, role: Role, *, forms: Sequence[bytes] = BOTH_FORMS, key: str = "") -> Member:
        self.added += 1
        member = self.nodes[name] = Member(self, name, role, self.added, key)
        member.act(member.machine.start(self.now))
        member.connect(forms)
        return member

    def end(self, member: Member) -> None:
        """End a node, and its connection to the tower."""
        member.is_running = False
        self.ended.add(member.number)
        self.tower.connection_ended(member.number, self.now)

    def publish(self, messages: Sequence[list[bytes]]) -> None:
        for frames in messages:
            for member in list(self.nodes.values()):
                if frames[0].startswith(tuple(member.prefixes)):
                    member.take(frames)

    def pass_time(self, seconds: float, step: float = 0.05) -> None:
        for _ in range(round(seconds / step)):
            self.now += step
            if self.now >= self.tower.deadline():
                self.publish(self.tower.tick(self.now))
                assert self.tower.deadline() > self.now, "it spins"
            for member in list(self.nodes.values()):
                if member.is_running:
                    member.act(member.machine.tick(self.now))
                    assert member.machine.deadline() > self.now, "it spins"


class Member:
    """One node of a cluster.

    Attributes:
        events: The events that its discovery has reported.
        received: The messages of the tower.
        sent: The messages to the tower.
    """

    def __init__(self, cluster: Cluster, name: str, role: Role, number: int, key: str) -> None:
        self.cluster = cluster
        self.name = name
        self.number = number
        self.key = key
        beacon = wire.NodeBeacon(name, f"10.0.0.{number}", 7000 + number)
        self.machine = BeaconMachine(beacon, cluster.config, role=role, draw=random.Random(number).random)
        self.prefixes: set[bytes] = set()
        self.events: list[BeaconAction] = []
        self.received: list[list[bytes]] = []
        self.sent: list[list[bytes]] = []
        self.is_running = self.is_listening = True

    @property
    def endpoint(self) -> PeerEndpoint:
        return PeerEndpoint(f"tcp://10.0.0.{self.number}:{7000 + self.number}", self.key)

    @property
    def joined(self) -> PeerJoined:
        return PeerJoined(self.name, self.endpoint)

    @property
    def left(self) -> PeerLeft:
        return PeerLeft(self.name, self.endpoint)

    @property
    def source(self) -> MessageSource:
        return MessageSource(f"10.0.0.{self.number}", self.key, self.number)

    def connect(self, forms: Sequence[bytes]) -> None:
        self.take([WELCOME])
        tower = self.cluster.tower
        self.cluster.publish(
            tower.receive_subscriptions([b"\1" + prefix for prefix in sorted(self.prefixes)], self.cluster.now)
        )
        self.act(self.machine.tower_subscribed(0, [b"\1" + prefix for prefix in forms], self.cluster.now))

    def take(self, frames: list[bytes]) -> None:
        if self.is_running and self.is_listening:
            self.received.append(frames)
            self.act(self.machine.heard(0, [frames], self.cluster.now))

    def act(self, actions: Sequence[BeaconAction]) -> None:
        for action in actions:
            if isinstance(action, SendToTower):
                self.sent.append(action.frames)
                messages = [(action.frames, self.source)]
                self.cluster.publish(self.cluster.tower.receive(messages, self.cluster.now))
            elif isinstance(action, SubscribeAtTower):
                self.prefixes.add(action.prefix)
                subscriptions = [b"\1" + action.prefix]
                self.cluster.publish(self.cluster.tower.receive_subscriptions(subscriptions, self.cluster.now))
            elif isinstance(action, UnsubscribeAtTower):
                self.prefixes.discard(action.prefix)
                unsubscriptions = [b"\0" + action.prefix]
                self.cluster.publish(self.cluster.tower.receive_subscriptions(unsubscriptions, self.cluster.now))
            else:
                self.events.append(action)

    def endpoints(self) -> dict[str, PeerEndpoint]:
        """Return the endpoints of the peers, and check that each joins and leaves in turn."""
        found: dict[str, PeerEndpoint] = {}
        for event in self.events:
            if isinstance(event, PeerJoined):
                assert event.address not in found
                found[event.address] = event.endpoint
            elif isinstance(event, PeerLeft):
                assert found.pop(event.address) == event.endpoint
        return found

    def peers(self) -> set[str]:
        """Return the peers that have joined and not left."""
        names: set[str] = set()
        for event in self.events:
            if isinstance(event, PeerJoined):
                names.add(event.address)
            elif isinstance(event, PeerLeft):
                names.discard(event.address)
        return names
