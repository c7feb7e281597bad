from __future__ import annotations

from typing import Any

import pytest

from dafka import wire
from dafka.config import ProducerConfig
from dafka.protocol import ProducerMachine, StoresSilent
from dafka.protocol.actions import Action, Subscribe
from dafka.wire import Command
from tests.protocol.helpers import (
    HELLO,
    contents,
    direct_head,
    events,
    head,
    live,
    next_batch,
    published,
    sequences,
    subscription,
)

REPLIES_MAX = 100


def make_producer(records: int = 0, **settings: Any) -> ProducerMachine:
    """Return a settled producer that has published `records` records at time 0."""
    producer = ProducerMachine(HELLO, ProducerConfig(**settings), REPLIES_MAX)
    producer.start(0.0)
    producer.node_settled(0.0)
    if records:
        producer.publish(next_batch(producer, contents(0, records)), 0.0)
    return producer


def sent(actions: list[Action]) -> list[int]:
    runs = published(actions, wire.RecordRun)
    assert all(run.requestor is None for run in runs)
    return sequences(run.batch for run in runs)


def ack(sequence: int, store: str = "STORE") -> wire.Ack:
    return wire.Ack(HELLO.address, HELLO.topic, sequence, store)


def fetch(sequence: int, count: int) -> wire.Fetch:
    return wire.Fetch(HELLO.address, "CONSUMER", HELLO.topic, sequence, count)


def test_start_subscribes_to_what_is_addressed_to_the_producer() -> None:
    producer = ProducerMachine(HELLO, ProducerConfig(), REPLIES_MAX)
    assert producer.start(0.0) == [Subscribe(b"KPRODUCER"), Subscribe(b"FPRODUCER"), Subscribe(b"Ghello")]


@pytest.mark.parametrize(("min_stores", "shows_itself"), [(0, False), (1, False), (2, True), (3, True)])
def test_a_producer_that_needs_named_acks_shows_that_it_is_of_this_project_erratum_30(
    min_stores: int, shows_itself: bool
) -> None:
    producer = ProducerMachine(HELLO, ProducerConfig(min_stores=min_stores), REPLIES_MAX)
    assert (Subscribe(b"TPRODUCER") in producer.start(0.0)) is shows_itself


def test_records_are_held_back_until_settled_then_published_in_order_erratum_11() -> None:
    producer = ProducerMachine(HELLO, ProducerConfig(), REPLIES_MAX)
    producer.start(0.0)
    for first in range(0, 10_000, 5000):
        assert producer.publish(next_batch(producer, contents(first, first + 5000)), 0.0) == []
    assert producer.tick(3.0) == []
    assert published(producer.receive_subscriptions(subscription(Command.HEAD, "hello"), 0.1), wire.Head) == []
    assert sent(producer.node_settled(0.2)) == list(range(10_000))
    assert producer.node_settled(0.3) == []
    assert sent(producer.publish(next_batch(producer, contents(10_000, 10_001)), 0.4)) == [10_000]


@pytest.mark.parametrize("topic", ["", "hel", "hello"])
def test_a_new_subscriber_is_sent_the_head_at_once_erratum_10(topic: str) -> None:
    assert published(make_producer(3).receive_subscriptions(subscription(Command.HEAD, topic), 0.1), wire.Head) == [
        head(2)
    ]


def test_many_new_subscribers_at_once_are_sent_one_head() -> None:
    subscriptions = subscription(Command.HEAD, "hello") + subscription(Command.HEAD)
    assert published(make_producer(3).receive_subscriptions(subscriptions, 0.1), wire.Head) == [head(2)]


@pytest.mark.parametrize(
    "subscriptions",
    [
        subscription(Command.HEAD, "hello2"),
        subscription(Command.HEAD, "other"),
        subscription(Command.HEAD, "hello", active=False),
        subscription(Command.RECORD, "hello"),
    ],
)
def test_a_peer_that_does_not_subscribe_to_heads_is_sent_nothing(subscriptions: list[wire.Subscription]) -> None:
    assert make_producer(3).receive_subscriptions(subscriptions, 0.1) == []


def test_before_the_first_record_there_is_no_head() -> None:
    producer = make_producer()
    assert producer.receive_subscriptions(subscription(Command.HEAD, "hello"), 0.0) == []
    assert producer.receive([wire.GetHeads("hello", "CONSUMER")], 0.0) == []


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (ack(10), "beyond the head"),
        (ack(2**64 - 1), "sequence too large"),
        (wire.Ack("OTHER", "hello", 3, "STORE"), "another partition"),
        (wire.Ack("PRODUCER", "hello2", 3, "STORE"), "another partition"),
        (fetch(10, 1), "beyond the head"),
        (fetch(2**64 - 1, 2**32 - 1), "beyond the head"),
        (wire.Fetch("OTHER", "CONSUMER", "hello", 0, 1), "another partition"),
        (wire.Fetch("PRODUCER", "CONSUMER", "hello2", 0, 1), "another partition"),
        (live(0, 1), "unexpected command"),
        (head(5), "unexpected command"),
        (direct_head(5, "PRODUCER"), "unexpected command"),
        (wire.StoreHello("PRODUCER", "STORE"), "unexpected command"),
    ],
)
def test_senseless_messages_are_discarded_and_counted(message: wire.BatchedMessage, reason: str) -> None:
    producer = make_producer(10)
    assert producer.receive([message], 0.1) == []
    assert producer.discarded == {reason: 1}
    assert (producer.acknowledged_end, len(producer.responder)) == (0, 0)


