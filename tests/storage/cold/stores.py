"""Tiered storages for tests: a hot storage in memory or a folder, and object stores that fail or answer wrongly."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

from dafka.packed_bytes import pack
from dafka.records import Partition, RecordBatch
from dafka.storage import Storage, open_storage, read_range
from dafka.storage.cold.object_store import ListedObject, ObjectStore, ObjectStoreError, Version
from dafka.storage.cold.tiered import TieredStorage

A, B = Partition("orders", "A"), Partition("orders", "B")
TIME = 1_700_000_000_000

Fault = Callable[[str, str], "Callable[[bytes], bytes] | None"]
"""Gets the operation and the name of the object. It raises, or returns how to change what is read or written."""


class FaultyStore:
    """An object store in front of another one.

    Args:
        store: The other one.
        fault: Asked before each operation.
    """

    def __init__(self, store: ObjectStore, fault: Fault) -> None:
        self._store = store
        self.fault = fault

    def read(self, name: str) -> tuple[bytes, Version]:
        change = self.fault("read", name)
        data, version = self._store.read(name)
        return (change(data) if change else data), version

    def read_range(self, name: str, start: int, end: int) -> bytes:
        change = self.fault("read_range", name)
        data = self._store.read_range(name, start, end)
        return change(data) if change else data

    def write(self, name: str, data: bytes) -> None:
        change = self.fault("write", name)
        self._store.write(name, change(data) if change else data)
        self.fault("after write", name)

    def replace(self, name: str, data: bytes, version: Version | None) -> Version:
        self.fault("replace", name)
        done = self._store.replace(name, data, version)
        self.fault("after replace", name)
        return done

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            self.fault("delete", name)
            self._store.delete([name])
            self.fault("after delete", name)

    def list(self, prefix: str) -> Iterator[ListedObject]:
        self.fault("list", prefix)
        return self._store.list(prefix)


def fail(operation: str, name: str) -> None:
    """Fail as a server does that answers with status 500."""
    raise ObjectStoreError(f"{operation} of {name} failed")


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
