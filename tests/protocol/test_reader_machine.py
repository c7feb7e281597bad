from __future__ import annotations

import pytest

from dafka import wire
from dafka.config import Config
from dafka.protocol import ReaderMachine
from dafka.protocol.actions import Action, Subscribe
from dafka.protocol.machines.reader import GREETING_INTERVAL_S, PATIENCE_S, REFRESH_INTERVAL_S
from dafka.protocol.ordering.gap_resolver import HOLDS_NOTHING
from dafka.records import Partition
from dafka.wire import Command
from tests.protocol.helpers import (
    HELLO,
    asked,
    batches,
    direct,
    direct_head,
    live,
    published,
    sequences,
    subscription,
)

ME = "READER"
OTHER = Partition("hello", "OTHER")


def make_reader(*topics: str, config: Config | None = None) -> ReaderMachine:
    reader = ReaderMachine(ME, config or Config(), topics)
    reader.start(0.0)
    return reader


def ack(sequence: int, partition: Partition = HELLO) -> wire.Ack:
    return wire.Ack(partition.address, partition.topic, sequence, "STORE")


def told(store: str) -> wire.DirectEarliest:
    """A store answers what is behind the greeting: its heads have been told."""
    return wire.DirectEarliest(ME, store, store, "hello", HOLDS_NOTHING, 0)


def gone(sequence: int, store: str = "STORE") -> wire.DirectEarliest:
    return wire.DirectEarliest(ME, store, HELLO.address, HELLO.topic, sequence, sequence)


def connect(reader: ReaderMachine, store: str, now: float = 0.1) -> list[Action]:
    return reader.receive_subscriptions(subscription(Command.CONSUMER_HELLO, store), now)


def greeted(actions: list[Action]) -> list[str]:
    return [hello.store for hello in published(actions, wire.ConsumerHello)]


def delivered(actions: list[Action]) -> list[int]:
    return sequences(batches(actions))


def test_no_records_and_no_heads_of_producers_come_to_it() -> None:
    own = [Subscribe(b"DREADER"), Subscribe(b"EREADER"), Subscribe(b"LREADER"), Subscribe(b"TREADER")]
    assert ReaderMachine(ME, Config()).start(0.0) == own
    assert ReaderMachine(ME, Config(), ["hello"]).start(0.0) == [*own, Subscribe(b"K")]


def test_ends_are_what_stores_say_is_durable() -> None:
    reader = make_reader("hello")
    reader.receive([direct_head(9, ME), ack(4, OTHER), ack(7), ack(99, Partition("another", "A"))], 0.1)
    assert reader.ends == {HELLO: 10, OTHER: 5}
    reader.receive([ack(10), direct_head(99, "SOMEBODY"), wire.Head(HELLO.address, "hello", 50)], 0.2)
    assert reader.ends == {HELLO: 11, OTHER: 5}
    assert reader.discarded == {"another requestor": 1, "unexpected command": 1}


def test_partitions_are_limited() -> None:
    reader = make_reader("hello", config=Config().with_node(partitions_max=1))
    reader.receive([ack(1), ack(2, OTHER), ack(3)], 0.1)
    assert reader.ends == {HELLO: 4}
    assert reader.discarded == {"too many partitions": 1}


def test_ready_is_when_every_store_has_told_its_heads() -> None:
    reader = make_reader("hello")
    assert greeted(connect(reader, "A")) == ["A"]
    connect(reader, "B")
    reader.node_settled(0.2)
    reader.receive([told("A")], 0.3)
    assert not reader.is_ready
    actions = reader.receive([wire.StoreHello(ME, "B")], 0.3)
    assert greeted(actions) == ["B"], "only now is it certain that it is heard"
    assert published(actions, wire.Fetch) == [wire.Fetch("B", ME, "hello", 0, 1)]
    reader.receive([direct_head(9, ME), told("B")], 0.4)
    assert reader.is_ready
    connect(reader, "C", 5.0)
    assert reader.is_ready, "once so, for ever"


def test_a_stores_answer_to_another_greeting_is_not_its_own() -> None:
    reader = make_reader("hello")
    connect(reader, "A")
    reader.node_settled(0.2)
    reader.receive([wire.DirectEarliest(ME, "A", "B", "hello", HOLDS_NOTHING, 0)], 0.3)
    assert not reader.is_ready


def test_a_store_that_connects_anew_has_to_tell_anew() -> None:
    reader = make_reader("hello")
    connect(reader, "A")
    reader.receive([told("A")], 0.2)
    reader.receive_subscriptions(subscription(Command.CONSUMER_HELLO, "A", active=False), 0.3)
    assert greeted(connect(reader, "A", 0.4)) == ["A"]
    reader.node_settled(0.5)
    assert not reader.is_ready


def test_not_ready_before_the_cluster_has_been_found() -> None:
    reader = make_reader("hello")
    connect(reader, "A")
    reader.receive([told("A")], 0.3)
    assert not reader.is_ready
    reader.node_settled(0.4)
    assert reader.is_ready


def test_who_was_found_may_be_a_store_until_it_has_connected() -> None:
    reader = make_reader("hello")
    reader.peer_joined("P", 0.1)
    connect(reader, "A")
    reader.receive([told("A")], 0.2)
    reader.node_settled(0.3)
    assert not reader.is_ready
    reader.receive_subscriptions(subscription(Command.ACK, "P"), 0.4)
    assert reader.is_ready


