"""The partitions of one store, and which of their records are durable."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from dafka.records import Partition


class StoredPartitions:
    """The range of durable records of each partition that a store holds.

    Args:
        earliest: By partition, the sequence of the first record in the storage, if it is not 0.

    Attributes:
        durable: By topic and by the producer's address, the sequence after the last durable record.
        earliest: The sequence of the first record held, of each partition that has lost any.
    """

    def __init__(self, earliest: Mapping[Partition, int]) -> None:
        self.durable: dict[str, dict[str, int]] = {}
        self.earliest: dict[Partition, int] = dict(earliest)
        self._by_address: dict[str, dict[str, None]] = {}

    def durable_end(self, partition: Partition) -> int:
        """Return the sequence after the partition's last durable record; 0 if there is none."""
        return self.durable.get(partition.topic, {}).get(partition.address, 0)

    def readable_range(self, partition: Partition) -> range:
        """Return the sequences of a partition that are durable, and so may be sent."""
        return range(self.durable_end(partition))

    def topics_of(self, address: str) -> Collection[str]:
        """Return the topics of a producer's partitions."""
        return self._by_address.get(address, {})

    def set_durable_end(self, partition: Partition, end: int) -> None:
        """Record that a partition is durable up to, not including, this sequence, which is not 0."""
        self.durable.setdefault(partition.topic, {})[partition.address] = end
        self._by_address.setdefault(partition.address, {})[partition.topic] = None

    def set_earliest(self, partition: Partition, sequence: int) -> None:
        """Record that the storage holds no records of a partition before this sequence."""
        self.earliest[partition] = sequence

    def remove(self, partition: Partition) -> None:
        """Remove a partition that the storage has deleted."""
        self.earliest.pop(partition, None)
        self.durable[partition.topic].pop(partition.address, None)
        if not self.durable[partition.topic]:
            del self.durable[partition.topic]
        self._by_address[partition.address].pop(partition.topic, None)
        if not self._by_address[partition.address]:
            del self._by_address[partition.address]
