"""A peer whose beacons are late stays as long as its connection shows that it lives."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

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
"""When a connection that was made at 1.0 shows that its peer lives."""

ONE, OTHER = PeerEndpoint("tcp://10.0.0.1:4001"), PeerEndpoint("tcp://10.0.0.1:4002")
INVALID = PeerEndpoint("tcp://:0")
WAITING = PeerEndpoint("tcp://10.0.0.1:4003")


class SilentIO:
    """Sockets that only note the connections."""

    def __init__(self) -> None:
        self.connected: set[PeerEndpoint] = set()
        self.done: list[str] = []
        self.timer = 0.0

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
        self.timer = deadline


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
            assert self.io.timer == self.node.deadline()

    def changed(self, *changes: tuple[PeerEndpoint, bool], now: float = 1.0) -> None:
        self.node.connections_changed([ConnectionChange(*each) for each in changes], now)
        assert self.io.timer == self.node.deadline()


LOST, MADE = ConnectionChange(ONE, is_made=False), ConnectionChange(ONE, is_made=True)
LEFT = PeerLeft("A", ONE)
HISTORIES: dict[str, tuple[list[tuple[float, Sequence[PeerJoined | PeerLeft | ConnectionChange]]], str, str]] = {
    "it stays while its connection lives": ([(LATER, [LEFT])], "+A", "1"),
    "it stays until its connection is lost": ([(LATER, [LEFT]), (LATER + 4, [LOST])], "+A -A", ""),
    "it stays although its connection is made again": ([(LATER, [LEFT]), (LATER + 1, [MADE])], "+A", "1"),
    "it leaves if it is unwanted": ([(LATER, [PeerLeft("A", ONE, is_unwanted=True)])], "+A -A", ""),
    "heard again, it has never left": ([(LATER, [LEFT, PeerJoined("A", ONE)]), (LATER + 4, [LOST])], "+A", "1"),
    "heard again, it can leave": (
        [(LATER, [LEFT, PeerJoined("A", ONE)]), (LATER + 4, [LOST]), (LATER + 5, [LEFT])],
        "+A -A",
        "",
    ),
    "it leaves if its connection was lost before": ([(1.0, [LOST]), (LATER, [LEFT])], "+A -A", ""),
    "another leaves whose connection was never made": (
        [(LATER, [PeerJoined("B", OTHER), PeerLeft("B", OTHER)])],
        "+A +B -B",
        "1",
    ),
    "a young connection may lead to another node": ([(5.0, [LEFT])], "+A -A", ""),
    "a young connection counts if no tower is heard": ([(5.0, [PeerLeft("A", ONE, is_tower_silent=True)])], "+A", "1"),
    "and until it is lost": ([(5.0, [PeerLeft("A", ONE, is_tower_silent=True)]), (6.0, [LOST])], "+A -A", ""),
    "a connection that was just made again is young": ([(LATER, [LOST, MADE]), (LATER + 5, [LEFT])], "+A -A", ""),
    "one that was made again long ago is not": ([(3.0, [LOST, MADE]), (3.0 + STEADY_S, [LEFT])], "+A", "1"),
    "another node at its endpoint replaces it": ([(LATER, [LEFT, PeerJoined("B", ONE)])], "+A -A +B", "1"),
    "it leaves if another has joined at its endpoint": ([(LATER, [PeerJoined("B", ONE), LEFT])], "+A +B -A", "1"),
    "on another port it has restarted": (
        [(LATER, [LEFT, PeerJoined("A", OTHER)]), (LATER + 1, [LOST])],
        "+A -A +A",
        "2",
    ),
}
"""What happens to a peer A that is connected at endpoint 1: who joins and leaves, and the endpoints in the end."""


@pytest.mark.parametrize("case", HISTORIES)
def test_a_late_peer(case: str) -> None:
    steps, expected, connected = HISTORIES[case]
    peers = Peers()
    peers.discovered(PeerJoined("A", ONE))
    peers.changed((ONE, True))
    for now, changes in steps:
        for each in changes:
            if isinstance(each, ConnectionChange):
                peers.node.connections_changed([each], now)
                assert peers.io.timer == peers.node.deadline()
            else:
                peers.discovered(each, now=now)
    signs = {PeerJoined: "+", PeerLeft: "-"}
    found = [signs[type(each)] + each.address for each in peers.events if isinstance(each, (PeerJoined, PeerLeft))]
    assert " ".join(found) == expected
    assert peers.io.connected == {{"1": ONE, "2": OTHER}[each] for each in connected}


def test_a_peer_with_an_invalid_endpoint_is_no_peer() -> None:
    peers = Peers()
    peers.discovered(PeerJoined("A", INVALID), PeerJoined("B", ONE))
    assert (peers.node.peers, peers.events) == (1, [PeerJoined("B", ONE)])
    assert peers.node.discarded() == {"endpoint": 1}
    peers.discovered(PeerLeft("A", INVALID))
    assert peers.node.peers == 1


def test_a_peer_that_does_not_answer_is_disconnected_for_another_one_and_tried_again() -> None:
    peers = Peers(connecting_max=1)
    peers.discovered(PeerJoined("A", ONE), PeerJoined("C", WAITING), now=1.0)
    assert (peers.io.connected, peers.node.peers, len(peers.events)) == ({ONE}, 2, 2)
    peers.discovered(PeerLeft("C", WAITING), now=1.0)
    assert peers.node.peers == 1
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
    peers.node.discovered(event, 1.0)
    assert peers.events == [event, event], "other reports of discovery are passed on"


def test_a_node_settles_once_when_its_peers_have_answered_and_counts_what_it_discards() -> None:
    peers = Peers()
    peers.discovered(PeerJoined("A", ONE), PeerJoined("B", OTHER), now=1.0)
    peers.node.discovered(Settled(), 2.0)
    assert peers.io.timer == peers.node.deadline() == 2.0 + CONNECT_S
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
