"""Storage of records: the plugin interface, the values it exchanges, and opening a storage by its URL."""

from dafka.storage.base import READ_BYTES, Damage, PartitionInfo, RetentionPolicy, Storage, StorageStatistics
from dafka.storage.capabilities import (
    Compactable,
    Compacted,
    CompactsPartitions,
    DeletesPartitions,
    DetectsRemoval,
    KeepsRecordBatches,
    ReadsSeveral,
    ReadsStoredBatches,
    StoredBatches,
)
from dafka.storage.opening import open_storage, read_range
from dafka.storage.tiers import HasColdTier, TierStatistics

__all__ = [
    "READ_BYTES",
    "Compactable",
    "Compacted",
    "CompactsPartitions",
    "Damage",
    "DeletesPartitions",
    "DetectsRemoval",
    "HasColdTier",
    "KeepsRecordBatches",
    "PartitionInfo",
    "ReadsSeveral",
    "ReadsStoredBatches",
    "RetentionPolicy",
    "Storage",
    "StorageStatistics",
    "StoredBatches",
    "TierStatistics",
    "open_storage",
    "read_range",
]
