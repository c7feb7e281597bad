"""The limits of the messages that producers and stores accept, by their exact actions and counters."""

from __future__ import annotations

from typing import Any

import pytest

from dafka import wire
from dafka.config import Config
from dafka.protocol import ProducerMachine, StoreMachine, StoresSilent
from dafka.protocol.actions import Action, Append, Notify, Publish
from dafka.protocol.events import StoresHeard
from dafka.protocol.machines import producer as producer_module
from dafka.protocol.polling import RETRY_WAITS_S
from dafka.protocol.presence.peer_limits import ABSURD_SEQUENCE, MANY_FETCHES, NODE_BURST, TOO_OFTEN
from dafka.records import SEQUENCE_MAX, Partition, RecordBatch
from dafka.wire import Command
from tests.protocol.helpers import HELLO, asked, contents, direct, head, live, next_batch, published, run, subscription

ME = "STORE"


def make_producer(*, next_sequence: int = 0, settled: bool = True, **settings: Any) -> ProducerMachine:
    spooled = settings.pop("is_spooled", False)
    rest = {name: settings.pop(name) for name in ("acknowledged_end", "spool_trim_records") if name in settings}
    config = Config().with_producer(**settings).producer
    made = ProducerMachine(HELLO, config, 100, next_sequence=next_sequence, is_spooled=spooled, **rest)
    made.start(0.0)
    if settled:
        made.node_settled(0.0)
    return made


def ack(end: int, store: str = "S") -> wire.Ack:
    return wire.Ack(HELLO.address, HELLO.topic, end - 1, store)


def fetch(sequence: int, count: int = 1, requestor: str = "C") -> wire.Fetch:
    return wire.Fetch(HELLO.address, requestor, HELLO.topic, sequence, count)


# Producers


@pytest.mark.parametrize(("end", "reason"), [(SEQUENCE_MAX, "beyond the head"), (SEQUENCE_MAX + 1, ABSURD_SEQUENCE)])
def test_an_absurd_ack_is_counted_as_such(end: int, reason: str) -> None:
    made = make_producer()
    made.receive([ack(end)], 0.1)
    assert made.discarded == {reason: 1}


def test_acks_of_too_many_stores_are_discarded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_module, "STORES_MAX", 2)
    made = make_producer(min_stores=2)
    made.publish(next_batch(made, contents(0, 5)), 0.0)
    made.receive([ack(1, "A"), ack(2, "B"), ack(5, "C")], 0.1)
    assert (made.acknowledged_end, made.discarded) == (1, {"too many stores": 1})
    made.receive([ack(4, "A")], 0.1)
    assert made.acknowledged_end == 2
    assert made.readable_range(HELLO) == range(2, 5)


def test_a_fetch_of_dropped_records_is_answered_with_what_is_known_of_them() -> None:
    made = make_producer(min_stores=0, unacknowledged_records_max=3)
    made.receive_subscriptions(subscription(Command.DIRECT_EARLIEST, "C"), 0.0)
    for first in range(0, 6, 2):
        made.publish(next_batch(made, contents(first, first + 2)), 0.0)
    answer = wire.DirectEarliest("C", HELLO.address, HELLO.address, HELLO.topic, 4, 4)
    assert made.receive([fetch(3)], 0.1) == [Publish(answer)]
    assert made.receive([fetch(4)], 0.1) == []
    made.receive([ack(3)], 0.1)
    held = wire.DirectEarliest("C", HELLO.address, HELLO.address, HELLO.topic, 4, 0)
    assert made.receive([fetch(2)], 0.1) == [Publish(held)], "a store has it"
    assert made.receive([fetch(3)], 0.1) == [Publish(answer)], "no store has it"


def test_silent_stores_are_reported_at_the_time_and_not_before() -> None:
    made = make_producer(silence_ms=5000, head_interval_ms=60_000)
    made.publish(next_batch(made, contents(0, 2)), 1.0)
    made.publish(next_batch(made, contents(2, 3)), 4.0)
    assert made.deadline() == 6.0, "later records do not put the report off"
    assert made.tick(5.99) == []
    assert made.tick(6.0) == [Notify(StoresSilent(3, 5.0))]
    assert made.tick(7.0) == []
    assert made.receive([ack(1)], 8.0) == [Notify(StoresHeard())]
    assert made.deadline() == 13.0
    assert made.receive([ack(3)], 9.0) == []
    assert made.tick(14.0) == [], "all is acknowledged"
    made.publish(next_batch(made, contents(3, 4)), 20.0)
    assert made.deadline() == 25.0, "silence counts from the first unacknowledged record"


