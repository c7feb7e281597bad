"""Removing single records from a partition, in small steps, so that appends do not wait long."""

from __future__ import annotations

import json
import sqlite3
from itertools import compress

import attrs

from dafka.records import Partition, RecordBatch
from dafka.storage.capabilities import Compactable, Compacted, FindRemoved
from dafka.storage.sqlite.connection import snapshot
from dafka.storage.sqlite.schema import RECORD_BYTES, PartitionRow, PartitionTable, update_partition

DELETE_RECORDS_MAX = 500
"""The maximum number of records that are removed in one transaction: a few milliseconds of work."""

_CLEAN_BYTES = f"""
    SELECT ifnull(sum({RECORD_BYTES}), 0) FROM records WHERE partition_id = ? AND sequence >= ? AND sequence < ?
"""

_DELETE = f"""
    DELETE FROM records WHERE partition_id = ?1 AND sequence IN (SELECT value FROM json_each(?2))
    RETURNING {RECORD_BYTES}
"""


def find_compactable(
    reader: sqlite3.Connection, table: PartitionTable, partition: Partition, clean_end: int
) -> Compactable | None:
    """See `CompactsPartitions.find_compactable`."""
    with snapshot(reader):
        row = table.select_one(reader, partition)
        if row is None:
            return None
        info = row.info
        clean = 0
        if clean_end > info.earliest_sequence:
            (clean,) = reader.execute(_CLEAN_BYTES, (row.row_id, info.earliest_sequence, clean_end)).fetchone()
    end = max(info.end_sequence - 1, info.earliest_sequence)
    return Compactable(end, clean, max(info.content_bytes - clean, 0))


def choose_removed(batch: RecordBatch, end_sequence: int, find_removed: FindRemoved) -> list[int]:
    """Return the sequences of the records of a batch to remove, before an end."""
    removed = find_removed(batch)[: max(end_sequence - batch.first_sequence, 0)]
    if batch.compacted is not None:
        removed = bytes(wanted and not gone for wanted, gone in zip(removed, batch.compacted, strict=False))
    return [*compress(range(batch.first_sequence, batch.end_sequence), removed)]


def delete_records(
    writer: sqlite3.Connection, row: PartitionRow, sequences: list[int]
) -> tuple[PartitionRow, Compacted]:
    """Remove records of a partition, in a transaction of the caller.

    Args:
        writer: The connection.
        row: The row of the partition.
        sequences: The sequences of the records, in order.

    Returns:
        The changed row, which was written, and what was removed.
    """
    sizes = [size for (size,) in writer.execute(_DELETE, (row.row_id, json.dumps(sequences)))]
    info = row.info
    info = attrs.evolve(
        info,
        content_bytes=max(info.content_bytes - sum(sizes), 0),
        compacted_end=max(info.compacted_end, sequences[-1] + 1),
    )
    row = attrs.evolve(row, info=info)
    update_partition(writer, row)
    return row, Compacted(0, len(sizes), sum(sizes))
