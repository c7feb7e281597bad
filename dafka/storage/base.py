"""The storage plugin interface.

A storage holds partitions. A partition is a run of consecutive records. A storage keeps each record as it was appended,
with its value, key, headers and timestamp, and the time at which it was stored. One process writes to a storage; any
number of readers, also in other processes, read it at the same time.

A plugin registers the function that opens its storage in the entry-point group `dafka.storage`.
`dafka.testing.check_storage` checks a plugin against this interface.

Times are whole milliseconds since 1970, UTC. Within a partition they never decrease: if the clock is set back, new
records get the time of the latest record until the clock has caught up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import attrs

from dafka.errors import StorageSequenceError
from dafka.records import Partition, RecordBatch

READ_BYTES = 2**20
"""The default size of one read, in bytes: large enough to be fast, small enough for many concurrent readers."""


@attrs.frozen
class PartitionInfo:
    """The records that a storage holds of one partition.

    They are the records from `earliest_sequence` up to, but not including, `end_sequence`. Earlier records have been
    trimmed. Compaction may have removed some records in between; they are still counted.

    Attributes:
        earliest_sequence: The sequence of the first record held.
        end_sequence: The sequence of the next record to append.
        content_bytes: The total size of the records' values, keys and headers, in bytes.
        earliest_stored_at: The time at which the first record was stored, in ms since 1970; None if none is held.
        latest_stored_at: The time at which the last record was stored, in ms since 1970; None if none is held.
        last_append_at: The time at which a record was last appended, even if it has been dropped since, in ms since
            1970; None if unknown. Comparisons ignore it.
        compacted_end: The sequence before which compaction may have removed records; 0 if the storage does not report
            it. Comparisons ignore it.
    """

    earliest_sequence: int = 0
    end_sequence: int = 0
    content_bytes: int = 0
    earliest_stored_at: int | None = None
    latest_stored_at: int | None = None
    last_append_at: int | None = attrs.field(default=None, eq=False)
    compacted_end: int = attrs.field(default=0, eq=False, kw_only=True)

    @property
    def count(self) -> int:
        """The number of records held, including those that compaction has removed."""
        return self.end_sequence - self.earliest_sequence

    def check_append(self, batch: RecordBatch) -> None:
        """Check that a batch can be appended next.

        An `end_sequence` of 0 means an empty partition, which may begin with any sequence.

        Args:
            batch: The records to append.

        Raises:
            StorageSequenceError: If the batch would leave a gap or overlap the records held.
        """
        if self.end_sequence and batch.first_sequence != self.end_sequence:
            problem = "a gap" if batch.first_sequence > self.end_sequence else "an overlap"
            raise StorageSequenceError(
                f"{batch.partition}: sequence {batch.first_sequence} would leave {problem}, "
                f"expected {self.end_sequence}"
            )


@attrs.frozen
class StorageStatistics:
    """The totals of a storage.

    Attributes:
        partitions: The number of partitions.
        records: The number of records held.
        content_bytes: The total size of their values, keys and headers, in bytes.
        stored_bytes: The space used on the medium, in bytes, including indexes and logs.
    """

    partitions: int
    records: int
    content_bytes: int
    stored_bytes: int


@attrs.frozen(kw_only=True)
class RetentionPolicy:
    """Limits on the records that each partition keeps.

    The oldest records of a partition are dropped as long as it exceeds any limit. A limit of None does not apply. A
    policy without limits is false.

    Attributes:
        age_ms: The maximum age of a record since it was stored, in milliseconds.
        bytes_max: The maximum total size of values, keys and headers, in bytes.
        records_max: The maximum number of records.
    """

    age_ms: int | None = None
    bytes_max: int | None = None
    records_max: int | None = None

    def __bool__(self) -> bool:
        return any(limit is not None for limit in (self.age_ms, self.bytes_max, self.records_max))


@attrs.frozen
class Damage:
    """A damaged part of a storage.

    Attributes:
        location: The location of the damage, such as a file and a position in it.
        reason: A description of the damage.
        partition: The partition affected; None if no particular records are affected.
        first_sequence: The first record affected; 0 if `partition` is None.
        end_sequence: The sequence after the last record affected; 0 if `partition` is None.
        is_lost: Whether the storage had these records, and no longer has them.
    """

    location: str
    reason: str
    partition: Partition | None = None
    first_sequence: int = 0
    end_sequence: int = 0
    is_lost: bool = False

    def __str__(self) -> str:
        if self.partition is None:
            return f"{self.location}: {self.reason}"
        last = self.end_sequence - 1
        which = f"sequence {last}" if last <= self.first_sequence else f"sequences {self.first_sequence} to {last}"
        return f"{self.partition}, {which}: {self.reason} ({self.location})"


class Storage(Protocol):
    """The interface of a storage plugin.

    Every method is a checkpoint, and runs blocking work in a worker thread.

    Cancelling a call never corrupts data: an append happens completely or not at all. Every method raises
    `StorageError` if the medium fails, for example because the disk is full, and works again once the medium does.
    """

    @property
    def identity(self) -> str:
        """The node address that permanently belongs to this storage.

        A store uses it as its own address, so that producers do not count a restarted store twice. A producer uses the
        identity of its spool to resume its partition.
        """

    @property
    def repairs(self) -> Sequence[Damage]:
        """The damage that was repaired when the storage was opened.

        An example is the incomplete end of an append whose process was killed.
        """

    async def append(self, batches: Sequence[RecordBatch]) -> None:
        """Append all batches, or none, and return when they are durable.

        The options of a storage may relax durability. Each batch must continue its partition; the first batch of a new
        partition may begin at any sequence. Batches without records are ignored. Records whose batch gives no
        `stored_at` are stored with the current time.

        Args:
            batches: The records to append, of any partitions.

        Raises:
            StorageSequenceError: If a batch does not continue its partition.
            StorageUnsupportedError: If the storage holds values only, and a record has a key or headers or is a
                tombstone. Such a storage may drop timestamps.
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
        """Return consecutive records of a partition, at least one.

        The batch marks records that compaction has removed (`RecordBatch.compacted`).

        Args:
            partition: The partition to read.
            first_sequence: The sequence of the first record to return.
            count: The maximum number of records.
            bytes_max: The approximate maximum size of the records, in bytes. One record is returned even if it is
                larger.
            with_times: Whether the batch should include `stored_at`.

        Returns:
            The records, or None if the partition does not hold `first_sequence`. The batch ends before the first
            damaged record.

        Raises:
            StorageCorruptError: If the record at `first_sequence` is held but damaged.
        """

    async def find_sequence_by_time(self, partition: Partition, stored_at: int) -> int:
        """Return the sequence of the first record that was stored at a time or later.

        Args:
            partition: The partition to search.
            stored_at: The time, in milliseconds since 1970.

        Returns:
            The sequence; the end of the partition if all records are older; 0 if the partition is unknown.
        """

    async def partitions(self, topic: str | None = None) -> dict[Partition, PartitionInfo]:
        """Describe the partitions.

        Args:
            topic: The topic whose partitions to return; None for all topics.

        Returns:
            The partitions, including those whose records have all been dropped.
        """

    async def find_partition(self, partition: Partition) -> PartitionInfo | None:
        """Describe one partition. Return None if it is unknown."""

    async def statistics(self) -> StorageStatistics:
        """Return the totals of the storage."""

    async def trim(self, partition: Partition, earliest_sequence: int) -> None:
        """Drop the records before a sequence. The end of the partition does not change.

        An unknown partition, or a sequence that is not held any more, changes nothing.

        Args:
            partition: The partition to trim.
            earliest_sequence: The first sequence to keep. Sequences past the end drop every record.
        """

    async def reset_to(self, partition: Partition, next_sequence: int) -> None:
        """Drop all records of a partition and continue it at a later sequence.

        The records between the old end and `next_sequence` are lost. An unknown partition is created.

        Args:
            partition: The partition to reset.
            next_sequence: The sequence of the next record to append.

        Raises:
            StorageSequenceError: If `next_sequence` is before the end of the partition.
        """

    async def apply_retention(self, policy: RetentionPolicy, topic: str | None = None) -> dict[Partition, int]:
        """Drop the records that exceed a retention policy. Other tasks may read and append at the same time.

        A storage may keep more than the policy allows if that saves work; a file log, for example, drops whole
        segments. It must drop every record of a partition if all of them are too old or if a limit is 0.

        Args:
            policy: The limits for each partition.
            topic: The topic to apply them to; None for all topics.

        Returns:
            The new earliest sequence of each partition that lost records.
        """

    async def flush(self) -> None:
        """Make everything that was appended durable, even if the storage's options relax durability."""

    async def find_damage(self) -> list[Damage]:
        """Check the medium for damage that reading every record does not show. This may take long."""

    async def save_positions(self, name: str, positions: Mapping[Partition, int]) -> None:
        """Save a consumer's positions durably. Positions in other partitions are kept.

        Args:
            name: The name of the consumer.
            positions: The next sequence to consume of each partition.
        """

    async def load_positions(self, name: str) -> dict[Partition, int]:
        """Return the positions that a consumer saved.

        Args:
            name: The name of the consumer.

        Returns:
            The next sequence to consume of each partition; empty if the name has never been used.
        """

    async def position_names(self) -> list[str]:
        """Return the names of the consumers that saved positions, sorted."""
