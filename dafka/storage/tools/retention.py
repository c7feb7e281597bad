"""Finding the records that a retention policy would drop."""

from __future__ import annotations

from dafka.records import Partition
from dafka.storage.base import PartitionInfo, RetentionPolicy, Storage
from dafka.storage.tools.partitions import read_next


async def find_retained_sequence(
    storage: Storage, partition: Partition, info: PartitionInfo, policy: RetentionPolicy, now_ms: int
) -> int:
    """Return the sequence of the first record of a partition that a policy keeps. A storage may keep more.

    Args:
        storage: The storage to read.
        partition: The partition.
        info: The description of the partition.
        policy: The limits.
        now_ms: The time, in milliseconds since 1970.

    Returns:
        The sequence; the end of the partition if no record is kept.

    Raises:
        StorageError: The storage fails, or a record is damaged.
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
