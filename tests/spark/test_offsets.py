"""Options and offsets: what is requested, what a checkpoint keeps, and how micro-batches are limited and divided."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka.errors import ConfigError
from dafka.spark.offsets import (
    EARLIEST,
    LATEST,
    PartitionName,
    StreamOffset,
    flatten_offsets,
    limit_rows,
    nest_offsets,
    split_ranges,
)
from dafka.spark.options import Options, RequestedOffsets, parse_offsets, parse_subscription

ALLOWED = ("path", "subscribe", "subscribePattern", "minPartitions", "failOnDataLoss", "startingOffsets")
A, B, C = ("orders", "A"), ("orders", "B"), ("other", "C")


def options(**given: str) -> Options:
    return Options(given, ALLOWED, "reading stores")


def test_values_of_options_whose_names_may_have_any_case() -> None:
    given = options(MINPARTITIONS=f" {2**63 - 1} ", failOnDataLoss=" TRUE ", checkpointLocation="x", queryName="y")
    assert given.get_int("minPartitions") == 2**63 - 1
    assert given.get_bool("failOnDataLoss", False)
    assert not options(failOnDataLoss="False").get_bool("failOnDataLoss", True)
    assert options(minPartitions="0").get_int("minPartitions", minimum=0) == 0
    assert (options().get_int("minPartitions", 7), options().get_bool("failOnDataLoss", True)) == (7, True)
    assert "subscribe" not in options(subscribepattern="x")


def test_topics_by_name_and_by_pattern() -> None:
    by_name = parse_subscription(options(subscribe=" orders, naïve,orders"))
    by_pattern = parse_subscription(options(subscribePattern="ord.*|x"))
    names = ("orders", "orders2", "naïve", "x", "x2")
    assert by_name.topics == ("orders", "naïve")
    assert [name for name in names if by_name.matches(name)] == ["orders", "naïve"]
    assert [name for name in names if by_pattern.matches(name)] == ["orders", "orders2", "x"], "whole names"
    assert all(parse_subscription(options()).matches(name) for name in names)


def requested(text: str) -> RequestedOffsets:
    return parse_offsets(options(startingOffsets=text), "startingOffsets", LATEST)


def test_requested_offsets() -> None:
    assert requested(" Earliest ").for_partition(A) == EARLIEST
    assert requested("latest").for_partition(A) == requested("{}").for_partition(A) == LATEST
    assert parse_offsets(options(), "startingOffsets", EARLIEST).for_partition(A) == EARLIEST
    found = requested(f'{{"orders": {{"A": 5, "B": -2, "C": -1, "D": {2**70}}}, "empty": {{}}}}')
    assert [found.for_partition(("orders", name)) for name in "ABCDE"] == [5, EARLIEST, LATEST, 2**70, LATEST]


@given(st.dictionaries(st.tuples(st.text(), st.text()), st.integers(0, 2**63)))
def test_offsets_survive_a_checkpoint(found: dict[tuple[str, str], int]) -> None:
    assert flatten_offsets(json.loads(json.dumps(nest_offsets(found)))) == found
    assert json.dumps(nest_offsets(found)) == json.dumps(nest_offsets(dict(reversed(found.items()))))


def test_an_offset_survives_a_checkpoint_and_one_of_an_earlier_version_is_refused() -> None:
    offset = StreamOffset(offsets={B: 2, A: 1, C: 3}, begins={C: 1}, tasks_min=4, timestamp=1000)
    document = json.loads(json.dumps(offset.to_checkpoint()))
    assert document == {
        "offsets": {"orders": {"A": 1, "B": 2}, "other": {"C": 3}},
        "begins": {"other": {"C": 1}},
        "tasks": 4,
        "timestamp": 1000,
    }
    assert StreamOffset.from_checkpoint(document) == offset
    earlier: list[dict[str, Any]] = [{"orders": {"A": 1}}, {"offsets": {"orders": {"A": 1}}, "timestamp": 1000}]
    for each in earlier:
        with pytest.raises(ConfigError, match=r"option checkpointLocation: .* of an earlier version of dafka"):
            StreamOffset.from_checkpoint(each)


def test_neither_the_clock_nor_a_partition_goes_back_and_unknown_starts_wait() -> None:
    ahead = 2**45
    assert position({A: 1}, ahead).advance({A: 2}, {}, None, 1).timestamp == ahead
    offset = position({A: 5})
    assert offset.advance({A: 3, B: 4}, {}, None, 1) is offset
    assert offset.advance({A: 3, B: 4}, {B: 4}, None, 1) is offset
    assert offset.advance({A: 3, B: 4}, {B: 1}, None, 1).ranges() == {B: (1, 4)}
    assert offset.advance({B: 4}, {B: 1}, None, 1).offsets == {A: 5, B: 4}, "positions of others are kept"


def position(offsets: dict[PartitionName, int], timestamp: int = 0) -> StreamOffset:
    return StreamOffset(offsets=offsets, tasks_min=1, timestamp=timestamp)


def test_pieces_cover_ranges_once() -> None:
    ranges = {A: (10, 110), B: (0, 3), C: (5, 6)}
    assert split_ranges(ranges, 3) == [(A, 10, 110), (B, 0, 3), (C, 5, 6)]
    pieces = split_ranges(ranges, 10)
    assert len(pieces) >= 10
    covered = [(name, offset) for name, first, end in pieces for offset in range(first, end)]
    assert covered == [(name, offset) for name, (first, end) in ranges.items() for offset in range(first, end)]
    assert split_ranges({A: (0, 2)}, 10) == [(A, 0, 1), (A, 1, 2)]
    assert split_ranges({}, 10) == []


# Micro-batches of limited size: exact, in proportion, and without starvation

POSITIONS = st.dictionaries(
    st.tuples(st.sampled_from(["orders", "trades"]), st.text("AB", max_size=3)),
    st.tuples(st.integers(0, 2**62), st.integers(0, 2**40)),
)


@given(POSITIONS, st.integers(1, 2**62))
def test_a_limit_is_used_up_exactly(found: dict[tuple[str, str], tuple[int, int]], rows_max: int) -> None:
    starts = {name: start for name, (start, _) in found.items()}
    ends = {name: start + count for name, (start, count) in found.items()}
    assert limit_rows(starts, ends, None) == ends
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


@given(st.lists(st.integers(0, 30), min_size=1, max_size=6), st.integers(1, 5))
def test_successive_batches_reach_the_end(counts: list[int], rows_max: int) -> None:
    ends = {("orders", str(number)): count for number, count in enumerate(counts)}
    reached = dict.fromkeys(ends, 0)
    for _ in range(-(-sum(counts) // rows_max)):
        reached = limit_rows(reached, ends, rows_max)
    assert reached == ends
