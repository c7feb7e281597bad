"""The second form of beacons (erratum 29) between the machines of nodes and towers, without sockets."""

from __future__ import annotations

import random
from collections.abc import Sequence

import attrs
import pytest

from dafka import wire
from dafka.config import Config
from dafka.endpoints import MessageSource
from dafka.protocol import (
    BeaconAction,
    BeaconMachine,
    IntroducedAtLoopback,
    KeyIdentity,
    PeerJoined,
    PeerLeft,
    SendToTower,
    Settled,
    SubscribeAtTower,
    TowerMachine,
    TowersHeard,
    TowersSilent,
)
from dafka.protocol.machines.tower import (
    KEY_CONFLICT,
    PROMPT_PULSES,
    PULSE_MAX_S,
    REGISTRATION_S,
    REGISTRATION_TIMEOUTS,
)
from dafka.protocol.presence.beacon_registry import ADDRESS_IN_USE, LATE_FACTOR
from dafka.protocol.presence.beacons import WANTED_ROLES
from dafka.wire import BEACON, REGISTRATION, WELCOME, Role
from tests.protocol.towers import BOTH_FORMS, Cluster, Member
from tests.seeds import each_seed

TIMEOUT_S = 4.0
LATE_S = REGISTRATION_S + LATE_FACTOR * TIMEOUT_S
"""Seconds after which a node whose connection lives is forgotten, at the earliest."""


ROLES = {"p1": Role.PRODUCER, "p2": Role.PRODUCER, "s1": Role.STORE, "s2": Role.STORE, "c1": Role.CONSUMER}
ROLES |= {"c2": Role.CONSUMER, "r1": Role.READER, "o1": Role.OBSERVER, "x1": Role.ANY}


def wanted_by(name: str, roles: dict[str, Role]) -> set[str]:
    return {other for other, role in roles.items() if other != name and role in WANTED_ROLES[roles[name]]}


def test_the_relation_of_roles_is_symmetric() -> None:
    assert all((one in WANTED_ROLES[other]) == (other in WANTED_ROLES[one]) for one in Role for other in Role)
    assert Role.PRODUCER not in WANTED_ROLES[Role.PRODUCER]
    assert Role.CONSUMER not in WANTED_ROLES[Role.CONSUMER]