def test_a_store_that_says_nothing_is_given_time_and_then_not_waited_for() -> None:
    reader = make_reader("hello")
    connect(reader, "LIBDAFKA", 0.1)
    reader.node_settled(0.2)
    again = reader.tick(GREETING_INTERVAL_S)
    assert greeted(again) == ["LIBDAFKA"]
    now = 0.2
    while not reader.is_ready:
        assert reader.deadline() > now
        now = reader.deadline()
        reader.tick(now)
    assert now == pytest.approx(0.2 + PATIENCE_S)


def test_without_a_store_it_is_never_ready_nor_restless() -> None:
    reader = make_reader("hello")
    reader.node_settled(0.2)
    now, ticks = 0.2, 0
    while now < 10:
        assert reader.deadline() > now
        now = reader.deadline()
        reader.tick(now)
        ticks += 1
    assert not reader.is_ready
    assert ticks < 60
    connect(reader, "A", 11.0)
    assert not reader.is_ready
    reader.receive([told("A")], 11.1)
    assert reader.is_ready


def test_stores_are_asked_again_from_time_to_time() -> None:
    reader = make_reader("hello")
    connect(reader, "A")
    reader.node_settled(0.2)
    reader.receive([told("A")], 0.2)
    assert greeted(reader.tick(GREETING_INTERVAL_S)) == ["A"]
    assert greeted(reader.tick(0.2 + PATIENCE_S)) == []
    assert reader.deadline() == GREETING_INTERVAL_S + REFRESH_INTERVAL_S
    assert greeted(reader.tick(reader.deadline())) == ["A"]


def test_a_range_is_fetched_and_no_more_of_it_delivered() -> None:
    reader = make_reader()
    assert asked(reader.fetch_range(HELLO, 5, 8, 0.1)) == [(5, 3)]
    assert delivered(reader.receive([direct(5, 7, ME)], 0.2)) == [5, 6]
    assert reader.position(HELLO) == 7
    assert delivered(reader.receive([direct(6, 10, ME), direct(20, 21, ME)], 0.3)) == [7]
    assert reader.position(HELLO) == 8
    reader.forget_range(HELLO)
    assert delivered(reader.receive([direct(5, 8, ME)], 0.4)) == []
    assert reader.discarded == {"not asked for": 3}


def test_others_records_are_discarded() -> None:
    reader = make_reader()
    reader.fetch_range(HELLO, 0, 10, 0.1)
    assert delivered(reader.receive([live(0, 2), direct(0, 3, "SOMEBODY"), direct(0, 4, ME, OTHER)], 0.2)) == []
    assert reader.discarded == {"another requestor": 5, "not asked for": 4}


def test_a_fetch_that_nobody_could_hear_is_sent_again_as_soon_as_somebody_can() -> None:
    reader = make_reader()
    reader.fetch_range(HELLO, 0, 10, 0.0)
    assert asked(reader.receive_subscriptions(subscription(Command.FETCH), 0.01)) == [(0, 10)]
    assert asked(reader.receive([wire.StoreHello(ME, "STORE")], 0.02)) == [(0, 10)]
    assert greeted(reader.receive([wire.StoreHello(ME, "STORE")], 0.02)) == [], "there is no topic to survey"


def test_a_fetch_that_stays_unanswered_is_repeated() -> None:
    reader = make_reader()
    reader.fetch_range(HELLO, 0, 10, 0.0)
    assert asked(reader.tick(reader.deadline())) == [(0, 10)]


def test_records_that_nobody_holds_any_more_are_left_out() -> None:
    reader = make_reader()
    connect(reader, "STORE")
    reader.node_settled(0.1)
    reader.fetch_range(HELLO, 0, 10, 0.2)
    assert asked(reader.receive([gone(4)], 0.3)) == [(4, 6)]
    assert reader.position(HELLO) == 4
    assert delivered(reader.receive([direct(4, 10, ME)], 0.4)) == [*range(4, 10)]


def test_the_producer_of_gone_records_answers_for_them_too() -> None:
    reader = make_reader()
    connect(reader, "STORE")
    reader.peer_joined(HELLO.address, 0.1)
    reader.node_settled(0.1)
    reader.fetch_range(HELLO, 0, 10, 0.2)
    reader.receive([gone(4)], 0.3)
    assert reader.position(HELLO) == 0, "the producer may have them"
    reader.receive([wire.DirectEarliest(ME, HELLO.address, HELLO.address, "hello", 50, 0)], 0.4)
    assert reader.position(HELLO) == 4


def test_a_program_that_is_slow_is_not_fed_beyond_its_buffer() -> None:
    reader = make_reader(config=Config().with_consumer(buffer_bytes_max=100))
    reader.fetch_range(HELLO, 0, 1000, 0.0)
    reader.records_buffered(200)
    assert batches(reader.receive([direct(0, 1000, ME)], 0.1)) == []
    assert asked(reader.records_taken(200, 0.2)) != []
    assert delivered(reader.receive([direct(0, 1000, ME)], 0.3)) == [*range(1000)]
