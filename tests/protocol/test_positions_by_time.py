"""GET-POSITION and DIRECT-POSITION (docs/spec/positions-by-time.md): stores answer, consumers ask."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dafka import Config, Partition, wire
from dafka.protocol import StoreMachine
from dafka.protocol.answering import position_responder
from dafka.protocol.answering.position_responder import PositionSearch
from dafka.protocol.ordering import position_query
from dafka.protocol.ordering.gap_resolver import HOLDS_NOTHING
from dafka.protocol.presence.peer_limits import MANY_QUESTIONS, TOO_OFTEN
from dafka.wire import Command
from tests.protocol.helpers import HELLO, subscription
from tests.protocol.scripts import Player, play, scripts_of

ME = "ME"
TIME = 1_700_000_000_000
OTHER = Partition("hello", "OTHER")

SCRIPTS = """
# Records that arrive before the answer are fetched if they are wanted
consumer start_ms=17 subscribe=hello settled
+GET-POSITION A & +CONSUMER-HELLO A => CONSUMER-HELLO hello to=A
< RECORD 100:105 => GET-POSITION to=A time=17
0.1 < DIRECT-POSITION 98 from=A time=17 end=100 => FETCH 98:105
# Records that are published before the answer are wanted, whatever the store says
consumer start_ms=17 subscribe=hello settled answering=A
< RECORD 100:105 & RECORD 105:110 => GET-POSITION to=A time=17
0.1 < DIRECT-POSITION nothing from=A time=17 end=110 => FETCH 100:110
# The earliest record of any store counts
consumer start_ms=17 subscribe=hello settled answering=A,B
< HEAD 99 => GET-POSITION to=A time=17, GET-POSITION to=B time=17
0.1 < DIRECT-POSITION 40 from=A time=17 end=100
0.2 < DIRECT-POSITION 30 from=B time=17 end=90 => FETCH 30:100
# A store that holds only older records counts as much as its end
consumer start_ms=17 subscribe=hello settled answering=A,B
< HEAD 99 => GET-POSITION to=A time=17, GET-POSITION to=B time=17
0.1 < DIRECT-POSITION nothing from=A time=17 end=60
0.2 < DIRECT-POSITION nothing from=B time=17 end=80 => FETCH 80:100
# A partition that no store holds begins at its first record
consumer start_ms=17 subscribe=hello settled answering=A
< HEAD 4 => GET-POSITION to=A time=17
0.1 < DIRECT-POSITION nothing from=A time=17 end=0 => FETCH 0:5
# A producer that joined later is read from its first record without a question
consumer start_ms=17 subscribe=hello settled answering=A
1 peer_joined PRODUCER
< RECORD 0:3 => deliver 0:3
# Nothing begins before the node has settled and its peers have connected
consumer start_ms=17 subscribe=hello answering=A
< HEAD 99 => GET-POSITION to=A time=17
0.1 < DIRECT-POSITION 40 from=A time=17 end=100
0.2 peer_joined B
0.3 node_settled
0.4 +GET-POSITION B & +CONSUMER-HELLO B => CONSUMER-HELLO hello to=B, GET-POSITION to=B time=17
0.5 < DIRECT-POSITION 30 from=B time=17 end=100 => FETCH 30:100
# A discovered node that does not connect is waited for a limited time
consumer start_ms=17 subscribe=hello settled
peer_joined SILENT
+GET-POSITION A & +CONSUMER-HELLO A => CONSUMER-HELLO hello to=A
< HEAD 99 => GET-POSITION to=A time=17
0.1 < DIRECT-POSITION 40 from=A time=17 end=100
until 3 => FETCH 40:100 at 2 2.5
# A store that leaves is waited for no longer
consumer start_ms=17 subscribe=hello settled answering=A,B
< HEAD 99 => GET-POSITION to=A time=17, GET-POSITION to=B time=17
0.1 < DIRECT-POSITION 40 from=A time=17 end=100
0.2 peer_left B => FETCH 40:100
# Only partitions that no store holds take places of those without records
consumer start_ms=17 partitions_unproven_max=1 subscribe=hello settled answering=A
< HEAD P 4 => GET-POSITION P to=A time=17
0.1 < DIRECT-POSITION P 2 from=A time=17 end=5 => FETCH P 2:5
< HEAD Q 4 => GET-POSITION Q to=A time=17
0.2 < DIRECT-POSITION Q nothing from=A time=17 end=0 => FETCH Q 0:5
< HEAD R 4 => discarded 1 (too many partitions without records)
# A store that answers no more is waited for no longer
consumer start_ms=17 subscribe=hello settled answering=A,B
< HEAD 99 => GET-POSITION to=A time=17, GET-POSITION to=B time=17
0.1 < DIRECT-POSITION 40 from=A time=17 end=100
0.2 -GET-POSITION B => FETCH 40:100
# A consumer waits for a store that can answer
consumer start_ms=17 subscribe=hello settled stores=LIBDAFKA
< HEAD 99
until 100 => GET-HEADS hello at 5 35, CONSUMER-HELLO hello to=LIBDAFKA at 61.548
101 +GET-POSITION A & +CONSUMER-HELLO A => CONSUMER-HELLO hello to=A, GET-POSITION to=A time=17
< DIRECT-POSITION 40 from=A time=17 end=100 => FETCH 40:100
# Unanswered questions are repeated less and less often, and to a store whose messages only now arrive
consumer start_ms=17 subscribe=hello settled answering=A
< HEAD 99 => GET-POSITION to=A time=17
0.1 < STORE-HELLO from=A => CONSUMER-HELLO hello to=A, GET-POSITION to=A time=17
until 30 => GET-POSITION to=A time=17 at 0.5 1.5 3.5 7.5 15.5 23.5, GET-HEADS hello at 5
< DIRECT-POSITION 40 from=A time=17 end=100 => FETCH 40:100
31 < DIRECT-RECORD 40:100 => deliver 40:100
until 60 => GET-HEADS hello at 35
# Answers that cannot be true are discarded
consumer start_ms=17 subscribe=hello settled answering=A
< HEAD 99 => GET-POSITION to=A time=17
0.1 < DIRECT-POSITION 40 to=YOU from=A time=17 end=100 => discarded 1 (another requestor)
< DIRECT-POSITION 40 from=A time=16 end=100 => discarded 1 (not asked for)
< DIRECT-POSITION OTHER 40 from=A time=17 end=100 => discarded 1 (not asked for)
< DIRECT-POSITION 40 from=STRANGER time=17 end=100 => discarded 1 (not asked for)
< DIRECT-POSITION 4611686018427387905 from=A time=17 end=100 => discarded 1 (impossible position)
< DIRECT-POSITION 40 from=A time=17 end=4611686018427387905 => discarded 1 (impossible position)
0.2 < DIRECT-POSITION 40 from=A time=17 end=100 => FETCH 40:100
# Seeking and unsubscribing end the questions
consumer start_ms=17 subscribe=hello settled answering=A
< HEAD 99 & HEAD OTHER 49 => GET-POSITION to=A time=17, GET-POSITION OTHER to=A time=17
0.1 seek OTHER 45 => FETCH OTHER 45:50
unsubscribe hello => -RECORD hello, -HEAD hello
until 30
< DIRECT-POSITION 40 from=A time=17 end=100 => discarded 1 (not asked for)
reassembler.cursors => = nothing
"""


@scripts_of(SCRIPTS)
def test_where_a_consumer_begins(script: Sequence[str]) -> None:
    play(script)


def test_waiting_partitions_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(position_query, "PARTITIONS_MAX", 2)
    consumer = Player("consumer start_ms=17 subscribe=hello settled")
    consumer.play("+GET-POSITION A & +CONSUMER-HELLO A")
    asked = consumer.play("< DIRECT-HEAD P 0 & DIRECT-HEAD Q 0 & DIRECT-HEAD R 0")
    assert asked.startswith("GET-POSITION P to=A time=17, GET-POSITION Q to=A time=17, discarded 1")
    for name in "PQ":
        consumer.play(f"0.1 < DIRECT-POSITION {name} 0 from=A time=17 end=1")
    assert "GET-HEADS hello" in consumer.play("until 1.1"), "there is room for the others now"


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
