"""The store's machine: what it appends, acknowledges and fetches, what it tells other nodes, and what it lacks."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from dafka import wire
from dafka.config import Config
from dafka.protocol import FetchUnanswered, RecordsMissing, StoreMachine
from dafka.protocol.actions import Action, Append, Publish
from dafka.protocol.ordering.reassembler import MISSING_FIRST_S, MISSING_INTERVAL_S
from dafka.protocol.polling import RETRY_WAITS_S
from dafka.records import Partition
from dafka.wire import Command
from tests.protocol.helpers import (
    HELLO,
    asked,
    batches,
    direct,
    direct_head,
    events,
    head,
    live,
    published,
    run,
    sequences,
    subscription,
)

ME = "STORE"
OTHER = Partition("hello", "OTHER")
LONGER = Partition("hello2", "PRODUCER")
GONE = Partition("other", "GONE")


def make_store(ends: dict[Partition, int] | None = None, **settings: Any) -> StoreMachine:
    store = StoreMachine(ME, Config().with_store(**settings), ends or {})
    store.start(0.0)
    return store


def receive(store: StoreMachine, *messages: wire.BatchedMessage, now: float = 0.1) -> list[Action]:
    return store.receive(messages, now)


def appended(actions: list[Action]) -> list[int]:
    return sequences(batches(actions))


def acks(actions: list[Action]) -> list[wire.Ack]:
    return published(actions, wire.Ack)


def heads(actions: list[Action]) -> list[wire.DirectHead]:
    return published(actions, wire.DirectHead)


def ack(sequence: int, partition: Partition = HELLO) -> wire.Ack:
    return wire.Ack(partition.address, partition.topic, sequence, ME)


def fetch(sequence: int, count: int = 1) -> wire.Fetch:
    return wire.Fetch(HELLO.address, "CONSUMER", HELLO.topic, sequence, count)


# Records and their ACKs


def test_a_restarted_store_continues_where_its_storage_ends() -> None:
    actions = receive(make_store({HELLO: 5}), live(3, 7), live(9, 10))
    assert (appended(actions), asked(actions)) == ([5, 6], [(7, 2)])
    for message in (head(6), direct_head(6, ME)):
        assert asked(receive(make_store(), message)) == [(0, 7)]


def test_durable_records_are_acknowledged_again_erratum_9() -> None:
    """Their producer repeats them or their HEAD, or connects late."""
    store = make_store({HELLO: 5, LONGER: 7, OTHER: 9})
    assert receive(store, live(1, 3)) == [Publish(ack(4))]
    assert receive(store, head(4)) == [Publish(ack(4))]
    assert acks(store.receive_subscriptions(subscription(Command.ACK, "PRODUCER"), 0.1)) == [ack(4), ack(6, LONGER)]
    assert store.receive_subscriptions(subscription(Command.ACK, "PRODUCER", active=False), 0.2) == []
    assert store.receive_subscriptions(subscription(Command.ACK, "PRO"), 0.2) == []
    assert acks(receive(store, direct_head(4, ME))) == []
    assert acks(receive(store, head(5))) == []


@pytest.mark.parametrize(
    ("is_direct", "pending", "is_taken"),
    [(False, 99, True), (False, 100, False), (True, 199, True), (True, 200, False)],
)
def test_records_wait_for_the_disk_up_to_the_limit(is_direct: bool, pending: int, is_taken: bool) -> None:
    store = make_store(pending_bytes_max=100)
    store.records_queued(pending)
    actions = receive(store, direct(0, 2, ME) if is_direct else live(0, 2))
    assert [each for each in actions if isinstance(each, Append)] == ([Append(run(0, 2))] if is_taken else [])
    assert asked(store.tick(0.2)) == [], "not while the disk is behind"
    store.records_unqueued(pending - 99 if pending > 99 else 0)
    assert asked(store.tick(0.2)) == ([] if is_taken else [(0, 2)])


def test_an_unanswered_fetch_is_reported_and_repeated_also_to_a_node_that_connects() -> None:
    store = make_store()
    receive(store, head(9), now=0.0)
    actions = [action for now in (0.5, 1.5, 3.5) for action in store.tick(now)]
    assert asked(actions) == [(0, 10)] * 3
    assert events(actions) == [FetchUnanswered(HELLO, 0, 3)]
    assert asked(store.receive_subscriptions(subscription(Command.FETCH, "PRODUCER"), 3.6)) == [(0, 10)]


def test_trimmed_records_are_counted_once() -> None:
    store = make_store({HELLO: 50})
    assert [store.records_trimmed({HELLO: end}) for end in (10, 10, 25)] == [10, 0, 15]
    receive(store, fetch(24))
    assert store.discarded == {"before the earliest": 1}
    receive(store, fetch(25))
    assert store.answers.fetches_received == 1
    receive(store, fetch(50))
    assert store.discarded == {"before the earliest": 1, "beyond the head": 1}


def test_a_fetch_is_answered_with_durable_records_only() -> None:
    store = make_store({HELLO: 5})
    receive(store, live(5, 8), fetch(5, 3))
    assert store.discarded == {"beyond the head": 1}
    receive(store, fetch(4, 100))
    assert store.responder.pending_ranges() == {("CONSUMER", HELLO): [range(4, 104)]}
    assert store.stored.durable_end(HELLO) == 5
    assert store.answers.fetches_received == 1


# Heads


def test_consumers_are_greeted_and_told_the_durable_heads_of_their_topics() -> None:
    store = make_store({HELLO: 5, OTHER: 9, LONGER: 7})
    greeting = Publish(wire.StoreHello("CONSUMER", ME))
    assert store.receive_subscriptions(subscription(Command.STORE_HELLO, "CONSUMER"), 0.1) == [greeting]
    assert store.receive_subscriptions(subscription(Command.STORE_HELLO), 0.1) == []
    receive(store, live(5, 8))
    told = [Publish(direct_head(4, "CONSUMER")), Publish(direct_head(8, "CONSUMER", OTHER))]
    assert receive(store, wire.ConsumerHello(ME, "CONSUMER", ("hello", "nothing"))) == told
    assert receive(store, wire.GetHeads("hello", "CONSUMER")) == told, "of the exact topic (erratum 14)"


def test_a_store_that_connects_is_told_every_head_and_again_because_they_may_be_lost_erratum_13() -> None:
    store = make_store({HELLO: 5, LONGER: 7})
    told = [direct_head(4, "STORE2"), direct_head(6, "STORE2", LONGER)]
    assert heads(store.receive_subscriptions(subscription(Command.CONSUMER_HELLO, "STORE2"), 0.0)) == told
    assert store.receive_subscriptions(subscription(Command.CONSUMER_HELLO), 0.0) == []
    assert heads(store.tick(RETRY_WAITS_S[0])) == told
    assert heads(store.tick(sum(RETRY_WAITS_S))) == told
    assert heads(store.tick(1000.0)) == []
    store.peer_joined("STORE3", 1000.0)
    assert heads(store.receive_subscriptions(subscription(Command.CONSUMER_HELLO, "STORE3"), 1000.0))
    store.peer_left("STORE3", 1001.0)
    assert heads([each for wait in (*RETRY_WAITS_S, 100.0) for each in store.tick(1001.0 + wait)]) == []


def test_a_libdafka_store_that_connects_is_asked_for_all_heads_erratum_13() -> None:
    store = make_store({HELLO: 5})
    assert store.receive_subscriptions(subscription(Command.GET_HEADS), 0.1) == [Publish(wire.GetHeads("", ME))]
    assert store.receive_subscriptions(subscription(Command.GET_HEADS, "hello"), 0.1) == []


def test_other_stores_are_asked_for_the_records_of_a_producer_that_left_erratum_13() -> None:
    store = make_store({HELLO: 5, LONGER: 7})
    assert store.peer_left("CONSUMER", 0.0) == []
    wanted = published(store.peer_left(HELLO.address, 0.0), wire.GetHeads)
    assert {each.subject for each in wanted} == {"hello", "hello2"}
    assert store.deadline() == RETRY_WAITS_S[0]
    assert published(store.tick(RETRY_WAITS_S[0]), wire.GetHeads) == wanted


def test_records_durable_after_their_producer_left_are_announced_to_all_subscribers() -> None:
    store = make_store()
    store.receive_subscriptions(subscription(Command.DIRECT_HEAD, "CONSUMER"), 0.0)
    store.receive_subscriptions(subscription(Command.ACK, HELLO.address), 0.0)
    receive(store, live(0, 10))
    assert heads(store.records_committed({HELLO: 5}, 0.1)) == []
    store.receive_subscriptions(subscription(Command.ACK, HELLO.address, active=False), 0.2)
    assert heads(store.records_committed({HELLO: 8}, 0.3)) == []
    assert heads(store.records_committed({HELLO: 10}, 0.4)) == [direct_head(9, "CONSUMER")]
    store.receive_subscriptions(subscription(Command.DIRECT_HEAD, "CONSUMER", active=False), 0.5)
    assert heads(store.records_committed({HELLO: 10}, 0.6)) == []


# Missing records


def reports(store: StoreMachine, begin: float, end: float) -> list[tuple[float, RecordsMissing]]:
    """Run what is due from one time to another, and return the reports, each with its time."""
    found: list[tuple[float, RecordsMissing]] = []
    now = begin
    while (now := max(store.deadline(), now)) <= end:
        found += [(now, event) for event in events(store.tick(now)) if isinstance(event, RecordsMissing)]
    return found


def test_missing_records_are_reported_once_a_minute_until_they_come() -> None:
    store = make_store({HELLO: 10})
    store.receive([direct_head(99, ME), wire.DirectHead(ME, GONE.address, GONE.topic, 4)], 0.0)
    assert store.missing.count() == 0
    times, found = zip(*reports(store, 0.0, 300.0), strict=True)
    assert set(found) == {RecordsMissing(95, 2, HELLO)}
    assert 4 <= len(times) <= 5
    assert times[0] >= MISSING_FIRST_S
    assert {later - earlier for earlier, later in pairwise(times)} == {MISSING_INTERVAL_S}
    assert store.missing.count() == 95
    store.receive([direct(0, 5, ME, GONE)], 300.0)
    assert {event for _, event in reports(store, 300.0, 400.0)} == {RecordsMissing(90, 1, HELLO)}
    store.receive([direct(10, 100, ME)], 400.0)
    assert store.missing.count() == 0
    assert reports(store, 400.0, 1000.0) == []
    store.receive([direct_head(199, ME)], 1000.0)
    assert [event for _, event in reports(store, 1000.0, 1060.0)] == [RecordsMissing(100, 1, HELLO)]


def test_records_that_come_soon_are_not_reported() -> None:
    store = make_store({HELLO: 10})
    store.receive([direct_head(99, ME)], 0.0)
    assert reports(store, 0.0, MISSING_FIRST_S) == []
    store.receive([direct(10, 100, ME)], MISSING_FIRST_S)
    assert reports(store, MISSING_FIRST_S, 500.0) == []


def test_a_report_is_a_sentence() -> None:
    assert str(RecordsMissing(1, 1, HELLO)) == (
        f"No node sends 1 record of {HELLO}, which this store lacks and other nodes have announced; retrying"
    )
    assert f"95 records of 2 partitions, such as {HELLO}, which" in str(RecordsMissing(95, 2, HELLO))
