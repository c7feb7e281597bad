from __future__ import annotations

import math

import pytest

from dafka.config import FetchConfig
from dafka.protocol.ordering.cursor import Cursor
from dafka.protocol.ordering.fetching import Fetching
from dafka.records import Partition
from tests.protocol.helpers import run

A, B, C = (Partition("hello", address) for address in "ABC")
ROOM = 2**20


def make_fetching(
    page_records_first: int = 10, page_records_max: int = 100, page_bytes_max: int = 1000, partitions_max: int = 16
) -> Fetching:
    """Retries after 0.5, 1, 2, 4 and then each 5 seconds."""
    return Fetching(
        FetchConfig(
            page_records_first=page_records_first,
            page_records_max=page_records_max,
            page_bytes_max=page_bytes_max,
            partitions_max=partitions_max,
        )
    )


def missing(end: int, first: int = 0) -> Cursor:
    cursor = Cursor(first)
    cursor.learn(end)
    return cursor


def arrive(cursor: Cursor, first: int, end: int) -> None:
    cursor.take(run(first, end), ROOM)


def test_nothing_missing_asks_for_nothing() -> None:
    fetching = make_fetching()
    assert fetching.plan(A, Cursor(3), 0.0) is None
    assert fetching.deadline() == math.inf


def test_the_first_page_is_small() -> None:
    assert make_fetching().plan(A, missing(1000), 0.0) == (0, 10)


def test_no_more_is_asked_for_than_is_missing() -> None:
    assert make_fetching().plan(A, missing(12, first=8), 0.0) == (8, 4)


@pytest.mark.parametrize(("record_bytes", "count"), [(1, 100), (20, 50), (300, 3), (5000, 1)])
def test_later_pages_hold_what_fits(record_bytes: int, count: int) -> None:
    fetching = make_fetching()
    fetching.measure(A, record_bytes * 7, 7)
    assert fetching.plan(A, missing(1000), 0.0) == (0, count)


def test_the_next_page_is_asked_for_when_half_of_the_last_has_arrived() -> None:
    fetching, cursor = make_fetching(), missing(1000)
    assert fetching.plan(A, cursor, 0.0) == (0, 10)
    arrive(cursor, 0, 4)
    assert fetching.plan(A, cursor, 0.1) is None
    arrive(cursor, 4, 5)
    assert fetching.plan(A, cursor, 0.2) == (10, 10)
    assert fetching.plan(A, cursor, 0.2) is None


def test_a_page_stops_where_records_were_kept_ahead() -> None:
    fetching, cursor = make_fetching(), missing(1000)
    arrive(cursor, 6, 20)
    assert fetching.plan(A, cursor, 0.0) == (0, 6)
    arrive(cursor, 0, 6)
    assert fetching.plan(A, cursor, 0.1) == (20, 10)


def test_an_unanswered_page_is_asked_for_again_ever_more_rarely() -> None:
    fetching, cursor = make_fetching(), missing(1000)
    waits, now = [], 0.0
    for _ in range(7):
        assert fetching.plan(A, cursor, now) == (0, 10)
        waits.append(fetching.deadline() - now)
        assert fetching.expire(fetching.deadline() - 0.001) == []
        now = fetching.deadline()
        assert fetching.expire(now) == [A]
    assert waits == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0, 5.0]
    assert fetching.attempts(A) == 7


def test_progress_counts_attempts_from_zero_and_moves_the_deadline() -> None:
    fetching, cursor = make_fetching(), missing(1000)
    fetching.plan(A, cursor, 0.0)
    for now in (0.5, 1.5):
        assert fetching.expire(now) == [A]
        fetching.plan(A, cursor, now)
    arrive(cursor, 0, 2)
    assert fetching.plan(A, cursor, 2.0) is None
    assert fetching.attempts(A) == 0
    assert fetching.deadline() == 2.5
    arrive(cursor, 2, 3)
    assert fetching.plan(A, cursor, 2.25) is None
    assert fetching.expire(2.7) == []
    assert fetching.deadline() == 2.75
    assert fetching.expire(2.75) == [A]
    assert fetching.plan(A, cursor, 2.75) == (3, 10)
    assert fetching.expire(3.7) == []
    assert fetching.expire(3.75) == [A]


