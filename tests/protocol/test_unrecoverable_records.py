"""Erratum 26: how consumers and stores learn that records are unrecoverable, and when they continue without them."""

from __future__ import annotations

from typing import Any

import pytest

from dafka import wire
from dafka.config import Config
from dafka.protocol import (
    ConsumerMachine,
    PartitionHalted,
    ProducerMachine,
    RecordsUnrecoverable,
    ResetPosition,
    StoreMachine,
)
from dafka.protocol.actions import Action, Append
from dafka.protocol.ordering.gap_resolver import HOLDS_NOTHING
from dafka.records import Partition
from dafka.wire import Command
from tests.protocol.helpers import (
    HELLO,
    asked,
    batches,
    direct,
    events,
    head,
    live,
    next_batch,
    published,
    run,
    sequences,
    subscription,
)

ME = "ME"
EARLIEST, HELLO_TO_STORE = Command.DIRECT_EARLIEST, Command.CONSUMER_HELLO


def earliest(
    sequence: int, sender: str = "A", unrecoverable_end: int | None = None, requestor: str = ME
) -> wire.DirectEarliest:
    end = sequence if unrecoverable_end is None else unrecoverable_end
    return wire.DirectEarliest(requestor, sender, HELLO.address, HELLO.topic, sequence, end)


def fetch(sequence: int, count: int = 10, partition: Partition = HELLO) -> wire.Fetch:
    return wire.Fetch(partition.address, "REQUESTOR", partition.topic, sequence, count)


def make_consumer(*stores: str, **settings: Any) -> ConsumerMachine:
    """Return a settled consumer with these stores, which misses the records 0 to 199 of one partition."""
    config = Config().with_consumer(**{"offset_reset": "earliest", **settings})
    consumer = ConsumerMachine(ME, config)
    consumer.start(0.0)
    consumer.subscribe("hello", 0.0)
    for store in stores:
        consumer.receive_subscriptions(subscription(HELLO_TO_STORE, store), 0.0)
    consumer.node_settled(0.0)
    consumer.receive([head(199)], 0.1)
    return consumer


def make_store(ends: dict[Partition, int] | None = None, config: Config | None = None, **more: Any) -> StoreMachine:
    store = StoreMachine(ME, config or Config(), ends or {}, **more)
    store.start(0.0)
    store.node_settled(0.0)
    return store


def unrecoverable(actions: list[Action]) -> list[RecordsUnrecoverable]:
    return [event for event in events(actions) if isinstance(event, RecordsUnrecoverable)]


def tick_once(consumer: ConsumerMachine) -> list[Action]:
    return consumer.tick(consumer.deadline())


# Consumers


def test_records_are_unrecoverable_when_every_store_says_so_erratum_26() -> None:
    consumer = make_consumer("A", "B")
    assert unrecoverable(consumer.receive([earliest(100, "A")], 0.2)) == []
    actions = consumer.receive([earliest(120, "B")], 0.2)
    assert unrecoverable(actions) == [RecordsUnrecoverable(HELLO, 0, 100)]
    assert asked(actions) == [(100, 100)]
    assert consumer.records_unrecoverable == 100
    assert sequences(batches(consumer.receive([direct(100, 200, ME)], 0.3))) == [*range(100, 200)]
    assert asked(consumer.receive([head(199)], 0.4)) == []


def test_a_store_that_is_found_again_counts_although_its_connection_never_ended() -> None:
    consumer = make_consumer("A")
    consumer.peer_left("A", 0.2)
    consumer.peer_joined("A", 0.3)
    assert consumer.reassembler.gap_resolver.stores == {"A"}
    assert unrecoverable(consumer.receive([earliest(100, "A")], 0.4)) == [RecordsUnrecoverable(HELLO, 0, 100)]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (earliest(100, requestor="ANOTHER"), "another requestor"),
        (wire.DirectEarliest(ME, "A", "UNKNOWN", "hello", 100, 100), "not asked for"),
        (wire.DirectEarliest(ME, "A", HELLO.address, "hello2", 100, 100), "not asked for"),
    ],
)
def test_answers_to_no_fetch_are_discarded(message: wire.DirectEarliest, reason: str) -> None:
    consumer = make_consumer("A")
    assert unrecoverable(consumer.receive([message], 0.2)) == []
    assert consumer.discarded == {reason: 1}


