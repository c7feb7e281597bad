"""Detecting the form of a segment: record batches, or the entries of version 1."""

from __future__ import annotations

import os
from collections.abc import Callable

from dafka.storage.filelog.batch_segment import BatchSegment
from dafka.storage.filelog.entry_segment import MAGIC_BYTES, EntrySegment
from dafka.storage.filelog.files import FilePool
from dafka.storage.filelog.index import SegmentIndex
from dafka.storage.filelog.partition import PartitionLog
from dafka.storage.filelog.segment import Segment

_SEQUENCE_BYTES = 8


def as_segment(
    log: PartitionLog,
    base: int,
    end_sequence: int,
    fd: int,
    limit: int,
    pool: FilePool,
    load_index: Callable[[Segment], SegmentIndex],
) -> Segment:
    """Return an open segment in its form; see `Segment` for the arguments. An empty one is of record batches."""
    form = EntrySegment if _begins_with_entry(os.pread(fd, 2 * _SEQUENCE_BYTES, 0), base) else BatchSegment
    return form(log, base, end_sequence, fd, limit, pool, load_index)


def is_of_batches(segment: Segment) -> bool:
    """Return whether a segment consists of record batches, which this version writes."""
    return isinstance(segment, BatchSegment)


def _begins_with_entry(data: bytes, base: int) -> bool:
    """Return whether these are the first bytes of an entry, even if one of them is damaged.

    An entry has the first sequence of the segment after its first 8 bytes, a record batch in them. The first two bytes
    of an entry would be a negative base offset.
    """
    sequence = base.to_bytes(_SEQUENCE_BYTES, "big")
    return data.startswith(MAGIC_BYTES) or (data[_SEQUENCE_BYTES:] == sequence != data[:_SEQUENCE_BYTES])
