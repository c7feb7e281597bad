from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from dafka.errors import StorageError, StorageSequenceError
from dafka.records import Partition, RecordBatch
from dafka.storage import PartitionInfo, Storage, read_range
from dafka.storage.memory import MemoryStorage
from dafka.storage.tools.copy import GROUP_BYTES, CopySummary, RecordsDifferError, copy_storage

ORDERS = Partition("orders", "A")
BILLS = Partition("bills", "B")
SKIPPED = Partition("skipped", "C")
EARLIER = Partition("earlier", "E")


def batch(first_sequence: int, end_sequence: int, partition: Partition = ORDERS, size: int = 0) -> RecordBatch:
    """Return records whose time is ten times their sequence."""
    sequences = range(first_sequence, end_sequence)
    contents = [(b"%d" % sequence).ljust(size, b".") for sequence in sequences]
    return RecordBatch(partition, first_sequence, contents, stored_at=[10 * sequence for sequence in sequences])


async def memory(*batches: RecordBatch) -> MemoryStorage:
    storage = MemoryStorage()
    await storage.append(batches)
    return storage


async def everything(
    storage: Storage,
) -> tuple[dict[Partition, PartitionInfo], dict[Partition, list[tuple[bytes | None, int]]]]:
    infos = await storage.partitions()
    held: dict[Partition, list[tuple[bytes | None, int]]] = {}
    for partition, info in infos.items():
        held[partition] = []
        async for read in read_range(storage, partition, info.earliest_sequence, info.end_sequence, with_times=True):
            held[partition] += zip(read.values, read.stored_at or (), strict=True)
    return infos, held


class Recorder(MemoryStorage):
    """Records what was appended, and whether that was flushed."""

    def __init__(self) -> None:
        super().__init__()
        self.appends: list[list[RecordBatch]] = []
        self.is_flushed = False

    async def append(self, batches: Sequence[RecordBatch]) -> None:
        await super().append(batches)
        self.appends.append(list(batches))
        self.is_flushed = False

    async def flush(self) -> None:
        await super().flush()
        self.is_flushed = True


async def test_copying_again_copies_nothing() -> None:
    source, target = await memory(batch(0, 10), batch(0, 3, BILLS)), Recorder()
    shown: list[tuple[int, int | None]] = []
    summary = await copy_storage(source, target, progress=lambda done, total: shown.append((done, total)))
    assert summary == CopySummary(2, 13, 13, 0, (), 0)
    assert shown[-1] == (13, 13)
    assert target.is_flushed
    target.appends.clear()
    assert await copy_storage(source, target) == CopySummary(0, 0, 0, 13, (), 0)
    assert [batch for batches in target.appends for batch in batches] == []


async def test_topics() -> None:
    source = await memory(batch(0, 10), batch(0, 3, BILLS), batch(0, 4, SKIPPED))
    await source.save_positions("billing", {ORDERS: 7, BILLS: 2})
    target = MemoryStorage()
    assert (await copy_storage(source, target, topics=["orders", "skipped"])).records == 14
    assert set(await target.partitions()) == {ORDERS, SKIPPED}
    assert await target.load_positions("billing") == {ORDERS: 7}
    with pytest.raises(StorageError, match="topic 'order' has no partition"):
        await copy_storage(source, target, topics=["bills", "order"])
    assert BILLS not in await target.partitions()


async def test_small_partitions_share_an_append_and_large_ones_are_split() -> None:
    many = [batch(0, 10, Partition("small", f"{number:04}")) for number in range(300)]
    source, target = await memory(*many, batch(0, 3000, BILLS, size=1000)), Recorder()
    await copy_storage(source, target)
    sizes = [sum(batch.memory_bytes for batch in batches) for batches in target.appends]
    assert 2 <= len(sizes) <= 6
    assert max(sizes) < 3 * GROUP_BYTES
    assert await everything(source) == await everything(target)
    # The source returns runs with one time, here single records; they are appended as one batch.
    assert len(target.appends[-1]) <= 301


async def test_reading_continues_while_a_group_is_appended() -> None:
    reads: list[int] = []

    class Source(MemoryStorage):
        async def read(self, partition: Partition, first_sequence: int, count: int, *rest: Any, **options: Any) -> Any:
            reads.append(first_sequence)
            return await super().read(partition, first_sequence, 1, *rest, **options)

    class Target(MemoryStorage):
        async def append(self, batches: Sequence[RecordBatch]) -> None:
            await trio.testing.wait_all_tasks_blocked()
            read_before.append(len(reads))
            await super().append(batches)

    read_before: list[int] = []
    source = Source()
    await source.append([batch(0, 20, size=GROUP_BYTES)])
    await copy_storage(source, Target())
    assert read_before[0] == 3  # one is being appended, one is queued, one waits for the queue
    assert read_before[5] == 8


