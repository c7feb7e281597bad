from __future__ import annotations

import heapq
from collections.abc import Callable

import pytest

from dafka import wire
from dafka.config import FetchConfig
from dafka.protocol import FetchUnanswered
from dafka.protocol.ordering.cursor import Cursor
from dafka.protocol.ordering.fetch_planner import FetchPlanner
from dafka.protocol.ordering.reassembler import Reassembler
from dafka.records import Partition, RecordBatch
from dafka.wire import Command
from tests.protocol.helpers import HELLO, run, sequences, subscription

ME = "CONSUMER"


def make_reassembler(end: int = 0, **settings: int) -> Reassembler:
    reassembler = Reassembler(ME, FetchConfig(**settings))
    reassembler.follow_partition(HELLO, 0)
    reassembler.record_known_end(HELLO, end)
    return reassembler


class Responder:
    """A node that holds `end` records, and answers FETCHes in chunks 10 ms later, unless `is_lost` drops one."""

    def __init__(self, reassembler: Reassembler, end: int, is_lost: Callable[[float, int], bool]) -> None:
        self.now = 0.0
        self.asked: list[tuple[int, int]] = []
        self.received: list[RecordBatch] = []
        self.unanswered: list[FetchUnanswered] = []
        self._reassembler = reassembler
        self._end = end
        self._is_lost = is_lost
        self._arriving: list[tuple[float, int, int]] = []

    def serve(self, until: float) -> None:
        reassembler = self._reassembler
        while reassembler.cursors[HELLO].next_sequence < self._end:
            self._answer(reassembler.due_fetches(self.now))
            self.now = min(reassembler.deadline(), self._arriving[0][0] if self._arriving else float("inf"))
            assert self.now <= until, "stalled"
            while self._arriving and self._arriving[0][0] <= self.now:
                _, first, end = heapq.heappop(self._arriving)
                self.received += reassembler.add_batch(run(first, end))
            self.unanswered += reassembler.tick(self.now)

    def _answer(self, fetches: list[wire.Fetch]) -> None:
        for fetch in fetches:
            self.asked.append((fetch.sequence, fetch.count))
            end = min(fetch.sequence + fetch.count, self._end)
            for index, first in enumerate(range(fetch.sequence, end, 2000)):
                if not self._is_lost(self.now, first):
                    heapq.heappush(self._arriving, (self.now + 0.01 + index / 1000, first, min(first + 2000, end)))


def test_catching_up_takes_few_fetches_erratum_17() -> None:
    end = 100_000
    responder = Responder(make_reassembler(end), end, lambda _now, _first: False)
    responder.serve(until=10.0)
    assert sequences(responder.received) == list(range(end))
    assert len(responder.asked) <= 9
    assert responder.asked[0] == (0, 1000)
    position = 0
    for first, count in responder.asked:
        assert first == position
        position = first + count
    assert position == end
    assert responder.unanswered == []


@pytest.mark.parametrize("silence", [0.3, 4.0, 60.0])
def test_a_page_that_stalls_is_never_lost(silence: float) -> None:
    end = 20_000
    reassembler = make_reassembler(end, page_records_max=3000)
    responder = Responder(reassembler, end, lambda now, _first: 0.005 < now < silence)
    responder.serve(until=silence + 5.5)
    assert sequences(responder.received) == list(range(end))
    assert len(responder.asked) <= end / 1500 + 5 + silence / 2
    assert len(responder.unanswered) == (1 if silence >= 4.0 else 0)


def test_every_partition_gets_its_turn_when_no_node_answers() -> None:
    partitions = [Partition("hello", f"P{index}") for index in range(7)]
    reassembler = Reassembler(ME, FetchConfig(partitions_max=2))
    for partition in partitions:
        reassembler.follow_partition(partition, 0)
        reassembler.record_known_end(partition, 3)
    asked = [fetch.partition for fetch in reassembler.due_fetches(0.0)]
    assert len(asked) == 2
    for _ in range(4):
        now = reassembler.deadline()
        reassembler.tick(now)
        asked += [fetch.partition for fetch in reassembler.due_fetches(now)]
    assert set(asked) == {partition.address for partition in partitions}


