"""What limits keep of a partition. Only whole segments go by them. Any thread may ask."""

from __future__ import annotations

from dafka.storage.base import Retention
from dafka.storage.filelog.partition import Head, PartitionLog
from dafka.storage.filelog.reading import LogReader

RETAIN_SEGMENTS = 8
"""Removed by limits at a time: an append waits no longer than for these."""


def surplus_steps(reader: LogReader, log: PartitionLog, retention: Retention, time_ms: int) -> list[int]:
    """Where to trim to, one after the other, until these limits are kept: a few segments each time."""
    earliest = log.head.earliest
    surplus = _surplus(reader, log, retention, time_ms)
    if surplus <= earliest:
        return []
    between = [base for base in log.list_bases() if earliest < base < surplus]
    return [*between[RETAIN_SEGMENTS - 1 :: RETAIN_SEGMENTS], surplus]


def _surplus(reader: LogReader, log: PartitionLog, retention: Retention, time_ms: int) -> int:
    """The sequence before which these limits keep no segment; the earliest where they keep all."""
    head = log.head
    cut_at = None if retention.age_ms is None else time_ms - retention.age_ms
    if head.earliest == head.end or not _may_drop(head, retention, cut_at):
        return head.earliest
    if _drops_all(head, retention, cut_at):
        return head.end
    earliest, content_bytes = head.earliest, head.content_bytes
    for base, end in zip(bases := log.list_bases(), bases[1:], strict=False):
        segment_bytes = reader.content_bytes(log, head, max(base, earliest), end)
        is_old = cut_at is not None and reader.last_stored_at(log, head, base) < cut_at
        is_many = retention.records_max is not None and head.end - end >= retention.records_max
        is_large = retention.bytes_max is not None and content_bytes - segment_bytes >= retention.bytes_max
        if not (is_old or is_many or is_large):
            break
        earliest, content_bytes = end, content_bytes - segment_bytes
    return earliest


def _may_drop(head: Head, retention: Retention, cut_at: int | None) -> bool:
    return (
        (cut_at is not None and head.earliest_at < cut_at)
        or (retention.records_max is not None and head.end - head.earliest > retention.records_max)
        or (retention.bytes_max is not None and head.content_bytes > retention.bytes_max)
    )


def _drops_all(head: Head, retention: Retention, cut_at: int | None) -> bool:
    return (
        (cut_at is not None and head.latest_at < cut_at)
        or retention.records_max == 0
        or (retention.bytes_max == 0 and head.content_bytes > 0)
    )
