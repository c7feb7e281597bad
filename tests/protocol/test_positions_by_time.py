"""GET-POSITION and DIRECT-POSITION (docs/spec/positions-by-time.md): stores answer, consumers and readers ask."""

from __future__ import annotations

import pytest

from dafka import Config, Partition, wire
from dafka.protocol import ConsumerMachine, ReaderMachine, StoreMachine
from dafka.protocol.actions import Action
from dafka.protocol.answering import position_responder
from dafka.protocol.answering.position_responder import PositionSearch
from dafka.protocol.ordering import position_query
from dafka.protocol.ordering.gap_resolver import HOLDS_NOTHING
from dafka.protocol.ordering.position_query import PATIENCE_S, RETRY_MAX_S, RETRY_S
from dafka.protocol.presence.peer_limits import MANY_QUESTIONS, TOO_OFTEN
from dafka.records import SEQUENCE_MAX
from dafka.wire import Command
from tests.protocol.helpers import HELLO, asked, batches, direct_head, head, live, published, sequences, subscription

ME = "ME"
TIME = 1_700_000_000_000
OTHER = Partition("hello", "OTHER")


# Stores


def make_store(*askers: str) -> StoreMachine:
    """Return a store that holds the records 10 to 99 of `HELLO`."""
    store = StoreMachine("STORE", Config(), {HELLO: 100}, {HELLO: 10})
    for asker in askers:
        store.receive_subscriptions(subscription(Command.DIRECT_POSITION, asker), 0.0)
    return store


def question(
    partition: Partition = HELLO, *, address: str = ME, store: str = "STORE", time: int = TIME
) -> wire.GetPosition:
    return wire.GetPosition(store, address, partition.address, partition.topic, time)


def searches(store: StoreMachine) -> list[PositionSearch]:
    """Answer everything with sequence 7, and return the searches."""
    done = []
    while (search := store.answers.positions.next_search()) is not None:
        done.append(search)
        store.answers.positions.complete(search, 7)
    return done


def test_a_store_answers_where_its_records_of_the_time_begin() -> None:
    store = make_store(ME)
    assert store.receive([question(), question(OTHER)], 0.0) == []
    search = store.answers.positions.next_search()
    assert search is not None
    assert (search.partition, search.time_ms, search.next_sequence) == (HELLO, TIME, None)
    answer = store.answers.positions.complete(search, 42)
    assert answer == wire.DirectPosition(ME, "STORE", HELLO.address, "hello", TIME, 42, 100)
    search = store.answers.positions.next_search()
    assert search is not None
    answer = store.answers.positions.complete(search, None)
    assert answer == wire.DirectPosition(ME, "STORE", OTHER.address, "hello", TIME, HOLDS_NOTHING, 0)
    assert store.answers.positions.next_search() is None


def test_only_a_node_that_subscribes_gets_an_answer() -> None:
    store = make_store(ME)
    store.receive([question(address="STRANGER"), question(store="STORE2")], 0.0)
    assert searches(store) == []
    store.receive([question()], 0.0)
    store.receive_subscriptions(subscription(Command.DIRECT_POSITION, ME, active=False), 0.0)
    assert searches(store) == [], "the node that asked has gone"
    assert len(store.answers.positions) == 0


def test_a_repeated_question_does_not_begin_the_search_anew() -> None:
    store = make_store(ME)
    store.receive([question()], 0.0)
    responder = store.answers.positions
    search = responder.next_search()
    assert search is not None
    responder.advance(search, 50)
    store.receive([question()], 0.0)
    assert (responder.next_search(), search.next_sequence, len(responder)) == (search, 50, 1)
    store.receive([question(time=TIME + 1)], 0.0)
    (other,) = searches(store)
    assert (other.time_ms, other.next_sequence) == (TIME + 1, None), "another time is another question"
    assert responder.complete(search, 1).time == TIME, "the search under way is answered too"
    assert len(responder) == 0
    store.receive([question()], 0.0)
    responder.drop(search)
    assert len(searches(store)) == 1, "only the search itself is dropped"


def test_questions_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(position_responder, "QUESTIONS_MAX", 3)
    store = make_store(ME)
    store.receive([question(Partition("hello", f"{number}")) for number in range(5)], 0.0)
    assert (len(searches(store)), store.discarded[MANY_QUESTIONS]) == (3, 2)
    for _ in range(30):
        store.receive([question()] * 1000, 0.0)
    assert store.discarded[TOO_OFTEN] > 0


