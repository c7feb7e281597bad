"""Broken towers, and nodes with broken discovery."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import pytest

from dafka.discovery import Advertisement
from dafka.endpoints import MessageSource
from dafka.protocol import BeaconAction, BeaconMachine, TowerMachine
from dafka.protocol.machines import tower as tower_machine
from dafka.protocol.presence.peers import PeerChange, PeerTable
from dafka.roles import producer as producer_role
from dafka.roles import tower as tower_role
from dafka.roles.sockets import NodeSockets
from dafka.wire import WELCOME, TowerBeacon
from dafka.wire import beacon as wire_beacon
from tests.conformance.mutants import Mutant, drop_silent_peers

Patch = pytest.MonkeyPatch
Forward = Callable[[TowerMachine, Sequence[bytes], MessageSource, float], list[bytes] | None]

_forward = TowerMachine.forward_beacon


# Towers


def no_welcome(patch: Patch) -> None:
    patch.setattr(tower_role, "WELCOME", b"")


def forward_with(forward: Forward) -> Callable[[Patch], None]:
    """Return a patch that makes towers turn a node's beacon into another tower beacon."""
    return lambda patch: patch.setattr(TowerMachine, "forward_beacon", forward)


def as_it_came(_: TowerMachine, frames: Sequence[bytes], __: MessageSource, ___: float) -> list[bytes] | None:
    return list(frames)


def without_host(self: TowerMachine, frames: Sequence[bytes], source: MessageSource, now: float) -> list[bytes] | None:
    return _forward(self, [*frames[:2], b"", *frames[3:]], source, now)


def once(self: TowerMachine, frames: Sequence[bytes], source: MessageSource, now: float) -> list[bytes] | None:
    forwarded: set[bytes] = vars(self).setdefault("forwarded_once", set())
    if frames[1] in forwarded:
        return None
    forwarded.add(frames[1])
    return _forward(self, frames, source, now)


def no_address(patch: Patch) -> None:
    patch.setattr(tower_machine, "reachable_host", lambda _, __: "somewhere")


# Nodes


def one_beacon(patch: Patch) -> None:
    choose = BeaconMachine._choose_form

    def choose_without_interval(self: BeaconMachine, number: int, now: float) -> list[BeaconAction]:
        actions = choose(self, number, now)
        self._interval = 3600.0
        self._beacon_due = float("inf")
        return actions

    patch.setattr(BeaconMachine, "_choose_form", choose_without_interval)


def no_beacon_for_newcomers(patch: Patch) -> None:
    hear = BeaconMachine._hear

    def hear_quietly(self: BeaconMachine, frames: Sequence[bytes], *args: Any) -> bool:
        return hear(self, frames, *args) and frames == [WELCOME]

    patch.setattr(BeaconMachine, "_hear", hear_quietly)


def address_made_with(change: Callable[[str], str], role: Any) -> Callable[[Patch], None]:
    """Change how a node's address is written."""
    new_address = role.new_address
    return lambda patch: patch.setattr(role, "new_address", lambda: change(new_address()))


def deaf_after_tower_restart(patch: Patch) -> None:
    hear = BeaconMachine._hear
    welcomes: dict[int, int] = {}

    def hear_first_tower(self: BeaconMachine, frames: Sequence[bytes], *args: Any) -> bool:
        welcomes[id(self)] = welcomes.get(id(self), 0) + (frames == [WELCOME])
        return hear(self, frames, *args) if welcomes[id(self)] <= 1 else False

    patch.setattr(BeaconMachine, "_hear", hear_first_tower)


def expire_in_spite_of_beacons(patch: Patch) -> None:
    heard = PeerTable.heard

    def heard_new(self: PeerTable, beacon: TowerBeacon, now: float) -> list[PeerChange]:
        return [] if (beacon.address, beacon.key) in self._peers else heard(self, beacon, now)

    drop_silent_peers(patch)
    patch.setattr(PeerTable, "heard", heard_new)


def wrong_port(patch: Patch) -> None:
    advertisement = NodeSockets._advertisement

    def with_wrong_port(self: NodeSockets) -> Advertisement:
        return attrs.evolve(advertisement(self), port=9)

    patch.setattr(NodeSockets, "_advertisement", with_wrong_port)


def three_frames(patch: Patch) -> None:
    encode = wire_beacon.NodeBeacon.encode
    patch.setattr(wire_beacon.NodeBeacon, "encode", lambda self: encode(self)[:2] + encode(self)[3:])


MUTANTS: list[Mutant] = [
    Mutant("tower-no-welcome", "tower.welcome", "tower.welcome", "was not sent the welcome message", no_welcome),
    Mutant("tower-four-frames", "tower.forwards", "grammar.tower-beacon", "uuid, endpoint),", forward_with(as_it_came)),
    Mutant("tower-ignores-host", "tower.given-host", "tower.given-host", "tcp://127.0.0.1", forward_with(without_host)),
    Mutant("tower-forwards-once", "tower.later-nodes", "tower.forwards", "none was forwarded to", forward_with(once)),
    Mutant("tower-no-address", "tower.peer-address", "tower.peer-address", "expected an IP address", no_address),
    Mutant(
        "node-drops-all-peers", "consumer.silent-peer", "subscriber.connects", "was dropped", expire_in_spite_of_beacons
    ),
    Mutant("node-one-beacon", "producer.beacons", "beacon.interval", "no further beacon arrived", one_beacon),
    Mutant("node-ignores-newcomers", "consumer.beacons", "beacon.on-new-peer", "6 new peers", no_beacon_for_newcomers),
    Mutant(
        "node-lower-case-address",
        "producer.beacons",
        "address.uuid",
        "32 upper-case hexadecimal digits",
        address_made_with(str.lower, producer_role),
    ),
    Mutant("node-three-frames", "store.beacons", "grammar.node-beacon", "not 3", three_frames),
    Mutant("node-wrong-port", "store.discovers", "publisher.bound", "cannot connect to the endpoint", wrong_port),
    Mutant("node-deaf-after-restart", "store.tower-restart", "tower.restart", "connect to a", deaf_after_tower_restart),
]