def test_heads_follow_each_other_at_the_interval() -> None:
    made = make_producer(head_interval_ms=1000)
    assert made.deadline() == float("inf")
    made.publish(next_batch(made, contents(0, 2)), 5.0)
    made.receive([ack(2)], 5.0)
    assert made.deadline() == 6.0
    assert made.tick(5.9) == []
    assert made.tick(6.0) == [Publish(head(1))]
    assert made.deadline() == 7.0
    made.publish(next_batch(made, contents(2, 3)), 6.5)
    made.receive([ack(3)], 6.5)
    assert made.deadline() == 7.0, "publishing does not put the next HEAD off"
    assert made.receive_subscriptions(subscription(Command.HEAD, "hello"), 6.7) == [Publish(head(2))]
    assert made.deadline() == 7.7


@pytest.mark.parametrize(
    ("settings", "published_count", "has_capacity"),
    [
        ({"unacknowledged_records_max": 3}, 2, True),
        ({"unacknowledged_records_max": 3}, 3, False),
        ({"unacknowledged_bytes_max": 3}, 2, True),
        ({"unacknowledged_bytes_max": 3}, 3, False),
        ({"unacknowledged_records_max": 3, "is_spooled": True}, 9, True),
        ({"unacknowledged_records_max": 3, "min_stores": 0}, 9, True),
    ],
)
def test_a_producer_has_room_up_to_its_limits(
    settings: dict[str, Any], published_count: int, has_capacity: bool
) -> None:
    made = make_producer(**settings)
    made.publish(next_batch(made, contents(0, published_count)), 0.0)
    assert made.has_capacity() is has_capacity


@pytest.mark.parametrize(("held", "has_capacity"), [(2, True), (3, False)])
@pytest.mark.parametrize("settings", [{"is_spooled": True}, {}, {"min_stores": 0}])
def test_records_that_wait_for_peers_are_limited(
    held: int, has_capacity: bool, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_module, "HELD_RECORDS_MAX", 3)
    made = make_producer(settled=False, **settings)
    assert made.publish(next_batch(made, contents(0, held)), 0.0) == []
    assert made.has_capacity() is has_capacity
    made.node_settled(0.1)
    assert made.has_capacity()
    assert made.node_settled(0.2) == [], "it settles once"


@pytest.mark.parametrize(("end", "trims_before"), [(9, None), (10, 9), (20, 19)])
def test_a_spool_is_trimmed_when_it_is_worth_it_or_all_is_stored(end: int, trims_before: int | None) -> None:
    made = make_producer(is_spooled=True, spool_trim_records=10)
    made.publish(next_batch(made, contents(0, 20)), 0.0)
    made.receive([ack(end)], 0.1)
    assert made.begin_spool_trim() == trims_before
    assert made.begin_spool_trim() is None
    assert made.earliest_sequence == 0, "until the spool has dropped them"
    made.spool_starts_at(7)
    assert made.readable_range(HELLO) == range(7, 20)


def test_without_min_stores_a_spool_keeps_the_latest_records() -> None:
    made = make_producer(is_spooled=True, spool_trim_records=10, min_stores=0, unacknowledged_records_max=20)
    made.publish(next_batch(made, contents(0, 20)), 0.0)
    assert made.begin_spool_trim() is None
    made.publish(next_batch(made, contents(20, 40)), 0.0)
    assert made.begin_spool_trim() == 20


@pytest.mark.parametrize(("leaves", "expected"), [(True, 5000), (False, 5000)])
def test_fetches_are_limited(leaves: bool, expected: int) -> None:
    for machine in (make_producer(next_sequence=5), make_store({HELLO: 5})):
        machine.peer_joined("C", 0.0)
        if leaves:
            machine.peer_left("C", 0.0)
        machine.receive([fetch(4)] * 6000, 0.0)
        assert 6000 - machine.discarded[MANY_FETCHES] == pytest.approx(expected, abs=1)


# Stores


def make_store(ends: dict[Partition, int] | None = None, **settings: Any) -> StoreMachine:
    made = StoreMachine(ME, Config().with_store(**settings), ends or {})
    made.start(0.0)
    return made


def batch(first: int, end: int) -> wire.RecordRun:
    return wire.RecordRun(RecordBatch(HELLO, first, [b""] * (end - first)))