class History:
    """A cluster in which nodes start, end and restart elsewhere, the tower restarts, and messages are lost."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.cluster = Cluster()
        self.lives = 1

    def running(self) -> dict[str, Member]:
        return {name: member for name, member in self.cluster.nodes.items() if member.is_running}

    def start(self) -> None:
        stopped = sorted(set(ROLES) - set(self.running()))
        if stopped:
            name = self.draw.choice(stopped)
            self.cluster.add(name, ROLES[name], forms=[BEACON] if name == "x1" else BOTH_FORMS)

    def end(self) -> None:
        if self.running():
            self.cluster.end(self.draw.choice(list(self.running().values())))

    def restart_tower(self) -> None:
        self.lives += 1
        self.cluster.restart_tower(self.lives)
        for member in self.running().values():
            member.connect([BEACON] if member.name == "x1" else BOTH_FORMS)

    def lose(self) -> None:
        for member in self.running().values():
            member.is_listening = self.draw.random() < 0.7

    def go_on(self) -> None:
        self.cluster.pass_time(self.draw.choice((0.1, 0.5, 3.0)))
        for member in self.running().values():
            member.is_listening = True


@each_seed(12)
def test_after_any_history_nodes_know_exactly_those_that_run_at_their_endpoints(seed: int) -> None:
    history = History(seed)
    steps = (
        [history.start] * 4 + [history.end] * 2 + [history.restart_tower, history.lose, history.go_on, history.go_on]
    )
    for _ in range(40):
        history.draw.choice(steps)()
    history.go_on()
    history.cluster.pass_time(3 * TIMEOUT_S)
    running = history.running()
    roles = {name: Role.ANY if name == "x1" else ROLES[name] for name in running}
    for name, member in running.items():
        expected = {other: running[other].endpoint for other in wanted_by(name, roles)}
        assert member.endpoints() == expected, name
        assert sum(isinstance(event, Settled) for event in member.events) == 1
    assert {name for name in ROLES if name in history.cluster.tower.registry} == set(running)


def test_a_node_is_settled_as_soon_as_it_has_the_directory() -> None:
    cluster = Cluster()
    store = cluster.add("s1", Role.STORE)
    assert store.events[-1:] == [Settled()]
    producer = cluster.add("p1", Role.PRODUCER)
    assert producer.events[-2:] == [store.joined, Settled()]
    assert store.events[-1:] == [producer.joined]
    assert cluster.now == 0.0


def test_no_node_sends_anything_because_another_joins() -> None:
    cluster = Cluster()
    members = [cluster.add(f"p{number:02}", Role.PRODUCER) for number in range(20)]
    store = cluster.add("s1", Role.STORE)
    sent = [len(member.sent) for member in members]
    received = [len(member.received) for member in members]
    cluster.add("s2", Role.STORE)
    assert [len(member.sent) for member in members] == sent
    assert [len(member.received) - before for member, before in zip(members, received, strict=True)] == [1] * 20
    cluster.add("p20", Role.PRODUCER)
    assert [len(member.received) - before for member, before in zip(members, received, strict=True)] == [1] * 20
    assert store.peers() == {"s2", *(f"p{number:02}" for number in range(21))}


def test_an_idle_node_receives_pulses_only() -> None:
    cluster = Cluster()
    members = [cluster.add(name, role) for name, role in ROLES.items()]
    cluster.pass_time(3)
    for member in members:
        member.received.clear()
    cluster.pass_time(100)
    for member in members:
        assert {frames[0] for frames in member.received} == {wire.PULSE}
        assert len(member.received) == len(members[0].received) <= PROMPT_PULSES + 100 / PULSE_MAX_S
    for member in members:
        member.received.clear()
    cluster.pass_time(100)
    for member in members:
        assert len(member.received) == 100 / PULSE_MAX_S


def test_pulses_are_frequent_again_after_a_change() -> None:
    cluster = Cluster()
    store = cluster.add("s1", Role.STORE)
    cluster.pass_time(100)
    cluster.add("p1", Role.PRODUCER)
    store.received.clear()
    cluster.pass_time(PROMPT_PULSES)
    assert sum(frames[0] == wire.PULSE for frames in store.received) >= PROMPT_PULSES - 1


def test_a_node_registers_as_often_as_the_tower_asks() -> None:
    cluster = Cluster()
    node = cluster.add("p1", Role.PRODUCER)
    cluster.pass_time(5)
    node.sent.clear()
    cluster.pass_time(10 * REGISTRATION_S)
    assert 10 <= len(node.sent) <= 14
    assert not any(wire.Registration.decode(frames).asks_directory for frames in node.sent)


def test_nodes_register_together_when_they_hear_a_pulse() -> None:
    cluster = Cluster()
    nodes = [cluster.add(f"p{number:02}", Role.PRODUCER) for number in range(20)]
    cluster.pass_time(100)
    for node in nodes:
        node.sent.clear()
        node.received.clear()
    steps_with_registrations = sent = 0
    for _ in range(round(10 * REGISTRATION_S / 0.05)):
        cluster.pass_time(0.05)
        steps_with_registrations += sum(len(node.sent) for node in nodes) > sent
        sent = sum(len(node.sent) for node in nodes)
    assert sent >= 200
    assert steps_with_registrations <= len(nodes[0].received)


def test_a_node_registers_often_while_nodes_of_the_first_form_listen() -> None:
    cluster = Cluster()
    node = cluster.add("p1", Role.PRODUCER)
    cluster.pass_time(100)
    old = cluster.add("old", Role.ANY, forms=[BEACON])
    node.sent.clear()
    cluster.pass_time(100)
    interval_s = REGISTRATION_TIMEOUTS * TIMEOUT_S
    assert 100 // interval_s <= len(node.sent) <= 1.4 * 100 // interval_s
    assert old.peers() == {"p1"}
    assert not any(isinstance(event, PeerLeft) for event in old.events)
    old.is_running = False
    cluster.publish(cluster.tower.receive_subscriptions([b"\0" + BEACON], cluster.now))
    cluster.pass_time(30)
    node.sent.clear()
    cluster.pass_time(10 * REGISTRATION_S)
    assert len(node.sent) <= 14


def test_a_node_that_ends_is_gone_after_the_timeout() -> None:
    cluster = Cluster()
    store, producer = cluster.add("s1", Role.STORE), cluster.add("p1", Role.PRODUCER)
    cluster.pass_time(100)
    producer.is_running = cluster.connected = False  # and the tower is not told of it
    cluster.pass_time(TIMEOUT_S)
    assert producer.left not in store.events
    cluster.pass_time(REGISTRATION_S + TIMEOUT_S)
    assert store.events[-1] == producer.left


def test_a_node_is_gone_as_soon_as_its_connection_ends() -> None:
    cluster = Cluster()
    store, producer = cluster.add("s1", Role.STORE), cluster.add("p1", Role.PRODUCER)
    cluster.pass_time(100)
    cluster.end(producer)
    cluster.pass_time(0.3)
    assert store.events[-1] == producer.left


def test_a_node_that_is_slow_stays_while_its_connection_to_the_tower_lives() -> None:
    cluster = Cluster()
    store, producer = cluster.add("s1", Role.STORE), cluster.add("p1", Role.PRODUCER)
    producer.is_running = False
    cluster.pass_time(LATE_S - 2)
    assert producer.left not in store.events
    cluster.pass_time(2 * TIMEOUT_S)
    assert store.events[-1] == producer.left


def test_a_tower_that_is_silent_is_not_trusted() -> None:
    """Its nodes count as gone if nothing else shows that they live; they are found again when it is back."""
    cluster = Cluster()
    store, producer = cluster.add("s1", Role.STORE), cluster.add("p1", Role.PRODUCER)
    cluster.pass_time(2)
    store.is_listening = False
    cluster.pass_time(5 * TIMEOUT_S)
    assert store.events[-1:] == [attrs.evolve(producer.left, is_tower_silent=True)]
    store.is_listening = True
    cluster.pass_time(TIMEOUT_S)
    assert store.events[-1:] == [producer.joined]


def test_a_tower_of_an_idle_cluster_is_trusted_between_its_pulses() -> None:
    cluster = Cluster(Config().with_node(tower_timeout_ms=2000))
    store, producer = cluster.add("s1", Role.STORE), cluster.add("p1", Role.PRODUCER)
    cluster.pass_time(300)
    assert store.events == [TowersHeard(), Settled(), producer.joined]
    store.is_listening = False
    cluster.pass_time(PULSE_MAX_S + 4)
    assert any(isinstance(event, TowersSilent) for event in store.events)
    cluster.pass_time(3 * TIMEOUT_S)
    assert store.events[-1] == attrs.evolve(producer.left, is_tower_silent=True)


def test_a_change_that_was_lost_is_noticed_at_the_next_pulse() -> None:
    cluster = Cluster()
    store = cluster.add("s1", Role.STORE)
    cluster.pass_time(2)
    store.is_listening = False
    producer = cluster.add("p1", Role.PRODUCER)
    store.is_listening = True
    assert producer.joined not in store.events
    cluster.pass_time(1.5)
    assert store.events[-1] == producer.joined


def test_a_change_that_was_lost_is_noticed_at_the_next_change() -> None:
    cluster = Cluster()
    store = cluster.add("s1", Role.STORE)
    cluster.pass_time(2)
    store.is_listening = False
    lost = cluster.add("p1", Role.PRODUCER)
    store.is_listening = True
    found = cluster.add("p2", Role.PRODUCER)
    cluster.pass_time(0.3)
    assert store.events[-2:] == [found.joined, lost.joined]


def test_a_lost_page_is_asked_for_again() -> None:
    cluster = Cluster()
    producers = [cluster.add(f"p{number:03}", Role.PRODUCER) for number in range(400)]
    store = Member(cluster, "s1", Role.STORE, 999, "")
    cluster.nodes["s1"] = store
    take, pages = store.take, list[bytes]()

    def take_all_but_the_first_page(frames: list[bytes]) -> None:
        if frames[0][:1] == wire.INBOX:
            pages.append(frames[0])
        if len(pages) != 1 or frames[0][:1] != wire.INBOX:
            take(frames)

    store.take = take_all_but_the_first_page  # type: ignore[method-assign]
    store.act(store.machine.start(0.0))
    store.connect(BOTH_FORMS)
    assert len(store.peers()) < len(producers)
    assert Settled() not in store.events
    cluster.pass_time(1)
    assert len(store.peers()) == len(producers)
    assert store.events.count(Settled()) == 1


def test_a_restarted_tower_learns_the_nodes_again_and_no_node_leaves() -> None:
    cluster = Cluster()
    store, producer = cluster.add("s1", Role.STORE), cluster.add("p1", Role.PRODUCER)
    cluster.pass_time(3)
    cluster.restart_tower(2)
    for member in (store, producer):
        member.connect(BOTH_FORMS)
    cluster.pass_time(3 * TIMEOUT_S)
    late = cluster.add("c1", Role.CONSUMER)
    assert [event for event in store.events if isinstance(event, (PeerJoined, PeerLeft))] == [
        producer.joined,
        late.joined,
    ]
    assert late.peers() == {"s1", "p1"}


def test_a_node_missing_from_the_directory_of_a_restarted_tower_is_gone_after_the_timeout() -> None:
    cluster = Cluster()
    store, producer = cluster.add("s1", Role.STORE), cluster.add("p1", Role.PRODUCER)
    cluster.pass_time(3)
    producer.is_running = False
    cluster.restart_tower(2)
    store.connect(BOTH_FORMS)
    cluster.pass_time(TIMEOUT_S - 1)
    assert producer.left not in store.events
    cluster.pass_time(3)
    assert store.events[-1] == producer.left


def test_a_tower_of_the_first_form_gets_beacons_as_rfc_46_says() -> None:
    cluster = Cluster()
    node = cluster.add("p1", Role.PRODUCER, forms=[BEACON])
    cluster.pass_time(3)
    assert {frames[0] for frames in node.sent} == {BEACON}
    assert node.prefixes == {WELCOME, BEACON}


def test_a_tower_that_knows_both_forms_gets_no_beacons_of_the_first() -> None:
    cluster = Cluster()
    node = cluster.add("p1", Role.PRODUCER)
    cluster.pass_time(3)
    assert {frames[0] for frames in node.sent} == {REGISTRATION}


@pytest.mark.parametrize("is_first", [True, False])
def test_nodes_of_both_forms_find_each_other(*, is_first: bool) -> None:
    cluster = Cluster()
    old = [cluster.add(f"old{number}", Role.ANY, forms=[BEACON]) for number in range(2) if is_first]
    new = [cluster.add("p1", Role.PRODUCER), cluster.add("p2", Role.PRODUCER), cluster.add("s1", Role.STORE)]
    old += [cluster.add(f"old{number}", Role.ANY, forms=[BEACON]) for number in range(2) if not is_first]
    cluster.pass_time(1)
    everybody = set(cluster.nodes)
    for member in old:
        assert member.peers() == everybody - {member.name}
        assert all(frames[0][:1] in (WELCOME, BEACON) for frames in member.received)
    assert new[0].peers() == new[1].peers() == {"old0", "old1", "s1"}
    assert new[2].peers() == everybody - {"s1"}
    cluster.pass_time(5 * TIMEOUT_S)
    for member in old:
        assert not any(isinstance(event, PeerLeft) for event in member.events)


def test_a_node_that_changes_its_form_does_not_leave() -> None:
    """Its tower's subscriptions arrive one by one."""
    cluster = Cluster()
    store, producer = cluster.add("s1", Role.STORE), cluster.add("p1", Role.PRODUCER, forms=[BEACON])
    producer.act(producer.machine.tower_subscribed(0, [b"\1" + REGISTRATION], 0.0))
    cluster.pass_time(10)
    assert store.peers() == {"p1"}
    assert cluster.add("p2", Role.PRODUCER).peers() == {"s1"}


