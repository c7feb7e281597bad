"""Which endpoints a node connects to, and when it is settled."""

from __future__ import annotations

from math import inf

from dafka.endpoints import ConnectionChange, PeerEndpoint
from dafka.protocol.presence.connections import CONNECT_S, QUEUED_TRY_S, STEADY_S, TRY_S, ConnectionManager

A, B, C, D = (PeerEndpoint(f"tcp://h:{port}") for port in range(1, 5))


def made(*endpoints: PeerEndpoint) -> list[ConnectionChange]:
    return [ConnectionChange(each, is_made=True) for each in endpoints]


def lost(*endpoints: PeerEndpoint) -> list[ConnectionChange]:
    return [ConnectionChange(each, is_made=False) for each in endpoints]


def make_manager(*endpoints: PeerEndpoint, connecting_max: int = 256) -> ConnectionManager:
    manager = ConnectionManager(connecting_max)
    for each in endpoints:
        assert manager.add_peer(each)
        assert manager.begin_connecting(each, 0.0) == []
    return manager


def test_a_peer_that_waits_in_the_queue_has_no_connection_to_end() -> None:
    manager = make_manager(A, connecting_max=1)
    manager.add_peer(B)
    assert manager.begin_connecting(B, 0.0) is None
    assert not manager.remove_peer(B)
    assert manager.next_queued(100.0) is None
    assert manager.remove_peer(A)


def test_a_new_peer_takes_the_place_of_one_that_has_not_answered_in_time() -> None:
    manager = make_manager(A, B, connecting_max=2)
    manager.add_peer(C)
    assert manager.begin_connecting(C, TRY_S - 0.01) is None
    assert manager.begin_connecting(D, TRY_S) == [A]
    assert manager.next_queued(TRY_S) is None, "those that are tried have their time"
    assert manager.deadline() == QUEUED_TRY_S
    assert manager.next_queued(QUEUED_TRY_S) == C
    assert manager.begin_connecting(C, QUEUED_TRY_S) == [B]
    assert manager.next_queued(QUEUED_TRY_S + TRY_S / 2) is None
    assert manager.next_queued(TRY_S + QUEUED_TRY_S) == A


def test_the_queue_moves_on_when_a_peer_answers_or_leaves() -> None:
    manager = make_manager(A, B, connecting_max=2)
    for each in (C, D):
        manager.add_peer(each)
        assert manager.begin_connecting(each, 0.0) is None
    assert manager.next_queued(0.0) is None
    manager.record_changes(made(A), 0.1)
    assert manager.deadline() == 0.0
    assert manager.next_queued(0.1) == C
    assert manager.begin_connecting(C, 0.1) == []
    assert manager.next_queued(0.1) is None
    manager.remove_peer(B)
    assert manager.next_queued(0.2) == D
    assert manager.deadline() == inf


def test_a_node_settles_when_every_peer_that_was_found_has_answered() -> None:
    manager = make_manager(A, B)
    manager.record_changes(made(A, B), 0.5)
    assert not manager.try_settle(100.0), "there may be others"
    assert manager.deadline() == inf
    manager = make_manager(A, B)
    manager.peers_found(1.0)
    assert manager.deadline() == 1.0 + CONNECT_S
    manager.record_changes(made(A), 1.1)
    assert not manager.try_settle(1.1)
    manager.record_changes(lost(A), 1.2)  # it has answered all the same
    manager.record_changes(made(B), 1.2)
    assert manager.try_settle(1.2)
    assert manager.is_settled
    assert manager.deadline() == inf
    assert not manager.try_settle(1.3), "it settles once"


def test_what_was_known_of_an_endpoint_is_forgotten_with_its_peer() -> None:
    manager = make_manager(A, connecting_max=1)
    manager.record_changes([*made(A), *lost(A), *made(A)], 1.0)
    assert manager.remove_peer(A)
    manager.record_changes(made(A), 2.0)  # late
    assert manager.add_peer(A)
    assert manager.begin_connecting(A, 3.0) == []
    assert not manager.shows_life(A, 3.0 + STEADY_S)
    manager.peers_found(3.0)
    assert not manager.try_settle(3.0), "the new peer has not answered"
    manager.record_changes(lost(A), 3.0)  # of the former connection
    manager.record_changes(made(A), 3.0)
    assert manager.shows_life(A, 3.0 + STEADY_S)
    assert manager.try_settle(3.0)
