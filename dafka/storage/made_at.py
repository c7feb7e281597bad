"""Find records by the time at which they were made, in any storage."""

from __future__ import annotations

import attrs

from dafka.errors import StorageCorruptError
from dafka.records import NO_TIMESTAMP, Partition, RecordBatch
from dafka.storage.base import Storage

CLOCK_ERROR_MS = 5000
"""How far the clock of a producer may be ahead of the storage's. A record is made before it is stored, so its timestamp
is later than the time of storing only if the clocks differ."""

CHUNK_RECORDS = 10_000
"""The number of records that one call examines: a few milliseconds of work."""


@attrs.frozen
class SearchStep:
    """The result of one step of a search."""

    found: int | None
    """The sequence of the first record that was made at the time or later; None if it was not examined yet."""
    next_sequence: int
    """The sequence at which to continue."""
    is_over: bool = False


async def search_made_at(
    storage: Storage, partition: Partition, time_ms: int, first_sequence: int | None, end_sequence: int
) -> SearchStep:
    """Search the next records of a partition for the first one that was made at a time or later.

    A search begins without a first sequence. A record without a timestamp counts as made when it was stored. Damaged
    records are skipped. Raise `StorageError` if the storage fails.
    """
    if first_sequence is None:
        first_sequence = await storage.find_sequence_by_time(partition, max(time_ms - CLOCK_ERROR_MS, 0))
    if first_sequence >= end_sequence:
        return SearchStep(None, end_sequence, is_over=True)
    try:
        batch = await storage.read(
            partition, first_sequence, min(CHUNK_RECORDS, end_sequence - first_sequence), with_times=True
        )
    except StorageCorruptError as error:
        return SearchStep(None, max(error.end_sequence, first_sequence + 1))
    if batch is None:
        info = (await storage.partitions(partition.topic)).get(partition)
        if info is None or info.earliest_sequence <= first_sequence:
            return SearchStep(None, end_sequence, is_over=True)
        return SearchStep(None, info.earliest_sequence)  # retention has dropped records meanwhile
    found = _find_made_at(batch, time_ms)
    return SearchStep(found, batch.end_sequence, is_over=found is not None)


def _find_made_at(batch: RecordBatch, time_ms: int) -> int | None:
    stored_at = batch.stored_at
    assert stored_at is not None
    timestamps = stored_at if batch.timestamps is None else batch.timestamps
    if NO_TIMESTAMP not in timestamps and max(timestamps) < time_ms:
        return None
    for number, timestamp in enumerate(timestamps):
        made_at = stored_at[number] if timestamp == NO_TIMESTAMP else timestamp
        if made_at >= time_ms:
            return batch.first_sequence + number
    return None
