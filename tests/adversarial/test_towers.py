"""A tower introduces no more for one connection than it should, and nobody under another's address."""

from __future__ import annotations

from dafka.protocol.presence.beacon_registry import BEACONS_BURST, NODES_PER_CONNECTION_MAX, BeaconRegistry

TIMEOUT_S = 4.0


def make_registry(nodes_max: int = 1000) -> tuple[BeaconRegistry, set[int]]:
    there = {1, 2, 3}
    return BeaconRegistry(nodes_max, TIMEOUT_S, there.__contains__), there


def test_one_connection_introduces_so_many_nodes() -> None:
    registry, _ = make_registry()
    for number in range(NODES_PER_CONNECTION_MAX + 10):
        registry.admit_beacon(f"{number}", 1, 0.0)
    assert registry.discarded == {"too many nodes of one connection": 10}
    assert registry.admit_beacon("HONEST", 2, 0.0)


def test_nodes_beyond_the_limit_wait_until_others_are_silent() -> None:
    registry, _ = make_registry(nodes_max=1)
    assert registry.admit_beacon("A", 1, 0.0)
    assert not registry.admit_beacon("B", 2, 0.0)
    registry.expire(TIMEOUT_S)
    assert registry.admit_beacon("B", 2, TIMEOUT_S)
    assert len(registry) == 1


def test_an_address_is_its_connections_until_that_is_gone_or_silent() -> None:
    registry, there = make_registry()
    assert registry.admit_beacon("A", 1, 0.0)
    assert not registry.admit_beacon("A", 2, 1.0)
    assert registry.discarded == {"address of another node": 1}
    there.discard(1)
    assert registry.admit_beacon("A", 2, 1.0)
    assert registry.admit_beacon("A", 3, 1.0 + TIMEOUT_S)


def test_beacons_of_one_connection_are_passed_on_so_often() -> None:
    registry, _ = make_registry()
    admitted = sum(registry.admit_beacon("A", 1, 0.0) for _ in range(2 * BEACONS_BURST))
    assert admitted == BEACONS_BURST
    assert registry.discarded == {"too many beacons": BEACONS_BURST}
    assert registry.admit_beacon("B", 2, 0.0)
    assert registry.admit_beacon("A", 1, 1.0)


def test_connections_that_are_gone_are_forgotten() -> None:
    registry, there = make_registry()
    registry.admit_beacon("A", 1, 0.0)
    there.clear()
    registry.expire(1.0)
    assert registry.connections() == []
