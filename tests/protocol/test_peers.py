"""The nodes that are known from beacons and directories: when they join, move and leave."""

from __future__ import annotations

from random import Random

import attrs
import pytest

from dafka import wire
from dafka.endpoints import PeerEndpoint
from dafka.protocol import PeerJoined, PeerLeft
from dafka.protocol.presence.peers import PeerTable

A1, A2, B1 = "tcp://10.0.0.1:4001", "tcp://10.0.0.1:4002", "tcp://10.0.0.2:4001"
LOOPBACK = "tcp://127.0.0.1:4001"
TIMEOUT_S = 4.0


def make_peers(peers_max: int = 10, *, is_remote: bool = False) -> PeerTable:
    return PeerTable("ME", TIMEOUT_S, peers_max, is_remote=is_remote)


@pytest.mark.parametrize("is_remote", [False, True])
def test_nodes_join_move_and_leave_as_their_beacons_say(is_remote: bool) -> None:
    """A node is at the endpoint that was heard first, until it is heard on another port, or not only on loopback."""
    draw, peers, ignored, now = Random(3), make_peers(3, is_remote=is_remote), 0, 0.0
    known: dict[str, tuple[str, float]] = {}
    for _ in range(600):
        now += draw.choice([0.0, 0.5, 2.0])
        left = [name for name, (_, heard_at) in known.items() if now - heard_at >= TIMEOUT_S]
        assert peers.expire(now) == [PeerLeft(name, PeerEndpoint(known.pop(name)[0])) for name in left]
        name, endpoint = draw.choice(["A", "B", "C", "D", "ME"]), draw.choice([A1, A1, A2, B1, LOOPBACK])
        changes = peers.heard(wire.TowerBeacon(name, endpoint), now)
        if name in known:
            former = known[name][0]
            is_correction = is_remote and former == LOOPBACK != endpoint
            has_moved = is_correction or former[-4:] != endpoint[-4:]
            known[name] = (endpoint if has_moved else former, now)
            moved: list[PeerJoined | PeerLeft] = [PeerLeft(name, PeerEndpoint(former))]
            assert changes == ([*moved, PeerJoined(name, PeerEndpoint(endpoint))] if has_moved else [])
        elif name != "ME" and len(known) < 3:
            known[name] = endpoint, now
            assert changes == [PeerJoined(name, PeerEndpoint(endpoint))]
        else:
            ignored += name != "ME"
            assert changes == []
        assert (len(peers), peers.ignored, peers.has_capacity) == (len(known), ignored, len(known) < 3)


def test_a_node_that_is_heard_and_listed_stays_until_neither_is_true() -> None:
    entry = wire.DirectoryEntry("A", A1, "", wire.Role.STORE)
    for silent_at, left_at in ((0.0, 4.0), (5.0, 9.0)):
        peers = make_peers()
        peers.heard(wire.TowerBeacon("A", A1), silent_at)
        for tower in (0, 1):
            assert peers.listed(entry, tower) == []
        assert peers.unlisted(attrs.evolve(entry, role=wire.Role.ANY), 0, silent_at) == [], "it has changed its role"
        assert peers.unlisted(entry, 0, silent_at) == []
        assert peers.expire(100.0) == [], "the other tower lists it"
        assert peers.unlisted(entry, 2, silent_at) == []
        assert peers.unlisted(entry, 1, left_at - 0.1) == []
        assert peers.expire(left_at - 0.1) == []
        assert peers.expire(left_at, are_listed=True) == [PeerLeft("A", PeerEndpoint(A1))]


def test_nodes_missing_in_a_new_directory_of_a_tower_have_the_timeout_to_register() -> None:
    peers = make_peers()
    for name, endpoint, towers in (("A", A1, (0,)), ("B", B1, (0, 1)), ("C", A2, (1,))):
        for tower in towers:
            peers.listed(wire.DirectoryEntry(name, endpoint), tower)
    peers.keep_listed(0, [], 10.0)
    assert peers.expire(13.9) == []
    assert peers.expire(14.0) == [PeerLeft("A", PeerEndpoint(A1))]
    peers.keep_listed(1, [("C", "")], 20.0)
    assert peers.expire(100.0) == [PeerLeft("B", PeerEndpoint(B1))]
    peers.heard(wire.TowerBeacon("D", A1), 100.0)
    assert peers.expire(104.0, are_listed=True, is_tower_silent=True) == [PeerLeft("D", PeerEndpoint(A1), True, True)]
