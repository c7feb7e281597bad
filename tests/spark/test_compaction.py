"""Spark reads what compaction has left: at their offsets, and no gap counts as a loss."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from dafka.records import Partition, RecordBatch
from dafka.spark.planning import StoreRange, StoreTask
from dafka.spark.scan import scan_task
from dafka.storage import open_storage
from dafka.storage.compaction import CompactionPolicy, compact_partition
from tests.spark.stores import A

PARTITION = Partition("prices", A)

COUNT, KEYS = 400, 13

COLUMNS = ("topic", "offset", "key", "value", "headers", "timestamp", "stored_at")


async def no_wait(_count: int) -> None:
    await trio.lowlevel.checkpoint()


async def fill(url: str) -> dict[int, bytes | None]:
    """Make a compacted store, and return the values that it holds, by their offsets."""
    found: dict[int, bytes | None] = {}
    async with open_storage(url) as storage:
        for first in range(0, COUNT, 10):
            sequences = range(first, first + 10)
            batch = RecordBatch(
                PARTITION,
                first,
                [b"%d" % each for each in sequences],
                keys=[b"key %d" % (each % KEYS) for each in sequences],
                headers=[(("number", b"%d" % each),) for each in sequences],
                timestamps=[1000 + each for each in sequences],
            )
            await storage.append([batch])
        await compact_partition(storage, PARTITION, 0, CompactionPolicy(dirty_ratio=0), 0, no_wait)
        sequence = 0
        while sequence < COUNT:
            read = await storage.read(PARTITION, sequence, COUNT)
            assert read is not None
            found.update((record.sequence, record.value) for record in read)
            sequence = read.end_sequence
    assert KEYS <= len(found) < COUNT / 2
    return found


@pytest.mark.parametrize("url", ["sqlite:{}/store.db", "filelog:{}/log?segment_bytes=1500"])
def test_what_is_left_is_read_at_its_offsets(url: str, tmp_path: Path) -> None:
    url = url.format(tmp_path)
    expected = trio.run(fill, url)
    task = StoreTask((StoreRange(url.partition("?")[0], PARTITION, 0, COUNT, 20),))
    rows = [row for batch in scan_task(task, COLUMNS, fail_on_data_loss=True) for row in batch.to_pylist()]
    assert {row["offset"]: row["value"] for row in rows} == expected
    assert len(rows) == len(expected)
    for row in rows:
        assert row["key"] == b"key %d" % (row["offset"] % KEYS)
        assert row["headers"] == [{"key": "number", "value": b"%d" % row["offset"]}]
        assert row["timestamp"].timestamp() == (1000 + row["offset"]) / 1000