def test_a_node_that_changes_its_form_drops_the_nodes_that_it_does_not_want() -> None:
    """Its tower knew the first form only, and was replaced by one that knows both."""
    cluster = Cluster()
    store, other = cluster.add("s1", Role.STORE), cluster.add("p1", Role.PRODUCER)
    producer = cluster.add("p2", Role.PRODUCER, forms=[BEACON])
    cluster.pass_time(1)
    assert producer.peers() == {"s1", "p1"}
    producer.act(producer.machine.tower_subscribed(0, [b"\1" + REGISTRATION], cluster.now))
    cluster.pass_time(2 * TIMEOUT_S)
    assert producer.peers() == {"s1"}
    assert attrs.evolve(other.left, is_unwanted=True) in producer.events
    cluster.end(store)
    cluster.pass_time(3 * TIMEOUT_S)
    assert store.left in producer.events


def test_a_node_of_a_tower_of_the_first_form_may_be_late() -> None:
    cluster = Cluster()
    store, producer = (cluster.add(name, ROLES[name], forms=[BEACON]) for name in ("s1", "p1"))
    cluster.pass_time(1)
    store.is_running = False
    cluster.pass_time(2 * TIMEOUT_S)
    assert producer.events[-1] == store.left


def test_a_node_that_registers_with_another_tower_than_it_hears_uses_the_first_form() -> None:
    cluster = Cluster()
    node = cluster.add("p1", Role.PRODUCER)
    deaf = Member(cluster, "p2", Role.PRODUCER, 2, "")
    deaf.act(deaf.machine.start(0.0))
    deaf.act(deaf.machine.tower_subscribed(0, [b"\1A", b"\1B"], 0.0))
    for second in range(1, 12):
        deaf.act(deaf.machine.heard(0, [wire.Pulse(b"another!", 1000, {}).encode()], float(second)))
        deaf.act(deaf.machine.tick(float(second)))
    assert deaf.sent[-1][0] == BEACON
    assert node.machine.peers is not deaf.machine.peers