def test_a_fetch_waits_for_its_answer() -> None:
    producer = make_producer(10)
    assert producer.receive([fetch(4, 100)], 0.1) == []
    assert producer.responder.pending_ranges() == {("CONSUMER", HELLO): [range(4, 104)]}
    assert producer.fetches_received == 1


def test_get_heads_is_answered_for_the_exact_topic_erratum_6() -> None:
    producer = make_producer(3)
    assert producer.receive([wire.GetHeads("hello2", "CONSUMER")], 0.1) == []
    answers = published(producer.receive([wire.GetHeads("hello", "CONSUMER")], 0.2), wire.DirectHead)
    assert answers == [direct_head(2, "CONSUMER")]


def test_with_everything_acknowledged_silence_is_no_surprise() -> None:
    producer = make_producer(5, silence_ms=2000, head_interval_ms=100_000)
    producer.receive([ack(4)], 1.0)
    assert events(producer.tick(50.0)) == []
    producer.publish(next_batch(producer, contents(5, 6)), 60.0)
    assert events(producer.tick(61.9)) == []
    assert events(producer.tick(62.0)) == [StoresSilent(1, 2.0)]


def test_without_min_stores_no_ack_is_waited_for_and_the_latest_records_stay() -> None:
    producer = make_producer(min_stores=0, unacknowledged_records_max=6, silence_ms=1000)
    for first in range(0, 20, 2):
        assert producer.has_capacity()
        producer.publish(next_batch(producer, contents(first, first + 2)), 0.0)
    assert producer.unacknowledged == 0
    assert (producer.retransmit_buffer.first_sequence, producer.retransmit_buffer.end_sequence) == (14, 20)
    assert events(producer.tick(100.0)) == []
    producer.receive([ack(19)], 100.0)
    assert producer.retransmit_buffer.first_sequence == 14


def test_without_min_stores_no_record_is_dropped_before_it_was_published() -> None:
    producer = ProducerMachine(HELLO, ProducerConfig(min_stores=0, unacknowledged_records_max=6), REPLIES_MAX)
    producer.start(0.0)
    for first in range(0, 6, 2):
        assert producer.has_capacity()
        producer.publish(next_batch(producer, contents(first, first + 2)), 0.0)
    assert not producer.has_capacity()
    producer.publish(next_batch(producer, contents(6, 8)), 0.0)
    assert sent(producer.node_settled(0.1)) == list(range(8))
    assert producer.has_capacity()
    assert producer.retransmit_buffer.first_sequence == 2


def test_without_min_stores_a_resumed_producer_does_not_take_its_records_for_stored() -> None:
    producer = ProducerMachine(
        HELLO, ProducerConfig(min_stores=0), REPLIES_MAX, next_sequence=10, acknowledged_end=7, is_spooled=True
    )
    producer.start(0.0)
    producer.node_settled(0.1)
    assert producer.unacknowledged == 0
    producer.receive_subscriptions(subscription(Command.DIRECT_EARLIEST, "STORE"), 0.2)
    told = producer.receive([wire.Fetch(HELLO.address, "STORE", HELLO.topic, 2, 3)], 0.3)
    assert published(told, wire.DirectEarliest) == [
        wire.DirectEarliest("STORE", HELLO.address, HELLO.address, HELLO.topic, 6, 6)
    ]


def test_a_resumed_partition_continues_at_its_next_sequence() -> None:
    producer = ProducerMachine(
        HELLO, ProducerConfig(), REPLIES_MAX, next_sequence=10, acknowledged_end=7, is_spooled=True
    )
    producer.start(0.0)
    assert producer.unacknowledged == 3
    assert published(producer.tick(producer.deadline()), wire.Head) == [head(9)]
    producer.receive([fetch(7, 3)], 0.1)
    assert producer.responder.pending_ranges() == {("CONSUMER", HELLO): [range(7, 10)]}
    producer.node_settled(0.2)
    assert sent(producer.publish(next_batch(producer, contents(10, 12)), 0.3)) == [10, 11]
    producer.receive([ack(11)], 0.4)
    assert producer.unacknowledged == 0


def test_a_spool_holds_the_contents_so_memory_does_not() -> None:
    producer = ProducerMachine(HELLO, ProducerConfig(unacknowledged_bytes_max=5), REPLIES_MAX, is_spooled=True)
    producer.start(0.0)
    assert producer.publish(next_batch(producer, contents(0, 100)), 0.0) == []
    assert (len(producer.retransmit_buffer), producer.has_capacity()) == (0, True)
    assert published(producer.node_settled(0.1), wire.Head) == [head(99)]
    assert producer.receive([fetch(0, 100)], 0.2) == []
    assert len(producer.responder) == 1
