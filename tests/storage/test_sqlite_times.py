from __future__ import annotations

from pathlib import Path

import pytest

from dafka.errors import StorageError
from dafka.records import Partition, RecordBatch
from dafka.storage import open_storage
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


async def test_time_beyond_64_bits_is_refused(url: str) -> None:
    async with open_storage(url) as storage:
        with pytest.raises(StorageError, match="too large"):
            await storage.append([RecordBatch(PARTITION, 0, [b"0", b"1"], stored_at=[0, 2**64])])
        assert await storage.partitions() == {}
        await storage.append([RecordBatch(PARTITION, 0, [b"0"])])
