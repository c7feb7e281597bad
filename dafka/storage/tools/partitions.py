"""Selecting partitions, reading their records, and finding those that a retention policy keeps, for the other tools."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dafka.errors import StorageCorruptError, StorageError, StorageSequenceError
from dafka.records import Partition, RecordBatch
from dafka.storage.base import PartitionInfo, RetentionPolicy, Storage

ProgressCallback = Callable[[int, int | None], None]
"""Called with the number of records done and the total; the total is None if it is unknown."""


async def select_partitions(storage: Storage, topics: Sequence[str] | None = None) -> dict[Partition, PartitionInfo]:
    """Describe the partitions of some topics, or of all if none is given, sorted by topic and address.

    Raise `StorageError` if a topic has no partition.
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
    """Return at least the first record of a range that the storage lists as held, with times.

    Raise `StorageSequenceError` if the records have been dropped since they were listed, and `StorageCorruptError` if
    the first record is damaged or missing.
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


async def find_retained_sequence(
    storage: Storage, partition: Partition, info: PartitionInfo, policy: RetentionPolicy, now_ms: int
) -> int:
    """Return the sequence of the first record of a partition that a policy keeps, or the end if it keeps none.

    A storage may keep more. Raise `StorageError` if the storage fails or a record is damaged.
    """
    first = info.earliest_sequence
    if policy.records_max is not None:
        first = max(first, info.end_sequence - policy.records_max)
    if policy.age_ms is not None:
        first = max(first, await storage.find_sequence_by_time(partition, now_ms - policy.age_ms))
    if policy.bytes_max is not None:
        first = max(first, await _sequence_after_bytes(storage, partition, info, info.content_bytes - policy.bytes_max))
    return min(first, info.end_sequence)


async def _sequence_after_bytes(storage: Storage, partition: Partition, info: PartitionInfo, surplus: int) -> int:
    """Return the sequence after the oldest records whose contents are at least `surplus` bytes."""
    sequence = info.earliest_sequence
    while sequence < info.end_sequence and surplus > 0:
        batch = await read_next(storage, partition, sequence, info.end_sequence)
        for size in batch.record_sizes():
            if surplus <= 0:
                return sequence
            surplus -= size
            sequence += 1
    return sequence
