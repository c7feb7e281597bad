"""Tasks cover exactly the requested ranges; none is too large, and there are enough of them."""

from __future__ import annotations

import pickle
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka.errors import ConfigError, StorageError
from dafka.records import Partition
from dafka.spark.offsets import EARLIEST, LATEST
from dafka.spark.options import RequestedOffsets
from dafka.spark.planning import (
    RECORD_BYTES,
    SLACK,
    TASK_BYTES_MAX,
    TASK_BYTES_MIN,
    StoreRange,
    plan_tasks,
    resolve_offsets,
)
from dafka.spark.stores import Replica, StoredPartition
from dafka.storage import PartitionInfo

RANGES = st.lists(st.tuples(st.integers(0, 2**40), st.integers(1, 2**24), st.integers(0, 4096)), max_size=30).map(
    lambda found: [
        StoreRange("sqlite:x.db", Partition("orders", str(number)), start, start + count, size)
        for number, (start, count, size) in enumerate(found)
    ]
)


@given(RANGES, st.integers(1, 64))
def test_tasks_cover_the_ranges_exactly_once(ranges: list[StoreRange], tasks_min: int) -> None:
    parts = [each for task in plan_tasks(ranges, tasks_min) for each in task.ranges]
    assert all(each.start < each.end for each in parts)
    for whole in ranges:
        own = [each for each in parts if each.partition == whole.partition]
        assert (own[0].start, own[-1].end) == (whole.start, whole.end)
        assert all(before.end == after.start for before, after in pairwise(own))
    order = [each.partition for each in parts]
    assert order == sorted(order, key=[each.partition for each in ranges].index)


@given(RANGES, st.integers(1, 64))
def test_tasks_have_a_bounded_weight_and_are_enough(ranges: list[StoreRange], tasks_min: int) -> None:
    tasks = plan_tasks(ranges, tasks_min)
    weights = [sum(each.weight for each in task.ranges) for task in tasks]
    largest = max((each.record_bytes for each in ranges), default=0) + RECORD_BYTES
    assert all(weight <= TASK_BYTES_MAX * SLACK + TASK_BYTES_MIN * 2 + largest for weight in weights)
    total = sum(weights)
    if total >= 8 * tasks_min * TASK_BYTES_MIN:
        assert len(tasks) >= tasks_min
    assert len(tasks) <= 1 + total // TASK_BYTES_MIN + tasks_min * 2


def test_one_large_partition_uses_every_core_evenly() -> None:
    tasks = plan_tasks([StoreRange("sqlite:x.db", Partition("orders", "A"), 0, 5_000_000, 100)], 8)
    counts = [len(task.ranges[0]) for task in tasks]
    assert len(tasks) % 8 == 0
    assert max(counts) - min(counts) <= 1


def test_few_records_are_one_task_and_no_records_are_none() -> None:
    assert len(plan_tasks([StoreRange("sqlite:x.db", Partition("orders", "A"), 5, 9, 100)], 8)) == 1
    assert plan_tasks([], 8) == []


def test_ten_thousand_partitions_are_planned_quickly() -> None:
    ranges = [StoreRange("sqlite:x.db", Partition("orders", f"{number:032X}"), 0, 100, 100) for number in range(10_000)]
    started = time.process_time()
    tasks = plan_tasks(ranges, 4)
    size = sum(len(pickle.dumps(task)) for task in tasks)
    assert time.process_time() - started < 2
    assert 1 <= len(tasks) <= 8
    assert size < 4 * 2**20


def stored(earliest: int, end: int) -> StoredPartition:
    partition = Partition("orders", "A")
    return StoredPartition(partition, (Replica("sqlite:x.db", PartitionInfo(earliest, end)),), earliest, end)


@pytest.mark.parametrize(("requested", "start"), [(EARLIEST, 10), (LATEST, 20), (10, 10), (15, 15), (20, 20)])
def test_requested_offsets_are_resolved(requested: int, start: int) -> None:
    name = "orders", "A"
    for fail in (True, False):
        found = resolve_offsets(
            "startingOffsets",
            RequestedOffsets(requested),
            {name: stored(10, 20)},
            is_start=True,
            fail_on_data_loss=fail,
        )
        assert found == {name: start}


@pytest.mark.parametrize(
    ("requested", "error", "sentence", "nearest"),
    [
        (21, ConfigError, "option startingOffsets: expected at most 20, the end of orders/A, not 21 (", 20),
        (2**70, ConfigError, f"the end of orders/A, not {2**70} (", 20),
        (9, StorageError, "orders/A: records 9 to 9 are no longer in the stores", 10),
        (0, StorageError, "orders/A: records 0 to 9 are no longer in the stores", 10),
    ],
)
def test_requested_offsets_that_are_not_stored(
    requested: int, error: type[Exception], sentence: str, nearest: int
) -> None:
    name = "orders", "A"
    offsets = RequestedOffsets(EARLIEST, {name: requested})
    with pytest.raises(error) as caught:
        resolve_offsets("startingOffsets", offsets, {name: stored(10, 20)}, is_start=True, fail_on_data_loss=True)
    assert sentence in str(caught.value)
    assert "set failOnDataLoss to false" in str(caught.value)
    found = resolve_offsets("startingOffsets", offsets, {name: stored(10, 20)}, is_start=True, fail_on_data_loss=False)
    assert found == {name: nearest}


def test_a_requested_partition_that_no_store_has() -> None:
    offsets = RequestedOffsets(EARLIEST, {("orders", "B"): 3})
    with pytest.raises(ConfigError, match="option endingOffsets: none of the stores has the partition orders/B"):
        resolve_offsets("endingOffsets", offsets, {}, is_start=False, fail_on_data_loss=True)
    assert resolve_offsets("endingOffsets", offsets, {}, is_start=False, fail_on_data_loss=False) == {}