def test_unsubscribing_forgets_answers() -> None:
    consumer = make_consumer("A", "B")
    consumer.receive([earliest(100, "A")], 0.2)
    consumer.unsubscribe("hello")
    assert unrecoverable(tick_once(consumer)) == []


# Answers of stores and producers


def test_a_store_answers_a_fetch_of_dropped_records_with_its_earliest_erratum_26() -> None:
    store = make_store({HELLO: 200}, earliest={HELLO: 100})
    store.receive_subscriptions(subscription(EARLIEST, "REQUESTOR"), 0.1)
    answers = published(store.receive([fetch(40)], 0.2), wire.DirectEarliest)
    assert answers == [wire.DirectEarliest("REQUESTOR", ME, HELLO.address, HELLO.topic, 100, 100)]
    assert published(store.receive([fetch(100)], 0.2), wire.DirectEarliest) == []
    assert len(store.responder) == 1


def test_a_store_answers_with_its_earliest_after_trimming() -> None:
    store = make_store({HELLO: 200})
    store.receive_subscriptions(subscription(EARLIEST, "REQUESTOR"), 0.1)
    assert store.records_trimmed({HELLO: 150}) == 150
    assert store.records_trimmed({HELLO: 160}) == 10
    (answer,) = published(store.receive([fetch(0)], 0.2), wire.DirectEarliest)
    assert (answer.sequence, answer.unrecoverable_end) == (160, 160)


def test_a_store_answers_that_it_does_not_know_a_partition() -> None:
    store = make_store()
    store.receive_subscriptions(subscription(EARLIEST, "REQUESTOR"), 0.1)
    (answer,) = published(store.receive([fetch(0)], 0.2), wire.DirectEarliest)
    assert (answer.sequence, answer.unrecoverable_end) == (HOLDS_NOTHING, 0)


def test_a_store_does_not_answer_about_records_that_it_may_yet_receive() -> None:
    store = make_store({HELLO: 50})
    store.receive_subscriptions(subscription(EARLIEST, "REQUESTOR"), 0.1)
    assert published(store.receive([fetch(60)], 0.2), wire.DirectEarliest) == []


def test_direct_earliest_is_sent_only_to_its_subscribers() -> None:
    store = make_store({HELLO: 200}, earliest={HELLO: 100})
    for subscribed in (subscription(EARLIEST), subscription(EARLIEST, "ANOTHER")):
        store.receive_subscriptions(subscribed, 0.1)
        assert published(store.receive([fetch(0)], 0.2), wire.DirectEarliest) == []
    store.receive_subscriptions(subscription(EARLIEST, "REQUESTOR"), 0.1)
    store.receive_subscriptions(subscription(EARLIEST, "REQUESTOR", active=False), 0.1)
    assert published(store.receive([fetch(0)], 0.2), wire.DirectEarliest) == []


def test_a_producer_does_not_call_acknowledged_records_unrecoverable() -> None:
    producer = ProducerMachine(HELLO, Config().producer, 10)
    producer.start(0.0)
    producer.node_settled(0.0)
    producer.publish(next_batch(producer, [b"%d" % sequence for sequence in range(200)]), 0.1)
    producer.receive([wire.Ack(HELLO.address, HELLO.topic, 99, "A")], 0.1)
    producer.receive_subscriptions(subscription(EARLIEST, "REQUESTOR"), 0.1)
    (answer,) = published(producer.receive([fetch(0)], 0.2), wire.DirectEarliest)
    assert answer == wire.DirectEarliest("REQUESTOR", HELLO.address, HELLO.address, HELLO.topic, 100, 0)
    assert published(producer.receive([fetch(100)], 0.2), wire.DirectEarliest) == []


