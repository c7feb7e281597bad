"""Tasks cover exactly the requested ranges; none is too large, and there are enough of them."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka.errors import ConfigError, StorageError
from dafka.records import Partition
from dafka.spark.offsets import EARLIEST, LATEST, PartitionName, StreamOffset
from dafka.spark.options import RequestedOffsets
from dafka.spark.planning import (
    SLACK,
    TASK_RECORDS_MAX,
    TASK_RECORDS_MIN,
    OffsetRange,
    StoreRange,
    divide_ranges,
    plan_task,
    resolve_offsets,
)
from dafka.spark.stores import Replica, StoredPartition, merge_replicas
from dafka.storage import PartitionInfo

RANGES = st.lists(st.tuples(st.integers(0, 2**40), st.integers(1, 2**24)), max_size=30).map(
    lambda found: [(("orders", str(number)), start, start + count) for number, (start, count) in enumerate(found)]
)


@given(RANGES, st.integers(1, 64))
def test_tasks_cover_the_ranges_exactly_once(ranges: list[OffsetRange], tasks_min: int) -> None:
    parts = [each for task in divide_ranges(ranges, tasks_min) for each in task]
    assert all(start < end for _, start, end in parts)
    for name, start, end in ranges:
        own = [each for each in parts if each[0] == name]
        assert (own[0][1], own[-1][2]) == (start, end)
        assert all(before[2] == after[1] for before, after in pairwise(own))
    order = [name for name, _, _ in parts]
    assert order == sorted(order)


@given(RANGES, st.integers(1, 64))
def test_tasks_have_a_bounded_size_and_are_enough(ranges: list[OffsetRange], tasks_min: int) -> None:
    tasks = divide_ranges(ranges, tasks_min)
    counts = [sum(end - start for _, start, end in task) for task in tasks]
    assert all(count <= TASK_RECORDS_MAX * SLACK + TASK_RECORDS_MIN * 2 for count in counts)
    total = sum(counts)
    if total >= 8 * tasks_min * TASK_RECORDS_MIN:
        assert len(tasks) >= tasks_min
    assert len(tasks) <= 1 + total // TASK_RECORDS_MIN + tasks_min * 2


def test_one_large_partition_uses_every_core_evenly() -> None:
    tasks = divide_ranges([(("orders", "A"), 0, 5_000_000)], 8)
    counts = [end - start for ((_, start, end),) in tasks]
    assert len(tasks) % 8 == 0
    assert max(counts) - min(counts) <= 1


def test_few_records_are_one_task_and_no_records_are_none() -> None:
    assert len(divide_ranges([(("orders", "A"), 5, 9)], 8)) == 1
    assert divide_ranges([], 8) == []


def test_ten_thousand_partitions_are_few_small_tasks() -> None:
    names = [("orders", f"{number:032X}") for number in range(10_000)]
    held = {name: stored(0, 100, name[1]) for name in names}
    tasks = [plan_task(held, task) for task in divide_ranges([(name, 0, 100) for name in names], 4)]
    size = sum(len(pickle.dumps(task)) for task in tasks)
    assert 1 <= len(tasks) <= 8
    assert size < 4 * 2**20


@st.composite
def held_partitions(draw: st.DrawFn) -> tuple[dict[PartitionName, int], list[dict[PartitionName, StoredPartition]]]:
    """Return the ends of partitions, and what two sets of stores hold of them: at least all of their records."""
    ends = {("orders", letter): draw(st.integers(1, 3_000_000)) for letter in draw(st.sets(st.sampled_from("ABCDE")))}
    states = []
    for _ in range(2):
        state = {}
        for name, end in ends.items():
            replicas: list[Replica] = []
            for number in range(draw(st.integers(1, 3))):
                stored_end = end + draw(st.integers(0, 1000))
                first = draw(st.integers(0, end)) if replicas else 0
                info = PartitionInfo(first, stored_end, draw(st.integers(0, 2**40)))
                replicas.append(Replica(f"sqlite:{number}.db", info, draw(st.integers(0, stored_end))))
            state[name] = merge_replicas(Partition(*name), replicas)
        states.append(state)
    return ends, states


@given(held_partitions(), st.integers(1, 16), st.randoms(use_true_random=False))
def test_the_division_depends_on_the_offsets_alone(
    held: tuple[dict[PartitionName, int], list[dict[PartitionName, StoredPartition]]], tasks_min: int, random: Random
) -> None:
    """Sizes, tiers, replicas and what was appended since do not change which records a task reads, in which order."""
    ends, states = held
    offset = StreamOffset(offsets={}, tasks_min=1, timestamp=0).advance(ends, dict.fromkeys(ends, 0), None, tasks_min)
    read = []
    for state in states:
        batch = StreamOffset.from_checkpoint(json.loads(json.dumps(offset.to_checkpoint())))
        ranges = [(name, *each) for name, each in batch.ranges().items()]
        random.shuffle(ranges)
        tasks = [plan_task(state, task).ranges for task in divide_ranges(ranges, batch.tasks_min)]
        read.append([join(task) for task in tasks])
    assert read[0] == read[1]


def join(ranges: Sequence[StoreRange]) -> list[tuple[Partition, int, int]]:
    """Return ranges without the borders between stores and tiers."""
    joined: list[tuple[Partition, int, int]] = []
    for each in ranges:
        start = each.start
        if joined and joined[-1][0] == each.partition and joined[-1][2] == start:
            start = joined.pop()[1]
        joined.append((each.partition, start, each.end))
    return joined


def stored(earliest: int, end: int, address: str = "A") -> StoredPartition:
    partition = Partition("orders", address)
    return StoredPartition(partition, (Replica("sqlite:x.db", PartitionInfo(earliest, end)),), earliest, end)


@pytest.mark.parametrize("is_start", [True, False])
@pytest.mark.parametrize("asked", [EARLIEST, LATEST, 0, 9, 10, 15, 20, 21, 2**70])
def test_requested_offsets_are_resolved(asked: int, is_start: bool) -> None:
    """An end before the earliest record loses nothing."""
    option, name = "startingOffsets" if is_start else "endingOffsets", ("orders", "A")
    place = {EARLIEST: 10, LATEST: 20}.get(asked, asked)

    def resolve(*, fail: bool) -> dict[PartitionName, int]:
        offsets, held = RequestedOffsets(LATEST, {name: asked}), {name: stored(10, 20)}
        return resolve_offsets(option, offsets, held, is_start=is_start, fail_on_data_loss=fail)

    assert resolve(fail=False) == {name: min(max(place, 10), 20)}
    if place > 20:
        with pytest.raises(ConfigError, match=rf"{option}: .* 20, the end of orders/A, not {asked} \(set failOnData"):
            resolve(fail=True)
    elif place < 10 and is_start:
        with pytest.raises(StorageError, match=rf"orders/A: records {asked} to 9 are no longer .* failOnDataLoss to"):
            resolve(fail=True)
    else:
        assert resolve(fail=True) == resolve(fail=False)


def test_a_requested_partition_that_no_store_has() -> None:
    offsets = RequestedOffsets(EARLIEST, {("orders", "B"): 3})
    with pytest.raises(ConfigError, match="option endingOffsets: none of the stores has the partition orders/B"):
        resolve_offsets("endingOffsets", offsets, {}, is_start=False, fail_on_data_loss=True)
    assert resolve_offsets("endingOffsets", offsets, {}, is_start=False, fail_on_data_loss=False) == {}
