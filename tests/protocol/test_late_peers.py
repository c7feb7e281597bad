"""A peer whose beacons are late stays as long as its connection shows that it lives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dafka import wire
from dafka.config import Config
from dafka.endpoints import ConnectionChange, PeerEndpoint
from dafka.protocol import (
    ConsumerMachine,
    Event,
    Node,
    NodeCallbacks,
    PeerJoined,
    PeerLeft,
    ResetPosition,
    Settled,
    TowersHeard,
)
from dafka.protocol.actions import Action, Append, Deliver, Effect, Notify, Publish, Subscribe, Unsubscribe
from dafka.protocol.presence.connections import CONNECT_S, STEADY_S, TRY_S
from dafka.records import Partition, RecordBatch

LATER = 2.0 + STEADY_S
"""When the connections of `connected_to` show that their peers live."""

ONE, OTHER = PeerEndpoint("tcp://10.0.0.1:4001"), PeerEndpoint("tcp://10.0.0.1:4002")
INVALID = PeerEndpoint("tcp://:0")


class SilentIO:
    """Sockets that only note the connections."""

    def __init__(self) -> None:
        self.connected: set[PeerEndpoint] = set()
        self.done: list[str] = []

    def publish(self, messages: Sequence[wire.BatchedMessage]) -> None:
        self.done.append("publish")

    def subscribe(self, prefix: bytes) -> None:
        self.done.append("subscribe")

    def unsubscribe(self, prefix: bytes) -> None:
        self.done.append("unsubscribe")

    def connect(self, endpoint: PeerEndpoint) -> bool:
        if endpoint == INVALID:
            return False
        self.connected.add(endpoint)
        return True

    def disconnect(self, endpoint: PeerEndpoint) -> None:
        self.connected.remove(endpoint)

    def set_timer(self, deadline: float) -> None:
        self.done.append("timer")


class Peers:
    """A node, and its events about its peers."""

    def __init__(self, connecting_max: int = 10) -> None:
        self.events: list[Event] = []
        self.io = SilentIO()
        callbacks = NodeCallbacks(
            on_records=lambda _: self.io.done.append("records"),
            on_reset_position=lambda _: self.io.done.append("reset"),
            on_event=self.events.append,
            on_settled=lambda: self.io.done.append("settled"),
            on_effect=lambda _: self.io.done.append("effect"),
            on_change=lambda: self.io.done.append("change"),
        )
        self.node = Node(ConsumerMachine("ME", Config()), self.io, callbacks, connecting_max)
        self.node.start(0.0)

    def discovered(self, *events: PeerJoined | PeerLeft, now: float = 1.0) -> None:
        for event in events:
            self.node.discovered(event, now)

    def changed(self, *changes: tuple[PeerEndpoint, bool], now: float = 1.0) -> None:
        self.node.connections_changed([ConnectionChange(*each) for each in changes], now)


def connected_to(*endpoints: PeerEndpoint) -> Peers:
    peers = Peers()
    peers.discovered(*(PeerJoined("A", endpoint) for endpoint in endpoints))
    peers.changed(*((endpoint, True) for endpoint in endpoints))
    return peers


def names(events: Iterable[Event]) -> list[str]:
    return [f"{type(each).__name__} {each.address}" for each in events if isinstance(each, (PeerJoined, PeerLeft))]


def test_a_late_peer_stays_until_its_connection_is_lost() -> None:
    peers = connected_to(ONE)
    peers.discovered(PeerLeft("A", ONE), now=LATER + 5.0)
    assert names(peers.events) == ["PeerJoined A"]
    assert peers.io.connected == {ONE}
    peers.changed((ONE, False), now=LATER + 9.0)
    assert names(peers.events) == ["PeerJoined A", "PeerLeft A"]
    assert peers.io.connected == set()


def test_an_unwanted_peer_leaves_although_its_connection_lives() -> None:
    peers = connected_to(ONE)
    peers.discovered(PeerLeft("A", ONE, is_unwanted=True), now=LATER + 5.0)
    assert names(peers.events) == ["PeerJoined A", "PeerLeft A"]
    assert peers.io.connected == set()


def test_a_late_peer_that_is_heard_again_has_never_left() -> None:
    peers = connected_to(ONE)
    peers.discovered(PeerLeft("A", ONE), PeerJoined("A", ONE), now=LATER + 5.0)
    peers.changed((ONE, False), now=LATER + 9.0)
    assert names(peers.events) == ["PeerJoined A"]
    assert peers.io.connected == {ONE}
    peers.discovered(PeerLeft("A", ONE), now=LATER + 10.0)
    assert names(peers.events) == ["PeerJoined A", "PeerLeft A"]


def test_a_peer_leaves_at_once_if_its_connection_is_lost_or_was_never_made() -> None:
    peers = connected_to(ONE)
    peers.changed((ONE, False))
    peers.discovered(PeerLeft("A", ONE), now=LATER + 5.0)
    assert peers.io.connected == set()
    peers.discovered(PeerJoined("B", OTHER), PeerLeft("B", OTHER), now=LATER + 6.0)
    assert peers.io.connected == set()


def test_a_young_connection_may_lead_to_another_node() -> None:
    peers = connected_to(ONE)
    peers.discovered(PeerLeft("A", ONE), now=5.0)
    assert peers.io.connected == set()


def test_a_peer_with_a_young_connection_stays_if_no_tower_is_heard() -> None:
    peers = connected_to(ONE)
    peers.discovered(PeerLeft("A", ONE, is_tower_silent=True), now=5.0)
    assert peers.io.connected == {ONE}
    peers.changed((ONE, False), now=6.0)
    assert names(peers.events) == ["PeerJoined A", "PeerLeft A"]
    assert peers.io.connected == set()


def test_a_connection_that_was_just_made_again_may_lead_to_another_node() -> None:
    peers = connected_to(ONE)
    peers.changed((ONE, False), (ONE, True), now=LATER)
    peers.discovered(PeerLeft("A", ONE), now=LATER + 5.0)
    assert peers.io.connected == set()


def test_a_connection_that_was_made_again_long_ago_shows_life() -> None:
    peers = connected_to(ONE)
    peers.changed((ONE, False), (ONE, True), now=3.0)
    peers.discovered(PeerLeft("A", ONE), now=3.0 + STEADY_S)
    assert peers.io.connected == {ONE}


def test_another_node_at_the_endpoint_of_a_late_peer_replaces_it() -> None:
    peers = connected_to(ONE)
    peers.discovered(PeerLeft("A", ONE), PeerJoined("B", ONE), now=LATER + 5.0)
    assert names(peers.events) == ["PeerJoined A", "PeerLeft A", "PeerJoined B"]
    assert peers.io.connected == {ONE}


def test_a_peer_leaves_if_another_one_has_joined_at_its_endpoint() -> None:
    peers = connected_to(ONE)
    peers.discovered(PeerJoined("B", ONE), PeerLeft("A", ONE), now=LATER + 5.0)
    assert names(peers.events) == ["PeerJoined A", "PeerJoined B", "PeerLeft A"]
    assert peers.io.connected == {ONE}


def test_a_late_peer_that_restarts_on_another_port_is_replaced() -> None:
    peers = connected_to(ONE)
    peers.discovered(PeerLeft("A", ONE), PeerJoined("A", OTHER), now=LATER + 5.0)
    assert names(peers.events) == ["PeerJoined A", "PeerLeft A", "PeerJoined A"]
    assert peers.io.connected == {OTHER}
    peers.changed((ONE, False), now=LATER + 6.0)
    assert len(peers.events) == 3


def test_a_peer_with_an_invalid_endpoint_is_no_peer() -> None:
    peers = Peers()
    peers.discovered(PeerJoined("A", INVALID), PeerJoined("B", ONE))
    assert (peers.node.peers, names(peers.events)) == (1, ["PeerJoined B"])
    assert peers.node.discarded() == {"endpoint": 1}
    peers.discovered(PeerLeft("A", INVALID))
    assert peers.node.peers == 1


def test_a_peer_that_does_not_answer_is_disconnected_for_another_one_and_tried_again() -> None:
    peers = Peers(connecting_max=1)
    peers.discovered(PeerJoined("A", ONE), now=1.0)
    peers.discovered(PeerJoined("B", OTHER), now=1.0 + TRY_S)
    assert peers.io.connected == {OTHER}
    peers.changed((OTHER, True), now=3.0)
    peers.node.tick(3.0)
    assert peers.io.connected == {ONE, OTHER}


def test_each_action_is_run_by_what_it_is_for() -> None:
    peers = Peers()
    peers.io.done.clear()
    batch = RecordBatch(Partition("t", "P"), 0, [b"x"])
    event = TowersHeard()
    actions: list[Action] = [
        Subscribe(b"Mt"),
        Deliver(batch),
        Append(batch),
        ResetPosition(batch.partition, 5),
        Unsubscribe(b"Mt"),
        Notify(event),
    ]
    peers.node.act(actions)
    done = ["subscribe", "records", "records", "reset", "unsubscribe", "timer", "change"]
    assert peers.io.done == done
    assert peers.events == [event]


def test_a_node_settles_once_when_its_peers_have_answered_and_counts_what_it_discards() -> None:
    peers = Peers()
    peers.discovered(PeerJoined("A", ONE), PeerJoined("B", OTHER), now=1.0)
    peers.node.discovered(Settled(), 2.0)
    peers.changed((ONE, True), now=2.1)
    assert not peers.node.is_settled
    peers.changed((OTHER, True), now=2.2)
    assert peers.node.is_settled
    assert peers.io.done.count("settled") == 1
    peers.node.receive([wire.Head("A", "t", 2**64 - 1), wire.Head("A", "t", 2**64 - 1), wire.GetHeads("t", "A")], 3.0)
    assert peers.node.discarded() == {"sequence too large": 2, "unexpected command": 1}
    assert peers.node.hostile_count() == 2
    waiting = Peers()
    waiting.discovered(PeerJoined("A", ONE), now=1.0)
    waiting.node.discovered(Settled(), 2.0)
    waiting.node.tick(2.0 + CONNECT_S)
    assert waiting.node.is_settled, "a peer that does not answer is waited for a limited time"


def test_effects_come_after_the_messages_and_the_timer_of_the_same_input() -> None:
    peers = Peers()
    peers.io.done.clear()
    peers.node.act([Effect(), Publish(wire.GetHeads("t", "ME")), Effect()])
    assert peers.io.done == ["publish", "timer", "effect", "effect", "change"]
