"""Pushed filters and the filters left to Spark together select exactly the rows that all filters select."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from itertools import permutations, product
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from dafka.spark.filters import PushedFilters

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TOPICS = ["orders", "order", "trades", ""]
ADDRESSES = ["A", "AB", "B"]
Row = dict[str, Any]


def at(milliseconds: int) -> datetime:
    return EPOCH + timedelta(milliseconds=milliseconds)


ROWS: list[Row] = [
    {"topic": topic, "partition": address, "offset": offset, "stored_at": at(10 * offset), "value": b"x"}
    for topic in TOPICS
    for address in ADDRESSES
    for offset in range(12)
]

TESTS: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: lambda cell, value: value is not None and cell == value,
    EqualNullSafe: lambda cell, value: bool(cell == value),
    GreaterThan: lambda cell, value: cell > value,
    GreaterThanOrEqual: lambda cell, value: cell >= value,
    LessThan: lambda cell, value: cell < value,
    LessThanOrEqual: lambda cell, value: cell <= value,
    In: lambda cell, value: cell in [each for each in value if each is not None],
    StringStartsWith: lambda cell, value: cell.startswith(value),
    StringEndsWith: lambda cell, value: cell.endswith(value),
    StringContains: lambda cell, value: value in cell,
}
COMPARISONS = [EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual]


def keeps(each: Filter, row: Row) -> bool:
    if isinstance(each, Not):
        return not keeps(each.child, row)
    cell = row[each.attribute[0]]  # type: ignore[attr-defined]
    if isinstance(each, (IsNull, IsNotNull)):
        return (cell is None) == isinstance(each, IsNull)
    return TESTS[type(each)](cell, each.value)  # type: ignore[attr-defined]


def comparisons(column: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Filter]:
    one = st.builds(lambda kind, value: kind((column,), value), st.sampled_from(COMPARISONS), values)
    several = st.builds(lambda found: In((column,), tuple(found)), st.lists(st.none() | values, max_size=4))
    return one | several


NAMES = st.sampled_from([*TOPICS, *ADDRESSES, "ord", "other"])
TEXT = st.builds(
    lambda kind, column, value: kind((column,), value),
    st.sampled_from([StringStartsWith, StringEndsWith, StringContains]),
    st.sampled_from(["topic", "partition"]),
    NAMES,
)
TIMES = st.builds(
    lambda passed, hours: (EPOCH + timedelta(microseconds=passed)).astimezone(timezone(timedelta(hours=hours))),
    st.integers(-3, 120_003) | st.integers(0, 12).map(lambda offset: offset * 10_000),
    st.integers(-12, 12),
)
PLAIN = st.one_of(
    comparisons("topic", NAMES),
    comparisons("partition", NAMES),
    comparisons("offset", st.integers(-2, 13) | st.integers(-(2**63), 2**63 - 1)),
    comparisons("stored_at", TIMES),
    comparisons("value", st.binary(max_size=1)),
    TEXT,
    st.builds(
        lambda kind, column: kind((column,)), st.sampled_from([IsNull, IsNotNull]), st.sampled_from(list(ROWS[0]))
    ),
)
FILTERS = st.lists(PLAIN | PLAIN.map(Not), max_size=5)


def read(pushed: PushedFilters) -> list[Row]:
    """Return what a reader reads: whole partitions, a range of offsets, and a range of whole milliseconds."""
    found = []
    for row in ROWS:
        start, end = pushed.clip_range(0, 12)
        milliseconds = (row["stored_at"] - EPOCH) // timedelta(milliseconds=1)
        if (
            pushed.allows_partition((row["topic"], row["partition"]))
            and start <= row["offset"] < end
            and (pushed.since_ms is None or milliseconds >= pushed.since_ms)
            and (pushed.until_ms is None or milliseconds < pushed.until_ms)
        ):
            found.append(row)
    return found


@given(FILTERS)
def test_pushed_and_remaining_filters_select_exactly_the_rows(filters: list[Filter]) -> None:
    pushed = PushedFilters()
    left = pushed.push(filters)
    assert all(any(each is one for one in filters) for each in left)
    kept = [row for row in read(pushed) if all(keeps(each, row) for each in left)]
    assert kept == [row for row in ROWS if all(keeps(each, row) for each in filters)]


def test_a_pushed_filter_limits_what_is_read() -> None:
    cases: list[tuple[Filter, int]] = [
        (EqualTo(("topic",), "orders"), 36),
        (In(("partition",), ("A", None)), 48),
        (StringStartsWith(("topic",), "ord"), 72),
        (GreaterThan(("offset",), 9), 24),
        (EqualTo(("stored_at",), at(50)), 12),
        (EqualTo(("stored_at",), at(50) + timedelta(microseconds=1)), 0),
        (GreaterThan(("stored_at",), at(50) - timedelta(microseconds=1)), 84),
        (LessThanOrEqual(("stored_at",), at(50) + timedelta(microseconds=999)), 72),
        (IsNotNull(("offset",)), 144),
    ]
    for each, count in cases:
        pushed = PushedFilters()
        assert pushed.push([each]) == []
        assert len(read(pushed)) == count


def test_other_filters_are_left_to_spark() -> None:
    for each, span in (
        (In(("offset",), (3, 7)), (3, 8)),  # read from the first to the last
        (Not(EqualTo(("topic",), "orders")), (0, 12)),
        (EqualTo(("topic", "x"), "orders"), (0, 12)),
        (EqualTo(("other",), "orders"), (0, 12)),
        (IsNotNull(("other",)), (0, 12)),
        (IsNotNull(("value",)), (0, 12)),
        (EqualTo(("stored_at",), datetime(2026, 1, 1)), (0, 12)),
        (EqualTo(("offset",), None), (0, 12)),
    ):
        pushed = PushedFilters()
        assert (pushed.push([each]), pushed.clip_range(0, 12)) == ([each], span)
        assert len(read(pushed)) == (len(ROWS) if span == (0, 12) else 60)


def test_two_limits_both_apply() -> None:
    for column, values in (("offset", (3, 7)), ("stored_at", (at(30), at(70)))):
        for kinds, pair in product(product(COMPARISONS, repeat=2), permutations(values)):
            filters = [kind((column,), value) for kind, value in zip(kinds, pair, strict=True)]
            pushed = PushedFilters()
            assert pushed.push(filters) == []
            assert read(pushed) == [row for row in ROWS if all(keeps(each, row) for each in filters)], filters
