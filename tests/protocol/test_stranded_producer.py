"""A producer notices that no store can continue its partition, and never by the word of one store among others."""

from __future__ import annotations

from collections.abc import Iterable

from dafka import wire
from dafka.config import ProducerConfig
from dafka.protocol import ProducerMachine
from dafka.protocol.machines.stranded_detector import ASKING_S, STRANDED_CHECK_S
from dafka.wire import Command
from tests.protocol.helpers import HELLO, contents, next_batch, published, subscription

AFTER_S = 5.0


def ack(sequence: int, store: str = "OLD") -> wire.Ack:
    return wire.Ack(HELLO.address, HELLO.topic, sequence, store)


def fetch(store: str, sequence: int = 0) -> wire.Fetch:
    return wire.Fetch(HELLO.address, store, HELLO.topic, sequence, 100)


def make_producer(stores: Iterable[str] = ("NEW",), stranded_after_s: float = AFTER_S) -> ProducerMachine:
    """Return a producer of 10 records, of which a store that is gone has acknowledged 8; others are connected."""
    producer = ProducerMachine(HELLO, ProducerConfig(), 10, stranded_after_s=stranded_after_s)
    producer.start(0.0)
    producer.node_settled(0.0)
    producer.publish(next_batch(producer, contents(0, 10)), 0.0)
    producer.receive([ack(7)], 0.0)
    for store in stores:
        connect(producer, store)
    return producer


def connect(producer: ProducerMachine, store: str, *, active: bool = True) -> None:
    producer.receive_subscriptions(subscription(Command.CONSUMER_HELLO, store, active=active), 0.0)


def pass_time(producer: ProducerMachine, begin: float, end: float, asking: dict[str, int]) -> None:
    """Let time pass, in which stores ask for records each second."""
    now = begin
    while now < end:
        producer.receive([fetch(store, sequence) for store, sequence in asking.items()], now)
        now += 1.0
        while producer.deadline() <= min(now, end):
            producer.tick(producer.deadline())


def test_a_producer_whose_only_store_began_anew_is_stranded() -> None:
    producer = make_producer()
    pass_time(producer, 1.0, 1.0 + AFTER_S - 0.6, {"NEW": 0})
    assert not producer.is_stranded
    pass_time(producer, 1.0 + AFTER_S, 8.0, {"NEW": 0})
    assert producer.is_stranded
    assert producer.unstored_from == 8


def test_without_a_limit_it_waits() -> None:
    producer = make_producer(stranded_after_s=0.0)
    pass_time(producer, 1.0, 100.0, {"NEW": 0})
    assert not producer.is_stranded


def test_another_store_that_does_not_ask_may_help() -> None:
    producer = make_producer(["NEW", "OTHER"])
    pass_time(producer, 1.0, 60.0, {"NEW": 0})
    assert not producer.is_stranded
    connect(producer, "OTHER", active=False)
    pass_time(producer, 60.0, 60.0 + AFTER_S - 0.1, {"NEW": 0})
    assert not producer.is_stranded, "the time without a holder counts from when it left"
    pass_time(producer, 60.0 + AFTER_S, 70.0, {"NEW": 0})
    assert producer.is_stranded


def test_a_store_that_acknowledged_the_records_may_come_back_while_discovery_knows_it() -> None:
    producer = make_producer()
    producer.peer_joined("OLD", 0.0)
    pass_time(producer, 1.0, 60.0, {"NEW": 0})
    assert not producer.is_stranded
    producer.peer_left("OLD", 60.0)
    pass_time(producer, 60.0, 60.0 + AFTER_S - 0.1, {"NEW": 0})
    assert not producer.is_stranded
    pass_time(producer, 60.0 + AFTER_S, 70.0, {"NEW": 0})
    assert producer.is_stranded


def test_an_older_copy_of_the_storage_is_no_holder() -> None:
    """It has the address of the store that acknowledged the records, and asks for them."""
    producer = make_producer(["OLD"])
    producer.peer_joined("OLD", 0.0)
    pass_time(producer, 1.0, 8.0, {"OLD": 4})
    assert producer.is_stranded


def test_a_store_that_has_less_than_what_is_asked_for_is_no_holder() -> None:
    producer = make_producer()
    producer.peer_joined("BEHIND", 0.0)
    producer.receive([ack(2, "BEHIND")], 0.0)
    pass_time(producer, 1.0, 8.0, {"NEW": 3})
    assert producer.is_stranded


def test_a_store_that_can_help_one_of_those_that_ask_is_a_holder() -> None:
    producer = make_producer(["NEW", "OTHER"])
    producer.peer_joined("BEHIND", 0.0)
    producer.receive([ack(3, "BEHIND")], 0.0)
    pass_time(producer, 1.0, 60.0, {"NEW": 0, "OTHER": 6})
    assert not producer.is_stranded


def test_a_producer_without_connected_stores_waits_for_them() -> None:
    producer = make_producer()
    pass_time(producer, 1.0, 3.0, {"NEW": 0})
    connect(producer, "NEW", active=False)
    pass_time(producer, 3.0, 60.0, {})
    assert not producer.is_stranded