# Readers and consumers


def connect(machine: ReaderMachine | ConsumerMachine, store: str, now: float = 0.0) -> list[Action]:
    both = subscription(Command.GET_POSITION, store) + subscription(Command.CONSUMER_HELLO, store)
    return machine.receive_subscriptions(both, now)


def answer(
    store: str, sequence: int, end: int = 100, *, partition: Partition = HELLO, time: int = TIME, requestor: str = ME
) -> wire.DirectPosition:
    return wire.DirectPosition(requestor, store, partition.address, partition.topic, time, sequence, end)


def make_consumer(*stores: str, start_ms: int | None = TIME) -> ConsumerMachine:
    """Return a settled consumer of `hello` that begins at a time."""
    consumer = ConsumerMachine(ME, Config().with_consumer(offset_reset="earliest"), start_ms=start_ms)
    consumer.start(0.0)
    consumer.subscribe("hello", 0.0)
    for store in stores:
        connect(consumer, store)
    consumer.node_settled(0.0)
    return consumer


def questions(actions: list[Action]) -> list[str]:
    return [message.store for message in published(actions, wire.GetPosition)]


def test_records_that_arrive_before_the_answer_are_fetched_if_they_are_wanted() -> None:
    consumer = make_consumer("A")
    assert batches(consumer.receive([live(100, 105)], 0.0)) == []
    assert asked(consumer.receive([answer("A", 98, 100)], 0.1)) == [(98, 7)]


def test_records_that_are_published_before_the_answer_are_wanted_whatever_the_store_says() -> None:
    consumer = make_consumer("A")
    consumer.receive([live(100, 105), live(105, 110)], 0.0)
    consumer.receive([answer("A", HOLDS_NOTHING, 110)], 0.1)
    assert consumer.reassembler.cursors[HELLO].next_sequence == 100


def test_a_partition_that_no_store_holds_begins_at_its_first_record() -> None:
    consumer = make_consumer("A")
    consumer.receive([head(4)], 0.0)
    assert asked(consumer.receive([answer("A", HOLDS_NOTHING, 0)], 0.1)) == [(0, 5)]


def test_a_producer_that_joined_later_is_read_from_its_first_record_without_a_question() -> None:
    consumer = make_consumer("A")
    consumer.peer_joined(HELLO.address, 1.0)
    actions = consumer.receive([live(0, 3)], 1.0)
    assert (questions(actions), sequences(batches(actions))) == ([], [0, 1, 2])


def test_nothing_begins_before_the_node_has_settled_and_its_peers_have_connected() -> None:
    consumer = ConsumerMachine(ME, Config(), start_ms=TIME)
    consumer.start(0.0)
    consumer.subscribe("hello", 0.0)
    connect(consumer, "A")
    consumer.receive([head(99)], 0.0)
    assert asked(consumer.receive([answer("A", 40)], 0.1)) == []
    consumer.peer_joined("B", 0.2)
    assert asked(consumer.node_settled(0.3)) == [], "B may be a store that holds more"
    assert questions(connect(consumer, "B", 0.4)) == ["B"]
    assert asked(consumer.receive([answer("B", 30)], 0.5)) == [(30, 70)]


def test_a_discovered_node_that_does_not_connect_is_waited_for_a_limited_time() -> None:
    consumer = ConsumerMachine(ME, Config(), start_ms=TIME)
    consumer.start(0.0)
    consumer.subscribe("hello", 0.0)
    consumer.peer_joined("SILENT", 0.0)
    connect(consumer, "A")
    consumer.node_settled(0.0)
    consumer.receive([head(99)], 0.0)
    consumer.receive([answer("A", 40)], 0.1)
    while (now := consumer.deadline()) < PATIENCE_S:
        assert asked(consumer.tick(now)) == []
    assert asked(consumer.tick(PATIENCE_S)) == [(40, 60)]


def test_a_store_that_leaves_is_waited_for_no_longer() -> None:
    consumer = make_consumer("A", "B")
    consumer.receive([head(99)], 0.0)
    consumer.receive([answer("A", 40)], 0.1)
    assert asked(consumer.peer_left("B", 0.2)) == [(40, 60)]