async def test_a_copy_cancelled_anywhere_is_continued(tmp_path: Path) -> None:
    many = [batch(0, 10, Partition("small", f"{number:02}")) for number in range(20)]
    many.append(batch(0, 12, size=GROUP_BYTES // 4))
    source = await memory(*(attrs.evolve(batch, stored_at=[7] * len(batch)) for batch in many))
    await source.reset_to(SKIPPED, 12)
    await source.save_positions("billing", {ORDERS: 7})
    target = MemoryStorage()
    for checkpoints in range(200):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def cancel(checkpoints: int = checkpoints, scope: trio.CancelScope = scope) -> None:
                    for _ in range(checkpoints):
                        await trio.lowlevel.checkpoint()
                    scope.cancel()

                nursery.start_soon(cancel)
                await copy_storage(source, target)
                nursery.cancel_scope.cancel()
    assert await copy_storage(source, target) == CopySummary(0, 0, 0, 212, (), 1)
    assert await everything(source) == await everything(target)


@pytest.mark.parametrize("held", [0, 1, 4, 9, 10])
@pytest.mark.parametrize("source_trimmed", [0, 3, 4, 9])
@pytest.mark.parametrize("target_trimmed", [0, 1, 4])
async def test_an_incomplete_copy_is_continued(held: int, source_trimmed: int, target_trimmed: int) -> None:
    """Also if records that were copied were trimmed since, on either side."""
    source, target = await memory(batch(0, 10)), await memory(*([batch(0, held)] if held else []))
    await source.trim(ORDERS, source_trimmed)
    await target.trim(ORDERS, target_trimmed)
    if not held:
        await target.reset_to(ORDERS, 0)
    is_empty = held <= target_trimmed
    if held < source_trimmed and not is_empty:
        with pytest.raises(StorageSequenceError):
            await copy_storage(source, target)
        return
    summary = await copy_storage(source, target)
    assert summary.records == 10 - max(held, source_trimmed)
    assert summary.present == max(held - max(source_trimmed, target_trimmed), 0)
    first = max(held, source_trimmed) if is_empty else target_trimmed
    expected = batch(first, 10)
    assert (await target.partitions())[ORDERS].earliest_sequence == first
    assert (await everything(target))[1][ORDERS] == [*zip(expected.values, expected.stored_at or (), strict=True)]


@pytest.mark.parametrize(
    ("held", "what"),
    [
        (RecordBatch(ORDERS, 0, [b"0", b"1", b"x"], stored_at=[0, 10, 20]), "value"),
        (RecordBatch(ORDERS, 0, [b"0", b"1", b"2"], stored_at=[0, 10, 21]), "stored_at"),
        (attrs.evolve(batch(0, 3), keys=[None, None, b"2"]), "key"),
        (attrs.evolve(batch(0, 3), headers=[(), (), (("2", None),)]), "headers"),
        (attrs.evolve(batch(0, 3), timestamps=[7, 7, 8]), "timestamp"),
    ],
)
@pytest.mark.parametrize("source_end", [3, 10])
async def test_a_different_record_in_the_target(held: RecordBatch, what: str, source_end: int) -> None:
    whole = attrs.evolve(batch(0, source_end), timestamps=[7] * source_end)
    source = await memory(batch(0, 3, BILLS), batch(7, 9, EARLIER), whole)
    target = await memory(held)
    await target.reset_to(EARLIER, 5)
    with pytest.raises(RecordsDifferError, match=f"^orders/A: sequence 2 has another {what} in the target"):
        await copy_storage(source, target)
    assert {each: info.end_sequence for each, info in (await target.partitions()).items()} == {ORDERS: 3, EARLIER: 5}


async def test_a_target_that_holds_more_is_not_changed() -> None:
    source, target = await memory(batch(0, 3), batch(0, 3, BILLS)), await memory(batch(0, 5))
    await source.save_positions("billing", {ORDERS: 1, BILLS: 1})
    await target.save_positions("billing", {ORDERS: 5})
    summary = await copy_storage(source, target)
    assert summary == CopySummary(1, 3, 3, 3, (ORDERS,), 1)
    assert (await target.partitions())[ORDERS].count == 5
    assert await target.load_positions("billing") == {ORDERS: 5, BILLS: 1}
