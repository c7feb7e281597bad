"""Where records live: one interface, found by URL, ours and anybody's."""

from dafka.storage.base import (
    READ_BYTES,
    Damage,
    DetectsRemoval,
    PartitionInfo,
    RetentionPolicy,
    Storage,
    StorageStatistics,
    open_storage,
    read_range,
)

__all__ = [
    "READ_BYTES",
    "Damage",
    "DetectsRemoval",
    "PartitionInfo",
    "RetentionPolicy",
    "Storage",
    "StorageStatistics",
    "open_storage",
    "read_range",
]
