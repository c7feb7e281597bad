"""The stores that a query reads: their partitions, merged over replicas, and a cache that keeps them open."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager

import attrs
from anyio.from_thread import BlockingPortal

from dafka.records import Partition
from dafka.spark.offsets import PartitionName, name_partition
from dafka.spark.portal import open_portal
from dafka.storage import PartitionInfo, Storage, open_storage
from dafka.storage.cold.tiered import TieredStorage
from dafka.storage.filelog.layout import MARKER_FILE


@attrs.frozen
class Replica:
    """One store's copy of a partition. The records up to `cold_end` are in the store's cold tier."""

    url: str
    info: PartitionInfo
    cold_end: int = 0


@attrs.frozen
class StoredPartition:
    """A partition in all the stores that hold a part of it, the one with the highest end first.

    From `earliest` on, some store holds every record up to `end`. A partition is unique if no other one has the same
    escaped name (see `escape_name`).
    """

    partition: Partition
    replicas: tuple[Replica, ...]
    earliest: int
    end: int
    is_unique: bool = True

    @property
    def record_bytes(self) -> int:
        """The average size of a record's content, in bytes."""
        info = self.replicas[0].info
        return info.content_bytes // info.count if info.count else 0

    def choose_replicas(self, start: int, end: int) -> list[tuple[str, int, int]]:
        """Choose the stores to read a range from, which must be within `earliest` and `end` of the partition.

        Return the URL of each store with the start and the end of its part of the range, in order.
        """
        pieces: list[tuple[str, int, int]] = []
        while end > start:
            replica = next(
                each for each in self.replicas if each.info.earliest_sequence < end <= each.info.end_sequence
            )
            first = max(start, replica.info.earliest_sequence)
            pieces.append((replica.url, first, end))
            end = first
        return pieces[::-1]

    def choose_tiers(self, start: int, end: int) -> list[tuple[str, int, int, bool]]:
        """Return what `choose_replicas` returns, and for each part whether it is in the cold tier of the store."""
        cold_ends = {replica.url: replica.cold_end for replica in self.replicas}
        pieces = []
        for url, first, last in self.choose_replicas(start, end):
            boundary = min(max(first, cold_ends[url]), last)
            pieces += [(url, first, boundary, True), (url, boundary, last, False)]
        return [piece for piece in pieces if piece[1] < piece[2]]


async def list_partitions(storages: Mapping[str, Storage]) -> dict[PartitionName, StoredPartition]:
    """Return the partitions of these stores by name; raise `StorageError` if a store cannot be read."""
    found: dict[Partition, list[Replica]] = {}
    for url, storage in storages.items():
        for partition, info in (await storage.partitions()).items():
            if info.end_sequence:
                cold_end = storage.cold_end(partition) if isinstance(storage, TieredStorage) else 0
                found.setdefault(partition, []).append(Replica(url, info, cold_end))
    by_name: dict[PartitionName, StoredPartition] = {}
    for partition, replicas in found.items():
        name = name_partition(partition)
        by_name[name] = attrs.evolve(merge_replicas(partition, replicas), is_unique=name not in by_name)
    return by_name


def merge_replicas(partition: Partition, replicas: list[Replica]) -> StoredPartition:
    """Merge replicas of a partition."""
    replicas.sort(key=lambda each: (-each.info.end_sequence, each.info.earliest_sequence, each.url))
    earliest = replicas[0].info.earliest_sequence
    for replica in replicas:
        if replica.info.end_sequence >= earliest:
            earliest = min(earliest, replica.info.earliest_sequence)
    return StoredPartition(partition, tuple(replicas), earliest, replicas[0].info.end_sequence)


@asynccontextmanager
async def open_stores(urls: Iterable[str]) -> AsyncIterator[dict[str, Storage]]:
    """Open stores for reading for the length of a block; yield them by URL. Raise `StorageError` if one fails."""
    async with AsyncExitStack() as stack:
        yield {url: await stack.enter_async_context(open_storage(url, read_only=True)) for url in urls}


class StoreCache:
    """The stores that a streaming query follows, kept open between micro-batches.

    Opening stores takes longer than listing their partitions. No lock is held between calls, so the stores' own
    processes are not disturbed. The stores are opened again if the list changes or a file has been replaced.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None
        self._storages: dict[str, Storage] = {}
        self.identities: dict[str, str] = {}
        """By URL, the identity of each store in the last listing. Another store at the same URL has another one."""

    def list_partitions(self, urls: Sequence[str]) -> dict[PartitionName, StoredPartition]:
        """Return the partitions of these stores by name; raise `StorageError` if a store cannot be read."""
        identities = {url: _identify(url) for url in urls}
        if self._portal is None or identities != self.identities:
            self.close()
            self._portal = self._stack.enter_context(open_portal())
            for url in urls:
                opening = self._portal.wrap_async_context_manager(open_storage(url, read_only=True))
                self._storages[url] = self._stack.enter_context(opening)
            self.identities = identities
        return self._portal.call(list_partitions, self._storages)

    def find_sequence_by_time(self, stored: StoredPartition, stored_at: int) -> int:
        """Return the first offset that was stored at a time or later, or the end offset if all records are older.

        The time is in milliseconds since 1970. The replica with the highest end of the last listing is asked.
        """
        assert self._portal is not None, "list_partitions opens the stores"
        storage = self._storages[stored.replicas[0].url]
        return self._portal.call(storage.find_sequence_by_time, stored.partition, stored_at)

    def close(self) -> None:
        """Close the stores; calling this again is harmless."""
        self._portal = None
        self._storages = {}
        self._stack.close()


def _identify(url: str) -> str:
    """Return the identity of a store: the inode of its file or marker, which differs if another one replaces it."""
    path = url.partition(":")[2].partition("?")[0]
    try:
        status = os.stat(f"{path}/{MARKER_FILE}" if url.startswith("filelog:") else path)
    except OSError:
        return ""
    return f"{status.st_dev}:{status.st_ino}"
