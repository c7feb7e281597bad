"""What a storage plugin is: where partitions live, and what it promises about them.

A storage holds partitions; a partition is a run of consecutive records, each with its content and the time at which
it was stored. One process writes; any number read, in other processes too, while it writes. A plugin registers, in
the entry-point group `dafka.storage`, a function that opens it. `dafka.testing.check_storage` judges one.

Times are whole milliseconds since 1970, UTC. Within a partition they never go back: while a clock that was set back
catches up, records have the time of the one before.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, runtime_checkable

import attrs

from dafka.errors import StorageError, StorageSequenceError
from dafka.plugins import load_plugin
from dafka.records import Partition, RecordBatch

READ_BYTES = 2**20
"""What one read gives at the most, about: enough to be fast, little enough to keep many readers in memory."""


@attrs.frozen
class PartitionInfo:
    """What a storage holds of a partition: records from `earliest_sequence` up to, not including, `end_sequence`.

    `content_bytes` adds up their contents; the times are those of the first and the last of them, None where there is
    none. Records before the earliest have been trimmed.
    """

    earliest_sequence: int = 0
    end_sequence: int = 0
    content_bytes: int = 0
    earliest_stored_at: int | None = None
    latest_stored_at: int | None = None

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


@attrs.frozen
class StorageStatistics:
    """What a storage holds altogether. `stored_bytes` is what that takes on the medium, indexes and logs included."""

    partitions: int
    records: int
    content_bytes: int
    stored_bytes: int


@attrs.frozen(kw_only=True)
class RetentionPolicy:
    """What a partition may keep; its oldest records go as soon as one of the limits says so. None: no such limit.

    `age_ms` counts from when a record was stored; `bytes_max` is of contents.
    """

    age_ms: int | None = None
    bytes_max: int | None = None
    records_max: int | None = None

    def __bool__(self) -> bool:
        return any(limit is not None for limit in (self.age_ms, self.bytes_max, self.records_max))


@attrs.frozen
class Damage:
    """Something in a storage that is not as it was written: where it stands, what is wrong, and which records it hits.

    `partition` is None, and the sequences are 0, where no particular records are concerned.
    """

    location: str
    reason: str
    partition: Partition | None = None
    first_sequence: int = 0
    end_sequence: int = 0

    def __str__(self) -> str:
        if self.partition is None:
            return f"{self.location}: {self.reason}"
        last = self.end_sequence - 1
        which = f"sequence {last}" if last <= self.first_sequence else f"sequences {self.first_sequence} to {last}"
        return f"{self.partition}, {which}: {self.reason} ({self.location})"


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

    @property
    def repairs(self) -> Sequence[Damage]:
        """What opening found damaged and cut away, such as the torn end of what a killed process was writing."""

    async def append(self, batches: Sequence[RecordBatch]) -> None:
        """Adds records, all or none, and returns when they are durable (as far as the storage's options say).

        Each batch continues its partition; the first of a new partition may begin anywhere. One without records
        changes nothing. Raises `StorageSequenceError` otherwise. Records are stored at the time that their batch
        gives, or else now.
        """

    async def read(
        self,
        partition: Partition,
        first_sequence: int,
        count: int,
        bytes_max: int = READ_BYTES,
        *,
        with_times: bool = False,
    ) -> RecordBatch | None:
        """The records from `first_sequence` on: at most `count`, of about `bytes_max` together, at least one.

        None where the partition does not hold that sequence. `stored_at` is given where `with_times` asks for it.
        Raises `StorageCorruptError` where the first of them is held but damaged; damage further on ends the batch
        before it.
        """

    async def find_sequence_by_time(self, partition: Partition, stored_at: int) -> int:
        """The sequence of the first record held that was stored at this time or later; if none was, the end."""

    async def partitions(self, topic: str | None = None) -> dict[Partition, PartitionInfo]:
        """What is held of every partition, or of one topic's."""

    async def statistics(self) -> StorageStatistics:
        """What is held altogether."""

    async def trim(self, partition: Partition, earliest_sequence: int) -> None:
        """Drops the records before `earliest_sequence`. The partition goes on where it stands."""

    async def reset_to(self, partition: Partition, next_sequence: int) -> None:
        """Drops all records of a partition, and lets it go on at `next_sequence`: those between are to be had nowhere.

        Raises `StorageSequenceError` where the partition has come that far already. An unknown one is begun.
        """

    async def apply_retention(self, retention: RetentionPolicy, topic: str | None = None) -> dict[Partition, int]:
        """Drops what these limits do not keep, of every partition or of one topic's, while others read and append.

        May keep somewhat more, where that spares work (a file log drops whole segments), but nothing of a partition
        whose every record is too old, or where a limit is 0. Gives the new earliest sequence of those that lost any.
        """

    async def flush(self) -> None:
        """Returns when everything appended is durable, whatever the storage's options leave to the system."""

    async def find_damage(self) -> list[Damage]:
        """What is wrong with the medium beyond what reading every record shows. Takes as long as it takes."""

    async def save_positions(self, name: str, positions: Mapping[Partition, int]) -> None:
        """Makes a consumer's positions (the next sequence of each partition) durable, under its name."""

    async def load_positions(self, name: str) -> dict[Partition, int]:
        """The positions last saved under this name; none for a name never used."""

    async def position_names(self) -> list[str]:
        """The names under which positions were saved, in order."""


@runtime_checkable
class DetectsRemoval(Protocol):
    """What a storage has besides, where its files can be removed beneath it. A plugin need not have it."""

    async def check_not_removed(self) -> None:
        """Raises `StorageLostError` where what was opened is no longer in its place, as every change does."""


def open_storage(url: str, *, read_only: bool = False) -> AbstractAsyncContextManager[Storage]:
    """Opens a storage for the length of a block: `sqlite:PATH`, `filelog:FOLDER`, `memory:`, or an installed plugin's.

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
    storage: Storage, partition: Partition, first_sequence: int, end_sequence: int, *, with_times: bool = False
) -> AsyncIterator[RecordBatch]:
    """Reads a range lazily, batch by batch, up to its end or the partition's."""
    while first_sequence < end_sequence:
        batch = await storage.read(partition, first_sequence, end_sequence - first_sequence, with_times=with_times)
        if batch is None:
            return
        yield batch
        first_sequence = batch.end_sequence
