"""Questions to the stores about the end of one partition, and when the answer is certain."""

from __future__ import annotations

import pytest

from dafka import wire
from dafka.config import Config
from dafka.protocol import Incomplete, ReaderMachine
from dafka.protocol.actions import Action, Subscribe, Unsubscribe
from dafka.protocol.ordering.gap_resolver import HOLDS_NOTHING, STORES_MAX
from dafka.protocol.ordering.held_end import PATIENCE_S, PROBE_S, QUIET_S
from dafka.records import Partition
from dafka.wire import Command
from tests.protocol.helpers import HELLO, asked, batches, direct, direct_head, published, sequences, subscription

ME = "READER"
LIBDAFKA = Config().with_node(wire="libdafka")


def make_reader(*stores: str, config: Config | None = None, topics: tuple[str, ...] = ()) -> ReaderMachine:
    """Return a reader that is settled at 0.0, with these stores."""
    reader = ReaderMachine(ME, config or Config(), topics)
    reader.start(0.0)
    for store in stores:
        connect(reader, store)
    reader.node_settled(0.0)
    return reader


def connect(reader: ReaderMachine, store: str, now: float = 0.0) -> list[Action]:
    return reader.receive_subscriptions(subscription(Command.CONSUMER_HELLO, store), now)


def ack(sequence: int, store: str = "A", partition: Partition = HELLO) -> wire.Ack:
    return wire.Ack(partition.address, partition.topic, sequence, store)


def nothing(store: str = "A", requestor: str = ME, partition: Partition = HELLO) -> wire.DirectEarliest:
    return wire.DirectEarliest(requestor, store, partition.address, partition.topic, HOLDS_NOTHING, 0)


def questions(actions: list[Action]) -> list[wire.Fetch]:
    return published(actions, wire.Fetch)


def test_it_fetches_the_first_record_and_subscribes_to_acks() -> None:
    reader = make_reader("A")
    assert Subscribe(b"KPRODUCER") in (actions := reader.held_ends.add_partition(HELLO, 0.1))
    assert questions(actions) == [QUESTION]
    assert reader.held_ends.remove_partition(HELLO) == [Unsubscribe(b"KPRODUCER")]
    reader.tick(10.0)
    assert reader.deadline() == float("inf"), "there is nothing left to ask"


QUESTION = wire.Fetch(HELLO.address, ME, "hello", 0, 1)


def test_the_answer_that_a_store_holds_nothing_is_certain_at_once() -> None:
    reader = make_reader("A")
    reader.held_ends.add_partition(HELLO, 0.1)
    assert reader.held_ends.held_end(HELLO, 1, 0.1) is Incomplete.ANSWERS
    reader.receive([nothing()], 0.2)
    assert reader.held_ends.held_end(HELLO, 1, 0.2) == 0
    assert reader.discarded == {}


def test_a_held_end_is_certain_after_a_quiet_time() -> None:
    reader = make_reader("A")
    reader.held_ends.add_partition(HELLO, 0.1)
    reader.receive([ack(9)], 0.2)
    assert reader.held_ends.held_end(HELLO, 1, 0.2) is Incomplete.QUIET
    reader.receive([ack(11)], 1.0)
    reader.receive([ack(11)], 1.5)
    assert reader.held_ends.held_end(HELLO, 1, 1.0 + QUIET_S - 0.01) is Incomplete.QUIET
    assert reader.held_ends.held_end(HELLO, 1, 1.0 + QUIET_S) == 12


def test_min_stores_must_be_connected() -> None:
    reader = make_reader("A")
    reader.held_ends.add_partition(HELLO, 0.1)
    reader.receive([nothing("A")], 0.1)
    assert reader.held_ends.held_end(HELLO, 2, 100.0) is Incomplete.STORES
    connect(reader, "B", 100.0)
    reader.receive([nothing("B")], 100.1)
    assert reader.held_ends.held_end(HELLO, 2, 100.1) == 0


def test_nothing_is_certain_before_the_node_has_settled() -> None:
    reader = ReaderMachine(ME, Config())
    reader.start(0.0)
    connect(reader, "A")
    reader.held_ends.add_partition(HELLO, 0.1)
    reader.receive([nothing()], 0.2)
    assert reader.held_ends.held_end(HELLO, 1, 50.0) is Incomplete.STORES
    assert questions(reader.node_settled(50.0)) == [QUESTION]
    assert reader.held_ends.held_end(HELLO, 1, 50.0) == 0


def test_a_silent_store_counts_as_empty_after_the_patience() -> None:
    reader = make_reader("A", "LIBDAFKA")
    reader.held_ends.add_partition(HELLO, 0.1)
    reader.receive([ack(9, "A")], 0.2)
    now = 0.2
    while isinstance(found := reader.held_ends.held_end(HELLO, 1, now), Incomplete):
        assert reader.deadline() > now, "the deadline moves on"
        now = reader.deadline()
        reader.tick(now)
    assert found == 10
    assert now == pytest.approx(0.1 + PATIENCE_S)


def test_a_node_that_never_connects_is_waited_for_until_the_patience_ends() -> None:
    reader = make_reader("A")
    reader.peer_joined("GONE", 0.0)
    reader.held_ends.add_partition(HELLO, 0.1)
    reader.receive([nothing("A")], 0.2)
    assert reader.held_ends.held_end(HELLO, 1, 0.1 + PATIENCE_S) == 0
    reader.peer_left("GONE", 0.5)
    assert reader.held_ends.held_end(HELLO, 1, 0.5) == 0