def test_a_producer_without_stores_calls_dropped_records_unrecoverable() -> None:
    config = Config().with_producer(min_stores=0, unacknowledged_records_max=50).producer
    producer = ProducerMachine(HELLO, config, 10)
    producer.start(0.0)
    producer.node_settled(0.0)
    producer.receive_subscriptions(subscription(EARLIEST, "REQUESTOR"), 0.1)
    for first in range(0, 200, 10):
        producer.publish(next_batch(producer, [b"%d" % sequence for sequence in range(first, first + 10)]), 0.1)
    (answer,) = published(producer.receive([fetch(0)], 0.2), wire.DirectEarliest)
    assert answer.sequence == answer.unrecoverable_end == producer.retransmit_buffer.first_sequence > 0
    consumer = make_consumer()
    consumer.peer_joined(HELLO.address, 0.1)
    answer_to_me = wire.DirectEarliest(
        ME, HELLO.address, HELLO.address, HELLO.topic, answer.sequence, answer.unrecoverable_end
    )
    assert unrecoverable(consumer.receive([answer_to_me], 0.2)) == [RecordsUnrecoverable(HELLO, 0, answer.sequence)]


# Stores that learn from other stores


def test_a_new_store_begins_at_the_earliest_record_of_the_others() -> None:
    store = make_store()
    store.receive_subscriptions(subscription(HELLO_TO_STORE, "A"), 0.0)
    store.receive([live(150, 160)], 0.1)
    actions = store.receive([earliest(100)], 0.2)
    assert unrecoverable(actions) == [RecordsUnrecoverable(HELLO, 0, 100)]
    assert [action for action in actions if isinstance(action, ResetPosition)] == [ResetPosition(HELLO, 100)]
    assert asked(actions) == [(100, 50)]
    assert published(store.position_reset(HELLO, 100), wire.Ack) == [wire.Ack(HELLO.address, HELLO.topic, 99, ME)]
    store.receive_subscriptions(subscription(EARLIEST, "REQUESTOR"), 0.3)
    (answer,) = published(store.receive([fetch(0)], 0.3), wire.DirectEarliest)
    assert answer.sequence == 100


def test_a_position_is_reset_before_the_records_that_follow() -> None:
    store = make_store()
    store.receive_subscriptions(subscription(HELLO_TO_STORE, "A"), 0.0)
    store.receive([live(100, 110)], 0.1)
    actions = [action for action in store.receive([earliest(100)], 0.2) if isinstance(action, (ResetPosition, Append))]
    assert actions == [ResetPosition(HELLO, 100), Append(run(100, 110))]


def test_a_store_with_retention_gives_up_the_older_records() -> None:
    store = make_store({HELLO: 50}, Config().with_store(retention_records=1000))
    store.receive_subscriptions(subscription(HELLO_TO_STORE, "A"), 0.0)
    store.receive([head(199)], 0.1)
    actions = store.receive([earliest(100)], 0.2)
    assert unrecoverable(actions) == [RecordsUnrecoverable(HELLO, 50, 100)]
    assert ResetPosition(HELLO, 100) in actions


def test_a_store_without_retention_keeps_its_records_and_reports_it_once() -> None:
    store = make_store({HELLO: 50})
    store.receive_subscriptions(subscription(HELLO_TO_STORE, "A"), 0.0)
    store.receive([head(199)], 0.1)
    actions = store.receive([earliest(100)], 0.2)
    assert events(actions) == [PartitionHalted(HELLO, 50, 100)]
    assert not any(isinstance(action, ResetPosition) for action in actions)
    assert events(store.receive([earliest(100)], 0.3)) == []
    assert store.stored.durable_end(HELLO) == 50
