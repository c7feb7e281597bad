"""From what is asked for to tasks: which partitions, from where to where, cut so that every core has work."""

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
"""Contents of one task, about; a store of any size is read in pieces that can be tried again."""

TASK_BYTES_MIN = 2 * 2**20
"""What is less is not worth a task of its own."""

SLACK = 1.1
"""So much more than its share may a task have, where another task would be a small one."""

RECORD_BYTES = 64
"""What a record costs beyond its content."""


@attrs.frozen
class StoreRange:
    """Records of one partition to be read from one store."""

    url: str
    partition: Partition
    start: int
    end: int
    record_bytes: int

    def __len__(self) -> int:
        return self.end - self.start

    @property
    def weight(self) -> int:
        """What reading it costs, in octets, about."""
        return len(self) * (self.record_bytes + RECORD_BYTES)


class StoreTask(InputPartition):
    """What one task of Spark's reads."""

    def __init__(self, ranges: Sequence[StoreRange]) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)


def resolve_offsets(
    option: str,
    positions: RequestedOffsets,
    held: Mapping[PartitionName, StoredPartition],
    *,
    is_start: bool,
    fail_on_data_loss: bool,
) -> dict[PartitionName, int]:
    """The offset that is meant in each partition held, within what is held of it.

    Raises `ConfigError` where an offset lies beyond a partition's end, `StorageError` where what it asks for is no
    longer held, each unless `fail_on_data_loss` is False: then it means what is nearest.
    """
    for name in positions.named.keys() - held.keys() if fail_on_data_loss else ():
        raise ConfigError(
            f"option {option}: no store that is read has the partition {format_name(name)} "
            "(failOnDataLoss=false ignores it)"
        )
    found = {}
    for name, partition in held.items():
        offset = positions.of(name)
        if offset == EARLIEST:
            offset = partition.earliest
        elif offset == LATEST:
            offset = partition.end
        elif fail_on_data_loss and offset > partition.end:
            raise ConfigError(
                f"option {option}: {format_name(name)} ends before offset {partition.end}, so {offset} is beyond "
                "its head (failOnDataLoss=false reads what there is)"
            )
        elif fail_on_data_loss and is_start and offset < partition.earliest:
            raise data_loss_error(name, offset, partition.earliest)
        found[name] = min(max(offset, partition.earliest), partition.end)
    return found


def data_loss_error(name: PartitionName, start: int, earliest: int) -> StorageError:
    """What is to be raised where records that are asked for are held no more."""
    return StorageError(
        f"{format_name(name)}: records {start} to {earliest - 1} are not all held by the stores that are read "
        "(any more); with failOnDataLoss=false they are left out"
    )


def plan_ranges(
    held: Mapping[PartitionName, StoredPartition],
    starts: Mapping[PartitionName, int],
    ends: Mapping[PartitionName, int],
) -> list[StoreRange]:
    """The ranges to read, in order, each of a store that holds it."""
    return [
        StoreRange(url, partition.partition, start, end, partition.record_bytes)
        for name, partition in sorted(held.items())
        for url, start, end in partition.choose_replicas(starts[name], ends[name])
    ]


def plan_tasks(ranges: Sequence[StoreRange], tasks_min: int) -> list[StoreTask]:
    """Ranges as tasks of about the same size: large ones are cut, small ones share a task.

    There are `tasks_min` of them or a multiple, as far as they are worth it, so that no core is left waiting for one.
    """
    total = sum(each.weight for each in ranges)
    rounds = max(-(-total // (tasks_min * TASK_BYTES_MAX)), 1)
    share = max(total // (tasks_min * rounds), 1)
    tasks: list[list[StoreRange]] = []
    weight = 0
    for each in (part for whole in ranges for part in _cut(whole, share)):
        if not tasks or weight + each.weight > share * SLACK:
            tasks.append([])
            weight = 0
        tasks[-1].append(each)
        weight += each.weight
    return [StoreTask(task) for task in tasks]


def parse_min_tasks(options: Options) -> int:
    """The option `minPartitions`: how many tasks there are at least, if they are worth it; else one a core here."""
    return options.get_int("minPartitions") or os.cpu_count() or 1


def _cut(each: StoreRange, share: int) -> list[StoreRange]:
    """A range in equal parts of about `share`; what is little stays together."""
    parts = min(-(-each.weight // share), max(each.weight // TASK_BYTES_MIN, 1), len(each))
    cuts = [each.start + len(each) * number // parts for number in range(parts + 1)]
    return [attrs.evolve(each, start=start, end=end) for start, end in pairwise(cuts)]
