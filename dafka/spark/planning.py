"""Plan a read of stores: resolve the requested offsets, choose replicas, and divide the ranges into Spark tasks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import pairwise

import attrs
from pyspark.sql.datasource import InputPartition

from dafka.errors import ConfigError, StorageError
from dafka.records import Partition
from dafka.spark.offsets import EARLIEST, LATEST, PartitionName, format_name
from dafka.spark.options import Options, RequestedOffsets
from dafka.spark.stores import StoredPartition

TASK_BYTES_MAX = 128 * 2**20
"""The approximate limit of a task in bytes of contents, so that a task of a large store can be retried quickly."""

TASK_BYTES_MIN = 2 * 2**20
"""Ranges of fewer bytes are not split: starting a task takes longer than reading them."""

SLACK = 1.1
"""How far a task may exceed its share, as a factor, to avoid another small task."""

RECORD_BYTES = 64
"""The approximate cost of reading a record beyond its content, in bytes."""


@attrs.frozen
class StoreRange:
    """A range of records of one partition, to be read from one store.

    Attributes:
        url: The store.
        partition: The partition.
        start: The first offset.
        end: The offset after the last one.
        record_bytes: The average size of a content in the partition, in bytes.
        is_cold: Whether the records are in the store's cold tier.
    """

    url: str
    partition: Partition
    start: int
    end: int
    record_bytes: int
    is_cold: bool = False

    def __len__(self) -> int:
        return self.end - self.start

    @property
    def weight(self) -> int:
        """The approximate cost of reading the range, in bytes."""
        return len(self) * (self.record_bytes + RECORD_BYTES)


class StoreTask(InputPartition):
    """The ranges that one Spark task reads."""

    def __init__(self, ranges: Sequence[StoreRange]) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)


def resolve_offsets(
    option: str,
    requested: RequestedOffsets,
    stored: Mapping[PartitionName, StoredPartition],
    *,
    is_start: bool,
    fail_on_data_loss: bool,
) -> dict[PartitionName, int]:
    """Resolve the requested offsets of the stored partitions, limited to what is stored of them.

    Args:
        option: The option that requests the offsets, for errors.
        requested: The offsets.
        stored: The partitions that are read.
        is_start: Whether these are the offsets to start from, rather than those to end at.
        fail_on_data_loss: Whether to raise an error if an offset is not stored; otherwise the nearest one is used.

    Returns:
        The offset of each partition.

    Raises:
        ConfigError: If an offset is beyond the end of its partition, or a named partition is in no store.
        StorageError: If the records at a starting offset are no longer stored.
    """
    for name in requested.by_partition.keys() - stored.keys() if fail_on_data_loss else ():
        raise ConfigError(
            f"option {option}: none of the stores has the partition {format_name(name)} "
            "(set failOnDataLoss to false to ignore it)"
        )
    offsets = {}
    for name, partition in stored.items():
        offset = requested.for_partition(name)
        if offset == EARLIEST:
            offset = partition.earliest
        elif offset == LATEST:
            offset = partition.end
        elif fail_on_data_loss and offset > partition.end:
            raise ConfigError(
                f"option {option}: expected at most {partition.end}, the end of {format_name(name)}, not {offset} "
                "(set failOnDataLoss to false to read what there is)"
            )
        elif fail_on_data_loss and is_start and offset < partition.earliest:
            raise data_loss_error(name, offset, partition.earliest)
        offsets[name] = min(max(offset, partition.earliest), partition.end)
    return offsets


def data_loss_error(name: PartitionName, start: int, earliest: int) -> StorageError:
    """Return the error for records from `start` up to `earliest` that are no longer stored."""
    return StorageError(
        f"{format_name(name)}: records {start} to {earliest - 1} are no longer in the stores "
        "(set failOnDataLoss to false to skip them)"
    )


def plan_ranges(
    stored: Mapping[PartitionName, StoredPartition],
    starts: Mapping[PartitionName, int],
    ends: Mapping[PartitionName, int],
) -> list[StoreRange]:
    """Return the ranges to read, ordered by partition and offset, each with a store that holds it."""
    return [
        StoreRange(url, partition.partition, start, end, partition.record_bytes, is_cold)
        for name, partition in sorted(stored.items())
        for url, start, end, is_cold in partition.choose_tiers(starts[name], ends[name])
    ]


def plan_tasks(ranges: Sequence[StoreRange], tasks_min: int) -> list[StoreTask]:
    """Divide ranges into tasks of about equal weight: large ranges are split, small ones share a task.

    The number of tasks is `tasks_min` or a multiple of it, so that all cores finish at the same time. There are fewer
    if tasks would be smaller than `TASK_BYTES_MIN`.
    """
    total = sum(each.weight for each in ranges)
    rounds = max(-(-total // (tasks_min * TASK_BYTES_MAX)), 1)
    share = max(total // (tasks_min * rounds), 1)
    tasks: list[list[StoreRange]] = []
    weight = 0
    for each in (part for whole in ranges for part in _split(whole, share)):
        if not tasks or weight + each.weight > share * SLACK:
            tasks.append([])
            weight = 0
        tasks[-1].append(each)
        weight += each.weight
    return [StoreTask(task) for task in tasks]


def parse_min_tasks(options: Options) -> int:
    """Return the option `minPartitions`, the least number of tasks; by default the number of cores of this machine."""
    return options.get_int("minPartitions") or os.cpu_count() or 1


def _split(each: StoreRange, share: int) -> list[StoreRange]:
    """Split a range into equal parts of about `share` bytes; a small range is not split."""
    parts = min(-(-each.weight // share), max(each.weight // TASK_BYTES_MIN, 1), len(each))
    bounds = [each.start + len(each) * index // parts for index in range(parts + 1)]
    return [attrs.evolve(each, start=start, end=end) for start, end in pairwise(bounds)]
