"""Opens storages by URL, and reads and deletes partitions of any storage."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import AbstractAsyncContextManager, aclosing

from dafka.errors import StorageError
from dafka.extras import load_plugin
from dafka.records import Partition, RecordBatch
from dafka.storage.base import Storage
from dafka.storage.capabilities import DeletesPartitions, ReadsSeveral
from dafka.storage.tiers import has_tier

SEVERAL = 256
"""The number of partitions that `read_ranges` reads at once."""

SEVERAL_BYTES = 2**16
"""The number of bytes that it reads of each partition at once."""


def open_storage(url: str, *, read_only: bool = False) -> AbstractAsyncContextManager[Storage]:
    """Open a storage for the duration of an `async with` block.

    Args:
        url: `sqlite:PATH`, `filelog:FOLDER`, `memory:`, `tiered:URL?cold=URL`, or the URL of an installed plugin;
            options follow as `?name=value`. A storage that has a cold tier is opened with it.
        read_only: Whether to open the storage for reading only. A storage in use by a writer can be read.

    Returns:
        A context manager that opens the storage. Entering it raises `StorageFormatError` if the location holds
        something else, and `StorageBusyError` if another writer has the storage open (unless `read_only`).

    Raises:
        StorageError: If the URL has no scheme, or no plugin for its scheme is installed.
    """
    return open_one_tier(f"tiered:{url}" if has_tier(url) else url, read_only=read_only)


def open_one_tier(url: str, *, read_only: bool = False) -> AbstractAsyncContextManager[Storage]:
    """Open a storage as `open_storage` does, but without its cold tier, if it has one."""
    scheme, separator, location = url.partition(":")
    if not separator:
        raise StorageError(f"storage {url!r}: expected SCHEME:LOCATION, such as sqlite:dafka.db")
    storage: AbstractAsyncContextManager[Storage] = load_plugin("dafka.storage", scheme, StorageError)(
        location, read_only=read_only
    )
    return storage


async def read_range(
    storage: Storage, partition: Partition, first_sequence: int, end_sequence: int, *, with_times: bool = False
) -> AsyncGenerator[RecordBatch, None]:
    """Read a range of a partition lazily, one batch at a time.

    Args:
        storage: The storage to read.
        partition: The partition to read.
        first_sequence: The sequence of the first record.
        end_sequence: The sequence after the last record. The iteration ends earlier if the partition does.
        with_times: Whether the batches should include `stored_at`.

    Yields:
        Consecutive batches.

    Raises:
        StorageCorruptError: If a record in the range is damaged.
        StorageError: If the medium fails.
    """
    while first_sequence < end_sequence:
        batch = await storage.read(partition, first_sequence, end_sequence - first_sequence, with_times=with_times)
        if batch is None:
            return
        yield batch
        first_sequence = batch.end_sequence


async def read_ranges(
    storage: Storage, ranges: Mapping[Partition, tuple[int, int]]
) -> AsyncGenerator[RecordBatch, None]:
    """Read ranges of many partitions lazily, some partitions at a time, and yield batches as `read_range` does.

    Each range has a first and an end sequence. Raise `StorageCorruptError` if a record in a range is damaged, and
    `StorageError` if the medium fails.
    """
    left = [(partition, first, end) for partition, (first, end) in ranges.items() if first < end]
    while left and isinstance(storage, ReadsSeveral):
        some, left = left[:SEVERAL], left[SEVERAL:]
        asked = [(partition, first, end - first) for partition, first, end in some]
        for (partition, _, end), batch in zip(some, await storage.read_several(asked, SEVERAL_BYTES), strict=True):
            if batch is not None:
                yield batch
                if batch.end_sequence < end:
                    left.append((partition, batch.end_sequence, end))
    for partition, first, end in left:
        async with aclosing(read_range(storage, partition, first, end)) as batches:
            async for batch in batches:
                yield batch


async def delete_partitions(storage: Storage, partitions: Collection[Partition]) -> None:
    """Delete partitions, or at least their records if the storage cannot delete partitions. Raises `StorageError`."""
    if isinstance(storage, DeletesPartitions):
        await storage.delete_partitions(partitions)
        return
    for partition in partitions:
        info = await storage.find_partition(partition)
        if info is not None:
            await storage.trim(partition, info.end_sequence)
