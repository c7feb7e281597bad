from __future__ import annotations

import attrs

from dafka import wire
from dafka.endpoints import PeerEndpoint
from dafka.protocol import PeerJoined, PeerLeft
from dafka.protocol.presence.peers import PeerTable

A1, A2, B1 = "tcp://10.0.0.1:4001", "tcp://10.0.0.1:4002", "tcp://10.0.0.2:4001"
LOOPBACK = "tcp://127.0.0.1:4001"


def make_peers(peers_max: int = 10, *, is_remote: bool = False) -> PeerTable:
    return PeerTable("ME", 4.0, peers_max, is_remote=is_remote)


def test_a_node_joins_once_however_often_it_is_heard() -> None:
    peers = make_peers()
    assert peers.heard(wire.TowerBeacon("A", A1), 0.0) == [PeerJoined("A", PeerEndpoint(A1))]
    assert peers.heard(wire.TowerBeacon("A", A1), 1.0) == []
    assert len(peers) == 1


def test_the_own_beacon_is_no_peer() -> None:
    assert make_peers().heard(wire.TowerBeacon("ME", A1), 0.0) == []


def test_a_node_leaves_when_it_is_silent_for_the_timeout() -> None:
    peers = make_peers()
    peers.heard(wire.TowerBeacon("A", A1), 0.0)
    peers.heard(wire.TowerBeacon("B", B1), 0.0)
    peers.heard(wire.TowerBeacon("B", B1), 3.0)
    assert peers.expire(3.9) == []
    assert peers.expire(4.0) == [PeerLeft("A", PeerEndpoint(A1))]
    assert peers.expire(6.9) == []
    assert peers.expire(7.0) == [PeerLeft("B", PeerEndpoint(B1))]
    assert len(peers) == 0


def test_a_node_that_left_joins_again() -> None:
    peers = make_peers()
    peers.heard(wire.TowerBeacon("A", A1), 0.0)
    peers.expire(4.0)
    assert peers.heard(wire.TowerBeacon("A", A1), 5.0) == [PeerJoined("A", PeerEndpoint(A1))]


def test_a_restarted_node_moves_to_its_new_port() -> None:
    peers = make_peers()
    peers.heard(wire.TowerBeacon("A", A1), 0.0)
    assert peers.heard(wire.TowerBeacon("A", A2), 1.0) == [
        PeerLeft("A", PeerEndpoint(A1)),
        PeerJoined("A", PeerEndpoint(A2)),
    ]
    assert peers.expire(5.0) == [PeerLeft("A", PeerEndpoint(A2))]


def test_the_same_port_seen_at_another_host_is_the_same_node() -> None:
    peers = make_peers()
    peers.heard(wire.TowerBeacon("A", A1), 0.0)
    assert peers.heard(wire.TowerBeacon("A", B1), 3.0) == []
    assert peers.expire(4.0) == []
    assert peers.expire(7.0) == [PeerLeft("A", PeerEndpoint(A1))]


def test_on_another_machine_than_the_tower_a_loopback_endpoint_is_replaced() -> None:
    peers = make_peers(is_remote=True)
    peers.heard(wire.TowerBeacon("A", LOOPBACK), 0.0)
    assert peers.heard(wire.TowerBeacon("A", LOOPBACK), 1.0) == []
    assert peers.heard(wire.TowerBeacon("A", A1), 2.0) == [
        PeerLeft("A", PeerEndpoint(LOOPBACK)),
        PeerJoined("A", PeerEndpoint(A1)),
    ]
    assert peers.heard(wire.TowerBeacon("A", LOOPBACK), 3.0) == []
    assert peers.expire(7.0) == [PeerLeft("A", PeerEndpoint(A1))]


def test_on_the_towers_machine_a_loopback_endpoint_stays() -> None:
    peers = make_peers()
    peers.heard(wire.TowerBeacon("A", LOOPBACK), 0.0)
    assert peers.heard(wire.TowerBeacon("A", A1), 1.0) == []


def test_nodes_beyond_the_limit_are_ignored_and_counted() -> None:
    peers = make_peers(peers_max=1)
    peers.heard(wire.TowerBeacon("A", A1), 0.0)
    assert peers.heard(wire.TowerBeacon("B", B1), 0.0) == []
    assert peers.ignored == 1
    peers.expire(4.0)
    assert peers.heard(wire.TowerBeacon("B", B1), 4.0) == [PeerJoined("B", PeerEndpoint(B1))]


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