def test_the_question_is_repeated_for_a_peer_that_has_just_connected() -> None:
    reader = make_reader()
    reader.held_ends.add_partition(HELLO, 0.1)
    assert questions(connect(reader, "A", 0.2)) == [QUESTION]
    assert questions(reader.receive_subscriptions(subscription(Command.FETCH), 0.2)) == [QUESTION]
    assert questions(reader.receive([wire.StoreHello(ME, "A")], 0.2)) == [QUESTION]
    assert questions(reader.receive_subscriptions(subscription(Command.HEAD), 0.2)) == []


def test_an_unanswered_question_is_repeated() -> None:
    reader = make_reader("A")
    reader.held_ends.add_partition(HELLO, 0.1)
    assert reader.deadline() == 0.1 + PROBE_S
    assert questions(reader.tick(0.1 + PROBE_S)) == [QUESTION]
    assert questions(reader.tick(0.2 + PROBE_S)) == []


def test_answers_to_other_nodes_are_ignored() -> None:
    reader = make_reader("A")
    reader.held_ends.add_partition(HELLO, 0.1)
    other = Partition("hello", "OTHER")
    strangers: list[wire.BatchedMessage] = [
        nothing("A", requestor="SOMEBODY"),
        nothing("A", partition=other),
        ack(9, "A", other),
        ack(9, "A", Partition("hell", HELLO.address)),
        direct_head(9, "SOMEBODY"),
    ]
    reader.receive(strangers, 0.2)
    assert reader.held_ends.held_end(HELLO, 1, 0.2) is Incomplete.ANSWERS
    assert reader.held_ends.held_end(HELLO, 1, 0.1 + PATIENCE_S) == 0
    assert reader.discarded == {"another requestor": 2, "not asked for": 1}


def test_the_answer_of_a_producer_does_not_count_as_a_stores() -> None:
    reader = make_reader("A")
    reader.held_ends.add_partition(HELLO, 0.1)
    reader.receive([nothing(HELLO.address), nothing("UNKNOWN")], 0.2)
    assert reader.held_ends.held_end(HELLO, 1, 0.2) is Incomplete.ANSWERS


def test_the_record_that_answers_the_question_is_not_delivered() -> None:
    reader = make_reader("A")
    reader.held_ends.add_partition(HELLO, 0.1)
    assert batches(reader.receive([direct(0, 1, ME)], 0.2)) == []
    assert reader.discarded == {}


@pytest.mark.parametrize("config", [LIBDAFKA, Config()])
def test_libdafka_stores_are_greeted_for_their_heads(config: Config) -> None:
    reader = make_reader("A", config=config)
    assert published(reader.held_ends.add_partition(HELLO, 0.1), wire.ConsumerHello) == [
        wire.ConsumerHello("A", ME, ("hello",))
    ]
    reader.receive([direct_head(9, ME)], 0.2)
    assert reader.held_ends.held_end(HELLO, 1, 0.2) is Incomplete.ANSWERS, "the head does not name its store"
    assert reader.held_ends.held_end(HELLO, 1, 0.1 + PATIENCE_S) == 10


def test_stores_that_answer_are_not_greeted_unless_all_are_libdafka_s() -> None:
    for config, greeted in (Config(), "B"), (Config().with_node(wire="rfc46"), ""), (LIBDAFKA, "ABC"):
        reader = make_reader("A", "B", "C", config=config)
        for store in "ABC":
            reader.receive_subscriptions(subscription(Command.DIRECT_EARLIEST, store), 0.0)
        reader.receive_subscriptions(subscription(Command.DIRECT_EARLIEST, "B", active=False), 0.0)
        hellos = published(reader.held_ends.add_partition(HELLO, 0.1), wire.ConsumerHello)
        assert "".join(sorted(hello.store for hello in hellos)) == greeted


def test_a_partition_of_a_surveyed_topic_may_be_queried_and_read_meanwhile() -> None:
    reader = make_reader("A", topics=("hello",))
    reader.held_ends.add_partition(HELLO, 0.1)
    reader.receive([ack(9)], 0.1)
    assert reader.ends == {HELLO: 10}
    assert asked(reader.fetch_range(HELLO, 0, 10, 0.2)) == [(0, 10)]
    assert sequences(batches(reader.receive([direct(0, 10, ME)], 0.3))) == [*range(10)]
    assert reader.held_ends.held_end(HELLO, 1, 0.1 + QUIET_S) == 10
    reader.held_ends.remove_partition(HELLO)
    reader.forget_range(HELLO)


def test_ends_of_invented_stores_take_limited_memory() -> None:
    reader = make_reader("A")
    reader.held_ends.add_partition(HELLO, 0.1)
    acks = [ack(number, f"{number}") for number in range(STORES_MAX + 100)]
    reader.receive(acks, 0.2)
    (question,) = reader.held_ends._questions.values()
    assert len(question.ends) == STORES_MAX + 1
    assert reader.held_ends.held_end(HELLO, 1, 0.1 + PATIENCE_S) == STORES_MAX + 100
