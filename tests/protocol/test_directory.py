"""The second form of beacons (erratum 29) between the machines of nodes and towers, without sockets."""

from __future__ import annotations

import random
from collections import Counter
from itertools import product

import attrs
import pytest

from dafka import wire
from dafka.config import Config
from dafka.endpoints import MessageSource
from dafka.protocol import (
    KeyIdentity,
    PeerLeft,
    Settled,
    TowerMachine,
    TowersHeard,
    TowersSilent,
)
from dafka.protocol.actions import SendToTower
from dafka.protocol.machines.tower import (
    KEY_CONFLICT,
    PULSE_MAX_S,
    REGISTRATION_S,
    REGISTRATION_TIMEOUTS,
)
from dafka.protocol.presence import node_directory
from dafka.protocol.presence.beacon_registry import ADDRESS_IN_USE
from dafka.protocol.presence.beacons import WANTED_ROLES
from dafka.protocol.presence.directory_client import DirectoryClient
from dafka.protocol.presence.node_directory import NodeDirectory
from dafka.protocol.presence.peers import PeerTable
from dafka.wire import BEACON, REGISTRATION, Role
from tests.protocol.towers import BOTH_FORMS, Cluster, Member
from tests.seeds import each_seed

TIMEOUT_S = 4.0


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


@pytest.mark.parametrize(("room", "count"), [(1, 1), (6, 1), (7, 2), (12, 2), (13, 3), (99, 6)])
def test_a_directory_is_sent_to_a_few_nodes_at_a_time(room: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_directory, "ENTRIES_AT_ONCE_MAX", room)
    directory, names = NodeDirectory(bytes(8)), [f"p{number}" for number in range(6)]
    for name in names:
        directory.put_node(
            wire.DirectoryEntry(name, f"tcp://10.0.0.1:{7000 + int(name[1:])}", role=Role.ANY), [Role.ANY]
        )
        directory.record_inbox(name, is_open=True, inboxes_max=6)
    while directory.has_requests:
        directory.take_messages(-1.0)
    for name in names:
        directory.ask(name)
    served: list[list[str]] = []
    while directory.has_requests:
        pages = [frames for frames in directory.take_messages(len(served)) if frames[0][:1] == wire.INBOX]
        served.append([name for name in names for frames in pages if frames[0] == wire.inbox_topic(name)])
        for name, frames in zip(served[-1], pages, strict=True):
            page = wire.DirectoryPage.decode(frames, name, has_key=False)
            assert {each.address for each in page.entries} == {*names}
    assert served == [names[first : first + count] for first in range(0, 6, count)]


def test_a_directory_is_complete_when_all_of_its_pages_have_come_one_after_the_other() -> None:
    """A malformed page is as one that was lost."""
    entries = [wire.DirectoryEntry(f"s{number}", f"tcp://10.0.0.9:{7000 + number}") for number in range(4)]
    pages = [*wire.encode_pages("p1", bytes(8), {Role.STORE: 1}, [each.encode() for each in entries], 1)]
    malformed = [pages[1][0], pages[1][1][:-1]]
    registration = wire.Registration("p1", "10.0.0.2", 7002, Role.PRODUCER, (Role.STORE,))
    whole, any_page = (0, 1, 2, 3), [*range(4), None]
    for order in [*product(any_page, repeat=4), *((*whole, each) for each in any_page), *((1, *whole), (0, *whole))]:
        discarded = Counter[str]()
        peers = PeerTable("p1", TIMEOUT_S, 10)
        client = DirectoryClient(
            0, registration, peers, Config().beacon, lambda: 0.0, has_key=False, discarded=discarded
        )
        client.start(0.0)
        for each in order:
            was_complete = client.is_complete
            actions = client.heard(malformed if each is None else pages[each], 1.0)
            has_asked = any(isinstance(action, SendToTower) for action in actions)
            assert has_asked == (was_complete and not client.is_complete)
        come = tuple(each for each in order if each is not None)
        assert client.is_complete == (come[-4:] == whole or come[-5:] == (*whole, 0)), order
        assert discarded.total() == len(order) - len(come)


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
