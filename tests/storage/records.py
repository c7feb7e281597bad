"""Partitions and records for tests of storages: the value of each record is its sequence."""

from __future__ import annotations

from dafka.records import Partition, RecordBatch

PARTITION, OTHER = Partition("orders", "A" * 32), Partition("orders", "B" * 32)


def batch(
    first: int, end: int, partition: Partition = PARTITION, *, size: int = 0, stored_at: int | None = None
) -> RecordBatch:
    """Return records whose values are filled up to a size, all stored at one time."""
    values = [(b"%d" % sequence).ljust(size, b".") for sequence in range(first, end)]
    return RecordBatch(partition, first, values, stored_at=None if stored_at is None else [stored_at] * len(values))
