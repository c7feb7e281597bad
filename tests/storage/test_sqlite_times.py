from __future__ import annotations

from pathlib import Path

import pytest

from dafka.errors import StorageError
from dafka.records import Partition, RecordBatch
from dafka.storage import PartitionInfo, open_storage
from dafka.storage.sqlite import SqliteStorage

PARTITION = Partition("orders", "A" * 32)


def contents(first_sequence: int, count: int) -> list[bytes]:
    return [b"%d" % sequence for sequence in range(first_sequence, first_sequence + count)]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path}/store.db"


async def read_times(url: str) -> list[int]:
    async with open_storage(url, read_only=True) as storage:
        batch = await storage.read(PARTITION, 0, 10_000, with_times=True)
    assert batch is not None
    assert batch.stored_at is not None
    assert batch.values == contents(0, len(batch))
    return list(batch.stored_at)


@pytest.mark.parametrize(
    "times",
    [
        [5] * 40,
        [n // 16 for n in range(200)],
        list(range(200)),
        [9, 5, 11, 10, 11, 12],
        [100] * 50 + [50] * 50 + [101] * 50,
        [7],
    ],
)
async def test_given_times_are_kept_and_never_decrease(url: str, times: list[int]) -> None:
    expected = [max(times[: index + 1]) for index in range(len(times))]
    async with open_storage(url) as storage:
        await storage.append([RecordBatch(PARTITION, 0, contents(0, len(times)), stored_at=times)])
        info = (await storage.partitions())[PARTITION]
        assert (info.earliest_stored_at, info.latest_stored_at) == (expected[0], expected[-1])
        for time_ms in {*times, times[0] - 1, expected[-1] + 1, 8}:
            sequence = await storage.find_sequence_by_time(PARTITION, time_ms)
            assert sequence == sum(stored_at < time_ms for stored_at in expected)
        assert await storage.find_damage() == []
        await storage.append([RecordBatch(PARTITION, len(times), contents(len(times), 1), stored_at=[0])])
    assert await read_times(url) == [*expected, expected[-1]]


async def test_different_times_need_few_statements(url: str) -> None:
    async with open_storage(url) as storage:
        assert isinstance(storage, SqliteStorage)
        assert storage._writer is not None
        statements: list[str] = []
        first = 0
        for times in (None, [7] * 1000, [2**41 + n // 100 for n in range(1000)], [2**42 + n for n in range(1000)]):
            statements.clear()
            storage._writer.set_trace_callback(statements.append)
            await storage.append([RecordBatch(PARTITION, first, contents(first, 1000), stored_at=times)])
            storage._writer.set_trace_callback(None)
            assert sum(statement.startswith("INSERT INTO records") for statement in statements) == 1
            first += 1000


async def test_latest_time_is_kept_without_records(url: str) -> None:
    future = 2**42
    async with open_storage(url) as storage:
        await storage.append([RecordBatch(PARTITION, 0, contents(0, 3), stored_at=[future] * 3)])
        await storage.trim(PARTITION, 3)
        assert await storage.partitions() == {PARTITION: PartitionInfo(3, 3)}
        assert await storage.find_sequence_by_time(PARTITION, 0) == 3
    async with open_storage(url) as storage:
        assert await storage.partitions() == {PARTITION: PartitionInfo(3, 3)}
        await storage.append([RecordBatch(PARTITION, 3, [b"3"]), RecordBatch(PARTITION, 4, [b"4"], stored_at=[5])])
        assert await storage.partitions() == {PARTITION: PartitionInfo(3, 5, 2, future, future)}
        await storage.reset_to(PARTITION, 10)
        await storage.append([RecordBatch(PARTITION, 10, [b"10"], stored_at=[5])])
        assert await storage.partitions() == {PARTITION: PartitionInfo(10, 11, 2, future, future)}


async def test_reader_and_writer_return_the_same(url: str) -> None:
    others = [Partition("orders", "B"), Partition("logs", "B"), Partition("\udcff", "\udcfe")]
    async with open_storage(url) as storage, open_storage(url, read_only=True) as reader:
        for partition in (PARTITION, *others):
            await storage.append([RecordBatch(partition, 5, contents(5, 7))])
        await storage.trim(PARTITION, 7)
        await storage.trim(others[0], 100)
        await storage.reset_to(others[1], 50)
        await storage.reset_to(Partition("logs", "new"), 3)
        for topic in (None, "orders", "logs", "\udcff", "nothing"):
            assert await reader.partitions(topic) == await storage.partitions(topic)
        ours, theirs = await storage.statistics(), await reader.statistics()
        assert ours == theirs
        assert (ours.partitions, ours.records) == (5, 12)
        assert ours.stored_bytes > 4096 * 5
        await storage.save_positions("b", {PARTITION: 1, others[0]: 2})
        await storage.save_positions("a", {PARTITION: 1})
        assert await reader.position_names() == await storage.position_names() == ["a", "b"]


async def test_time_beyond_64_bits_is_refused(url: str) -> None:
    async with open_storage(url) as storage:
        with pytest.raises(StorageError, match="too large"):
            await storage.append([RecordBatch(PARTITION, 0, [b"0", b"1"], stored_at=[0, 2**64])])
        assert await storage.partitions() == {}
        await storage.append([RecordBatch(PARTITION, 0, [b"0"])])
