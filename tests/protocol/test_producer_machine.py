"""The producer's machine: when it publishes records and HEADs, what its stores owe it, and what it keeps in memory."""

from __future__ import annotations

from typing import Any

import pytest

from dafka import wire
from dafka.config import ProducerConfig
from dafka.protocol import ProducerMachine, StoresSilent
from dafka.protocol.actions import Action, Notify, Publish
from dafka.protocol.events import StoresHeard
from dafka.protocol.machines import producer as producer_module
from dafka.wire import Command
from tests.protocol.helpers import (
    HELLO,
    contents,
    direct_head,
    events,
    head,
    next_batch,
    published,
    sequences,
    subscription,
)


def make_producer(
    records: int = 0,
    *,
    is_settled: bool = True,
    next_sequence: int = 0,
    acknowledged_end: int = 0,
    spool_trim_records: int = producer_module.SPOOL_TRIM_RECORDS,
    is_spooled: bool = False,
    **settings: Any,
) -> ProducerMachine:
    """Return a producer that has published `records` records at time 0."""
    producer = ProducerMachine(
        HELLO,
        ProducerConfig(**settings),
        100,
        next_sequence=next_sequence,
        acknowledged_end=acknowledged_end,
        is_spooled=is_spooled,
        spool_trim_records=spool_trim_records,
    )
    producer.start(0.0)
    if is_settled:
        producer.node_settled(0.0)
    if records:
        producer.publish(next_batch(producer, contents(0, records)), 0.0)
    return producer


def publish(producer: ProducerMachine, count: int, now: float = 0.0) -> list[Action]:
    first = producer.next_sequence
    return producer.publish(next_batch(producer, contents(first, first + count)), now)


def sent(actions: list[Action]) -> list[int]:
    runs = published(actions, wire.RecordRun)
    assert all(run.requestor is None for run in runs)
    return sequences(run.batch for run in runs)


def ack(end: int, store: str = "STORE") -> wire.Ack:
    return wire.Ack(HELLO.address, HELLO.topic, end - 1, store)


def fetch(sequence: int, count: int = 1, requestor: str = "CONSUMER") -> wire.Fetch:
    return wire.Fetch(HELLO.address, requestor, HELLO.topic, sequence, count)


def earliest(sequence: int, unrecoverable_end: int, requestor: str = "CONSUMER") -> wire.DirectEarliest:
    return wire.DirectEarliest(requestor, HELLO.address, HELLO.address, HELLO.topic, sequence, unrecoverable_end)


# Publishing


def test_records_are_held_back_until_settled_then_published_in_order_erratum_11() -> None:
    producer = make_producer(is_settled=False)
    assert publish(producer, 5000) == publish(producer, 5000) == []
    assert producer.tick(3.0) == []
    assert published(producer.receive_subscriptions(subscription(Command.HEAD, "hello"), 0.1), wire.Head) == []
    assert sent(producer.node_settled(0.2)) == list(range(10_000))
    assert producer.node_settled(0.3) == []
    assert sent(publish(producer, 1, 0.4)) == [10_000]


@pytest.mark.parametrize(
    ("subscriptions", "heads"),
    [
        (subscription(Command.HEAD), 1),
        (subscription(Command.HEAD, "hel"), 1),
        (subscription(Command.HEAD, "hello") + subscription(Command.HEAD), 1),
        (subscription(Command.HEAD, "hello2"), 0),
        (subscription(Command.HEAD, "other"), 0),
        (subscription(Command.HEAD, "hello", active=False), 0),
        (subscription(Command.RECORD, "hello"), 0),
    ],
)
def test_new_subscribers_are_sent_one_head_at_once_erratum_10(
    subscriptions: list[wire.Subscription], heads: int
) -> None:
    assert make_producer(3).receive_subscriptions(subscriptions, 0.1) == [Publish(head(2))] * heads
    assert make_producer().receive_subscriptions(subscriptions, 0.1) == [], "there is no record yet"


