"""Finds the records of a log that retention does not keep."""

from __future__ import annotations

from collections.abc import Mapping

from dafka.broker.core.log.log import Log
from dafka.broker.core.positions import Offset, RecordSequence
from dafka.broker.log.reader import LogReader
from dafka.records import Partition
from dafka.storage import PartitionInfo, RetentionPolicy, Storage


async def find_retained_offset(
    storage: Storage,
    reader: LogReader,
    log: Log,
    infos: Mapping[Partition, PartitionInfo],
    policy: RetentionPolicy,
    now_ms: int,
) -> Offset:
    """Return the offset of the first record of a log that a policy keeps; the high watermark if it keeps none.

    The limits apply to the log as a whole. `infos` describes its partitions, and more. Records that this broker does
    not store, although the log has them, are kept as long as the next one: others can have them. Raise `StorageError`
    if the storage fails.
    """
    start, end = log.index.start_offset, log.high_watermark
    found = start
    if policy.records_max is not None:
        found = max(found, Offset(end - policy.records_max))
    if policy.age_ms is not None:
        found = max(found, await find_stored_offset(storage, log, infos, now_ms - policy.age_ms))
    if policy.bytes_max is not None:
        surplus = sum(_content_bytes(log, each, infos) for each in log.index.addresses()) - policy.bytes_max
        if surplus > 0:
            found = max(found, await reader.find_after_bytes(log, surplus))
    return max(start, min(found, end))


async def find_stored_offset(
    storage: Storage, log: Log, infos: Mapping[Partition, PartitionInfo], stored_after: int
) -> Offset:
    """Return the offset of the first record of a log that this broker has stored at a time or later.

    `infos` describes its partitions, and more. Raise `StorageError` if the storage fails.
    """
    found = log.index.end_offset
    for address in log.index.addresses():
        first = log.index.sequence_from(address, log.index.start_offset)
        if first is None:
            continue
        partition = log.partition_of(address)
        info = infos.get(partition, PartitionInfo())
        if info.earliest_stored_at is None:
            is_expired = info.last_append_at is not None and info.last_append_at < stored_after
            sequence = info.end_sequence if is_expired else first
        elif info.earliest_stored_at >= stored_after:
            sequence = first
        else:
            sequence = await storage.find_sequence_by_time(partition, stored_after)
        found = min(found, log.index.find_from(address, RecordSequence(max(sequence, first))))
    return found


def _content_bytes(log: Log, address: str, infos: Mapping[Partition, PartitionInfo]) -> int:
    """Return the size of a partition's records in a log. If other logs have some of them, it is an estimate."""
    info = infos.get(log.partition_of(address), PartitionInfo())
    count = min(log.index.count_from(address, log.index.start_offset), info.count)
    return info.content_bytes * count // max(info.count, 1)