@pytest.mark.parametrize(("topic", "count"), [("", 1), ("PRODUCER", 1), ("OTHER", 0)])
def test_a_new_peer_that_answers_fetches_is_asked_at_once(topic: str, count: int) -> None:
    reassembler = make_reassembler(5)
    reassembler.due_fetches(0.0)
    (subscribed,) = subscription(Command.FETCH, topic)
    reassembler.refetch_unanswered(subscribed, 0.0)
    assert len(reassembler.due_fetches(0.1)) == count


def test_dropped_duplicates_are_not_fetched() -> None:
    reassembler = make_reassembler(100)
    reassembler.due_fetches(0.0)
    reassembler.add_batch(run(0, 40))
    reassembler.drop_batch(run(0, 40))
    assert reassembler.due_fetches(0.1) == []


def test_a_partition_that_is_known_to_have_more_is_fetched_by_whole_pages() -> None:
    reassembler = make_reassembler(page_records_first=10)
    reassembler.expect_more(HELLO)
    assert [(fetch.sequence, fetch.count) for fetch in reassembler.due_fetches(0.0)] == [(0, 10)]
    reassembler.expect_more(HELLO)
    reassembler.add_batch(run(0, 4))
    assert reassembler.due_fetches(0.1) == [], "the rest may not exist"
    assert reassembler.cursors[HELLO].known_end == 4


# Pages


A, B, C = (Partition("hello", address) for address in "ABC")
ROOM = 2**20


def make_planner(
    page_records_first: int = 10, page_records_max: int = 100, page_bytes_max: int = 1000, partitions_max: int = 16
) -> FetchPlanner:
    """Return a planner that repeats FETCHes after 0.5, 1, 2, 4 and then every 5 seconds."""
    return FetchPlanner(
        FetchConfig(
            page_records_first=page_records_first,
            page_records_max=page_records_max,
            page_bytes_max=page_bytes_max,
            partitions_max=partitions_max,
        )
    )


def missing(end: int, first: int = 0) -> Cursor:
    cursor = Cursor(first)
    cursor.record_known_end(end)
    return cursor


def arrive(cursor: Cursor, first: int, end: int) -> None:
    cursor.add_batch(run(first, end), ROOM)


def test_a_page_without_a_known_end_is_whole() -> None:
    planner, cursor = make_planner(), missing(9, first=8)
    planner.open_end(A)
    assert planner.plan_fetch(A, cursor, 0.0) == (8, 10)
    arrive(cursor, 8, 12)
    assert planner.plan_fetch(A, cursor, 0.1) is None
    cursor.record_known_end(14)
    assert planner.plan_fetch(A, cursor, 0.2) == (12, 2)


def test_partitions_that_nobody_answers_give_their_places_to_others() -> None:
    planner = make_planner(partitions_max=2)
    proven = missing(20)
    arrive(proven, 0, 1)
    for each in (A, B):
        assert planner.plan_fetch(each, proven, 0.0) is not None
    planner.expire_pages(10.0)
    for each in (A, B):
        planner.plan_fetch(each, proven, 10.0)
    assert planner.plan_fetch(C, missing(5), 10.1) == (0, 5)
    planner.mark_complete(C)
    assert planner.next_waiting() in {A, B}


def test_the_rate_of_some_partitions_is_limited() -> None:
    planner, cursor = make_planner(), missing(1000)
    planner.limit_rate({A}.__contains__, 1000)
    planner.record_size(A, 10, 1)
    assert planner.plan_fetch(A, cursor, 0.0) == (0, 25)
    assert planner.plan_fetch(A, cursor, 0.0) is None, "the first page has not arrived"
    arrive(cursor, 0, 25)
    assert planner.plan_fetch(A, cursor, 0.0) == (25, 25)
    arrive(cursor, 25, 50)
    assert planner.plan_fetch(A, cursor, 0.1) is None, "a second allows for a hundred records"
    assert planner.expire_pages(0.6) == [A]
    assert planner.attempts(A) == 0
    assert planner.plan_fetch(A, cursor, 0.6) == (50, 25)
    planner.record_size(B, 10, 1)
    assert planner.plan_fetch(B, missing(1000), 0.6) == (0, 50)


def test_a_partition_that_is_held_back_gives_its_place_to_another_one() -> None:
    planner, cursor = make_planner(partitions_max=1), missing(1000)
    planner.limit_rate({A}.__contains__, 100)
    planner.record_size(A, 10, 1)
    for first in (0, 2):
        assert planner.plan_fetch(A, cursor, 0.0) == (first, 2)
        arrive(cursor, first, first + 2)
    assert planner.plan_fetch(A, cursor, 0.0) is None
    assert planner.plan_fetch(B, missing(5), 0.0) == (0, 5)
    planner.mark_complete(B)
    assert planner.next_waiting() == A
    assert planner.plan_fetch(A, cursor, 1.0) == (4, 2)


