"""Copying one storage into another: records with their times, the start of each partition, and consumers' positions.

A copy that was interrupted can be continued: records that the target already holds are not copied again. The identity
is not copied, because the copy is a different store.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

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
    """The result of `copy_storage`.

    Attributes:
        partitions: The number of partitions that received records.
        records: The number of records copied.
        content_bytes: The total size of their values, keys and headers, in bytes.
        present: The number of records that the target already held.
        ahead: The partitions with more records in the target than in the source. They were not changed.
        position_names: The number of consumers whose positions were copied.
    """

    partitions: int
    records: int
    content_bytes: int
    present: int
    ahead: tuple[Partition, ...]
    position_names: int


async def copy_storage(
    source: Storage, target: Storage, *, topics: Sequence[str] | None = None, progress: ProgressCallback | None = None
) -> CopySummary:
    """Copy what the source holds now, and return when it is durable in the target.

    Args:
        source: The storage to read.
        target: The storage to append to.
        topics: The topics to copy; None or empty for all topics.
        progress: Called with the number of records copied and their total.

    Returns:
        What was copied.

    Raises:
        RecordsDifferError: If the target holds different records than the source. Nothing was copied.
        StorageSequenceError: If records between the end of the target and the start of the source are missing.
            Nothing was copied.
        StorageUnsupportedError: If the target holds values only, and a record has a key or headers or is a tombstone;
            or if compaction has removed records from the source, and the target cannot compact. The target holds the
            records before it.
        StorageCorruptError: If the source is damaged. The target holds the records before the damage.
        StorageError: If the source has no partition of a topic, or a medium fails.
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
    """The records to copy.

    Attributes:
        ranges: The first and the end sequence to copy of each partition.
        resets: The sequence at which to start partitions that have no records in the target.
        ahead: The partitions with more records in the target than in the source.
        present: The number of records that the target already holds.
    """

    ranges: dict[Partition, tuple[int, int]] = attrs.Factory(dict)
    resets: dict[Partition, int] = attrs.Factory(dict)
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
            can_be_compacted = isinstance(target, CompactsPartitions)
            nursery.start_soon(
                partial(_read_ahead, source, plan.ranges, send_groups, can_be_compacted=can_be_compacted)
            )
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
    ranges: dict[Partition, tuple[int, int]],
    groups: trio.MemorySendChannel[list[RecordBatch] | StorageError],
    *,
    can_be_compacted: bool,
) -> None:
    """Send the records that are read, in groups, and finally the error that stopped reading, if any."""
    group = _Group()
    async with groups:
        try:
            for partition, (first, end) in ranges.items():
                sequence = first
                while sequence < end:
                    batch = await read_next(source, partition, sequence, end)
                    if batch.compacted is not None and not can_be_compacted:
                        raise StorageUnsupportedError(
                            f"{partition}: records from {sequence} on were removed by compaction, and the target "
                            "cannot keep the places of such records; copy to sqlite: or filelog:"
                        )
                    group.add_batch(batch)
                    if group.memory_bytes >= GROUP_BYTES:
                        await groups.send(group.take_batches())
                    sequence = batch.end_sequence
        except StorageError as error:
            await groups.send(group.take_batches())
            await groups.send(error)
        else:
            await groups.send(group.take_batches())


class _Group:
    """Batches for one append. Consecutive batches of a partition are joined, as a storage may read small pieces."""

    def __init__(self) -> None:
        self.memory_bytes = 0
        self._runs: list[list[RecordBatch]] = []

    def add_batch(self, batch: RecordBatch) -> None:
        self.memory_bytes += batch.memory_bytes
        if self._runs and self._runs[-1][0].partition == batch.partition:
            self._runs[-1].append(batch)
        else:
            self._runs.append([batch])

    def take_batches(self) -> list[RecordBatch]:
        """Return the batches added since the last call."""
        group = [join(run) for run in self._runs]
        self._runs = []
        self.memory_bytes = 0
        return group


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