def test_another_connection_cannot_register_a_known_address() -> None:
    cluster = Cluster()
    store, producer = cluster.add("s1", Role.STORE), cluster.add("p1", Role.PRODUCER)
    forged = wire.Registration("p1", "10.6.6.6", 666, Role.STORE, tuple(Role), asks_directory=True)
    stranger = MessageSource("10.6.6.6", "", 666)
    assert cluster.tower.receive([(forged.encode(), stranger)], 1.0) == []
    assert cluster.tower.discarded == {ADDRESS_IN_USE: 1}
    assert store.peers() == {"p1"}
    assert producer.peers() == {"s1"}


def test_a_node_that_registers_seldom_keeps_its_address() -> None:
    cluster = Cluster()
    store, producer = cluster.add("s1", Role.STORE), cluster.add("p1", Role.PRODUCER)
    cluster.pass_time(100)
    forged = wire.Registration("p1", "10.6.6.6", 666, Role.STORE, tuple(Role), asks_directory=True)
    stranger = MessageSource("10.6.6.6", "", 666)
    for _ in range(1000):
        cluster.publish(cluster.tower.receive([(forged.encode(), stranger)], cluster.now))
        cluster.pass_time(0.05)
    assert cluster.tower.discarded == {ADDRESS_IN_USE: 1000}
    assert store.events == [TowersHeard(), Settled(), producer.joined]


