"""Copying one storage into another: records and their times, consumers' positions, and where partitions begin.

Over the `Storage` protocol alone. A copy may be ended at any time and begun again: what the target holds is not copied
twice. The identity is not copied, for a copy is another store.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import trio

from dafka.errors import StorageCorruptError, StorageError, StorageSequenceError
from dafka.groups import single_exception
from dafka.records import Partition, RecordBatch, join
from dafka.storage.base import READ_BYTES, PartitionInfo, Storage
from dafka.storage.tools.partitions import Progress, read_next, select_partitions

GROUP_BYTES = READ_BYTES
"""Batches of many partitions are gathered up to this size into one append, which may cost the medium a flush."""

GROUPS_AHEAD = 1
"""How many groups wait for being appended, while another is being read."""


class RecordsDifferError(StorageError):
    """The target holds another record than the source under the same sequence: it is no copy of it."""


@attrs.frozen
class CopySummary:
    """What was copied: partitions that got records, records, octets of their contents, positions by consumers' names.

    `present` counts the records that the target held already; `ahead` are the partitions of which it holds more than
    the source, and which were left as they are.
    """

    partitions: int
    records: int
    content_bytes: int
    present: int
    ahead: tuple[Partition, ...]
    position_names: int


async def copy_storage(
    source: Storage, target: Storage, *, topics: Sequence[str] | None = None, progress: Progress | None = None
) -> CopySummary:
    """Copies what the source holds now, of all topics or of these, and returns when it is durable.

    Raises `RecordsDifferError` where the target holds something else, `StorageSequenceError` where records between
    are to be had nowhere; nothing was copied then. Raises `StorageCorruptError` where the source is damaged; the
    target then holds what comes before. Raises `StorageError` for a topic that the source does not know.
    """
    plan = await _make_plan(source, target, topics)
    for partition, sequence in plan.skips.items():
        await target.reset_to(partition, sequence)
    records, content_bytes = await _copy_records(source, target, plan, progress)
    position_names = await _copy_positions(source, target, plan, topics)
    await target.flush()
    return CopySummary(len(plan.ranges), records, content_bytes, plan.present, tuple(plan.ahead), position_names)


@attrs.define
class _Plan:
    """`ranges`: first and end sequence. `skips`: where partitions begin of which there are no earlier records."""

    ranges: dict[Partition, tuple[int, int]] = attrs.Factory(dict)
    skips: dict[Partition, int] = attrs.Factory(dict)
    ahead: list[Partition] = attrs.Factory(list)
    present: int = 0


async def _make_plan(source: Storage, target: Storage, topics: Sequence[str] | None) -> _Plan:
    plan = _Plan()
    held = await target.partitions()
    for partition, theirs in (await select_partitions(source, topics)).items():
        ours = held.get(partition)
        first = theirs.earliest_sequence
        if ours is None:
            if not theirs.count:  # no append will begin it
                plan.skips[partition] = first
        elif ours.end_sequence > theirs.end_sequence:
            plan.ahead.append(partition)
            first = theirs.end_sequence
        elif ours.count:
            await _check_continues(source, target, partition, theirs, ours)
            first = ours.end_sequence
        elif first > ours.end_sequence:
            plan.skips[partition] = first
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
    """Raises unless the source goes on where the target ends, and has the same last record, if it still has it."""
    end = ours.end_sequence
    if theirs.earliest_sequence > end:
        raise StorageSequenceError(
            f"{partition}: the source begins with sequence {theirs.earliest_sequence}, the target ends with {end - 1}, "
            "and nothing has the records between: copy to a new target"
        )
    original = await source.read(partition, end - 1, 1, with_times=True)
    if original is None:  # the source has dropped it
        return
    copy = await target.read(partition, end - 1, 1, with_times=True)
    if copy is None:
        raise StorageCorruptError(f"{partition}: sequence {end - 1} should be held, and is not there", end)
    for what, is_same in (
        ("content", list(copy.contents) == list(original.contents)),
        ("time", list(copy.stored_at or ()) == list(original.stored_at or ())),
    ):
        if not is_same:
            raise RecordsDifferError(
                f"{partition}: sequence {end - 1} has another {what} in the target than in the source, "
                "so it is no copy of it: copy to another target"
            )


async def _copy_records(source: Storage, target: Storage, plan: _Plan, progress: Progress | None) -> tuple[int, int]:
    """Appends while the next records are read; gives how many records, and octets of their contents."""
    records = content_bytes = 0
    total = sum(end - first for first, end in plan.ranges.values())
    send_groups, groups = trio.open_memory_channel[list[RecordBatch] | StorageError](GROUPS_AHEAD)
    with single_exception():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_read_ahead, source, plan.ranges, send_groups)
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
) -> None:
    """Sends what is read in groups; in the end, after what came before it, the error that stopped it."""
    group = _Group()
    async with groups:
        try:
            for partition, (first, end) in ranges.items():
                sequence = first
                while sequence < end:
                    batch = await read_next(source, partition, sequence, end)
                    group.add(batch)
                    if group.memory_bytes >= GROUP_BYTES:
                        await groups.send(group.take())
                    sequence = batch.end_sequence
        except StorageError as error:
            await groups.send(group.take())
            await groups.send(error)
        else:
            await groups.send(group.take())


class _Group:
    """Batches of any partitions; those that follow one another are one, for a storage may read in small pieces."""

    def __init__(self) -> None:
        self.memory_bytes = 0
        self._runs: list[list[RecordBatch]] = []

    def add(self, batch: RecordBatch) -> None:
        self.memory_bytes += batch.memory_bytes
        if self._runs and self._runs[-1][0].partition == batch.partition:
            self._runs[-1].append(batch)
        else:
            self._runs.append([batch])

    def take(self) -> list[RecordBatch]:
        """Gives what was added, and begins anew."""
        group = [join(run) for run in self._runs]
        self._runs = []
        self.memory_bytes = 0
        return group


async def _copy_positions(source: Storage, target: Storage, plan: _Plan, topics: Sequence[str] | None) -> int:
    """Copies positions of the topics asked for, except in partitions that were left as they are; counts the names."""
    names = 0
    left = set(plan.ahead)
    for name in await source.position_names():
        positions = {
            partition: position
            for partition, position in (await source.load_positions(name)).items()
            if partition not in left and (not topics or partition.topic in topics)
        }
        if positions:
            await target.save_positions(name, positions)
            names += 1
    return names