def test_each_store_must_have_repeated_its_question() -> None:
    producer = make_producer(["NEW", "OTHER"])
    producer.receive([fetch("OTHER")], 1.0)
    pass_time(producer, 1.0, 1.0 + ASKING_S, {"NEW": 0})
    assert not producer.is_stranded


def test_a_producer_looks_by_itself_whether_it_is_stranded() -> None:
    producer = make_producer()
    producer.tick(1.0)  # sends a HEAD; the next one is due a second later
    producer.receive([fetch("NEW")], 1.0)
    assert producer.deadline() <= 1.0 + STRANDED_CHECK_S


def test_strangers_do_not_count() -> None:
    producer = make_producer()
    pass_time(producer, 1.0, 60.0, {"CONSUMER": 0})
    assert not producer.is_stranded
    assert producer.deadline() < float("inf")


def test_a_store_that_gets_records_from_elsewhere_is_not_stranded() -> None:
    producer = make_producer()
    for second in range(1, 8):
        pass_time(producer, float(second * 2), second * 2 + 2.0, {"NEW": second})
    assert not producer.is_stranded


def test_an_ack_shows_that_the_store_has_the_records() -> None:
    producer = make_producer()
    pass_time(producer, 1.0, 4.0, {"NEW": 0})
    producer.receive([ack(9, "NEW")], 4.0)
    pass_time(producer, 20.0, 20.0 + AFTER_S - 0.1, {"NEW": 0})
    assert not producer.is_stranded


def test_a_store_that_has_acknowledged_what_it_asked_for_asks_no_more() -> None:
    producer = make_producer()
    pass_time(producer, 1.0, 4.0, {"NEW": 0})
    producer.receive([ack(9, "NEW")], 4.0)
    pass_time(producer, 4.0, 60.0, {})
    assert not producer.is_stranded


def test_an_ack_of_earlier_records_changes_nothing() -> None:
    producer = make_producer()
    for second in range(1, 8):
        pass_time(producer, float(second), second + 1.0, {"NEW": 3})
        producer.receive([ack(2, "NEW")], second + 0.9)
    assert producer.is_stranded


def test_a_question_that_is_not_repeated_does_not_count() -> None:
    producer = make_producer()
    producer.receive([fetch("NEW")], 1.0)
    pass_time(producer, 2.0, 60.0, {})
    assert not producer.is_stranded


def test_a_store_that_has_stopped_asking_may_help() -> None:
    producer = make_producer(["NEW", "OTHER"], stranded_after_s=ASKING_S + 5)
    pass_time(producer, 1.0, 3.0, {"NEW": 0, "OTHER": 0})
    pass_time(producer, 3.0, 100.0, {"NEW": 0})
    assert not producer.is_stranded


def test_records_that_no_store_acknowledged_are_unrecoverable_instead() -> None:
    """With `min_stores` 0, a producer drops records that no store has; stores continue after them."""
    config = ProducerConfig(min_stores=0, unacknowledged_records_max=2)
    producer = ProducerMachine(HELLO, config, 10, stranded_after_s=AFTER_S)
    producer.start(0.0)
    producer.node_settled(0.0)
    for first in range(10):
        producer.publish(next_batch(producer, contents(first, first + 1)), 0.0)
    connect(producer, "NEW")
    producer.receive_subscriptions(subscription(Command.DIRECT_EARLIEST, "NEW"), 0.0)
    (answer,) = published(producer.receive([fetch("NEW")], 1.0), wire.DirectEarliest)
    assert answer.unrecoverable_end == 8
    pass_time(producer, 1.0, 60.0, {"NEW": 0})
    assert not producer.is_stranded


def test_a_new_partition_takes_over_what_too_few_stores_have() -> None:
    producer = ProducerMachine(HELLO, ProducerConfig(min_stores=2), 10, stranded_after_s=AFTER_S)
    producer.start(0.0)
    producer.node_settled(0.0)
    producer.publish(next_batch(producer, contents(0, 10)), 0.0)
    producer.receive([ack(6)], 0.0)
    assert producer.unstored_from == 0


def test_a_new_partition_takes_over_what_is_left_with_min_stores_0() -> None:
    config = ProducerConfig(min_stores=0, unacknowledged_records_max=2)
    producer = ProducerMachine(HELLO, config, 10, stranded_after_s=AFTER_S)
    producer.start(0.0)
    producer.node_settled(0.0)
    for first in range(10):
        producer.publish(next_batch(producer, contents(first, first + 1)), 0.0)
    assert producer.unstored_from == 8
    producer.receive([ack(20)], 0.0)
    assert producer.unstored_from == 10


def test_a_new_partition_takes_over_what_no_store_has_with_min_stores_0() -> None:
    producer = ProducerMachine(HELLO, ProducerConfig(min_stores=0), 10, stranded_after_s=AFTER_S)
    producer.start(0.0)
    producer.node_settled(0.0)
    producer.publish(next_batch(producer, contents(0, 10)), 0.0)
    assert producer.unstored_from == 0
    producer.receive([ack(6)], 0.0)
    assert producer.unstored_from == 7
    assert [list(batch.values) for batch in producer.retransmit_buffer.batches_from(7)] == [contents(7, 10)]