def test_the_address_of_a_node_that_has_moved_is_soon_given_to_it() -> None:
    """Its machine has another IP address, and the tower is not told of the end of the old connection."""
    cluster = Cluster()
    store, producer = cluster.add("s1", Role.STORE), cluster.add("p1", Role.PRODUCER)
    cluster.pass_time(100)
    producer.is_running = False
    moved = cluster.add("p1", Role.PRODUCER)
    cluster.pass_time(3 * TIMEOUT_S / 2 + 1)
    assert store.events[-2:] == [producer.left, moved.joined]


def test_an_address_belongs_to_a_key_in_a_closed_cluster() -> None:
    keys = ["a" * 40, "b" * 40]
    tower = TowerMachine(Config(), "10.0.0.254", lambda _: True, KeyIdentity(keys.__contains__))
    registration = wire.Registration("p1", "10.0.0.1", 7001, Role.PRODUCER)
    (frames,) = tower.receive([(registration.encode(), MessageSource("10.0.0.1", keys[0], 1))], 0.0)
    changes = wire.RoleChanges.decode(frames, has_key=True)
    assert [entry.key for _, entry in changes.changes] == [keys[0]]
    tower.tick(100.0)
    assert tower.receive([(registration.encode(), MessageSource("10.0.0.1", keys[1], 2))], 100.0) == []
    assert tower.discarded == {KEY_CONFLICT: 1}


