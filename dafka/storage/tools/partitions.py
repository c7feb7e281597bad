"""What the tools share: which partitions are meant, and reading what is held of one, or saying why not.

Over the `Storage` protocol alone, so for every plugin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dafka.errors import StorageCorruptError, StorageError, StorageSequenceError
from dafka.records import Partition, RecordBatch
from dafka.storage.base import PartitionInfo, Storage

Progress = Callable[[int, int | None], None]
"""Told how many records are done, and of how many; None where nobody knows."""


async def select_partitions(storage: Storage, topics: Sequence[str] | None = None) -> dict[Partition, PartitionInfo]:
    """What is held of every partition, or of these topics', in the order of topic and address.

    Raises `StorageError` for a topic of which there is no partition.
    """
    if not topics:
        return dict(sorted((await storage.partitions()).items()))
    found: dict[Partition, PartitionInfo] = {}
    for topic in sorted(set(topics)):
        of_topic = await storage.partitions(topic)
        if not of_topic:
            raise StorageError(f"there is no partition of topic {topic!r}")
        found.update(sorted(of_topic.items()))
    return found


async def read_next(storage: Storage, partition: Partition, first_sequence: int, end_sequence: int) -> RecordBatch:
    """The first records of a range that should be held, with their times.

    Raises `StorageSequenceError` where they were dropped meanwhile, `StorageCorruptError` where they cannot be read.
    """
    batch = await storage.read(partition, first_sequence, end_sequence - first_sequence, with_times=True)
    if batch is None:
        raise await _explain_absence(storage, partition, first_sequence)
    return batch


async def _explain_absence(storage: Storage, partition: Partition, sequence: int) -> StorageError:
    info = (await storage.partitions(partition.topic)).get(partition, PartitionInfo())
    if info.earliest_sequence > sequence:
        return StorageSequenceError(
            f"{partition}: the records from sequence {sequence} up to {info.earliest_sequence - 1} "
            "were dropped before they were read: run it again"
        )
    return StorageCorruptError(f"{partition}: sequence {sequence} should be held, and is not there", sequence + 1)
