"""Selecting partitions and reading their records, for the other tools."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dafka.errors import StorageCorruptError, StorageError, StorageSequenceError
from dafka.records import Partition, RecordBatch
from dafka.storage.base import PartitionInfo, Storage

ProgressCallback = Callable[[int, int | None], None]
"""Called with the number of records done and the total; the total is None if it is unknown."""


async def select_partitions(storage: Storage, topics: Sequence[str] | None = None) -> dict[Partition, PartitionInfo]:
    """Describe partitions, sorted by topic and address.

    Args:
        storage: The storage to list.
        topics: The topics whose partitions to return; None or empty for all topics.

    Returns:
        The partitions, including those without records.

    Raises:
        StorageError: If a topic has no partition.
    """
    if not topics:
        return dict(sorted((await storage.partitions()).items()))
    found: dict[Partition, PartitionInfo] = {}
    for topic in sorted(set(topics)):
        of_topic = await storage.partitions(topic)
        if not of_topic:
            raise StorageError(f"topic {topic!r} has no partition")
        found.update(sorted(of_topic.items()))
    return found


async def read_next(storage: Storage, partition: Partition, first_sequence: int, end_sequence: int) -> RecordBatch:
    """Return the first records of a range that the storage lists as held, with their times.

    Args:
        storage: The storage to read.
        partition: The partition to read.
        first_sequence: The sequence of the first record.
        end_sequence: The sequence after the last record of the range.

    Returns:
        At least one record.

    Raises:
        StorageSequenceError: If the records have been dropped since they were listed.
        StorageCorruptError: If the first record is damaged or missing.
    """
    batch = await storage.read(partition, first_sequence, end_sequence - first_sequence, with_times=True)
    if batch is None:
        raise await _explain_absence(storage, partition, first_sequence)
    return batch


async def _explain_absence(storage: Storage, partition: Partition, sequence: int) -> StorageError:
    info = await storage.find_partition(partition) or PartitionInfo()
    if info.earliest_sequence > sequence:
        return StorageSequenceError(
            f"{partition}: the records from sequence {sequence} up to {info.earliest_sequence - 1} "
            "were dropped before they were read; run the command again"
        )
    return StorageCorruptError(f"{partition}: sequence {sequence} is listed as held but is missing", sequence + 1)
