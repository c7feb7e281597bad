"""Broken towers, and nodes with broken discovery."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import pytest
import trio

from dafka.discovery import Advertisement
from dafka.endpoints import MessageSource
from dafka.errors import WireError
from dafka.protocol import BeaconAction, BeaconMachine, TowerMachine
from dafka.protocol.machines import tower as tower_machine
from dafka.protocol.presence.peers import PeerChange, PeerTable
from dafka.roles import consumer as consumer_role
from dafka.roles import producer as producer_role
from dafka.roles import tower as tower_role
from dafka.roles.sockets import NodeSockets
from dafka.roles.tower import Tower
from dafka.wire import WELCOME, TowerBeacon
from dafka.wire import beacon as wire_beacon
from tests.conformance.mutants import Mutant, drop_silent_peers

Patch = pytest.MonkeyPatch
Forward = Callable[[TowerMachine, Sequence[bytes], MessageSource, float], list[bytes] | None]

_forward = TowerMachine.forward_beacon


# Towers


def no_welcome(patch: Patch) -> None:
    patch.setattr(tower_role, "WELCOME", b"")


def wrong_welcome(patch: Patch) -> None:
    patch.setattr(tower_role, "WELCOME", b"WELCOME")


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


def only_80_nodes(self: TowerMachine, frames: Sequence[bytes], source: MessageSource, now: float) -> list[bytes] | None:
    announced: set[bytes] = vars(self).setdefault("announced_nodes", set())
    if len(announced) >= 80 and frames[1] not in announced:
        return None
    announced.add(frames[1])
    return _forward(self, frames, source, now)


def unchecked(_: TowerMachine, frames: Sequence[bytes], source: MessageSource, __: float) -> list[bytes] | None:
    if len(frames) < 4:
        return None
    return [frames[0], frames[1], b"tcp://%b:%b" % (frames[2] or source.host.encode("ascii"), frames[3])]


def fatal(self: TowerMachine, frames: Sequence[bytes], source: MessageSource, now: float) -> list[bytes] | None:
    forwarded = _forward(self, frames, source, now)
    if forwarded is None:
        raise RuntimeError("malformed beacon")
    return forwarded


def no_address(patch: Patch) -> None:
    patch.setattr(tower_machine, "reachable_host", lambda _, __: "somewhere")


def any_address(patch: Patch) -> None:
    patch.setattr(tower_machine, "reachable_host", lambda _, __: "0.0.0.0")


def unreachable(patch: Patch) -> None:
    patch.setattr(tower_machine, "reachable_host", lambda _, __: "192.0.2.99")


def keep_host(patch: Patch) -> None:
    hosts = [b""]

    def forward(self: TowerMachine, frames: Sequence[bytes], source: MessageSource, now: float) -> list[bytes] | None:
        if len(frames) == 4 and frames[2]:
            hosts[0] = frames[2]
        return _forward(self, [*frames[:2], hosts[0], *frames[3:]], source, now)

    patch.setattr(TowerMachine, "forward_beacon", forward)


def keep_endpoint(patch: Patch) -> None:
    endpoints: dict[bytes, bytes] = {}

    def forward(self: TowerMachine, frames: Sequence[bytes], source: MessageSource, now: float) -> list[bytes] | None:
        forwarded = _forward(self, frames, source, now)
        return forwarded and [*forwarded[:2], endpoints.setdefault(forwarded[1], forwarded[2])]

    patch.setattr(TowerMachine, "forward_beacon", forward)


def repeat(patch: Patch) -> None:
    run, known = Tower.run, dict[bytes, list[bytes]]()

    def forward(self: TowerMachine, frames: Sequence[bytes], source: MessageSource, now: float) -> list[bytes] | None:
        forwarded = _forward(self, frames, source, now)
        if forwarded is not None:
            known[forwarded[1]] = forwarded
        return forwarded

    async def run_repeating(self: Tower) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, self)
            while True:
                await trio.sleep(1)
                self._publisher.send_many(known.values())

    patch.setattr(TowerMachine, "forward_beacon", forward)
    patch.setattr(Tower, "run", run_repeating)


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


def never_connect(patch: Patch) -> None:
    patch.setattr(NodeSockets, "connect", lambda _, __: False)


def never_connect_again(patch: Patch) -> None:
    heard, seen = PeerTable.heard, set[tuple[int, str]]()

    def heard_once(self: PeerTable, beacon: TowerBeacon, now: float) -> list[PeerChange]:
        changes = heard(self, beacon, now)
        is_known = (id(self), beacon.address) in seen
        seen.add((id(self), beacon.address))
        return [] if is_known else changes

    drop_silent_peers(patch)
    patch.setattr(PeerTable, "heard", heard_once)


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


def fatal_beacon(patch: Patch) -> None:
    decode = TowerBeacon.decode

    def decode_or_crash(frames: list[bytes], *, has_key: bool) -> TowerBeacon:
        try:
            return decode(frames)
        except WireError as error:
            raise RuntimeError(f"malformed beacon: {error}") from error

    patch.setattr(TowerBeacon, "decode", decode_or_crash)


def blocked_by_malformed_beacon(patch: Patch) -> None:
    hear = BeaconMachine._hear
    stuck: set[int] = set()

    def hear_until_malformed(self: BeaconMachine, frames: Sequence[bytes], *args: Any) -> bool:
        if len(frames) == 2:
            stuck.add(id(self))
        return hear(self, frames, *args) if id(self) not in stuck else False

    patch.setattr(BeaconMachine, "_hear", hear_until_malformed)


MUTANTS: list[Mutant] = [
    Mutant("tower-no-welcome", "tower.welcome", "tower.welcome", "was not sent the welcome message", no_welcome),
    Mutant("tower-wrong-welcome", "tower.welcome", "tower.welcome", "was not sent the welcome message", wrong_welcome),
    Mutant(
        "tower-four-frames",
        "tower.forwards",
        "grammar.tower-beacon",
        "expected the 3 frames of a TOWER-BEACON (beacon, uuid, endpoint), not 4",
        forward_with(as_it_came),
    ),
    Mutant(
        "tower-ignores-host",
        "tower.given-host",
        "tower.given-host",
        "with the host node-7.example.org has the endpoint tcp://127.0.0.1",
        forward_with(without_host),
    ),
    Mutant(
        "tower-forwards-once", "tower.later-nodes", "tower.forwards", "none was forwarded to N2", forward_with(once)
    ),
    Mutant(
        "tower-80-nodes",
        "tower.many-nodes",
        "tower.forwards",
        "20 of 100 nodes were not announced",
        forward_with(only_80_nodes),
    ),
    Mutant(
        "tower-forwards-malformed",
        "tower.malformed-beacons",
        "grammar.tower-beacon",
        "published frames that are no tower beacon",
        forward_with(unchecked),
    ),
    Mutant("tower-dies", "tower.malformed-beacons", "robust.malformed", "ended by itself", forward_with(fatal)),
    Mutant("tower-no-address", "tower.peer-address", "tower.peer-address", "expected an IP address", no_address),
    Mutant("tower-unreachable", "tower.peer-address", "tower.peer-address", "does not accept connections", unreachable),
    Mutant(
        "tower-any-address",
        "tower.peer-address",
        "tower.peer-address",
        "which is a wildcard",
        any_address,
    ),
    Mutant(
        "node-drops-all-peers",
        "consumer.silent-peer",
        "subscriber.connects",
        "its connection to C2, which the tower continued to announce, was dropped too",
        expire_in_spite_of_beacons,
    ),
    Mutant(
        "tower-keeps-host",
        "tower.mixed-hosts",
        "tower.peer-address",
        "the host of another node",
        keep_host,
    ),
    Mutant(
        "tower-keeps-endpoint",
        "tower.moved-node",
        "tower.forwards",
        "now have tcp://203.0.113.9:4712, but the last one that was forwarded has tcp://203.0.113.9:4711",
        keep_endpoint,
    ),
    Mutant(
        "tower-repeats",
        "tower.silent-node",
        "tower.forwards",
        "further tower beacons announced a node that had sent only one beacon",
        repeat,
    ),
    Mutant("node-one-beacon", "producer.beacons", "beacon.interval", "no further beacon arrived", one_beacon),
    Mutant(
        "node-ignores-newcomers",
        "consumer.beacons",
        "beacon.on-new-peer",
        "6 new peers were announced",
        no_beacon_for_newcomers,
    ),
    Mutant(
        "node-lower-case-address",
        "producer.beacons",
        "address.uuid",
        "32 upper-case hexadecimal digits",
        address_made_with(str.lower, producer_role),
    ),
    Mutant(
        "node-short-address",
        "consumer.beacons",
        "address.uuid",
        "expected the UUID as 32 upper-case hexadecimal digits",
        address_made_with(lambda address: address[:16], consumer_role),
    ),
    Mutant("node-three-frames", "store.beacons", "grammar.node-beacon", "not 3", three_frames),
    Mutant("node-wrong-port", "store.discovers", "publisher.bound", "cannot connect to the endpoint", wrong_port),
    Mutant(
        "node-deaf-after-restart",
        "store.tower-restart",
        "tower.restart",
        "did not connect to a node that was announced after its restart",
        deaf_after_tower_restart,
    ),
    Mutant(
        "node-never-connects",
        "consumer.discovers",
        "subscriber.connects",
        "C1 was announced to the",
        never_connect,
    ),
    Mutant(
        "node-never-connects-again",
        "producer.silent-peer",
        "subscriber.connects",
        "was dropped and not restored",
        never_connect_again,
    ),
    Mutant("node-dies-of-beacon", "producer.malformed-beacons", "robust.malformed", "ended by itself", fatal_beacon),
    Mutant(
        "node-stuck-after-beacon",
        "store.malformed-beacons",
        "robust.malformed",
        "after malformed beacons",
        blocked_by_malformed_beacon,
    ),
]
