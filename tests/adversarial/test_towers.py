"""A tower introduces no more for one connection than it should, and nobody under another's address."""

from __future__ import annotations

from dafka.protocol import BeaconRegistry
from dafka.protocol.presence.introductions import BEACONS_BURST, NODES_PER_CONNECTION_MAX

TIMEOUT_S = 4.0


def make_introductions(nodes_max: int = 1000) -> tuple[BeaconRegistry, set[int]]:
    there = {1, 2, 3}
    return BeaconRegistry(nodes_max, TIMEOUT_S, there.__contains__), there


def test_one_connection_introduces_so_many_nodes() -> None:
    introductions, _ = make_introductions()
    for number in range(NODES_PER_CONNECTION_MAX + 10):
        introductions.admit(f"{number}", 1, 0.0)
    assert introductions.discarded == {"too many nodes of one connection": 10}
    assert introductions.admit("HONEST", 2, 0.0)


def test_nodes_beyond_the_limit_wait_until_others_are_silent() -> None:
    introductions, _ = make_introductions(nodes_max=1)
    assert introductions.admit("A", 1, 0.0)
    assert not introductions.admit("B", 2, 0.0)
    introductions.sweep(TIMEOUT_S)
    assert introductions.admit("B", 2, TIMEOUT_S)
    assert len(introductions) == 1


def test_an_address_is_its_connections_until_that_is_gone_or_silent() -> None:
    introductions, there = make_introductions()
    assert introductions.admit("A", 1, 0.0)
    assert not introductions.admit("A", 2, 1.0)
    assert introductions.discarded == {"the address of another node": 1}
    there.discard(1)
    assert introductions.admit("A", 2, 1.0)
    assert introductions.admit("A", 3, 1.0 + TIMEOUT_S)


def test_beacons_of_one_connection_are_passed_on_so_often() -> None:
    introductions, _ = make_introductions()
    admitted = sum(introductions.admit("A", 1, 0.0) for _ in range(2 * BEACONS_BURST))
    assert admitted == BEACONS_BURST
    assert introductions.discarded == {"too many beacons": BEACONS_BURST}
    assert introductions.admit("B", 2, 0.0)
    assert introductions.admit("A", 1, 1.0)


def test_connections_that_are_gone_are_forgotten() -> None:
    introductions, there = make_introductions()
    introductions.admit("A", 1, 0.0)
    there.clear()
    introductions.sweep(1.0)
    assert introductions.sources() == []