def test_a_directory_is_sent_to_the_node_that_asks_and_not_more_often_than_allowed() -> None:
    cluster = Cluster()
    cluster.add("s1", Role.STORE)
    node = cluster.add("p1", Role.PRODUCER)
    cluster.pass_time(2)
    node.received.clear()
    ask = wire.Registration("p1", "10.0.0.2", 7002, Role.PRODUCER, WANTED_ROLES[Role.PRODUCER], asks_directory=True)
    for _ in range(50):
        cluster.publish(cluster.tower.receive([(ask.encode(), node.source)], cluster.now))
    assert len([frames for frames in node.received if frames[0][:1] == wire.INBOX]) == 1
    cluster.pass_time(0.5)
    assert len([frames for frames in node.received if frames[0][:1] == wire.INBOX]) == 2


def test_a_directory_has_each_node_once_and_its_receiver_first() -> None:
    cluster = Cluster()
    for name in ("s1", "s2", "p1"):
        cluster.add(name, ROLES[name])
    store = cluster.nodes["s2"]
    store.received.clear()
    ask = wire.Registration("s2", "10.0.0.2", 7002, Role.STORE, WANTED_ROLES[Role.STORE], asks_directory=True)
    cluster.now = 10.0
    cluster.publish(cluster.tower.receive([(ask.encode(), store.source)], cluster.now))
    (page,) = [wire.DirectoryPage.decode(frames, "s2") for frames in store.received if frames[0][:1] == wire.INBOX]
    assert page.entries[0].address == "s2"
    assert sorted(entry.address for entry in page.entries) == ["p1", "s1", "s2"]


def test_an_inbox_of_an_unknown_node_gets_nothing() -> None:
    cluster = Cluster()
    cluster.add("s1", Role.STORE)
    assert cluster.tower.receive_subscriptions([b"\1Inobody", b"\1I", b"\1I" + b"x" * 300, b"\0Is1"], 1.0) == []


def test_nodes_beyond_the_limit_are_found_when_there_is_room() -> None:
    cluster = Cluster(Config().with_node(peers_max=1))
    store = cluster.add("s1", Role.STORE)
    first, second = cluster.add("p1", Role.PRODUCER), cluster.add("p2", Role.PRODUCER)
    cluster.pass_time(2)
    assert store.peers() == {"p1"}
    assert store.machine.discarded["too many nodes"] >= 1
    cluster.end(first)
    cluster.pass_time(1)
    assert store.events[-1] == second.joined


def test_rubbish_of_a_tower_is_discarded_and_counted() -> None:
    cluster = Cluster()
    store = cluster.add("s1", Role.STORE)
    for frames in (
        [b"T"],
        [b"T", b""],
        [b"RP", b"\1"],
        [b"R", b""],
        [b"Is1", b"\1"],
        [b"Ip1", b"\1"],
        [b"T", b"", b""],
    ):
        store.take(frames)
    assert store.machine.discarded.total() == 7
    assert cluster.add("p1", Role.PRODUCER).peers() == {"s1"}


def test_a_node_that_is_introduced_at_loopback_warns_if_there_are_other_machines() -> None:
    tower = TowerMachine(Config(), "127.0.0.1", lambda _: True, tower_id=b"12345678")
    beacon = wire.NodeBeacon("ME", "", 4001)
    node = BeaconMachine(beacon, Config(), role=Role.STORE, is_other_machine=lambda host: host == "10.0.0.2")
    node.start(0.0)
    actions = node.tower_subscribed(0, [b"\1A", b"\1B"], 0.0)
    prefixes = [b"\1" + action.prefix for action in actions if isinstance(action, SubscribeAtTower)]
    tower.receive_subscriptions(prefixes, 0.0)
    local, remote = MessageSource("127.0.0.1", "", 1), MessageSource("10.0.0.2", "", 2)

    def exchange(actions: Sequence[BeaconAction], now: float) -> list[BeaconAction]:
        found = list(actions)
        for action in actions:
            if isinstance(action, SendToTower):
                for frames in tower.receive([(action.frames, local)], now):
                    found += exchange(node.heard(0, [frames], now), now)
        return found

    assert not any(isinstance(each, IntroducedAtLoopback) for each in exchange(actions, 0.0))
    found: list[BeaconAction] = []
    for frames in tower.receive([(wire.Registration("B", "", 4002, Role.PRODUCER).encode(), remote)], 1.0):
        found += exchange(node.heard(0, [frames], 1.0), 1.0)
    assert IntroducedAtLoopback("tcp://127.0.0.1:4001", "tcp://10.0.0.2:4002") in found
