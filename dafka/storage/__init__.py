"""Storage of records: the plugin interface, the values it exchanges, and opening a storage by its URL."""

from dafka.storage.base import (
    READ_BYTES,
    Compactable,
    Compacted,
    CompactsPartitions,
    Damage,
    DeletesPartitions,
    DetectsRemoval,
    KeepsRecordBatches,
    PartitionInfo,
    RetentionPolicy,
    Storage,
    StorageStatistics,
    open_storage,
    read_range,
)

__all__ = [
    "READ_BYTES",
    "Compactable",
    "Compacted",
    "CompactsPartitions",
    "Damage",
    "DeletesPartitions",
    "DetectsRemoval",
    "KeepsRecordBatches",
    "PartitionInfo",
    "RetentionPolicy",
    "Storage",
    "StorageStatistics",
    "open_storage",
    "read_range",
]
