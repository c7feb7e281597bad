"""The limits of a storage in memory: the records appended first are dropped first, and no more than needed."""

from __future__ import annotations

import pytest

from dafka.records import RECORD_MEMORY_BYTES, Partition, RecordBatch
from dafka.storage import DeletesPartitions, open_storage
from dafka.storage.memory import open_memory

A, B = Partition("t", "A"), Partition("t", "B")
ONE = RECORD_MEMORY_BYTES + 1
"""The memory of a record with a content of one byte."""


def batch(partition: Partition, first: int, end: int) -> RecordBatch:
    return RecordBatch(partition, first, [b"x"] * (end - first))


async def test_a_storage_in_memory_is_opened_for_writing() -> None:
    async with open_memory("") as storage:
        await storage.append([batch(A, 0, 2)])
        assert (await storage.partitions())[A].end_sequence == 2


@pytest.mark.parametrize(
    ("limits", "count"),
    [
        ("", 7),
        ("records_max=7", 7),
        ("records_max=6", 6),
        ("records_max=4", 4),
        ("records_max=1", 1),
        (f"bytes_max={7 * ONE}", 7),
        (f"bytes_max={7 * ONE - 1}", 6),
        (f"bytes_max={6 * ONE}", 6),
        (f"bytes_max={3 * ONE}", 3),
        (f"bytes_max={ONE - 1}", 0),
        (f"records_max=6&bytes_max={3 * ONE}", 3),
        (f"records_max=3&bytes_max={6 * ONE}", 3),
    ],
)
async def test_the_oldest_records_of_all_partitions_are_dropped(limits: str, count: int) -> None:
    async with open_storage(f"memory:?{limits}") as storage:
        for each in (batch(A, 0, 2), batch(B, 0, 2), batch(A, 2, 4), batch(B, 2, 3)):
            await storage.append([each])
        infos = await storage.partitions()
        order = [(A, 0), (A, 1), (B, 0), (B, 1), (A, 2), (A, 3), (B, 2)]
        kept = [each for each in order if infos[each[0]].earliest_sequence <= each[1]]
        assert kept == order[len(order) - count :]
        statistics = await storage.statistics()
        assert (statistics.records, statistics.content_bytes) == (count, count)
        assert statistics.stored_bytes == count * ONE
        assert [infos[each].end_sequence for each in (A, B)] == [4, 3]


async def test_the_limits_hold_after_a_partition_was_deleted() -> None:
    async with open_storage(f"memory:?bytes_max={3 * ONE}") as storage:
        assert isinstance(storage, DeletesPartitions)
        await storage.append([batch(A, 0, 2), batch(B, 0, 1)])
        await storage.delete_partitions([A, Partition("none", "N")])
        await storage.append([batch(B, 1, 3)])
        assert (await storage.statistics()).records == 3
        await storage.append([batch(A, 7, 8)])
        assert [(await storage.partitions())[each].count for each in (A, B)] == [1, 2]