@pytest.mark.parametrize(("record_bytes", "count"), [(1, 100), (20, 50), (300, 3), (5000, 1)])
def test_later_pages_have_as_many_records_as_fit(record_bytes: int, count: int) -> None:
    planner = make_planner()
    planner.record_size(A, record_bytes * 7, 7)
    assert planner.plan_fetch(A, missing(1000), 0.0) == (0, count)


def test_progress_resets_attempts_and_moves_the_deadline() -> None:
    planner, cursor = make_planner(), missing(1000)
    planner.plan_fetch(A, cursor, 0.0)
    for now in (0.5, 1.5):
        assert planner.expire_pages(now) == [A]
        planner.plan_fetch(A, cursor, now)
    arrive(cursor, 0, 2)
    assert planner.plan_fetch(A, cursor, 2.0) is None
    assert planner.attempts(A) == 0
    assert planner.deadline() == 2.5
    arrive(cursor, 2, 3)
    assert planner.plan_fetch(A, cursor, 2.25) is None
    assert planner.expire_pages(2.7) == []
    assert planner.deadline() == 2.75
    assert planner.expire_pages(2.75) == [A]
    assert planner.plan_fetch(A, cursor, 2.75) == (3, 10)
    assert planner.expire_pages(3.7) == []
    assert planner.expire_pages(3.75) == [A]


def test_a_page_that_was_not_fetched_again_does_not_count_as_unanswered() -> None:
    planner, cursor = make_planner(), missing(1000)
    planner.plan_fetch(A, cursor, 0.0)
    now = 0.0
    for _ in range(5):
        now = planner.deadline()
        planner.expire_pages(now)
    assert planner.attempts(A) == 1
    assert planner.plan_fetch(A, cursor, now + 0.9) == (0, 10)
    assert planner.expire_pages(now + 1.0) == []
    assert planner.expire_pages(now + 1.9) == [A]


def test_an_unanswered_partition_goes_to_the_end_of_the_queue() -> None:
    planner = make_planner(partitions_max=1)
    cursors = {partition: missing(5) for partition in (A, B, C)}
    turns, now = [], 0.0
    for partition in (A, B, C):
        planner.plan_fetch(partition, cursors[partition], now)
    turns += planner.active_partitions()
    for _ in range(5):
        now = planner.deadline()
        (expired,) = planner.expire_pages(now)
        assert planner.plan_fetch(expired, cursors[expired], now) is None
        following = planner.next_waiting()
        assert following is not None
        assert planner.plan_fetch(following, cursors[following], now) == (0, 5)
        turns += planner.active_partitions()
    assert turns == [A, B, C, A, B, C]
    assert planner.attempts(A) == 2


def test_a_partition_with_records_does_not_take_the_turn_of_the_first_in_the_queue() -> None:
    """B, without records so far, gets the turn of A, whose FETCH no node answers."""
    planner = make_planner(partitions_max=1)
    known, unknown = missing(5), missing(5)
    arrive(known, 0, 2)
    assert known.is_proven
    planner.plan_fetch(A, known, 0.0)
    planner.plan_fetch(B, unknown, 0.0)
    now = planner.deadline()
    assert planner.expire_pages(now) == [A]
    assert planner.plan_fetch(A, known, now) is None
    assert planner.next_waiting() == B


def test_a_partition_with_records_is_fetched_beside_one_without() -> None:
    planner = make_planner(partitions_max=1)
    known = missing(5)
    arrive(known, 0, 2)
    planner.plan_fetch(B, missing(5), 0.0)
    planner.plan_fetch(C, missing(5), 0.0)
    assert planner.plan_fetch(A, known, 0.0) is not None
    assert planner.active_partitions() == [B, A]


def test_allow_refetch_does_not_fetch_an_arriving_page_again() -> None:
    planner, cursor = make_planner(), missing(1000)
    planner.plan_fetch(A, cursor, 0.0)
    arrive(cursor, 0, 1)
    planner.allow_refetch(A, cursor, 0.0)
    assert planner.plan_fetch(A, cursor, 0.1) is None