def test_get_heads_is_answered_for_the_exact_topic_erratum_6() -> None:
    producer = make_producer(3)
    assert producer.receive([wire.GetHeads("hello2", "CONSUMER")], 0.1) == []
    answers = published(producer.receive([wire.GetHeads("hello", "CONSUMER")], 0.2), wire.DirectHead)
    assert answers == [direct_head(2, "CONSUMER")]
    assert make_producer().receive([wire.GetHeads("hello", "CONSUMER")], 0.0) == []


def test_heads_follow_each_other_at_the_interval() -> None:
    producer = make_producer(head_interval_ms=1000)
    assert producer.deadline() == float("inf")
    publish(producer, 2, 5.0)
    producer.receive([ack(2)], 5.0)
    assert producer.deadline() == 6.0
    assert producer.tick(5.9) == []
    assert producer.tick(6.0) == [Publish(head(1))]
    assert producer.deadline() == 7.0
    publish(producer, 1, 6.5)
    producer.receive([ack(3)], 6.5)
    assert producer.deadline() == 7.0, "publishing does not put the next HEAD off"
    assert producer.receive_subscriptions(subscription(Command.HEAD, "hello"), 6.7) == [Publish(head(2))]
    assert producer.deadline() == 7.7


# Stores


def test_silent_stores_are_reported_at_the_time_and_not_before() -> None:
    producer = make_producer(silence_ms=5000, head_interval_ms=60_000)
    publish(producer, 2, 1.0)
    publish(producer, 1, 4.0)
    assert producer.deadline() == 6.0, "later records do not put the report off"
    assert producer.tick(5.99) == []
    assert producer.tick(6.0) == [Notify(StoresSilent(3, 5.0))]
    assert producer.tick(7.0) == []
    assert producer.receive([ack(1)], 8.0) == [Notify(StoresHeard())]
    assert producer.deadline() == 13.0
    assert producer.receive([ack(3)], 9.0) == []
    assert producer.tick(14.0) == [], "all is acknowledged"
    publish(producer, 1, 20.0)
    assert producer.deadline() == 25.0, "silence counts from the first unacknowledged record"


def test_acks_of_too_many_stores_are_discarded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_module, "STORES_MAX", 2)
    producer = make_producer(5, min_stores=2)
    producer.receive([ack(1, "A"), ack(2, "B"), ack(5, "C")], 0.1)
    assert (producer.acknowledged_end, producer.discarded) == (1, {"too many stores": 1})
    producer.receive([ack(4, "A")], 0.1)
    assert producer.acknowledged_end == 2
    assert producer.readable_range(HELLO) == range(2, 5)


def test_a_fetch_of_dropped_records_is_answered_with_what_is_known_of_them() -> None:
    producer = make_producer(min_stores=0, unacknowledged_records_max=3)
    producer.receive_subscriptions(subscription(Command.DIRECT_EARLIEST, "CONSUMER"), 0.0)
    for _ in range(3):
        publish(producer, 2)
    assert producer.receive([fetch(4, 100)], 0.1) == []
    assert producer.responder.pending_ranges() == {("CONSUMER", HELLO): [range(4, 104)]}
    assert producer.fetches_received == 1
    assert producer.receive([fetch(3)], 0.1) == [Publish(earliest(4, 4))]
    producer.receive([ack(3)], 0.1)
    assert producer.receive([fetch(2)], 0.1) == [Publish(earliest(4, 0))], "a store has it"
    assert producer.receive([fetch(3)], 0.1) == [Publish(earliest(4, 4))], "no store has it"


# Memory and spools


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
    assert make_producer(published_count, **settings).has_capacity() is has_capacity


