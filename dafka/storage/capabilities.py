"""What some storages can do beyond the methods of `Storage`. Every method raises `StorageError` if the medium fails."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import ClassVar, Protocol, runtime_checkable

import attrs

from dafka.records import Partition, RecordBatch

FindRemoved = Callable[[RecordBatch], bytes]
"""Returns for each record of a batch 1 if compaction must remove it, else 0. It may be called in any thread. The batch
has `stored_at`, and may contain records that were removed before."""

Throttle = Callable[[int], Awaitable[None]]
"""Waits after this many bytes were read or written, so that compaction does not slow down other work."""


@runtime_checkable
class DeletesPartitions(Protocol):
    """An optional part of a storage plugin, for storages that can delete partitions.

    Without it, a store keeps the name and the end even of partitions without records.
    """

    async def delete_partitions(self, partitions: Collection[Partition]) -> None:
        """Delete partitions with all records. Afterward they are unknown, and may begin again at any sequence.

        Consumers' positions are kept. Unknown partitions are ignored. If the process is killed meanwhile, each
        partition is deleted or has lost some of its oldest records; its end never decreases.

        Args:
            partitions: The partitions to delete.
        """


@runtime_checkable
class ReadsSeveral(Protocol):
    """An optional part of a storage plugin, for storages that read several partitions at less cost than one by one."""

    async def read_several(
        self, ranges: Sequence[tuple[Partition, int, int]], bytes_max: int
    ) -> list[RecordBatch | None]:
        """Return what `Storage.read` returns for each of several partitions.

        Args:
            ranges: Partitions, each with the sequence of the first record to return, and the maximum number of records.
            bytes_max: See `Storage.read`; the limit applies to each partition.

        Returns:
            The records of each partition.

        Raises:
            StorageCorruptError: If the first record of a range is held but damaged.
        """


@attrs.frozen
class StoredBatches:
    """Whole record batches of a partition as they are stored, whose CRCs were checked.

    Attributes:
        data: The batches, one after the other, in memory that the caller may change.
        end_sequence: The sequence after the last record.
        is_full: Whether the next batch was left out because of its size.
    """

    data: memoryview
    end_sequence: int
    is_full: bool


@runtime_checkable
class ReadsStoredBatches(Protocol):
    """An optional part of a storage plugin, for storages that can return record batches without decoding them."""

    async def read_batches(
        self, partition: Partition, first_sequence: int, end_sequence: int, bytes_max: int
    ) -> StoredBatches | None:
        """Return stored record batches.

        Args:
            partition: The partition.
            first_sequence: The sequence of the first record to return.
            end_sequence: The sequence after the last record that may be returned.
            bytes_max: The maximum size of the batches in bytes, unless the first one alone is larger.

        Returns:
            The batches; None if `Storage.read` must be used, because the sequences do not begin and end with a batch,
            or the first batch is damaged or not held.
        """


@runtime_checkable
class KeepsRecordBatches(Protocol):
    """An optional part of a storage plugin, for storages that keep record batches encoded (`RecordBatch.encoded`).

    Without it, a store discards the encoded form to save memory.

    Attributes:
        keeps_record_batches: True.
    """

    keeps_record_batches: ClassVar[bool]


@attrs.frozen
class Compactable:
    """The part of a partition that can be compacted.

    Attributes:
        end_sequence: The sequence after the last record that may be removed now.
        clean_bytes: The size of the part that was compacted before, in bytes.
        dirty_bytes: The size of the part after it, up to `end_sequence`, in bytes.
    """

    end_sequence: int
    clean_bytes: int
    dirty_bytes: int


@attrs.frozen
class Compacted:
    """The result of a compaction.

    Attributes:
        bytes_read: The number of bytes read.
        records_removed: The number of records removed.
        bytes_removed: The size of their values, keys and headers, in bytes.
    """

    bytes_read: int = 0
    records_removed: int = 0
    bytes_removed: int = 0

    def plus(self, other: Compacted) -> Compacted:
        """Return the sums."""
        return Compacted(
            self.bytes_read + other.bytes_read,
            self.records_removed + other.records_removed,
            self.bytes_removed + other.bytes_removed,
        )


@runtime_checkable
class CompactsPartitions(Protocol):
    """An optional part of a storage plugin, for storages that can remove single records.

    The sequences of other records, and the end of the partition, do not change. `Storage.read` returns batches that
    mark the removed records. `Storage.append` accepts such batches, since other stores send them.
    """

    async def find_compactable(self, partition: Partition, clean_end: int) -> Compactable | None:
        """Return the part of a partition that can be compacted.

        Args:
            partition: The partition.
            clean_end: The sequence up to which it was compacted before; 0 if it never was.

        Returns:
            The part; None if the partition is unknown.
        """

    async def compact(
        self, partition: Partition, end_sequence: int, find_removed: FindRemoved, throttle: Throttle
    ) -> Compacted:
        """Remove records from the beginning of a partition up to a sequence.

        Appends and reads can run at the same time.

        The last record of a partition is never removed. If the process is killed, each record is either intact or
        removed; records with lower sequences are removed first.

        Args:
            partition: The partition. If it is unknown, nothing is removed.
            end_sequence: The sequence after the last record to compact, at most what `find_compactable` returned.
            find_removed: Decides which records to remove.
            throttle: Waits after each step.

        Returns:
            What was read and removed.

        Raises:
            StorageError: If the medium fails. Some records may have been removed.
        """


@runtime_checkable
class DetectsRemoval(Protocol):
    """An optional part of a storage plugin, for storages whose files can be removed while they are open."""

    async def check_not_removed(self) -> None:
        """Check that the open files are still in place. Every change makes the same check.

        Raises:
            StorageLostError: If a file was removed or replaced.
        """
