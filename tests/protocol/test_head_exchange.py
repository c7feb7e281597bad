"""Nodes learn what stores hold not only when a connection begins, but also later, whatever was lost before."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from dafka import wire
from dafka.config import Config
from dafka.protocol import ConsumerMachine, StoreMachine
from dafka.protocol.actions import Action
from dafka.protocol.answering import announced_heads, head_responder
from dafka.protocol.answering.announced_heads import (
    ORPHAN_HEADS_MAX,
    ORPHAN_INTERVAL_S,
    ORPHAN_PAUSE_S,
    ORPHANS_MAX,
    PARTITIONS_MAX,
    ROUND_S,
    WALK_S,
    HeadRounds,
    OrphanHeads,
)
from dafka.protocol.machines import head_exchange
from dafka.protocol.presence.peer_limits import MANY_QUESTIONS
from dafka.records import Partition
from dafka.wire import Command
from tests.protocol.helpers import published, subscription

ME = "STORE"
NEIGHBOUR = "NEIGHBOUR"
SLOWEST = 1.25
"""The factor by which a wait may be longer than its average."""


def make_store(ends: dict[Partition, int]) -> StoreMachine:
    store = StoreMachine(ME, Config(), ends)
    store.start(0.0)
    store.peer_joined(NEIGHBOUR, 0.0)
    return store


def connect_store(store: StoreMachine) -> list[Action]:
    """Return how a store greets another one of this project that connects."""
    actions = store.receive_subscriptions(subscription(Command.DIRECT_HEAD, NEIGHBOUR), 0.0)
    return actions + store.receive_subscriptions(subscription(Command.CONSUMER_HELLO, NEIGHBOUR), 0.0)


def run_timer(machine: StoreMachine | ConsumerMachine, begin: float, end: float) -> list[tuple[float, Action]]:
    """Run everything that is due from one time to another, and return the actions, each with its time."""
    actions = []
    now = begin
    while (now := max(machine.deadline(), now)) <= end:
        due = machine.tick(now)
        assert due or machine.deadline() > now
        actions += [(now, action) for action in due]
    return actions


def told(actions: Iterable[Action], node: str = NEIGHBOUR) -> list[tuple[Partition, int]]:
    """Return the heads that a node is sent, as (partition, sequence)."""
    heads = published(actions, wire.DirectHead)
    return [(Partition(head.subject, head.address), head.sequence) for head in heads if head.requestor == node]


def without_times(actions: Iterable[tuple[float, Action]]) -> list[Action]:
    return [action for _, action in actions]


def many(count: int) -> dict[Partition, int]:
    return {Partition("hello", f"P{number:06}"): number + 1 for number in range(count)}


# Stores of this project


def test_stores_tell_each_other_all_heads_again_and_again_erratum_28() -> None:
    ends = many(2 * PARTITIONS_MAX + 50)
    store = make_store(ends)
    connect_store(store)
    run_timer(store, 0.0, 40.0)
    expected = {(partition, end - 1) for partition, end in ends.items()}
    for begin in (40.0, 3640.0):
        rounds = run_timer(store, begin, begin + 3 * ROUND_S * SLOWEST)
        assert set(told(without_times(rounds))) == expected
        for time, _ in rounds:
            assert len(told(action for at, action in rounds if at == time)) <= PARTITIONS_MAX


@pytest.mark.parametrize("count", [1, 1000, 20_000])
def test_a_walk_through_all_partitions_takes_ten_minutes_at_most(count: int) -> None:
    rounds = HeadRounds(ME)
    partitions = list(many(count))
    rounds.schedule(0.0)
    seen: set[Partition] = set()
    now = 0.0
    while len(seen) < count:
        now = rounds.deadline()
        due = rounds.take_due(now, partitions, 1)
        assert len(due) <= PARTITIONS_MAX
        seen.update(due)
    assert now <= (WALK_S + ROUND_S) * SLOWEST


def test_stores_that_start_together_have_their_rounds_at_different_times() -> None:
    deadlines = set()
    for number in range(50):
        rounds = HeadRounds(f"STORE{number}")
        rounds.schedule(0.0)
        deadlines.add(rounds.deadline())
    assert len(deadlines) > 45
    assert max(deadlines) - min(deadlines) > ROUND_S / 4


@pytest.mark.parametrize(("stores", "count"), [(1, 100), (10, 100), (20, 50), (5000, 1)])
def test_a_round_has_fewer_partitions_if_there_are_many_stores(stores: int, count: int) -> None:
    rounds = HeadRounds(ME)
    rounds.schedule(0.0)
    assert len(rounds.take_due(rounds.deadline(), list(many(300)), stores)) == count


# Producers that leave


def test_many_producers_that_leave_at_once_are_not_all_announced() -> None:
    ends = many(2000)
    store = make_store(ends)
    for number in range(100):
        store.receive_subscriptions(subscription(Command.DIRECT_HEAD, f"CONSUMER{number}"), 0.0)
    heads = sum(len(published(store.peer_left(each.address, 1.0), wire.DirectHead)) for each in ends)
    assert 1000 <= heads <= 11_000


# Stores of libdafka


def test_a_libdafka_store_with_very_many_partitions_is_asked_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_exchange, "ALL_HEADS_PER_S", 10)
    store = make_store(many(1000))
    store.receive_subscriptions(subscription(Command.GET_HEADS), 0.0)
    asks = [time for time, action in run_timer(store, 60.0, 7200.0) if published([action], wire.GetHeads)]
    assert len(asks) <= 7200 / (100 * 0.75) + 1


def test_requests_for_heads_beyond_the_limit_are_discarded_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_responder, "QUESTIONS_MAX", 2)
    store = make_store(many(1))
    store.receive([wire.GetHeads("hello", f"C{count}") for count in range(5)], 0.0)
    assert store.discarded == {MANY_QUESTIONS: 3}


# Heads for libdafka stores


def test_partitions_whose_producers_are_there_do_not_delay_the_heads_of_others() -> None:
    *served, orphan = ends = many(2 * ORPHAN_HEADS_MAX + 1)
    store = make_store(dict.fromkeys(ends, 100))
    store.receive_subscriptions(subscription(Command.CONSUMER_HELLO, NEIGHBOUR), 0.0)
    for each in served:
        store.receive_subscriptions(subscription(Command.ACK, each.address), 0.0)
    for each in ends:
        store.receive([wire.Fetch(each.address, "WRITER", each.topic, 0, 10)], 0.0)
        store.receive([wire.DirectHead(ME, each.address, each.topic, 10)], 0.0)
    for each in served:
        store.receive_subscriptions(subscription(Command.ACK, each.address, active=False), 1.0)
    heads = published(without_times(run_timer(store, 1.0, ORPHAN_PAUSE_S)), wire.Head)
    assert [Partition(each.subject, each.address) for each in heads] == [orphan]


def test_few_heads_are_sent_at_a_time() -> None:
    waiting = OrphanHeads()
    partitions = [Partition("hello", str(number)) for number in range(2 * ORPHAN_HEADS_MAX + 1)]
    for partition in partitions:
        waiting.schedule(partition, 0.0)
    taken, rounds, now = [], 0, 0.0
    while (due := waiting.deadline()) < float("inf"):
        assert rounds == 0 or due == now + ORPHAN_INTERVAL_S
        assert waiting.take_due(due - 0.001) == []
        now = due
        found = waiting.take_due(now)
        assert 0 < len(found) <= ORPHAN_HEADS_MAX
        taken += found
        rounds += 1
    assert (taken, rounds) == (partitions, 3)


def test_a_limited_number_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ORPHANS_MAX > ORPHAN_HEADS_MAX
    monkeypatch.setattr(announced_heads, "ORPHANS_MAX", 2)
    waiting = OrphanHeads()
    for name in "ABC":
        waiting.schedule(Partition("hello", name), 0.0)
    assert [partition.address for partition in waiting.take_due(ORPHAN_PAUSE_S)] == ["A", "B"]
