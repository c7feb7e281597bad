"""The events that only a store reports: about its storage, its room, and the records that it holds or misses."""

from __future__ import annotations

from typing import TypeAlias

import attrs

from dafka.records import Partition


@attrs.frozen
class RecordsMissing:
    """A store misses records that other nodes have announced and that no node sends.

    The event is repeated once a minute as long as that lasts. The nodes that hold the records may be stopped, or out of
    reach.

    Attributes:
        records: The number of records.
        partitions: The number of their partitions.
        partition: One of these partitions.
    """

    records: int
    partitions: int
    partition: Partition

    def __str__(self) -> str:
        records = "1 record" if self.records == 1 else f"{self.records} records"
        where = f"{self.partition}"
        if self.partitions > 1:
            where = f"{self.partitions} partitions, such as {where}"
        return f"No node sends {records} of {where}, which this store lacks and other nodes have announced; retrying"


@attrs.frozen
class PartitionHalted:
    """A store has stopped storing a partition, because no node has its next records.

    A partition in a storage has no gaps. A store with retention drops the older records in this case. A store without
    retention drops no records by itself; the older records have to be trimmed while it is stopped.

    Attributes:
        partition: The partition.
        first_sequence: The first record that is unrecoverable.
        end_sequence: The sequence after the last record that is unrecoverable.
    """

    partition: Partition
    first_sequence: int
    end_sequence: int

    def __str__(self) -> str:
        which = describe_records(self.first_sequence, self.end_sequence, self.partition)
        return (
            f"{which} unrecoverable, and this store keeps the records before them because it has no retention: "
            "it stores no more of this partition"
        )


@attrs.frozen
class RecordsDropped:
    """A store's retention has dropped records.

    Attributes:
        records: The number of records dropped.
        partitions: The number of partitions that lost records.
    """

    records: int
    partitions: int

    def __str__(self) -> str:
        partitions = "1 partition" if self.partitions == 1 else f"{self.partitions} partitions"
        return f"Retention dropped {self.records} records of {partitions}"


@attrs.frozen
class RecordsCompacted:
    """A store's compaction has removed records that are superseded by later ones of the same key.

    Attributes:
        partition: The partition.
        records: The number of records removed.
        bytes: Their size in bytes.
    """

    partition: Partition
    records: int
    bytes: int

    def __str__(self) -> str:
        return f"Compaction removed {self.records} records of {self.partition}, {self.bytes} bytes"


@attrs.frozen
class PartitionsForgotten:
    """A store has forgotten partitions: their records were dropped, and no message about them came for a while.

    Attributes:
        partitions: The number of partitions.
    """

    partitions: int

    def __str__(self) -> str:
        partitions = "1 partition" if self.partitions == 1 else f"{self.partitions} partitions"
        return f"Forgot {partitions} without records and without messages for a while"


@attrs.frozen
class StoreFull:
    """A store accepts no new partitions, so that new producers get no ACKs. Known partitions continue.

    Attributes:
        reason: The limit that is reached.
        limit: Its value.
    """

    reason: str
    limit: int

    def __str__(self) -> str:
        return f"The store is full ({self.reason}: {self.limit}); new producers get no ACKs"


@attrs.frozen
class StoreHasRoom:
    """A store accepts new partitions again after `StoreFull`."""

    def __str__(self) -> str:
        return "The store takes new partitions again"


@attrs.frozen
class StorageRepaired:
    """Opening the storage found damage, and repaired or skipped it.

    Attributes:
        damage: A sentence that describes the damage.
    """

    damage: str

    def __str__(self) -> str:
        return f"Storage was damaged: {self.damage}"


@attrs.frozen
class StorageFailed:
    """The storage failed, for example because the disk is full. Records that could not be written are not acknowledged.

    Attributes:
        reason: The storage's error.
    """

    reason: str

    def __str__(self) -> str:
        return f"Storage failed; retrying: {self.reason}"


@attrs.frozen
class StorageLost:
    """The storage was removed, moved or replaced while it was open. The store stops without acknowledging more records.

    Attributes:
        reason: The storage's error.
    """

    reason: str

    def __str__(self) -> str:
        return f"Storage lost; nothing more is acknowledged: {self.reason}"


@attrs.frozen
class StorageRecovered:
    """The storage works again after `StorageFailed`."""

    def __str__(self) -> str:
        return "Storage works again"


def describe_records(first_sequence: int, end_sequence: int, partition: Partition) -> str:
    """Return the records as the beginning of a sentence, with its verb."""
    if end_sequence - first_sequence == 1:
        return f"Record {first_sequence} of {partition} is"
    return f"Records {first_sequence} to {end_sequence - 1} of {partition} are"


StoreEvent: TypeAlias = (
    RecordsMissing
    | PartitionHalted
    | RecordsDropped
    | RecordsCompacted
    | PartitionsForgotten
    | StoreFull
    | StoreHasRoom
    | StorageRepaired
    | StorageFailed
    | StorageLost
    | StorageRecovered
)
