from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dafka.protocol.ordering.cursor import RUNS_MAX, Cursor
from tests.protocol.helpers import run, sequences

ROOM = 2**20

Interval = tuple[int, int]
intervals = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 12)).map(lambda pair: (pair[0], pair[0] + pair[1])), max_size=30
)


def take(cursor: Cursor, first: int, end: int, room: int = ROOM) -> list[int]:
    return sequences(cursor.add_batch(run(first, end), room))


def test_records_ahead_without_room_are_only_known_to_exist() -> None:
    cursor = Cursor(0)
    assert take(cursor, 10, 14, room=run(10, 14).memory_bytes) == []
    assert take(cursor, 20, 24, room=0) == []
    assert cursor.ahead_bytes == run(10, 14).memory_bytes
    assert take(cursor, 0, 10, room=0) == list(range(14))
    assert cursor.first_gap() == (14, 24)


def test_both_parts_of_a_batch_around_a_kept_one_share_the_room() -> None:
    cursor = Cursor(0)
    take(cursor, 5, 6)
    take(cursor, 3, 9, room=run(3, 6).memory_bytes)
    assert take(cursor, 0, 3) == [0, 1, 2, 3, 4, 5]


def test_every_second_record_does_not_grow_the_list_without_limit() -> None:
    cursor = Cursor(0)
    for sequence in range(1, 2 * RUNS_MAX + 20, 2):
        take(cursor, sequence, sequence + 1)
    for sequence in range(0, 2 * RUNS_MAX + 20, 2):
        take(cursor, sequence, sequence + 1)
    assert cursor.next_sequence == 2 * RUNS_MAX + 1
    assert cursor.first_gap() == (2 * RUNS_MAX + 1, 2 * RUNS_MAX + 2)


def test_the_largest_sequence_is_accepted() -> None:
    cursor = Cursor(0)
    take(cursor, 2**64 - 1, 2**64)
    assert cursor.first_gap() == (0, 2**64 - 1)


@given(runs=intervals, begin=st.integers(0, 5), heads=st.lists(st.integers(0, 60), max_size=30))
def test_in_any_order_each_record_is_ready_once_and_gaps_are_known(
    runs: list[Interval], begin: int, heads: list[int]
) -> None:
    cursor = Cursor(begin)
    received: set[int] = set()
    ready: list[int] = []
    known_end = begin
    for index, (first, end) in enumerate(runs):
        ready += take(cursor, first, end)
        received |= set(range(first, end))
        known_end = max(known_end, end)
        if index < len(heads):
            cursor.record_known_end(heads[index])
            known_end = max(known_end, heads[index])
        next_sequence = begin
        while next_sequence in received:
            next_sequence += 1
        ahead = sorted(sequence for sequence in received if sequence > next_sequence)
        assert ready == list(range(begin, next_sequence))
        assert cursor.next_sequence == next_sequence
        assert cursor.ahead_bytes == sum(run(sequence, sequence + 1).memory_bytes for sequence in ahead)
        gap_end = ahead[0] if ahead else known_end
        assert cursor.first_gap() == ((next_sequence, gap_end) if next_sequence < known_end else None)


@given(runs=intervals, room=st.integers(0, 30))
def test_with_little_room_fetching_each_gap_still_yields_each_record_once(runs: list[Interval], room: int) -> None:
    cursor = Cursor(0)
    ready: list[int] = []
    for first, end in runs:
        ready += take(cursor, first, end, room - cursor.ahead_bytes)
        assert cursor.ahead_bytes <= room
    while (gap := cursor.first_gap()) is not None:
        ready += take(cursor, *gap, room=room - cursor.ahead_bytes)
    assert ready == list(range(max((end for _, end in runs), default=0)))
    assert cursor.ahead_bytes == 0