@pytest.mark.parametrize(("end", "is_taken"), [(SEQUENCE_MAX, True), (SEQUENCE_MAX + 1, False)])
def test_a_record_at_the_largest_sequence_is_taken(end: int, is_taken: bool) -> None:
    made = make_store({HELLO: end - 2})
    actions = made.receive([batch(end - 2, end)], 0.1)
    assert bool(actions) is is_taken
    assert made.discarded == ({} if is_taken else {ABSURD_SEQUENCE: 2})


@pytest.mark.parametrize(("sequence", "is_taken"), [(SEQUENCE_MAX - 1, True), (SEQUENCE_MAX, False)])
@pytest.mark.parametrize("is_direct", [True, False])
def test_a_head_at_the_largest_sequence_is_taken(sequence: int, is_taken: bool, is_direct: bool) -> None:
    made = make_store({HELLO: 1})
    message = wire.DirectHead(ME, HELLO.address, HELLO.topic, sequence) if is_direct else head(sequence)
    assert bool(asked(made.receive([message], 0.1))) is is_taken
    assert made.discarded == ({} if is_taken else {ABSURD_SEQUENCE: 1})


@pytest.mark.parametrize(
    ("is_direct", "pending", "is_taken"),
    [(False, 99, True), (False, 100, False), (True, 199, True), (True, 200, False)],
)
def test_records_wait_for_the_disk_up_to_the_limit(is_direct: bool, pending: int, is_taken: bool) -> None:
    made = make_store(pending_bytes_max=100)
    made.records_queued(pending)
    actions = made.receive([direct(0, 2, ME) if is_direct else live(0, 2)], 0.1)
    assert [each for each in actions if isinstance(each, Append)] == ([Append(run(0, 2))] if is_taken else [])
    made.records_unqueued(pending)
    assert asked(made.tick(0.2)) == ([] if is_taken else [(0, 2)])


def test_dropped_records_are_not_fetched_while_the_disk_is_behind() -> None:
    made = make_store(pending_bytes_max=100)
    made.records_queued(100)
    made.receive([live(0, 2)], 0.1)
    assert asked(made.tick(0.2)) == []
    made.records_unqueued(1)
    assert asked(made.tick(0.3)) == [(0, 2)]


def test_trimmed_records_are_counted_once() -> None:
    made = make_store({HELLO: 50})
    assert made.records_trimmed({HELLO: 10}) == 10
    assert made.records_trimmed({HELLO: 10}) == 0
    assert made.records_trimmed({HELLO: 25}) == 15
    made.receive([fetch(24)], 0.1)
    assert made.discarded == {"before the earliest": 1}
    made.receive([fetch(25)], 0.1)
    assert made.answers.fetches_received == 1
    made.receive([fetch(50)], 0.1)
    assert made.discarded == {"before the earliest": 1, "beyond the head": 1}


def test_the_heads_for_a_store_that_left_are_not_repeated() -> None:
    made = make_store({HELLO: 5})
    made.peer_joined("OTHER", 0.0)
    actions = made.receive_subscriptions(subscription(Command.CONSUMER_HELLO, "OTHER"), 0.0)
    assert published(actions, wire.DirectHead) == [wire.DirectHead("OTHER", HELLO.address, HELLO.topic, 4)]
    made.peer_left("OTHER", 1.0)
    later: list[Action] = []
    for now in (RETRY_WAITS_S[0], RETRY_WAITS_S[0] + 1, sum(RETRY_WAITS_S), 100.0):
        later += made.tick(now)
    assert published(later, wire.DirectHead) == []


def test_greetings_of_one_name_are_limited() -> None:
    made = make_store()
    made.peer_joined("C", 0.0)
    hellos: list[Action] = []
    for _ in range(NODE_BURST + 5):
        hellos += made.receive_subscriptions(subscription(Command.STORE_HELLO, "C"), 0.0)
    assert hellos == [Publish(wire.StoreHello("C", ME))] * NODE_BURST
    assert made.discarded == {TOO_OFTEN: 5}


@pytest.mark.parametrize("question", [wire.GetHeads("hello", "C"), wire.ConsumerHello(ME, "C", ("hello",))])
def test_questions_for_heads_are_limited(question: wire.BatchedMessage) -> None:
    made = make_store({HELLO: 5})
    made.peer_joined("C", 0.0)
    made.receive([question] * 11_000, 0.0)
    assert made.discarded[TOO_OFTEN] == pytest.approx(1000, abs=1)
