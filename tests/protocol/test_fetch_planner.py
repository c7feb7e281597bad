from __future__ import annotations

import pytest

from dafka.config import FetchConfig
from dafka.protocol.ordering.cursor import Cursor
from dafka.protocol.ordering.fetch_planner import FetchPlanner
from dafka.records import Partition
from tests.protocol.helpers import run

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


def test_the_first_page_is_small() -> None:
    assert make_planner().plan_fetch(A, missing(1000), 0.0) == (0, 10)


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


def test_the_next_page_is_fetched_when_half_of_the_last_has_arrived() -> None:
    planner, cursor = make_planner(), missing(1000)
    assert planner.plan_fetch(A, cursor, 0.0) == (0, 10)
    arrive(cursor, 0, 4)
    assert planner.plan_fetch(A, cursor, 0.1) is None
    arrive(cursor, 4, 5)
    assert planner.plan_fetch(A, cursor, 0.2) == (10, 10)
    assert planner.plan_fetch(A, cursor, 0.2) is None


def test_a_page_ends_at_records_kept_ahead() -> None:
    planner, cursor = make_planner(), missing(1000)
    arrive(cursor, 6, 20)
    assert planner.plan_fetch(A, cursor, 0.0) == (0, 6)
    arrive(cursor, 0, 6)
    assert planner.plan_fetch(A, cursor, 0.1) == (20, 10)


def test_an_unanswered_page_is_fetched_again_after_growing_waits() -> None:
    planner, cursor = make_planner(), missing(1000)
    waits, now = [], 0.0
    for _ in range(7):
        assert planner.plan_fetch(A, cursor, now) == (0, 10)
        waits.append(planner.deadline() - now)
        assert planner.expire_pages(planner.deadline() - 0.001) == []
        now = planner.deadline()
        assert planner.expire_pages(now) == [A]
    assert waits == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0, 5.0]
    assert planner.attempts(A) == 7


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


def test_alternating_stalls_and_progress_leave_no_stale_deadlines() -> None:
    planner, cursor = make_planner(page_records_first=1000), missing(1000)
    now = 0.0
    for sequence in range(100):
        for _ in range(2):
            planner.plan_fetch(A, cursor, now)
            now = planner.deadline()
            planner.expire_pages(now)
        arrive(cursor, sequence, sequence + 1)
        planner.plan_fetch(A, cursor, now)
    planner.expire_pages(now + 5.0)
    assert len(planner._deadlines) == 1


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


def test_other_partitions_wait_in_a_queue() -> None:
    planner = make_planner(partitions_max=2)
    cursors = {partition: missing(5) for partition in (A, B, C)}
    assert [planner.plan_fetch(partition, cursors[partition], 0.0) for partition in (A, B, C)] == [(0, 5), (0, 5), None]
    assert planner.next_waiting() is None
    arrive(cursors[B], 0, 5)
    assert planner.plan_fetch(B, cursors[B], 0.1) is None
    assert planner.next_waiting() == C
    assert planner.plan_fetch(C, cursors[C], 0.1) == (0, 5)


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


def test_a_new_partition_does_not_overtake_the_queue() -> None:
    planner = make_planner(partitions_max=1)
    planner.plan_fetch(A, missing(5), 0.0)
    planner.plan_fetch(B, missing(5), 0.0)
    planner.mark_complete(A)
    assert planner.plan_fetch(C, missing(5), 0.1) is None
    assert planner.next_waiting() == B


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


def test_allow_refetch_fetches_a_page_without_progress_again() -> None:
    planner, cursor = make_planner(), missing(1000)
    planner.plan_fetch(A, cursor, 0.0)
    planner.allow_refetch(A, cursor, 0.0)
    assert planner.plan_fetch(A, cursor, 0.1) == (0, 10)


def test_allow_refetch_does_not_fetch_an_arriving_page_again() -> None:
    planner, cursor = make_planner(), missing(1000)
    planner.plan_fetch(A, cursor, 0.0)
    arrive(cursor, 0, 1)
    planner.allow_refetch(A, cursor, 0.0)
    assert planner.plan_fetch(A, cursor, 0.1) is None