@pytest.mark.parametrize(("held", "has_capacity"), [(2, True), (3, False)])
@pytest.mark.parametrize("settings", [{"is_spooled": True}, {}, {"min_stores": 0}])
def test_records_that_wait_for_peers_are_limited(
    held: int, has_capacity: bool, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_module, "HELD_RECORDS_MAX", 3)
    producer = make_producer(is_settled=False, **settings)
    assert publish(producer, held) == []
    assert producer.has_capacity() is has_capacity
    producer.node_settled(0.1)
    assert producer.has_capacity()


def test_without_min_stores_no_ack_is_waited_for_and_the_latest_records_stay() -> None:
    producer = make_producer(is_settled=False, min_stores=0, unacknowledged_records_max=6, silence_ms=1000)
    for _ in range(3):
        assert producer.has_capacity()
        publish(producer, 2)
    assert not producer.has_capacity(), "no record is dropped before it was published"
    publish(producer, 2)
    assert sent(producer.node_settled(0.1)) == list(range(8))
    assert producer.has_capacity()
    assert producer.retransmit_buffer.first_sequence == 2
    publish(producer, 2)
    assert producer.unacknowledged == 0
    assert (producer.retransmit_buffer.first_sequence, producer.retransmit_buffer.end_sequence) == (4, 10)
    assert events(producer.tick(100.0)) == []
    producer.receive([ack(10)], 100.0)
    assert producer.retransmit_buffer.first_sequence == 4


def test_without_min_stores_a_resumed_producer_does_not_take_its_records_for_stored() -> None:
    producer = make_producer(min_stores=0, next_sequence=10, acknowledged_end=7, is_spooled=True)
    assert producer.unacknowledged == 0
    producer.receive_subscriptions(subscription(Command.DIRECT_EARLIEST, "STORE"), 0.2)
    told = producer.receive([fetch(2, 3, "STORE")], 0.3)
    assert published(told, wire.DirectEarliest) == [earliest(6, 6, "STORE")]


def test_a_resumed_partition_continues_at_its_next_sequence() -> None:
    producer = make_producer(is_settled=False, next_sequence=10, acknowledged_end=7, is_spooled=True)
    assert producer.unacknowledged == 3
    assert published(producer.tick(producer.deadline()), wire.Head) == [head(9)]
    producer.receive([fetch(7, 3)], 0.1)
    assert producer.responder.pending_ranges() == {("CONSUMER", HELLO): [range(7, 10)]}
    producer.node_settled(0.2)
    assert sent(publish(producer, 2, 0.3)) == [10, 11]
    producer.receive([ack(12)], 0.4)
    assert producer.unacknowledged == 0


def test_a_spool_holds_the_contents_so_memory_does_not() -> None:
    producer = make_producer(is_settled=False, unacknowledged_bytes_max=5, is_spooled=True)
    assert publish(producer, 100) == []
    assert (len(producer.retransmit_buffer), producer.has_capacity()) == (0, True)
    assert published(producer.node_settled(0.1), wire.Head) == [head(99)]
    assert producer.receive([fetch(0, 100)], 0.2) == []
    assert len(producer.responder) == 1


@pytest.mark.parametrize(("end", "trims_before"), [(9, None), (10, 9), (20, 19)])
def test_a_spool_is_trimmed_when_it_is_worth_it_or_all_is_stored(end: int, trims_before: int | None) -> None:
    producer = make_producer(20, is_spooled=True, spool_trim_records=10)
    producer.receive([ack(end)], 0.1)
    assert producer.begin_spool_trim() == trims_before
    assert producer.begin_spool_trim() is None
    assert producer.earliest_sequence == 0, "until the spool has dropped them"
    producer.spool_starts_at(7)
    assert producer.readable_range(HELLO) == range(7, 20)


def test_without_min_stores_a_spool_keeps_the_latest_records() -> None:
    producer = make_producer(20, is_spooled=True, spool_trim_records=10, min_stores=0, unacknowledged_records_max=20)
    assert producer.begin_spool_trim() is None
    publish(producer, 20)
    assert producer.begin_spool_trim() == 20
