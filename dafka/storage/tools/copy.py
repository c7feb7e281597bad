"""Copying one storage into another: records with their times, the start of each partition, and consumers' positions.

A copy that was interrupted can be continued: records that the target already holds are not copied again. The identity
is not copied, because the copy is a different store.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

import attrs
import trio

from dafka.errors import StorageCorruptError, StorageError, StorageSequenceError, StorageUnsupportedError
from dafka.exceptions import unwrap_group
from dafka.records import Partition, RecordBatch, join
from dafka.storage.base import READ_BYTES, PartitionInfo, Storage
from dafka.storage.capabilities import CompactsPartitions
from dafka.storage.tools.partitions import ProgressCallback, read_next, select_partitions

GROUP_BYTES = READ_BYTES
"""The size of one append, in bytes of memory. Batches of many partitions share an append, because each one may have to
wait for the disk."""

GROUPS_AHEAD = 1
"""The number of groups that can be queued for appending while the next one is read."""


class RecordsDifferError(StorageError):
    """The target holds a different record than the source at the same sequence. Copy to a different target."""


@attrs.frozen
class CopySummary:
    """The result of `copy_storage`."""

    partitions: int
    """The number of partitions that received records."""
    records: int
    content_bytes: int
    present: int
    """The number of records that the target already held."""
    ahead: tuple[Partition, ...]
    """The partitions with more records in the target than in the source. They were not changed."""
    position_names: int
    """The number of consumers whose positions were copied."""


async def copy_storage(
    source: Storage, target: Storage, *, topics: Sequence[str] | None = None, progress: ProgressCallback | None = None
) -> CopySummary:
    """Copy what the source holds now of some topics, or all, and return when it is durable in the target.

    Raise `RecordsDifferError` if the target holds different records than the source, and `StorageSequenceError` if the
    records between the end of the target and the start of the source are missing. Nothing was copied then. Raise
    `StorageUnsupportedError` if the target cannot hold a record, or cannot compact and compaction has removed records
    from the source, and `StorageCorruptError` if the source is damaged. The target then holds the records before.
    Raise `StorageError` if the source has no partition of a topic, or a medium fails.
    """
    plan = await _make_plan(source, target, topics)
    for partition, sequence in plan.resets.items():
        await target.reset_to(partition, sequence)
    records, content_bytes = await _copy_records(source, target, plan, progress)
    position_names = await _copy_positions(source, target, plan, topics)
    await target.flush()
    return CopySummary(len(plan.ranges), records, content_bytes, plan.present, tuple(plan.ahead), position_names)


@attrs.define
class _Plan:
    """The records to copy. `ahead` and `present` are those of `CopySummary`."""

    ranges: dict[Partition, tuple[int, int]] = attrs.Factory(dict)
    """The first and the end sequence to copy of each partition."""
    resets: dict[Partition, int] = attrs.Factory(dict)
    """The sequence at which to start partitions that have no records in the target."""
    ahead: list[Partition] = attrs.Factory(list)
    present: int = 0


async def _make_plan(source: Storage, target: Storage, topics: Sequence[str] | None) -> _Plan:
    plan = _Plan()
    held = await target.partitions()
    for partition, theirs in (await select_partitions(source, topics)).items():
        ours = held.get(partition)
        first = theirs.earliest_sequence
        if ours is None:
            if not theirs.count:  # no append will create it
                plan.resets[partition] = first
        elif ours.end_sequence > theirs.end_sequence:
            plan.ahead.append(partition)
            first = theirs.end_sequence
        elif ours.count:
            await _check_continues(source, target, partition, theirs, ours)
            first = ours.end_sequence
        elif first > ours.end_sequence:
            plan.resets[partition] = first
        else:
            first = ours.end_sequence
        if first < theirs.end_sequence:
            plan.ranges[partition] = (first, theirs.end_sequence)
        if ours is not None:
            earliest = max(ours.earliest_sequence, theirs.earliest_sequence)
            plan.present += max(min(ours.end_sequence, theirs.end_sequence) - earliest, 0)
    return plan


async def _check_continues(
    source: Storage, target: Storage, partition: Partition, theirs: PartitionInfo, ours: PartitionInfo
) -> None:
    """Check that the source continues the target and that both hold the same last record, if the source holds it."""
    end = ours.end_sequence
    if theirs.earliest_sequence > end:
        raise StorageSequenceError(
            f"{partition}: the source begins at sequence {theirs.earliest_sequence} and the target ends at {end - 1}; "
            "neither holds the records between them: copy to a new target"
        )
    original = await source.read(partition, end - 1, 1, with_times=True)
    if original is None:  # the source has dropped the record
        return
    copy = await target.read(partition, end - 1, 1, with_times=True)
    if copy is None:
        raise StorageCorruptError(f"{partition}: sequence {end - 1} is listed as held but is missing", end)
    if copy.compacted is not None or original.compacted is not None:
        return  # compaction has removed the record from one of them, so the two cannot be compared
    (ours_last,), (theirs_last,) = copy, original
    fields = ["value", "key", "headers", "stored_at"]
    if ours_last.timestamp is not None and theirs_last.timestamp is not None:  # some storages store no timestamps
        fields.append("timestamp")
    for field in fields:
        if getattr(ours_last, field) != getattr(theirs_last, field):
            raise RecordsDifferError(
                f"{partition}: sequence {end - 1} has another {field} in the target than in the source; "
                "the target is not a copy of the source: copy to another target"
            )


async def _copy_records(
    source: Storage, target: Storage, plan: _Plan, progress: ProgressCallback | None
) -> tuple[int, int]:
    """Append records while the next ones are read; return the number of records and the size of their contents."""
    records = content_bytes = 0
    total = sum(end - first for first, end in plan.ranges.values())
    send_groups, groups = trio.open_memory_channel[list[RecordBatch] | StorageError](GROUPS_AHEAD)
    with unwrap_group():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_read_ahead, source, target, plan.ranges, send_groups)
            async for group in groups:
                if isinstance(group, StorageError):
                    raise group
                await target.append(group)
                records += sum(map(len, group))
                content_bytes += sum(batch.content_bytes for batch in group)
                if progress is not None:
                    progress(records, total)
    return records, content_bytes


async def _read_ahead(
    source: Storage,
    target: Storage,
    ranges: dict[Partition, tuple[int, int]],
    groups: trio.MemorySendChannel[list[RecordBatch] | StorageError],
) -> None:
    """Send the records that are read, in groups, and finally the error that stopped reading, if any."""
    group: list[RecordBatch] = []
    size = 0
    async with groups:
        try:
            for partition, (first, end) in ranges.items():
                sequence = first
                while sequence < end:
                    batch = await read_next(source, partition, sequence, end)
                    if batch.compacted is not None and not isinstance(target, CompactsPartitions):
                        raise StorageUnsupportedError(
                            f"{partition}: records from {sequence} on were removed by compaction, and the target "
                            "cannot keep the places of such records; copy to sqlite: or filelog:"
                        )
                    group.append(batch)
                    size += batch.memory_bytes
                    if size >= GROUP_BYTES:
                        await groups.send(_join_runs(group))
                        group, size = [], 0
                    sequence = batch.end_sequence
        except StorageError as error:
            await groups.send(_join_runs(group))
            await groups.send(error)
        else:
            await groups.send(_join_runs(group))


def _join_runs(batches: Iterable[RecordBatch]) -> list[RecordBatch]:
    """Join consecutive batches of a partition, as a storage may read small pieces."""
    return [join(list(run)) for _, run in groupby(batches, key=lambda batch: batch.partition)]


async def _copy_positions(source: Storage, target: Storage, plan: _Plan, topics: Sequence[str] | None) -> int:
    """Copy positions in the partitions that were copied, and return the number of consumers."""
    names = 0
    unchanged = set(plan.ahead)
    for name in await source.position_names():
        positions = {
            partition: position
            for partition, position in (await source.load_positions(name)).items()
            if partition not in unchanged and (not topics or partition.topic in topics)
        }
        if positions:
            await target.save_positions(name, positions)
            names += 1
    return names
