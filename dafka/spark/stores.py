"""What stores hold: each partition once, however many replicas of it there are."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager

import attrs
from anyio.from_thread import BlockingPortal, start_blocking_portal

from dafka.records import Partition
from dafka.spark.offsets import PartitionName
from dafka.spark.schema import escape_name
from dafka.storage import PartitionInfo, Storage, open_storage
from dafka.storage.filelog.layout import MARKER_FILE


@attrs.frozen
class Replica:
    """A partition in one store, named by its URL."""

    url: str
    info: PartitionInfo


@attrs.frozen
class StoredPartition:
    """A partition in all stores that hold some of it.

    Attributes:
        replicas: the one that reaches furthest first.
        earliest: from here on, every record up to `end` is held by some store.
        end: the sequence after the last record that any of them holds.
        is_unique: is there no other partition whose name looks the same once it is printed?
    """

    partition: Partition
    replicas: tuple[Replica, ...]
    earliest: int
    end: int
    is_unique: bool = True

    @property
    def record_bytes(self) -> int:
        """About how large a record is."""
        info = self.replicas[0].info
        return info.content_bytes // info.count if info.count else 0

    def choose_replicas(self, start: int, end: int) -> list[tuple[str, int, int]]:
        """Which store to read from: ranges that make up the given one, which must be held."""
        pieces: list[tuple[str, int, int]] = []
        while end > start:
            replica = next(
                each for each in self.replicas if each.info.earliest_sequence < end <= each.info.end_sequence
            )
            begin = max(start, replica.info.earliest_sequence)
            pieces.append((replica.url, begin, end))
            end = begin
        return pieces[::-1]


async def list_partitions(storages: Mapping[str, Storage]) -> dict[PartitionName, StoredPartition]:
    """What these stores hold at this moment, by partition. Raises `StorageError` where a store fails."""
    found: dict[Partition, list[Replica]] = {}
    for url, storage in storages.items():
        for partition, info in (await storage.partitions()).items():
            if info.end_sequence:
                found.setdefault(partition, []).append(Replica(url, info))
    named: dict[PartitionName, StoredPartition] = {}
    for partition, replicas in found.items():
        name = escape_name(partition.topic), escape_name(partition.address)
        named[name] = attrs.evolve(merge_replicas(partition, replicas), is_unique=name not in named)
    return named


def merge_replicas(partition: Partition, replicas: list[Replica]) -> StoredPartition:
    """What these stores hold of a partition together."""
    replicas.sort(key=lambda each: (-each.info.end_sequence, each.info.earliest_sequence, each.url))
    earliest = replicas[0].info.earliest_sequence
    for replica in replicas:
        if replica.info.end_sequence >= earliest:
            earliest = min(earliest, replica.info.earliest_sequence)
    return StoredPartition(partition, tuple(replicas), earliest, replicas[0].info.end_sequence)


@asynccontextmanager
async def open_stores(urls: Iterable[str]) -> AsyncIterator[dict[str, Storage]]:
    """These stores, by their URLs, to be read for the length of a block. Raises `StorageError`."""
    async with AsyncExitStack() as stack:
        yield {url: await stack.enter_async_context(open_storage(url, read_only=True)) for url in urls}


class StoreCache:
    """Opens what it is asked about, and opens it again where another file has taken its place."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None
        self._storages: dict[str, Storage] = {}
        self._identities: list[tuple[str, object]] = []

    def list_partitions(self, urls: Sequence[str]) -> dict[PartitionName, StoredPartition]:
        """What these stores hold at this moment, by partition. Raises `StorageError`."""
        identities = [(url, _identity(url)) for url in urls]
        if self._portal is None or identities != self._identities:
            self.close()
            self._portal = self._stack.enter_context(start_blocking_portal("trio"))
            for url in urls:
                opening = self._portal.wrap_async_context_manager(open_storage(url, read_only=True))
                self._storages[url] = self._stack.enter_context(opening)
            self._identities = identities
        return self._portal.call(list_partitions, self._storages)

    def find_sequence_by_time(self, held: StoredPartition, stored_at: int) -> int:
        """The first offset stored at this time or later, by the store that reaches furthest; else the end."""
        assert self._portal is not None, "nothing is held before it is asked for"
        storage = self._storages[held.replicas[0].url]
        return self._portal.call(storage.find_sequence_by_time, held.partition, stored_at)

    def close(self) -> None:
        """Closes what is open. May be called again."""
        self._portal = None
        self._storages = {}
        self._stack.close()


def _identity(url: str) -> object:
    """What tells one store from another that has taken its place: its file, or its folder's marker."""
    path = url.partition(":")[2].partition("?")[0]
    try:
        status = os.stat(f"{path}/{MARKER_FILE}" if url.startswith("filelog:") else path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
