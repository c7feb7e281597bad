"""Micro-batches of limited size: exact, in proportion, and without starvation."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka.spark.offsets import limit_rows

POSITIONS = st.dictionaries(
    st.tuples(st.sampled_from(["orders", "trades"]), st.text("AB", max_size=3)),
    st.tuples(st.integers(0, 2**62), st.integers(0, 2**40)),
)


@given(POSITIONS, st.integers(1, 2**62))
def test_a_limit_is_used_up_exactly(found: dict[tuple[str, str], tuple[int, int]], rows_max: int) -> None:
    starts = {name: start for name, (start, _) in found.items()}
    ends = {name: start + count for name, (start, count) in found.items()}
    new = limit_rows(starts, ends, rows_max)
    assert new.keys() == ends.keys()
    assert all(starts[name] <= new[name] <= ends[name] for name in ends)
    unread = sum(ends.values()) - sum(starts.values())
    assert sum(new.values()) - sum(starts.values()) == min(rows_max, unread)


@given(POSITIONS, st.integers(1, 2**62))
def test_each_partition_contributes_in_proportion(found: dict[tuple[str, str], tuple[int, int]], rows_max: int) -> None:
    starts = dict.fromkeys(found, 0)
    ends = {name: count for name, (_, count) in found.items() if count}
    limited = limit_rows(starts, ends, rows_max)
    assert len(ends) > rows_max or all(limited[name] >= 1 for name in ends)
    total = sum(ends.values())
    if total > rows_max:
        assert all(abs(Fraction(ends[name] * rows_max, total) - limited[name]) <= len(ends) for name in ends)


A, B, C = ("orders", "A"), ("orders", "B"), ("orders", "C")


@pytest.mark.parametrize(
    ("unread", "rows_max", "expected"),
    [
        ({A: 5, B: 5}, None, {A: 5, B: 5}),
        ({A: 5, B: 5}, 10, {A: 5, B: 5}),
        ({A: 100, B: 1}, 10, {A: 9, B: 1}),
        ({A: 100, B: 100, C: 100}, 10, {A: 4, B: 3, C: 3}),
        ({A: 300, B: 100}, 40, {A: 30, B: 10}),
        ({A: 100, B: 1, C: 100}, 2, {A: 1, B: 0, C: 1}),
        ({A: 3, B: 3, C: 3}, 1, {A: 1, B: 0, C: 0}),
    ],
)
def test_a_large_partition_does_not_starve_small_ones(
    unread: dict[tuple[str, str], int], rows_max: int | None, expected: dict[tuple[str, str], int]
) -> None:
    assert limit_rows(dict.fromkeys(unread, 0), unread, rows_max) == expected


@given(st.lists(st.integers(0, 30), min_size=1, max_size=6), st.integers(1, 5))
def test_successive_batches_reach_the_end(counts: list[int], rows_max: int) -> None:
    ends = {("orders", str(number)): count for number, count in enumerate(counts)}
    reached = dict.fromkeys(ends, 0)
    for _ in range(-(-sum(counts) // rows_max)):
        reached = limit_rows(reached, ends, rows_max)
    assert reached == ends
