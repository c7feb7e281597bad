"""What an append is going to write, and what will be held then, worked out before anything is touched."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from dafka.records import RecordBatch
from dafka.storage.filelog.entries import CONTENT_BYTES_MAX, Entry, Run, check_run, encode, encoded_bytes
from dafka.storage.filelog.partition import Head, PartitionLog
from dafka.storage.support import stamp


@attrs.define
class Append:
    """What is to be written to one partition's segment; `head` is what will be held then."""

    log: PartitionLog
    is_new: bool
    head: Head
    begins_segment: bool
    position: int
    entries: list[Entry]
    buffers: list[bytes]
    is_begun: bool = False
    is_made: bool = False

    @property
    def path(self) -> str:
        """The segment's file."""
        return self.log.log_path(self.head.base)


def plan_append(
    log: PartitionLog,
    batches: list[RecordBatch],
    time_ms: int,
    segment_bytes: int,
    segment_ms: int,
    *,
    is_new: bool,
) -> Append:
    """What these batches, which continue the partition, make of it; `time_ms` is now.

    Raises `StorageError` where they cannot be stored.
    """
    head = log.head
    first_sequence = batches[0].first_sequence
    runs = list(_runs(batches, time_ms, head.latest_at if head.end else None))
    content_bytes = sum(batch.content_bytes for batch in batches)
    for run in runs:
        check_run(log.partition, run, is_large=content_bytes > CONTENT_BYTES_MAX)
    size = encoded_bytes(batches[-1].end_sequence - first_sequence, content_bytes)
    is_full = head.length > 0 and (head.length + size > segment_bytes or runs[0].stored_at - head.base_at >= segment_ms)
    begins_segment = is_new or is_full or first_sequence != head.end
    base, position = (first_sequence, 0) if begins_segment else (head.base, head.length)
    entries, buffers = encode(runs, position, log.segment_seed(base))
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
    return Append(log, is_new, new_head, begins_segment, position, entries, buffers)


def _runs(batches: list[RecordBatch], time_ms: int, latest_at: int | None) -> Iterator[Run]:
    for batch in batches:
        if batch.stored_at is None:
            latest_at = time_ms if latest_at is None else max(time_ms, latest_at)
            yield Run(batch.first_sequence, batch.contents, latest_at)
            continue
        floor = latest_at if latest_at is not None else -(2**63)
        for part in stamp(batch, time_ms, floor):
            assert part.stored_at is not None
            latest_at = part.stored_at[0]
            yield Run(part.first_sequence, part.contents, latest_at)
