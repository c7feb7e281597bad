"""What stores hold: each partition once, however many replicas of it there are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import attrs

from dafka.records import Partition
from dafka.spark.offsets import Name
from dafka.spark.schema import printable
from dafka.storage import PartitionInfo, Storage, open_storage


@attrs.frozen
class Replica:
    """A partition in one store, named by its URL."""

    url: str
    info: PartitionInfo


@attrs.frozen
class Held:
    """A partition in all stores that hold some of it.

    Attributes:
        replicas: the one that reaches furthest first.
        earliest: from here on, every record up to `end` is held by some store.
        end: the sequence after the last record that any of them holds.
        is_alone: is there no other partition whose name looks the same once it is printed?
    """

    partition: Partition
    replicas: tuple[Replica, ...]
    earliest: int
    end: int
    is_alone: bool = True

    @property
    def record_bytes(self) -> int:
        """About how large a record is."""
        info = self.replicas[0].info
        return info.content_bytes // info.count if info.count else 0

    def cover(self, start: int, end: int) -> list[tuple[str, int, int]]:
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


async def hold(storages: Mapping[str, Storage]) -> dict[Name, Held]:
    """What these stores hold at this moment, by partition. Raises `StorageError` where a store fails."""
    found: dict[Partition, list[Replica]] = {}
    for url, storage in storages.items():
        for partition, info in (await storage.partitions()).items():
            if info.end_sequence:
                found.setdefault(partition, []).append(Replica(url, info))
    named: dict[Name, Held] = {}
    for partition, replicas in found.items():
        name = printable(partition.topic), printable(partition.address)
        named[name] = attrs.evolve(merge(partition, replicas), is_alone=name not in named)
    return named


def merge(partition: Partition, replicas: list[Replica]) -> Held:
    """What these stores hold of a partition together."""
    replicas.sort(key=lambda each: (-each.info.end_sequence, each.info.earliest_sequence, each.url))
    earliest = replicas[0].info.earliest_sequence
    for replica in replicas:
        if replica.info.end_sequence >= earliest:
            earliest = min(earliest, replica.info.earliest_sequence)
    return Held(partition, tuple(replicas), earliest, replicas[0].info.end_sequence)


@asynccontextmanager
async def open_stores(urls: Iterable[str]) -> AsyncIterator[dict[str, Storage]]:
    """These stores, by their URLs, to be read for the length of a block. Raises `StorageError`."""
    async with AsyncExitStack() as stack:
        yield {url: await stack.enter_async_context(open_storage(url, read_only=True)) for url in urls}
