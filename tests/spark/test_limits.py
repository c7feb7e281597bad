"""Micro-batches of so many records: exact, fair, and never waiting for ever."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dafka.spark.limits import take_rows

POSITIONS = st.dictionaries(
    st.tuples(st.sampled_from(["orders", "trades"]), st.text("AB", max_size=3)),
    st.tuples(st.integers(0, 2**62), st.integers(0, 2**40)),
)


@given(POSITIONS, st.integers(1, 2**62))
def test_takes_as_many_as_it_may_and_no_more(found: dict[tuple[str, str], tuple[int, int]], rows_max: int) -> None:
    starts = {name: start for name, (start, _) in found.items()}
    ends = {name: start + count for name, (start, count) in found.items()}
    new = take_rows(starts, ends, rows_max)
    assert new.keys() == ends.keys()
    assert all(starts[name] <= new[name] <= ends[name] for name in ends)
    waiting = sum(ends.values()) - sum(starts.values())
    assert sum(new.values()) - sum(starts.values()) == min(rows_max, waiting)


@given(POSITIONS, st.integers(1, 2**62))
def test_takes_in_proportion(found: dict[tuple[str, str], tuple[int, int]], rows_max: int) -> None:
    starts = dict.fromkeys(found, 0)
    ends = {name: count for name, (_, count) in found.items()}
    total = sum(ends.values())
    for name, taken in take_rows(starts, ends, rows_max).items():
        assert abs(taken * total - min(rows_max, total) * ends[name]) < max(total, 1)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=6), st.integers(1, 5))
def test_batch_after_batch_everything_is_taken(counts: list[int], rows_max: int) -> None:
    ends = {("orders", str(number)): count for number, count in enumerate(counts)}
    reached = dict.fromkeys(ends, 0)
    for _ in range(-(-sum(counts) // rows_max)):
        reached = take_rows(reached, ends, rows_max)
    assert reached == ends
