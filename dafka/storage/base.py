"""What a storage plugin is: where partitions live, and what it promises about them.

A storage holds partitions; a partition is a run of consecutive records, each with its content and the time at which
it was stored. One process writes; any number read, in other processes too, while it writes. A plugin registers, in
the entry-point group `dafka.storage`, a function that opens it. `dafka.testing.check_storage` judges one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import attrs

from dafka.errors import StorageError, StorageSequenceError
from dafka.plugins import load_plugin
from dafka.records import Partition, RecordBatch

READ_BYTES = 2**20
"""What one read gives at the most, about: enough to be fast, little enough to keep many readers in memory."""


@attrs.frozen
class PartitionInfo:
    """What a storage holds of a partition: records from `earliest_sequence` up to, not including, `end_sequence`.

    `content_bytes` adds up their contents. Records before the earliest have been trimmed.
    """

    earliest_sequence: int = 0
    end_sequence: int = 0
    content_bytes: int = 0

    @property
    def count(self) -> int:
        """How many records are held."""
        return self.end_sequence - self.earliest_sequence

    def check_append(self, batch: RecordBatch) -> None:
        """Raises `StorageSequenceError` unless the batch continues the partition, or begins it."""
        if self.end_sequence and batch.first_sequence != self.end_sequence:
            problem = "a gap" if batch.first_sequence > self.end_sequence else "an overlap"
            raise StorageSequenceError(
                f"{batch.partition}: sequence {batch.first_sequence} would leave {problem}, "
                f"expected {self.end_sequence}"
            )


class Storage(Protocol):
    """Every method may block on a disk, does so off the event loop, and is a checkpoint.

    Cancelling a call never corrupts anything: an append either happened whole or not at all. All raise
    `StorageError` where the medium fails (a full disk, say), and work again when it does.
    """

    @property
    def identity(self) -> str:
        """A node address that belongs to this storage for good.

        A store takes it, so that producers can tell one restarted store from two; and so does a producer whose spool
        this is, to resume its partition.
        """

    async def append(self, batches: Sequence[RecordBatch]) -> None:
        """Adds records, all or none, and returns when they are durable.

        Each batch continues its partition; the first of a new partition may begin anywhere. One without records
        changes nothing. Raises `StorageSequenceError` otherwise.
        """

    async def read(
        self, partition: Partition, first_sequence: int, count: int, bytes_max: int = READ_BYTES
    ) -> RecordBatch | None:
        """The records from `first_sequence` on: at most `count`, of about `bytes_max` together, at least one.

        None where the partition does not hold that sequence.
        """

    async def partitions(self, topic: str | None = None) -> dict[Partition, PartitionInfo]:
        """What is held of every partition, or of one topic's."""

    async def trim(self, partition: Partition, earliest_sequence: int) -> None:
        """Drops the records before `earliest_sequence`. The partition goes on where it stands."""

    async def save_positions(self, name: str, positions: Mapping[Partition, int]) -> None:
        """Makes a consumer's positions (the next sequence of each partition) durable, under its name."""

    async def load_positions(self, name: str) -> dict[Partition, int]:
        """The positions last saved under this name; none for a name never used."""


def open_storage(url: str, *, read_only: bool = False) -> AbstractAsyncContextManager[Storage]:
    """Opens a storage for the length of a block: `sqlite:PATH`, `memory:`, or an installed plugin's.

    Raises `StorageError` where the scheme is unknown; on entering, `StorageFormatError` where what stands there is
    not a storage of that kind, and, unless `read_only`, `StorageBusyError` where another writer has it open.
    """
    scheme, separator, place = url.partition(":")
    if not separator:
        raise StorageError(f"storage {url!r}: expected SCHEME:PLACE, such as sqlite:dafka.db")
    storage: AbstractAsyncContextManager[Storage] = load_plugin("dafka.storage", scheme, StorageError)(
        place, read_only=read_only
    )
    return storage


async def read_range(
    storage: Storage, partition: Partition, first_sequence: int, end_sequence: int
) -> AsyncIterator[RecordBatch]:
    """Reads a range lazily, batch by batch, up to its end or the partition's."""
    while first_sequence < end_sequence:
        batch = await storage.read(partition, first_sequence, end_sequence - first_sequence)
        if batch is None:
            return
        yield batch
        first_sequence = batch.end_sequence
