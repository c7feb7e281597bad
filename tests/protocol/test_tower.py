"""What a tower publishes: the host at which it introduces nodes, and when new subscribers hear of the others."""

from __future__ import annotations

import pytest

from dafka import wire
from dafka.config import Config
from dafka.endpoints import MessageSource
from dafka.protocol import KeyIdentity, TowerHostAmbiguous, TowerMachine
from dafka.protocol.machines.tower import INTRODUCTIONS_S, PREFIXES_MAX, PULSE_S, TICK_S, reachable_host
from dafka.wire import Registration, Role, TowerBeacon

OWN = "10.0.0.254"
SOURCE = MessageSource("10.0.0.1", "", 1)


def make_tower(identity: KeyIdentity | None = None) -> TowerMachine:
    return TowerMachine(Config(), OWN, lambda _: True, identity, b"12345678")


def register(
    tower: TowerMachine, name: str = "A", host: str = "", source: MessageSource = SOURCE, now: float = 0.0
) -> list[list[bytes]]:
    return tower.receive([(Registration(name, host, 7001, Role.PRODUCER).encode(), source)], now)


def introduced(messages: list[list[bytes]], *, has_key: bool = False) -> list[wire.DirectoryEntry]:
    """Return the nodes that joined, according to messages in the second form."""
    changes = [wire.RoleChanges.decode(each, has_key=has_key) for each in messages if each[0][:1] == wire.ROLE_CHANGES]
    return [entry for each in changes for is_joined, entry in each.changes if is_joined]


def beacons(messages: list[list[bytes]]) -> list[str]:
    """Return the names of the nodes in beacons of the first form."""
    return [TowerBeacon.decode(each).address for each in messages if each[0] == wire.BEACON]


