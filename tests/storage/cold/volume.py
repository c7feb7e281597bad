"""Fills a tiered storage, moves it, and reads all of it in order.

    python -m tests.storage.cold.volume FOLDER [--bytes N] [--hot N] [--segment N]

It prints the rates, and compares sums that DuckDB finds in the Parquet objects with those of the storage. Its exit
status is 1 if anything differs. The defaults are 10 GB, of which 1 GB stays hot, in segments of 64 MiB.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import duckdb
import trio

from dafka.packed_bytes import PackedContents
from dafka.records import Partition, RecordBatch
from dafka.storage import open_storage, read_range
from dafka.storage.cold.tiered import TieredStorage

PARTITION = Partition("volume", "A" * 32)
VALUE_BYTES = 1000
BATCH_RECORDS = 5000


def make_values(first: int, noise: bytes) -> PackedContents:
    """Return values that begin with their sequence; the rest hardly compresses."""
    parts = []
    for sequence in range(first, first + BATCH_RECORDS):
        at = sequence * 7919 % (len(noise) - VALUE_BYTES)
        parts.append(b"%020d" % sequence + noise[at : at + VALUE_BYTES - 20])
    return PackedContents(b"".join(parts), VALUE_BYTES.to_bytes(4, "big") * BATCH_RECORDS)


async def run(folder: Path, total: int, hot: int, segment: int) -> int:
    """Return the exit status."""
    limits = f"local_retention_bytes={hot}&cold_segment_bytes={segment}&cold_interval_ms=3600000"
    url = f"tiered:filelog:{folder}/log?fsync=never&cold=file://{folder}/bucket&{limits}"
    noise = os.urandom(16 * 2**20)
    count = total // VALUE_BYTES // BATCH_RECORDS * BATCH_RECORDS
    async with open_storage(url) as storage:
        assert isinstance(storage, TieredStorage)
        begun = time.perf_counter()
        moving_s = 0.0
        for first in range(0, count, BATCH_RECORDS):
            await storage.append([RecordBatch(PARTITION, first, make_values(first, noise))])
            if first % (100 * BATCH_RECORDS) == 0 or first + BATCH_RECORDS == count:
                moving = time.perf_counter()
                await storage.move_due()
                moving_s += time.perf_counter() - moving
        moved = storage.tier_statistics()
        print(
            f"moved {moved.content_bytes / 1e6:,.0f} MB in {moved.segments} objects, {moved.object_bytes / 1e6:,.0f} MB"
        )
        print(f"appended and moved in {time.perf_counter() - begun:.1f} s, of which moving {moving_s:.1f} s")
    async with open_storage(url, read_only=True) as storage:
        assert isinstance(storage, TieredStorage)
        begun = time.perf_counter()
        sequence = 0
        async for batch in read_range(storage, PARTITION, 0, count):
            assert batch.first_sequence == sequence
            for at, value in zip(range(sequence, batch.end_sequence), batch.values, strict=True):
                assert value is not None
                assert int(value[:20]) == at
            sequence = batch.end_sequence
        assert sequence == count
        print(f"read {count:,} records in order in {time.perf_counter() - begun:.1f} s")
        cold_end = storage.cold_end(PARTITION)
        paths = [each.removeprefix("file://") for each in storage.object_urls()]
    query = 'SELECT count(*), sum("offset"), sum(octet_length(value)), sum(CAST(decode(value[:20]) AS BIGINT)) '
    found = duckdb.execute(f"{query} FROM read_parquet(?)", [paths]).fetchone()
    expected = cold_end, cold_end * (cold_end - 1) // 2, cold_end * VALUE_BYTES, cold_end * (cold_end - 1) // 2
    print(f"DuckDB: {'the same sums' if found == expected else f'DIFFERENT, {found}, expected {expected}'}")
    return int(found != expected)


def main() -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--bytes", type=int, default=10**10)
    parser.add_argument("--hot", type=int, default=10**9)
    parser.add_argument("--segment", type=int, default=64 * 2**20)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    return trio.run(run, given.folder, given.bytes, given.hot, given.segment)


if __name__ == "__main__":
    sys.exit(main())
