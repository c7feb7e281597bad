"""Plans a read of stores: resolves the requested offsets, divides the ranges into Spark tasks, and chooses replicas.

The division depends only on the offsets. The contents of the stores, the sizes and tiers of records, and the chosen
replica can change from attempt to attempt; the rows of a task must not.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

import attrs
from pyspark.sql.datasource import InputPartition

from dafka.errors import ConfigError, StorageError
from dafka.records import Partition
from dafka.spark.offsets import EARLIEST, LATEST, PartitionName, format_name
from dafka.spark.options import RequestedOffsets
from dafka.spark.stores import StoredPartition

TASK_RECORDS_MAX = 1_000_000
"""The approximate limit of a task in records, so that a task of a large store can be retried quickly."""

TASK_RECORDS_MIN = 1_000
"""Ranges of fewer records are not split: starting a task usually takes longer than reading them."""

SLACK = 1.1
"""The factor by which a task can exceed its share, to avoid another small task."""

OffsetRange = tuple[PartitionName, int, int]
"""A partition, the first offset, and the offset after the last one."""

_logger = logging.getLogger("dafka.spark")


@attrs.frozen
class StoreRange:
    """A range of records of one partition, to be read from one store, or from its cold tier.

    `record_bytes` is the average size of a content in the partition.
    """

    url: str
    partition: Partition
    start: int
    end: int
    record_bytes: int
    is_cold: bool = False

    def __len__(self) -> int:
        return self.end - self.start


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
    """Return the starting or ending offsets that an option requests of stored partitions, limited to stored records.

    Raise `ConfigError` if an offset is beyond the end of its partition, or a named partition is in no store, and
    `StorageError` if the records at a starting offset are no longer stored. Unless `fail_on_data_loss`, the nearest
    offset is used instead.
    """
    for name in sorted(requested.by_partition.keys() - stored.keys()):
        if fail_on_data_loss:
            raise ConfigError(
                f"option {option}: none of the stores has the partition {format_name(name)} "
                "(set failOnDataLoss to false to ignore it)"
            )
        _logger.warning("Option %s: none of the stores has the partition %s; it is left out", option, format_name(name))
    offsets = {}
    for name, partition in stored.items():
        offset = requested.for_partition(name)
        if offset == EARLIEST:
            offset = partition.earliest
        elif offset == LATEST:
            offset = partition.end
        elif offset > partition.end:
            if fail_on_data_loss:
                raise ConfigError(
                    f"option {option}: expected at most {partition.end}, the end of {format_name(name)}, not {offset} "
                    "(set failOnDataLoss to false to read what there is)"
                )
            _logger.warning("Option %s: %s ends at %d, before %d", option, format_name(name), partition.end, offset)
        elif is_start and offset < partition.earliest:
            if fail_on_data_loss:
                raise data_loss_error(name, offset, partition.earliest)
            warn_of_skipped(name, offset, partition.earliest)
        offsets[name] = min(max(offset, partition.earliest), partition.end)
    return offsets


def data_loss_error(name: PartitionName, start: int, earliest: int) -> StorageError:
    """Return the error for records from `start` up to `earliest` that are no longer stored."""
    return StorageError(
        f"{format_name(name)}: records {start} to {earliest - 1} are no longer in the stores "
        "(set failOnDataLoss to false to skip them)"
    )


def warn_of_skipped(name: PartitionName, start: int, end: int, why: str = "they are no longer in the stores") -> None:
    """Log that records from `start` up to `end`, or some from `start` on, are left out, and the reason."""
    if end > start:
        _logger.warning(
            "%s: records %d to %d (%d of them) are left out: %s", format_name(name), start, end - 1, end - start, why
        )
    else:
        _logger.warning("%s: records from %d on may be left out: %s", format_name(name), start, why)


def divide_ranges(ranges: Iterable[OffsetRange], tasks_min: int) -> list[list[OffsetRange]]:
    """Divide ranges into tasks of about equal numbers of records: large ranges are split, small ones share a task.

    The result depends only on the arguments: a repeated micro-batch, or a repeated batch with the same offsets, has the
    same tasks. Their number is a multiple of `tasks_min`, so that all cores finish at the same time, unless they would
    have fewer than `TASK_RECORDS_MIN` records. No range may be empty.
    """
    ranges = sorted(ranges)
    total = sum(end - start for _, start, end in ranges)
    rounds = max(-(-total // (tasks_min * TASK_RECORDS_MAX)), 1)
    share = max(total // (tasks_min * rounds), 1)
    tasks: list[list[OffsetRange]] = []
    count = 0
    for name, start, end in (part for whole in ranges for part in _split(whole, share)):
        if not tasks or count + end - start > share * SLACK:
            tasks.append([])
            count = 0
        tasks[-1].append((name, start, end))
        count += end - start
    return tasks


def plan_task(stored: Mapping[PartitionName, StoredPartition], ranges: Iterable[OffsetRange]) -> StoreTask:
    """Return the task that reads the stored records of these ranges, each part from a store that holds it."""
    return StoreTask(
        [
            StoreRange(url, stored[name].partition, first, last, stored[name].record_bytes, is_cold)
            for name, start, end in ranges
            if name in stored
            for url, first, last, is_cold in stored[name].choose_tiers(
                max(start, stored[name].earliest), min(end, stored[name].end)
            )
        ]
    )


def _split(whole: OffsetRange, share: int) -> Iterator[OffsetRange]:
    """Split a range into equal parts of about `share` records; a small range is not split."""
    name, start, end = whole
    count = end - start
    parts = min(-(-count // share), max(count // TASK_RECORDS_MIN, 1))
    bounds = [start + count * index // parts for index in range(parts + 1)]
    return ((name, first, last) for first, last in pairwise(bounds))
