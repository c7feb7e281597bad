"""Tiered storages for tests: a hot storage in memory or a folder, and an object store that can fail."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from dafka.packed_bytes import pack
from dafka.records import Partition, RecordBatch
from dafka.storage import Storage, open_storage, read_range
from dafka.storage.cold.tiered import TieredStorage
from tests.storage.cold.faults import Fault

A, B = Partition("orders", "A"), Partition("orders", "B")
TIME = 1_700_000_000_000


def batch(partition: Partition, first: int, end: int) -> RecordBatch:
    """Return records of 100 bytes that contain their sequence."""
    values = pack([b"%099d." % sequence for sequence in range(first, end)])
    return RecordBatch(partition, first, values, stored_at=[TIME + sequence for sequence in range(first, end)])


def no_fault(operation: str, name: str) -> None:
    """Let everything succeed."""


class Faults:
    """The fault of all object stores that a test opens; the test changes it."""

    def __init__(self) -> None:
        self.fault: Fault = no_fault

    def __call__(self, operation: str, name: str) -> Callable[[bytes], bytes] | None:
        return self.fault(operation, name)


@asynccontextmanager
async def open_tiered(
    folder: Path, hot: str = "memory:", *, read_only: bool = False, **options: object
) -> AsyncIterator[TieredStorage]:
    """Open a storage of which at most 1,000 bytes of each partition stay hot, in segments of 1,000 bytes."""
    chosen = {"local_retention_bytes": 1000, "cold_segment_bytes": 1000, "cold_interval_ms": 3_600_000, **options}
    query = "&".join(f"{name}={value}" for name, value in chosen.items() if value is not None)
    url = f"tiered:{hot}{'&' if '?' in hot else '?'}cold=file://{folder}/bucket&{query}"
    async with open_storage(url, read_only=read_only) as storage:
        assert isinstance(storage, TieredStorage)
        yield storage


async def read_all(storage: Storage, partition: Partition) -> list[bytes | None]:
    info = (await storage.partitions())[partition]
    found: list[bytes | None] = []
    async for run in read_range(storage, partition, info.earliest_sequence, info.end_sequence):
        found += run.values
    return found
