"""Storage in this process's memory, `memory:`, for tests and relays. Nothing outlives the block."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import trio

from dafka.errors import StorageError
from dafka.protocol.window import Window
from dafka.records import Partition, RecordBatch, new_address
from dafka.storage.base import READ_BYTES, PartitionInfo, Storage


class MemoryStorage:
    """See `Storage`: the reference for the others, and the shortest."""

    def __init__(self) -> None:
        self.identity = new_address()
        self._windows: dict[Partition, Window] = {}
        self._content_bytes: dict[Partition, int] = {}  # a window's own count lets go of whole runs alone
        self._positions: dict[str, dict[Partition, int]] = {}

    async def append(self, batches: Sequence[RecordBatch]) -> None:
        """See `Storage.append`."""
        await trio.lowlevel.checkpoint()
        ends: dict[Partition, int] = {}
        batches = [batch for batch in batches if batch.contents]
        for batch in batches:
            end = ends.get(batch.partition, self._info(batch.partition).end_sequence)
            PartitionInfo(0, end).check_append(batch)
            ends[batch.partition] = batch.end_sequence
        for batch in batches:
            window = self._windows.setdefault(batch.partition, Window(batch.partition, batch.first_sequence))
            window.push(batch.contents)
            self._content_bytes[batch.partition] = self._content_bytes.get(batch.partition, 0) + batch.content_bytes

    async def read(
        self, partition: Partition, first_sequence: int, count: int, bytes_max: int = READ_BYTES
    ) -> RecordBatch | None:
        """See `Storage.read`."""
        await trio.lowlevel.checkpoint()
        window = self._windows.get(partition)
        return None if window is None or count < 1 else window.read(first_sequence, count, bytes_max)

    async def partitions(self, topic: str | None = None) -> dict[Partition, PartitionInfo]:
        """See `Storage.partitions`."""
        await trio.lowlevel.checkpoint()
        return {
            partition: self._info(partition) for partition in self._windows if topic is None or partition.topic == topic
        }

    async def trim(self, partition: Partition, earliest_sequence: int) -> None:
        """See `Storage.trim`."""
        await trio.lowlevel.checkpoint()
        window = self._windows.get(partition)
        while window is not None and window.first_sequence < min(earliest_sequence, window.end_sequence):
            dropped = window.read(window.first_sequence, earliest_sequence - window.first_sequence, READ_BYTES)
            assert dropped is not None
            window.release(dropped.end_sequence)
            self._content_bytes[partition] -= dropped.content_bytes

    async def save_positions(self, name: str, positions: Mapping[Partition, int]) -> None:
        """See `Storage.save_positions`."""
        await trio.lowlevel.checkpoint()
        self._positions.setdefault(name, {}).update(positions)

    async def load_positions(self, name: str) -> dict[Partition, int]:
        """See `Storage.load_positions`."""
        await trio.lowlevel.checkpoint()
        return dict(self._positions.get(name, {}))

    def _info(self, partition: Partition) -> PartitionInfo:
        window = self._windows.get(partition)
        if window is None:
            return PartitionInfo()
        return PartitionInfo(window.first_sequence, window.end_sequence, self._content_bytes[partition])


@asynccontextmanager
async def open_memory(place: str, *, read_only: bool = False) -> AsyncIterator[Storage]:
    """Opens `memory:`. Raises `StorageError` where a place is named, or another process's memory is wanted."""
    if place or read_only:
        raise StorageError("storage 'memory:' has no place, and is gone when its process is")
    yield MemoryStorage()
