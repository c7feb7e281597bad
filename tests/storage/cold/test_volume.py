"""Much more than stays hot: all of it is read in order, and DuckDB finds the same sums in the objects."""

from __future__ import annotations

from pathlib import Path
from random import Random

import duckdb
import pytest

from dafka.packed_bytes import PackedContents
from dafka.records import Partition, RecordBatch
from dafka.storage import open_storage, read_range
from dafka.storage.cold.tiered import TieredStorage

PARTITION = Partition("volume", "A" * 32)
VALUE_BYTES = 1000
BATCH_RECORDS = 5000
MB = 10**6


def make_values(first: int, noise: bytes) -> PackedContents:
    """Return values that begin with their sequence; the rest hardly compresses."""
    parts = []
    for sequence in range(first, first + BATCH_RECORDS):
        at = sequence * 7919 % (len(noise) - VALUE_BYTES)
        parts.append(b"%020d" % sequence + noise[at : at + VALUE_BYTES - 20])
    return PackedContents(b"".join(parts), VALUE_BYTES.to_bytes(4, "big") * BATCH_RECORDS)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("total", "hot", "segment"),
    [(20 * MB, 2 * MB, 2 * MB), pytest.param(1000 * MB, 100 * MB, 64 * 2**20, marks=pytest.mark.long)],
)
async def test_all_of_a_volume_is_read_in_order(total: int, hot: int, segment: int, tmp_path: Path) -> None:
    limits = f"local_retention_bytes={hot}&cold_segment_bytes={segment}&cold_interval_ms=3600000"
    url = f"tiered:filelog:{tmp_path}/log?fsync=never&cold=file://{tmp_path}/bucket&{limits}"
    noise, count = Random(1).randbytes(2**24), total // VALUE_BYTES
    async with open_storage(url) as storage:
        assert isinstance(storage, TieredStorage)
        for first in range(0, count, BATCH_RECORDS):
            await storage.append([RecordBatch(PARTITION, first, make_values(first, noise))])
            if first % (100 * BATCH_RECORDS) == 0 or first + BATCH_RECORDS == count:
                await storage.move_due()
    async with open_storage(url, read_only=True) as storage:
        assert isinstance(storage, TieredStorage)
        sequence = 0
        async for batch in read_range(storage, PARTITION, 0, count):
            assert batch.first_sequence == sequence
            sequence = batch.end_sequence
            assert [int((value or b"")[:20]) for value in batch.values] == [*range(batch.first_sequence, sequence)]
        assert sequence == count
        cold_end = storage.cold_end(PARTITION)
        paths = [each.removeprefix("file://") for each in storage.object_urls()]
    query = 'SELECT count(*), sum("offset"), sum(octet_length(value)), sum(CAST(decode(value[:20]) AS BIGINT)) '
    found = duckdb.execute(f"{query} FROM read_parquet(?)", [paths]).fetchone()
    offsets = cold_end * (cold_end - 1) // 2
    assert count - hot // VALUE_BYTES - segment // VALUE_BYTES <= cold_end
    assert found == (cold_end, offsets, cold_end * VALUE_BYTES, offsets)
