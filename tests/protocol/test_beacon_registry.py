"""Which beacons a tower accepts from which connection."""

from __future__ import annotations

import pytest

from dafka.protocol.presence import beacon_registry
from dafka.protocol.presence.beacon_registry import (
    ADDRESS_IN_USE,
    BEACONS_BURST,
    BEACONS_PER_S,
    LATE_FACTOR,
    MANY_NODES,
    MANY_OF_ONE_CONNECTION,
    TOO_OFTEN,
    BeaconRegistry,
)

TIMEOUT_S = 4.0


class Registry(BeaconRegistry):
    """A registry whose connections all exist, except those in `ended`."""

    def __init__(self, nodes_max: int = 100) -> None:
        self.ended: set[int] = set()
        super().__init__(nodes_max, TIMEOUT_S, lambda number: number not in self.ended)

    def refusal(self, address: str, connection: int, now: float) -> str:
        before = self.discarded.copy()
        is_accepted = self.admit_beacon(address, connection, now)
        (*reasons,) = self.discarded - before
        assert is_accepted == (not reasons)
        return reasons[0] if reasons else ""


def test_an_address_belongs_to_the_connection_that_introduced_it() -> None:
    registry = Registry()
    assert registry.refusal("A", 1, 0.0) == ""
    assert registry.refusal("A", 2, 0.0) == ADDRESS_IN_USE
    assert registry.refusal("A", 1, 3.0) == ""
    assert registry.refusal("A", 2, 2.99 + TIMEOUT_S) == ADDRESS_IN_USE
    assert registry.discarded == {ADDRESS_IN_USE: 2}
    assert "A" in registry
    assert "B" not in registry
    assert registry.connections() == [1, 2]


def test_a_connection_introduces_a_limited_number_of_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beacon_registry, "NODES_PER_CONNECTION_MAX", 2)
    registry = Registry()
    assert [registry.refusal(name, 1, 0.0) for name in "ABCA"] == ["", "", MANY_OF_ONE_CONNECTION, ""]
    assert registry.refusal("C", 2, 0.0) == ""
    assert registry.refusal("A", 2, TIMEOUT_S) == "", "the node has moved, which makes room at the other connection"
    assert registry.refusal("D", 1, TIMEOUT_S) == ""
    assert registry.refusal("E", 1, TIMEOUT_S) == MANY_OF_ONE_CONNECTION
    assert sorted(registry.expire(2 * TIMEOUT_S - 0.1)) == ["B", "C"]
    assert registry.refusal("E", 1, 2 * TIMEOUT_S) == ""


def test_a_tower_knows_a_limited_number_of_nodes() -> None:
    registry = Registry(nodes_max=2)
    assert [registry.refusal(name, number, 0.0) for number, name in enumerate("ABC")] == ["", "", MANY_NODES]
    assert len(registry) == 2
    assert registry.refusal("A", 0, 1.0) == ""
    assert registry.expire(TIMEOUT_S) == ["B"]
    assert registry.refusal("C", 2, TIMEOUT_S) == ""


def test_a_connection_sends_beacons_at_a_limited_rate() -> None:
    registry = Registry()
    found = [registry.refusal("A", 1, 0.0) for _ in range(BEACONS_BURST + 2)]
    assert found == [*[""] * BEACONS_BURST, TOO_OFTEN, TOO_OFTEN]
    assert registry.refusal("B", 2, 0.0) == "", "other connections have their own rate"
    found = [registry.refusal("A", 1, 0.1) for _ in range(30)]
    assert found.count("") == BEACONS_PER_S / 10
    registry.forget_connection(1)
    assert registry.connections() == [2]
    assert "A" in registry
    registry.forget_connection(1)


def test_silent_nodes_are_forgotten_a_few_times_per_timeout() -> None:
    registry = Registry()
    registry.refusal("A", 1, 0.0)
    registry.refusal("B", 1, 0.5)
    assert registry.expire(registry.deadline() - 0.01) == []
    assert registry.deadline() == TIMEOUT_S
    assert registry.expire(TIMEOUT_S) == ["A"]
    assert registry.expire(4.99) == [], "it has just looked"
    assert registry.expire(TIMEOUT_S + TIMEOUT_S / 4) == ["B"]
    assert len(registry) == 0
    registry.refusal("A", 1, 5.0)
    assert registry.expire(8.99) == []
    assert registry.expire(9.0) == ["A"]


def test_nodes_that_register_seldom_are_looked_at_seldom() -> None:
    registry = BeaconRegistry(10, TIMEOUT_S, lambda _: True, 60.0)
    registry.admit_beacon("A", 1, 0.0, may_be_late=True)
    assert registry.deadline() == 60.0 + TIMEOUT_S
    assert registry.expire(60.0 + TIMEOUT_S) == []
    assert registry.expire(60.0 + LATE_FACTOR * TIMEOUT_S - 0.1) == []
    registry.admit_beacon("B", -1, 70.0, may_be_late=True)
    assert registry.expire(60.0 + (LATE_FACTOR + 1) * TIMEOUT_S) == ["A", "B"], "the connection of B had ended"


def test_nodes_that_register_are_gone_when_their_connection_ends() -> None:
    registry = Registry()
    for number, name in enumerate("ABC"):
        assert registry.admit_beacon(name, number, 0.0, may_be_late=True)
    registry.ended |= {0, 1}
    for number in range(2):
        registry.forget_connection(number)
    assert registry.connections() == [2]
    assert registry.admit_beacon("B", 4, 0.1, may_be_late=True), "it has connected again"
    assert registry.expire(0.1) == ["A"]
    assert registry.expire(0.2) == []
    assert ("A" in registry, "B" in registry) == (False, True)
