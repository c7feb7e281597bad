from __future__ import annotations

import pytest

from dafka import wire
from dafka.config import Config
from dafka.protocol import ReaderMachine
from dafka.protocol.actions import Action
from dafka.protocol.machines.reader import GREETING_INTERVAL_S, PATIENCE_S, REFRESH_INTERVAL_S, SLOW_STORES_S
from dafka.protocol.ordering.gap_resolver import HOLDS_NOTHING
from dafka.records import Partition
from dafka.wire import Command
from tests.protocol.helpers import (
    HELLO,
    asked,
    batches,
    direct,
    direct_head,
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


def heads_sent(store: str) -> wire.DirectEarliest:
    """Return the answer to the FETCH after the greeting: the store has sent its heads."""
    return wire.DirectEarliest(ME, store, store, "hello", HOLDS_NOTHING, 0)


def dropped_before(sequence: int, store: str = "STORE") -> wire.DirectEarliest:
    return wire.DirectEarliest(ME, store, HELLO.address, HELLO.topic, sequence, sequence)


def connect(reader: ReaderMachine, store: str, now: float = 0.1) -> list[Action]:
    return reader.receive_subscriptions(subscription(Command.CONSUMER_HELLO, store), now)


def greeted(actions: list[Action]) -> list[str]:
    return [hello.store for hello in published(actions, wire.ConsumerHello)]


def delivered(actions: list[Action]) -> list[int]:
    return sequences(batches(actions))


def test_ends_are_what_stores_report_as_durable() -> None:
    reader = make_reader("hello")
    reader.receive([direct_head(9, ME), ack(4, OTHER), ack(7), ack(99, Partition("another", "A"))], 0.1)
    assert reader.ends == {HELLO: 10, OTHER: 5}
    reader.receive([ack(10), direct_head(99, "SOMEBODY"), wire.Head(HELLO.address, "hello", 50)], 0.2)
    assert reader.ends == {HELLO: 11, OTHER: 5}
    assert reader.discarded == {"another requestor": 1, "unexpected command": 1}


def test_it_is_ready_when_every_store_has_sent_its_heads() -> None:
    reader = make_reader("hello")
    first = connect(reader, "A")
    assert greeted(first) == ["A"]
    assert published(first, wire.Fetch) == [], "its heads may be lost, and yet not the answer behind them"
    connect(reader, "B")
    reader.receive([heads_sent("A"), wire.DirectEarliest(ME, "A", "B", "hello", HOLDS_NOTHING, 0)], 0.3)
    reader.node_settled(0.3)
    assert not reader.is_ready, "B has not answered, whatever A says of it"
    actions = reader.receive([wire.StoreHello(ME, "B")], 0.3)
    assert greeted(actions) == ["B"], "only now is it certain that the store receives it"
    assert published(actions, wire.Fetch) == [wire.Fetch("B", ME, "hello", 0, 1)]
    reader.receive([direct_head(9, ME), heads_sent("B")], 0.4)
    assert reader.is_ready
    connect(reader, "C", 5.0)
    assert reader.is_ready, "it stays ready"


def test_a_store_that_reconnects_must_answer_again() -> None:
    reader = make_reader("hello")
    connect(reader, "A")
    reader.receive([heads_sent("A")], 0.2)
    reader.receive_subscriptions(subscription(Command.CONSUMER_HELLO, "A", active=False), 0.3)
    assert greeted(connect(reader, "A", 0.4)) == ["A"]
    reader.node_settled(0.5)
    assert not reader.is_ready


def test_a_discovered_node_may_be_a_store_until_it_has_connected() -> None:
    reader = make_reader("hello")
    reader.peer_joined("P", 0.1)
    connect(reader, "A")
    reader.receive([heads_sent("A")], 0.2)
    reader.receive_subscriptions(subscription(Command.ACK, "P"), 0.4)
    assert not reader.is_ready, "the node has not settled"
    reader.peer_joined("Q", 0.5)
    reader.node_settled(0.5)
    assert not reader.is_ready
    reader.receive_subscriptions(subscription(Command.ACK, "Q"), 0.6)
    assert reader.is_ready


def test_a_silent_store_is_waited_for_until_the_patience_ends() -> None:
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


@pytest.mark.parametrize("topics", [["hello"], []])
def test_a_store_that_is_known_to_answer_is_waited_for_longer_if_there_are_topics(topics: list[str]) -> None:
    reader = make_reader(*topics)
    reader.receive_subscriptions(subscription(Command.GET_POSITION, "SLOW"), 0.1)
    connect(reader, "SLOW", 0.1)
    reader.node_settled(0.2)
    reader.tick(0.2 + PATIENCE_S)
    reader.tick(0.1 + PATIENCE_S + SLOW_STORES_S)
    assert reader.is_ready is not bool(topics)
    reader.tick(0.2 + PATIENCE_S + SLOW_STORES_S)
    assert reader.is_ready


def test_without_a_store_it_is_never_ready_and_rarely_ticks() -> None:
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
    reader.receive([heads_sent("A")], 11.1)
    assert reader.is_ready


def test_a_ready_reader_asks_all_stores_again_after_the_refresh_interval() -> None:
    reader = make_reader("hello")
    connect(reader, "A")
    reader.node_settled(0.2)
    reader.receive([heads_sent("A")], 0.2)
    assert greeted(reader.tick(GREETING_INTERVAL_S)) == ["A"]
    assert greeted(reader.tick(0.2 + PATIENCE_S)) == []
    assert reader.deadline() == GREETING_INTERVAL_S + REFRESH_INTERVAL_S
    assert greeted(reader.tick(reader.deadline())) == ["A"]


def test_only_the_records_of_the_range_are_delivered() -> None:
    reader = make_reader()
    assert asked(reader.fetch_range(HELLO, 5, 8, 0.1)) == [(5, 3)]
    assert delivered(reader.receive([direct(5, 7, ME)], 0.2)) == [5, 6]
    assert reader.position(HELLO) == 7
    assert delivered(reader.receive([direct(6, 10, ME), direct(20, 21, ME)], 0.3)) == [7]
    assert reader.position(HELLO) == 8
    reader.forget_range(HELLO)
    assert delivered(reader.receive([direct(5, 8, ME)], 0.4)) == []
    assert reader.discarded == {"not asked for": 3}


def test_a_fetch_is_repeated_as_soon_as_a_peer_can_receive_it() -> None:
    reader = make_reader()
    reader.fetch_range(HELLO, 0, 10, 0.0)
    assert asked(reader.receive_subscriptions(subscription(Command.FETCH), 0.01)) == [(0, 10)]
    assert asked(reader.tick(10.0)) == [(0, 10)]
    assert asked(reader.receive([wire.StoreHello(ME, "STORE")], 0.02)) == [(0, 10)]
    assert greeted(reader.receive([wire.StoreHello(ME, "STORE")], 0.02)) == [], "there is no topic to survey"


def test_unrecoverable_records_are_left_out() -> None:
    reader = make_reader()
    connect(reader, "STORE")
    reader.node_settled(0.1)
    reader.fetch_range(HELLO, 0, 10, 0.2)
    assert asked(reader.receive([dropped_before(4)], 0.3)) == [(4, 6)]
    assert reader.position(HELLO) == 4
    assert delivered(reader.receive([direct(4, 10, ME)], 0.4)) == [*range(4, 10)]


def test_the_producer_must_answer_before_records_are_unrecoverable() -> None:
    reader = make_reader()
    connect(reader, "STORE")
    reader.peer_joined(HELLO.address, 0.1)
    reader.node_settled(0.1)
    reader.fetch_range(HELLO, 0, 10, 0.2)
    reader.receive([dropped_before(4)], 0.3)
    assert reader.position(HELLO) == 0, "the producer may have them"
    reader.receive([wire.DirectEarliest(ME, HELLO.address, HELLO.address, "hello", 50, 0)], 0.4)
    assert reader.position(HELLO) == 4


def test_a_full_buffer_stops_fetching() -> None:
    reader = make_reader(config=Config().with_consumer(buffer_bytes_max=100))
    reader.fetch_range(HELLO, 0, 1000, 0.0)
    reader.records_buffered(200)
    assert batches(reader.receive([direct(0, 1000, ME)], 0.1)) == []
    assert asked(reader.records_taken(200, 0.2)) != []
    assert delivered(reader.receive([direct(0, 1000, ME)], 0.3)) == [*range(1000)]