def test_stalls_and_progress_in_turns_leave_nothing_behind() -> None:
    fetching, cursor = make_fetching(page_records_first=1000), missing(1000)
    now = 0.0
    for sequence in range(100):
        for _ in range(2):
            fetching.plan(A, cursor, now)
            now = fetching.deadline()
            fetching.expire(now)
        arrive(cursor, sequence, sequence + 1)
        fetching.plan(A, cursor, now)
    fetching.expire(now + 5.0)
    assert len(fetching._deadlines) == 1


def test_a_page_that_was_not_asked_for_again_does_not_count_as_unanswered() -> None:
    fetching, cursor = make_fetching(), missing(1000)
    fetching.plan(A, cursor, 0.0)
    now = 0.0
    for _ in range(5):
        now = fetching.deadline()
        fetching.expire(now)
    assert fetching.attempts(A) == 1
    assert fetching.plan(A, cursor, now + 0.9) == (0, 10)
    assert fetching.expire(now + 1.0) == []
    assert fetching.expire(now + 1.9) == [A]


def test_other_partitions_wait_in_line() -> None:
    fetching = make_fetching(partitions_max=2)
    cursors = {partition: missing(5) for partition in (A, B, C)}
    assert [fetching.plan(partition, cursors[partition], 0.0) for partition in (A, B, C)] == [(0, 5), (0, 5), None]
    assert fetching.next_in_line() is None
    arrive(cursors[B], 0, 5)
    assert fetching.plan(B, cursors[B], 0.1) is None
    assert fetching.next_in_line() == C
    assert fetching.plan(C, cursors[C], 0.1) == (0, 5)


def test_an_unanswered_partition_goes_to_the_end_of_the_line() -> None:
    fetching = make_fetching(partitions_max=1)
    cursors = {partition: missing(5) for partition in (A, B, C)}
    turns, now = [], 0.0
    for partition in (A, B, C):
        fetching.plan(partition, cursors[partition], now)
    turns += fetching.active()
    for _ in range(5):
        now = fetching.deadline()
        (expired,) = fetching.expire(now)
        assert fetching.plan(expired, cursors[expired], now) is None
        following = fetching.next_in_line()
        assert following is not None
        assert fetching.plan(following, cursors[following], now) == (0, 5)
        turns += fetching.active()
    assert turns == [A, B, C, A, B, C]
    assert fetching.attempts(A) == 2


def test_a_new_partition_does_not_overtake_the_line() -> None:
    fetching = make_fetching(partitions_max=1)
    fetching.plan(A, missing(5), 0.0)
    fetching.plan(B, missing(5), 0.0)
    fetching.forget(A)
    assert fetching.plan(C, missing(5), 0.1) is None
    assert fetching.next_in_line() == B


def test_a_partition_with_records_takes_nobody_s_turn() -> None:
    """B, of which nothing has come, has its turn though A, whose producer is gone, is asked for on and on."""
    fetching = make_fetching(partitions_max=1)
    known, unknown = missing(5), missing(5)
    arrive(known, 0, 2)
    assert known.is_proven
    fetching.plan(A, known, 0.0)
    fetching.plan(B, unknown, 0.0)
    now = fetching.deadline()
    assert fetching.expire(now) == [A]
    assert fetching.plan(A, known, now) is None
    assert fetching.next_in_line() == B


def test_a_partition_with_records_finds_room_beside_one_without() -> None:
    fetching = make_fetching(partitions_max=1)
    known = missing(5)
    arrive(known, 0, 2)
    fetching.plan(B, missing(5), 0.0)
    fetching.plan(C, missing(5), 0.0)
    assert fetching.plan(A, known, 0.0) is not None
    assert fetching.active() == [B, A]


def test_renew_asks_again_for_a_page_of_which_nothing_came() -> None:
    fetching, cursor = make_fetching(), missing(1000)
    fetching.plan(A, cursor, 0.0)
    fetching.renew(A, cursor, 0.0)
    assert fetching.plan(A, cursor, 0.1) == (0, 10)


def test_renew_leaves_an_arriving_page_alone() -> None:
    fetching, cursor = make_fetching(), missing(1000)
    fetching.plan(A, cursor, 0.0)
    arrive(cursor, 0, 1)
    fetching.renew(A, cursor, 0.0)
    assert fetching.plan(A, cursor, 0.1) is None


def test_let_go_asks_again_from_there_on() -> None:
    fetching, cursor = make_fetching(page_records_first=100), missing(1000)
    fetching.plan(A, cursor, 0.0)
    arrive(cursor, 0, 10)
    fetching.let_go(A, 10)
    assert fetching.plan(A, cursor, 0.1) == (10, 100)