def test_a_consumer_waits_for_a_store_that_can_answer() -> None:
    consumer = make_consumer()
    libdafka = subscription(Command.CONSUMER_HELLO, "LIBDAFKA")
    consumer.receive_subscriptions(libdafka, 0.0)
    assert questions(consumer.receive([head(99)], 0.0)) == []
    for now in (1.0, 10.0, 100.0):
        assert asked(consumer.tick(now)) == []
    assert questions(connect(consumer, "A", 101.0)) == ["A"]
    assert asked(consumer.receive([answer("A", 40)], 101.0)) == [(40, 60)]


def test_unanswered_questions_are_repeated_less_and_less_often() -> None:
    consumer = make_consumer("A")
    consumer.receive([head(99)], 0.0)
    times: list[float] = []
    while len(times) < 6:
        now = consumer.deadline()
        times += [now] * len(questions(consumer.tick(now)))
    waits = [later - earlier for earlier, later in zip([0.0, *times], times, strict=False)]
    assert waits == [RETRY_S, 2 * RETRY_S, 4 * RETRY_S, 8 * RETRY_S, RETRY_MAX_S, RETRY_MAX_S]
    consumer.receive([answer("A", 40)], times[-1])
    assert questions(consumer.tick(times[-1] + RETRY_MAX_S)) == []


def test_a_store_whose_messages_only_now_arrive_is_asked_again() -> None:
    consumer = make_consumer("A")
    consumer.receive([head(99)], 0.0)
    assert questions(consumer.receive([wire.StoreHello(ME, "A")], 0.1)) == ["A"]


@pytest.mark.parametrize(
    "wrong",
    [
        answer("A", 40, requestor="YOU"),
        answer("A", 40, time=TIME - 1),
        answer("A", 40, partition=OTHER),
        answer("STRANGER", 40),
        answer("A", SEQUENCE_MAX + 1),
        answer("A", 40, SEQUENCE_MAX + 1),
    ],
)
def test_answers_that_cannot_be_true_are_discarded(wrong: wire.DirectPosition) -> None:
    consumer = make_consumer("A")
    consumer.receive([head(99)], 0.0)
    assert asked(consumer.receive([wrong], 0.1)) == []
    assert sum(consumer.discarded.values()) == 1
    assert asked(consumer.receive([answer("A", 40)], 0.2)) == [(40, 60)]


def test_seeking_and_unsubscribing_end_the_questions() -> None:
    consumer = make_consumer("A")
    consumer.receive([head(99), head(49, OTHER)], 0.0)
    assert asked(consumer.seek(OTHER, 45, 0.1)) == [(45, 5)]
    consumer.unsubscribe("hello")
    assert questions(consumer.tick(RETRY_S)) == []
    consumer.receive([answer("A", 40)], 1.0)
    assert consumer.reassembler.cursors == {}


def test_waiting_partitions_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(position_query, "PARTITIONS_MAX", 10)
    consumer = make_consumer("A")
    many = [Partition("hello", f"{number}") for number in range(15)]
    assert len(questions(consumer.receive([direct_head(0, ME, each) for each in many], 0.0))) == 10
    for each in many[:10]:
        consumer.receive([answer("A", 0, 1, partition=each)], 0.1)
    assert published(consumer.tick(1.1), wire.GetHeads), "there is room for the others now"


def test_a_reader_asks_about_the_partitions_it_is_told() -> None:
    reader = ReaderMachine(ME, Config(), ["hello"])
    reader.start(0.0)
    connect(reader, "A")
    reader.node_settled(0.0)
    assert reader.answering_stores == 1
    actions = reader.query_positions([HELLO, OTHER], TIME, 0.0)
    assert [message.partition for message in published(actions, wire.GetPosition)] == [HELLO.address, OTHER.address]
    reader.receive([answer("A", 40), answer("A", 5, partition=OTHER)], 0.1)
    assert reader.positions == {HELLO: 40, OTHER: 5}
    reader.query_positions([HELLO], TIME + 1, 0.2)
    assert reader.positions == {OTHER: 5}
    reader.end_positions_query([HELLO])
    reader.receive([answer("A", 41, time=TIME + 1)], 0.3)
    assert reader.positions == {OTHER: 5}


def test_a_reader_tells_who_answers() -> None:
    reader = ReaderMachine(ME, Config())
    reader.peer_joined("A", 0.0)
    reader.receive_subscriptions(subscription(Command.CONSUMER_HELLO, "A"), 0.0)
    assert (reader.stores, reader.answering_stores) == (1, 0)
    reader.receive_subscriptions(subscription(Command.GET_POSITION, "A"), 0.0)
    assert reader.answering_stores == 1
    reader.peer_left("A", 1.0)
    assert reader.answering_stores == 0
