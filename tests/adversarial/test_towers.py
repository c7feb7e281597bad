"""A tower introduces a limited number of nodes per connection, and no node under the address of another."""

from __future__ import annotations

from dafka.protocol.presence.beacon_registry import BEACONS_BURST, NODES_PER_CONNECTION_MAX, BeaconRegistry

TIMEOUT_S = 4.0


def make_registry(nodes_max: int = 1000) -> tuple[BeaconRegistry, set[int]]:
    there = {1, 2, 3}
    return BeaconRegistry(nodes_max, TIMEOUT_S, there.__contains__), there


def test_one_connection_introduces_a_limited_number_of_nodes() -> None:
    registry, _ = make_registry()
    for number in range(NODES_PER_CONNECTION_MAX + 10):
        registry.admit_beacon(f"{number}", 1, 0.0)
    assert registry.discarded == {"too many nodes of one connection": 10}
    assert registry.admit_beacon("HONEST", 2, 0.0)


def test_nodes_beyond_the_limit_wait_until_others_expire() -> None:
    registry, _ = make_registry(nodes_max=1)
    assert registry.admit_beacon("A", 1, 0.0)
    assert not registry.admit_beacon("B", 2, 0.0)
    registry.expire(TIMEOUT_S)
    assert registry.admit_beacon("B", 2, TIMEOUT_S)
    assert len(registry) == 1


def test_an_address_belongs_to_its_connection_until_that_ends_or_is_silent() -> None:
    registry, there = make_registry()
    assert registry.admit_beacon("A", 1, 0.0)
    assert not registry.admit_beacon("A", 2, 1.0)
    assert registry.discarded == {"address of another node": 1}
    there.discard(1)
    assert registry.admit_beacon("A", 2, 1.0)
    assert registry.admit_beacon("A", 3, 1.0 + TIMEOUT_S)


def test_beacons_of_one_connection_are_forwarded_at_a_limited_rate() -> None:
    registry, _ = make_registry()
    admitted = sum(registry.admit_beacon("A", 1, 0.0) for _ in range(2 * BEACONS_BURST))
    assert admitted == BEACONS_BURST
    assert registry.discarded == {"too many beacons": BEACONS_BURST}
    assert registry.admit_beacon("B", 2, 0.0)
    assert registry.admit_beacon("A", 1, 1.0)


def test_ended_connections_are_forgotten() -> None:
    registry, there = make_registry()
    registry.admit_beacon("A", 1, 0.0)
    registry.admit_beacon("B", 2, 0.0)
    there.discard(1)
    registry.forget_connection(1)
    registry.forget_connection(3)
    assert registry.connections() == [2]
    assert registry.expire(1.0) == []
    assert "A" in registry
    assert registry.admit_beacon("A", 2, 1.0)


def test_nodes_that_register_are_gone_when_their_connection_ends() -> None:
    registry, there = make_registry()
    registry.admit_beacon("A", 1, 0.0, may_be_late=True)
    registry.admit_beacon("B", 2, 0.0, may_be_late=True)
    registry.admit_beacon("C", 3, 0.0, may_be_late=True)
    for ended in (1, 2):
        there.discard(ended)
        registry.forget_connection(ended)
    assert registry.admit_beacon("B", 4, 0.1, may_be_late=True)
    assert registry.expire(0.1) == ["A"]
    assert registry.expire(0.2) == []
    assert "A" not in registry
    assert "B" in registry