@pytest.mark.parametrize(
    ("host", "reachable"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("fe80::1", "[fe80::1]"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("127.0.0.1", OWN),
        ("127.9.9.9", OWN),
        ("::1", OWN),
        ("::ffff:127.0.0.1", OWN),
        ("", OWN),
        ("rubbish", OWN),
    ],
)
def test_nodes_are_introduced_where_other_machines_reach_them(host: str, reachable: str) -> None:
    assert reachable_host(host, OWN) == reachable
    tower = make_tower()
    source = MessageSource(host, "", 1)
    assert [entry.endpoint for entry in introduced(register(tower, source=source))] == [f"tcp://{reachable}:7001"]
    found = tower.forward_beacon(wire.NodeBeacon("B", "", 7002).encode(), source, 0.0)
    assert found == TowerBeacon("B", f"tcp://{reachable}:7002").encode()
    assert [each.endpoint for each in introduced(register(tower, "C", "named"))][-1] == "tcp://named:7001"


@pytest.mark.parametrize(
    ("reached", "host", "warnings"),
    [
        ([], OWN, []),
        (["", "rubbish", "127.0.0.1", "::1"], OWN, []),
        (["10.0.0.7", "10.0.0.7"], "10.0.0.7", []),
        (["10.0.0.7", "10.0.0.8", "10.0.0.8"], "10.0.0.7", [TowerHostAmbiguous("10.0.0.7", "10.0.0.8")]),
        (["10.0.0.7", OWN], OWN, [TowerHostAmbiguous(OWN, "10.0.0.7")]),
        ([OWN, "10.0.0.7"], OWN, [TowerHostAmbiguous(OWN, "10.0.0.7")]),
        (["fe80::1"], "[fe80::1]", []),
    ],
)
def test_the_host_of_a_tower_is_where_nodes_reach_it(
    reached: list[str], host: str, warnings: list[TowerHostAmbiguous]
) -> None:
    tower = make_tower()
    assert [found for each in reached if (found := tower.reached_at(each)) is not None] == warnings
    assert tower.own_host == host


def test_a_node_that_repeats_its_registration_is_introduced_at_the_host_of_today() -> None:
    tower = make_tower()
    local = MessageSource("127.0.0.1", "", 1)
    assert [entry.endpoint for entry in introduced(register(tower, source=local))] == [f"tcp://{OWN}:7001"]
    assert introduced(register(tower, source=local, now=1.0)) == [], "nothing has changed"
    tower.reached_at("10.0.0.7")
    assert [entry.endpoint for entry in introduced(register(tower, source=local, now=2.0))] == ["tcp://10.0.0.7:7001"]


def test_a_node_is_introduced_with_the_key_that_it_has_now() -> None:
    keys = {"a" * 40}
    tower = make_tower(KeyIdentity(keys.__contains__))
    for key in ("a" * 40, "b" * 40):
        found = introduced(register(tower, source=MessageSource("10.0.0.1", key, 1)), has_key=True)
        assert [entry.key for entry in found] == [key]
        keys.clear()
    assert tower.beacons == 2


def test_new_subscribers_of_the_first_form_hear_of_all_others_soon_and_together() -> None:
    tower = make_tower()
    for name in "AB":
        register(tower, name)
    tower.receive([(wire.NodeBeacon("OLD", "h", 80).encode(), SOURCE)], 0.0)
    assert beacons(tower.receive_subscriptions([b"\1B"], 10.0)) == ["A", "B"], "OLD repeats its own beacon"
    assert beacons(tower.receive_subscriptions([b"\1B"], 10.1)) == []
    assert beacons(tower.receive_subscriptions([b"\1"], 10.1)) == []
    assert tower.deadline() <= 10.0 + INTRODUCTIONS_S
    assert beacons(tower.tick(10.0 + INTRODUCTIONS_S - 0.01)) == []
    assert beacons(tower.tick(10.0 + INTRODUCTIONS_S)) == ["A", "B"]
    assert beacons(tower.tick(20.0)) == []
    assert beacons(register(tower, "C", now=20.0)) == ["C"], "registrations reach them as beacons"
    tower.receive_subscriptions([b"\0B", b"\0"], 21.0)
    assert beacons(register(tower, "D", now=21.0)) == [], "nobody uses the first form any more"


def test_a_tower_remembers_a_limited_number_of_subscriptions() -> None:
    tower = make_tower()
    register(tower)
    tower.receive_subscriptions([b"\1B%d" % number for number in range(PREFIXES_MAX)], 0.0)
    tower.tick(1.0)
    assert beacons(tower.receive_subscriptions([b"\1Bmore"], 2.0)) == []


def test_malformed_beacons_are_counted_by_the_field_that_is_wrong() -> None:
    tower = make_tower()
    for frames in ([b"B"], [b"B", b"A", b"a b", b"80"], [b"A", b""], [b"A"]):
        assert tower.receive([(frames, SOURCE)], 0.0) == []
    assert tower.discarded.total() == 4
    assert (tower.discarded["host"], tower.discarded["frames"]) == (1, 2)
    assert (tower.beacons, len(tower.registry)) == (0, 0)


def test_nodes_whose_connections_end_are_announced_together_within_a_moment() -> None:
    tower = make_tower()
    for number, name in enumerate("AB"):
        register(tower, name, source=MessageSource("10.0.0.1", "", number))
    tower.tick(5.9)
    for number in range(2):
        tower.connection_ended(number, 6.0)
    assert tower.deadline() == 6.0 + TICK_S
    (changes,) = [each for each in tower.tick(6.0 + TICK_S) if each[0][:1] == wire.ROLE_CHANGES]
    assert [(is_joined, entry.address) for is_joined, entry in wire.RoleChanges.decode(changes).changes] == [
        (False, "A"),
        (False, "B"),
    ]


def test_the_limits_of_what_a_tower_remembers_of_registrations() -> None:
    tower = TowerMachine(Config().with_tower(nodes_max=2), OWN, lambda _: True)
    for number in range(20):
        register(tower, "A", f"h{number}")
        assert len(tower._known) <= 4
    assert tower.beacons == 20


def test_a_pulse_comes_soon_after_a_node_has_opened_its_inbox() -> None:
    tower, now = make_tower(), 0.0
    register(tower)
    while True:
        now = tower.deadline()
        tower.tick(now)
        if tower.deadline() - now >= 5 * PULSE_S:
            break
    register(tower, now=now)
    assert tower.deadline() > now + PULSE_S, "that it repeats its registration is no news"
    for prefix, is_soon in ((b"\1I", False), (b"\1R", False), (b"\1IA", True)):
        tower.receive_subscriptions([prefix], now)
        assert (tower.deadline() <= now + PULSE_S) is is_soon


def test_a_node_that_opens_its_inbox_again_is_sent_the_directory() -> None:
    tower = make_tower()
    register(tower)
    for now in (10.0, 20.0):
        (page,) = tower.receive_subscriptions([b"\1IA"], now)
        assert wire.DirectoryPage.decode(page, "A").is_last
        assert tower.receive_subscriptions([b"\0IA"], now + 1) == []
