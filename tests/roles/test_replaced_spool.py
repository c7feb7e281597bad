"""The spool of a producer whose partition was replaced: the partition that the next start continues."""

from __future__ import annotations

import pytest

from dafka.errors import StorageError
from dafka.records import Partition, ProducerRecord, RecordBatch
from dafka.roles.producer_partition import copy_spooled_partition, find_spooled_partition
from dafka.storage.memory import MemoryStorage
from tests.roles.helpers import contents

FIRST, SECOND, THIRD = (Partition("hello", name * 32) for name in "9A5")


async def make_spool() -> MemoryStorage:
    spool = MemoryStorage()
    await spool.append([RecordBatch(FIRST, 0, contents(0, 10))])
    return spool


async def held(spool: MemoryStorage, partition: Partition) -> list[bytes | None]:
    batch = await spool.read(partition, 0, 100)
    return [] if batch is None else list(batch.values)


async def test_a_spool_continues_the_last_replacement_of_its_topic() -> None:
    spool = await make_spool()
    await copy_spooled_partition(spool, FIRST, 4, SECOND)
    assert await held(spool, SECOND) == contents(4, 10)
    await copy_spooled_partition(spool, SECOND, 1, THIRD)
    assert await held(spool, THIRD) == contents(5, 10)
    other = Partition("other", "F" * 32)
    await spool.append([RecordBatch(other, 0, contents(0, 1))])
    await copy_spooled_partition(spool, other, 0, Partition("other", "0" * 32))
    assert await find_spooled_partition(spool, "hello") == THIRD
    assert await held(spool, FIRST) == await held(spool, SECOND) == []


async def test_a_replacement_keeps_whole_records() -> None:
    spool = MemoryStorage()
    records = [
        ProducerRecord(b"0"),
        ProducerRecord(None, b"key", (("a", b"1"), ("a", None)), 7),
        ProducerRecord(b"", b"", (), 0),
    ]
    await spool.append([RecordBatch.from_records(FIRST, 0, records, 5)])
    await copy_spooled_partition(spool, FIRST, 1, SECOND)
    batch = await spool.read(SECOND, 0, 9)
    assert batch is not None
    assert [(each.value, each.key, each.headers, each.timestamp) for each in batch] == [
        (each.value, each.key, each.headers, each.timestamp) for each in records[1:]
    ]


async def test_a_replacement_that_failed_halfway_is_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    spool = await make_spool()
    save = MemoryStorage.save_positions

    async def fail(*_: object) -> None:
        raise StorageError("database or disk is full")

    monkeypatch.setattr(MemoryStorage, "save_positions", fail)
    with pytest.raises(StorageError):
        await copy_spooled_partition(spool, FIRST, 4, SECOND)
    assert await find_spooled_partition(spool, "hello") != SECOND
    assert await held(spool, FIRST) == contents(0, 10)
    monkeypatch.setattr(MemoryStorage, "save_positions", save)
    await copy_spooled_partition(spool, FIRST, 4, SECOND)
    assert await held(spool, SECOND) == contents(4, 10)
    assert await find_spooled_partition(spool, "hello") == SECOND
