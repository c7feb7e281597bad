"""Planning an append to one partition: the entries to write, and the segment and position to write them to."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from dafka.records import RecordBatch
from dafka.storage.filelog.entries import CONTENT_BYTES_MAX, Entry, Run, check_run, encode_entries, estimate_bytes
from dafka.storage.filelog.partition import Head, PartitionLog
from dafka.storage.plugin_helpers import split_by_time


@attrs.define
class PlannedAppend:
    """The changes that an append will make to the segment of one partition.

    Attributes:
        log: The partition.
        is_new: Whether the partition must be created.
        head: The state of the partition after the append.
        begins_segment: Whether a new segment must be created.
        position: The position in the segment to write to.
        entries: The entries to write.
        buffers: Their bytes.
        is_prepared: Whether the segment has been prepared.
        is_created: Whether a new segment has been created.
    """

    log: PartitionLog
    is_new: bool
    head: Head
    begins_segment: bool
    position: int
    entries: list[Entry]
    buffers: list[bytes]
    is_prepared: bool = False
    is_created: bool = False

    @property
    def path(self) -> str:
        """The path of the segment."""
        return self.log.log_path(self.head.base)


def plan_append(
    log: PartitionLog,
    batches: list[RecordBatch],
    time_ms: int,
    segment_bytes: int,
    segment_ms: int,
    *,
    is_new: bool,
) -> PlannedAppend:
    """Plan an append without changing anything.

    Args:
        log: The partition.
        batches: The batches to append, which continue the partition.
        time_ms: The current time.
        segment_bytes: The size at which a new segment begins, in bytes.
        segment_ms: The age at which a new segment begins, in milliseconds.
        is_new: Whether the partition must be created.

    Returns:
        The plan.

    Raises:
        StorageError: If the records cannot be stored.
    """
    head = log.head
    first_sequence = batches[0].first_sequence
    runs = list(_split_runs(batches, time_ms, head.latest_at if head.end else None))
    content_bytes = sum(batch.content_bytes for batch in batches)
    for run in runs:
        check_run(log.partition, run, is_large=content_bytes > CONTENT_BYTES_MAX)
    size = estimate_bytes(batches[-1].end_sequence - first_sequence, content_bytes)
    is_full = head.length > 0 and (head.length + size > segment_bytes or runs[0].stored_at - head.base_at >= segment_ms)
    begins_segment = is_new or is_full or first_sequence != head.end
    base, position = (first_sequence, 0) if begins_segment else (head.base, head.length)
    entries, buffers = encode_entries(runs, position, log.segment_seed(base))
    is_empty = head.earliest == head.end
    new_head = Head(
        earliest=first_sequence if is_empty else head.earliest,
        end=batches[-1].end_sequence,
        content_bytes=head.content_bytes + sum(entry.content_bytes for entry in entries),
        earliest_at=entries[0].stored_at if is_empty else head.earliest_at,
        latest_at=entries[-1].stored_at,
        base=base,
        length=entries[-1].next_position,
        base_at=head.base_at if position else entries[0].stored_at,
        closed_bytes=head.closed_bytes + (head.length if begins_segment else 0),
    )
    return PlannedAppend(log, is_new, new_head, begins_segment, position, entries, buffers)


def _split_runs(batches: list[RecordBatch], time_ms: int, latest_at: int | None) -> Iterator[Run]:
    for batch in batches:
        if batch.stored_at is None:
            latest_at = time_ms if latest_at is None else max(time_ms, latest_at)
            yield Run(batch.first_sequence, batch.contents, latest_at)
            continue
        earliest_allowed = latest_at if latest_at is not None else batch.stored_at[0]
        for part in split_by_time(batch, time_ms, earliest_allowed):
            assert part.stored_at is not None
            latest_at = part.stored_at[0]
            yield Run(part.first_sequence, part.contents, latest_at)
