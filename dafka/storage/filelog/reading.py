"""Reading a partition: its records, their times, and the size of a range. Any number of threads may read concurrently.

The page cache of the system caches the contents. This module caches only little: the indexes used last, the positions
where earlier reads ended, and entries that were read only partially.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from dafka.contents import PackedContents, count_bytes, count_within, join_contents
from dafka.errors import StorageCorruptError
from dafka.records import RecordBatch
from dafka.storage.filelog.entries import HEADER_BYTES, Entry
from dafka.storage.filelog.files import FilePool, read_file
from dafka.storage.filelog.partition import Head, PartitionLog
from dafka.storage.filelog.segment import (
    BODY_READ_BYTES,
    HEADER_READ_BYTES,
    ReadBuffer,
    SegmentIndex,
    extend_index,
    iterate_entries,
    read_body_at,
    read_entry_at,
)

READ_RECORDS_MAX = 16_384
"""The maximum number of records in one read; it limits reads of empty records."""

FEW_RECORDS = 256
"""A read of at most this many records begins with a small piece of the file."""

INDEXES_MAX = 512
"""The maximum number of cached indexes."""

CURSORS_MAX = 4096
"""The maximum number of cached positions where reads ended."""

PARTIAL_READ_BYTES_MAX = 32 * 2**20
"""The maximum size of the cached entries that were read partially, in bytes."""

ATTEMPTS = 3
"""The number of times that a read is tried while another process drops or replaces segments."""


class _PartialRead(NamedTuple):
    entry: Entry
    contents: PackedContents

    @property
    def memory_bytes(self) -> int:
        return self.entry.body_bytes


class _Segment(NamedTuple):
    """An open segment; its first `limit` bytes are valid."""

    path: str
    base: int
    end_sequence: int
    seed: int
    fd: int
    limit: int


class LogReader:
    """Reads partitions through a pool of open files.

    Args:
        pool: The open files.
        refresh: Updates a partition that another process writes; None for the writer's own reader.
    """

    def __init__(self, pool: FilePool, refresh: Callable[[PartitionLog], None] | None = None) -> None:
        self.pool = pool
        self._refresh = refresh
        self._lock = threading.Lock()
        self._indexes: OrderedDict[str, SegmentIndex] = OrderedDict()
        self._cursors: OrderedDict[tuple[str, int], int] = OrderedDict()
        self._partial_reads: OrderedDict[tuple[str, int], _PartialRead] = OrderedDict()
        self._partial_read_bytes = 0

    def read_records(
        self, log: PartitionLog, first_sequence: int, count: int, bytes_max: int, *, with_times: bool
    ) -> RecordBatch | None:
        """See `Storage.read`. Raises `OSError`."""
        for attempt in range(ATTEMPTS):
            head = log.head
            if not head.earliest <= first_sequence < head.end or count < 1:
                return None
            try:
                with self._segment(log, head, first_sequence) as segment:
                    if segment.base > first_sequence:
                        raise FileNotFoundError
                    return self._read_segment(
                        log, segment, first_sequence, min(count, READ_RECORDS_MAX), bytes_max, with_times
                    )
            except (FileNotFoundError, StorageCorruptError) as error:
                # The segment may have been trimmed or replaced, possibly by another process.
                path = log.log_path(log.find_segment(head, first_sequence)[0])
                if self._refresh is not None:
                    self.drop_segment(path)
                    log.bases = ()
                    self._refresh(log)
                now = log.head
                is_final = now == head and (self._refresh is None or attempt > 0)
                if now.earliest <= first_sequence < now.end and (is_final or attempt == ATTEMPTS - 1):
                    raise _missing_error(log, head, first_sequence) if isinstance(error, OSError) else error from None
        return None

    def find_sequence_by_time(self, log: PartitionLog, stored_at: int) -> int:
        """See `Storage.find_sequence_by_time`. Raises `OSError`."""
        head = log.head
        if head.earliest == head.end or stored_at > head.latest_at:
            return head.end
        if stored_at <= head.earliest_at:
            return head.earliest
        bases = [base for base in log.list_bases() if head.earliest < base <= head.base]
        first = bisect_right(bases, False, key=lambda base: self._segment_stored_at(log, head, base) >= stored_at)
        start = max(bases[first - 1] if first else 0, head.earliest)
        try:
            with self._segment(log, head, start) as segment:
                sequence, position = self.get_index(log, segment).locate_time(stored_at)
                for entry in iterate_entries(
                    ReadBuffer(segment.fd, segment.limit, HEADER_READ_BYTES), position, sequence, segment.seed
                ):
                    if entry.stored_at >= stored_at:
                        return max(entry.first_sequence, head.earliest)
                return segment.end_sequence
        except FileNotFoundError:
            return min(max(log.find_segment(head, start)[1], log.head.earliest), head.end)

    def find_stored_at(self, log: PartitionLog, head: Head, sequence: int) -> int:
        """Return the time of a record; if it is damaged, that of a later one or of the earliest. Raises `OSError`."""
        with suppress(FileNotFoundError), self._segment(log, head, sequence) as segment:
            entry = self._locate(log, segment, ReadBuffer(segment.fd, segment.limit, HEADER_READ_BYTES), sequence)
            if entry is not None:
                return entry.stored_at
        return head.earliest_at

    def find_last_stored_at(self, log: PartitionLog, head: Head, base: int) -> int:
        """Return the time of the last record of a segment; if it is missing, that of the partition's first record."""
        with suppress(FileNotFoundError):
            return self.load_index(log, head, base).last_stored_at
        return head.earliest_at

    def count_content_bytes(self, log: PartitionLog, head: Head, first_sequence: int, end_sequence: int) -> int:
        """Return the total size of the contents of a range, approximate if a body is damaged. Raises `OSError`."""
        total = 0
        while first_sequence < end_sequence:
            _, segment_end = log.find_segment(head, first_sequence)
            stop = min(segment_end, end_sequence)
            with suppress(FileNotFoundError), self._segment(log, head, first_sequence) as segment:
                total += self._count_segment_bytes(log, segment, first_sequence, stop)
            first_sequence = stop
        return total

    def load_index(self, log: PartitionLog, head: Head, base: int) -> SegmentIndex:
        """Return the current index of a segment. Raises `OSError`."""
        with self._segment(log, head, base) as segment:
            return self.get_index(log, segment)

    def get_index(self, log: PartitionLog, segment: _Segment) -> SegmentIndex:
        """Return the index of an open segment: from the cache, its file, or the headers. Raises `OSError`."""
        with log.lock:
            index = self._cached_index(segment.path)
            if index is None:
                index = SegmentIndex.decode(read_file(log.index_path(segment.base)) or b"")
                if index is None or not _matches_segment(index, segment):
                    index = SegmentIndex.empty(segment.base)
            # An index that goes further, because of a concurrent append, is as good.
            if index.length < segment.limit:
                extend_index(index, segment.fd, segment.limit, segment.seed)
            self._cache_index(segment.path, index)
        return index

    def start_index(self, log: PartitionLog, base: int) -> None:
        """Cache the index of a new segment."""
        with log.lock:
            self._cache_index(log.log_path(base), SegmentIndex.empty(base))

    def extend_cached_index(self, log: PartitionLog, base: int, entries: list[Entry]) -> None:
        """Add appended entries to the index of a segment, if it is cached and ends where they begin."""
        with log.lock:
            index = self._cached_index(log.log_path(base))
            if index is not None and index.length == entries[0].position:
                for entry in entries:
                    index.add_entry(entry)

    def find_cached_index(self, log: PartitionLog, base: int) -> SegmentIndex | None:
        """Return the index of a segment if it is cached."""
        return self._cached_index(log.log_path(base))

    def drop_segment(self, path: str) -> None:
        """Drop the cached data of a segment that was removed, or may have been replaced."""
        self.pool.drop(path)
        with self._lock:
            self._indexes.pop(path, None)
            for key in [key for key in self._cursors if key[0] == path]:
                del self._cursors[key]
            for key in [key for key in self._partial_reads if key[0] == path]:
                self._partial_read_bytes -= self._partial_reads.pop(key).memory_bytes

    @contextmanager
    def _segment(self, log: PartitionLog, head: Head, sequence: int) -> Iterator[_Segment]:
        base, end = log.find_segment(head, sequence)
        path = log.log_path(base)
        if self._refresh is not None and not self.pool.is_in_place(path):
            self.drop_segment(path)  # the writer has deleted the partition, and begun it again
        with self.pool.open_file(path) as fd:
            limit = head.length if base == head.base else os.fstat(fd).st_size
            yield _Segment(path, base, end, log.segment_seed(base), fd, limit)

    def _read_segment(
        self, log: PartitionLog, segment: _Segment, first_sequence: int, count: int, bytes_max: int, with_times: bool
    ) -> RecordBatch:
        buffer = ReadBuffer(segment.fd, segment.limit, HEADER_READ_BYTES if count <= FEW_RECORDS else BODY_READ_BYTES)
        parts: list[Sequence[bytes]] = []
        times: list[int] = []
        sequence, stop = first_sequence, min(first_sequence + count, segment.end_sequence)
        partial_read = self._take_partial_read(segment, sequence)
        entry = partial_read.entry if partial_read else self._locate(log, segment, buffer, sequence)
        if entry is None or entry.first_sequence > sequence:
            raise _corrupt_error(
                log, segment, sequence, segment.end_sequence if entry is None else entry.first_sequence
            )
        while True:
            contents = partial_read.contents if partial_read else read_body_at(buffer, entry)
            if contents is None:
                if not parts:
                    raise _corrupt_error(log, segment, sequence, min(entry.end_sequence, segment.end_sequence))
                break
            begin = sequence - entry.first_sequence
            part = contents[begin : min(stop - entry.first_sequence, entry.records)]
            part = part[: max(count_within(part, bytes_max), 0 if parts else 1)]
            end = begin + len(part)
            parts.append(part)
            times += [entry.stored_at] * len(part) if with_times else ()
            bytes_max -= count_bytes(part)
            sequence = entry.first_sequence + end
            if end < entry.records:
                self._keep_partial_read(segment, sequence, _PartialRead(entry, contents))
                break
            next_entry = (
                read_entry_at(buffer, entry.next_position, segment.seed) if sequence < stop and bytes_max > 0 else None
            )
            if next_entry is None or next_entry.first_sequence != sequence:
                self._keep_cursor(segment, sequence, entry.next_position)
                break
            entry, partial_read = next_entry, None
        return RecordBatch(log.partition, first_sequence, join_contents(parts), stored_at=times if with_times else None)

    def _locate(self, log: PartitionLog, segment: _Segment, buffer: ReadBuffer, sequence: int) -> Entry | None:
        """Return the entry with a sequence; if it is damaged, the next one, if any."""
        with self._lock:
            position = self._cursors.pop((segment.path, sequence), None)
        entry = None if position is None else read_entry_at(buffer, position, segment.seed)
        if entry is not None and entry.first_sequence <= sequence < entry.end_sequence:
            return entry
        row_sequence, position = self.get_index(log, segment).locate_sequence(sequence)
        for entry in iterate_entries(buffer, position, row_sequence, segment.seed):
            if entry.end_sequence > sequence:
                return entry
        return None

    def _segment_stored_at(self, log: PartitionLog, head: Head, base: int) -> int:
        with suppress(FileNotFoundError), self._segment(log, head, base) as segment:
            for entry in iterate_entries(
                ReadBuffer(segment.fd, segment.limit, HEADER_READ_BYTES), 0, base, segment.seed
            ):
                return entry.stored_at
        return head.latest_at

    def _count_segment_bytes(self, log: PartitionLog, segment: _Segment, first_sequence: int, end_sequence: int) -> int:
        index = self.get_index(log, segment)
        if first_sequence <= segment.base and end_sequence >= index.end_sequence:
            return index.content_bytes
        buffer = ReadBuffer(segment.fd, segment.limit, HEADER_READ_BYTES)
        sequence, position = index.locate_sequence(first_sequence)
        total = 0
        for entry in iterate_entries(buffer, position, sequence, segment.seed):
            if entry.first_sequence >= end_sequence:
                break
            begin = max(first_sequence - entry.first_sequence, 0)
            end = max(min(end_sequence - entry.first_sequence, entry.records), begin)
            if begin == 0 and end == entry.records:
                total += entry.content_bytes
            elif begin < entry.records:
                contents = read_body_at(buffer, entry)
                share = entry.content_bytes * (end - begin) // entry.records
                total += share if contents is None else contents.ends[end] - contents.ends[begin]
        return total

    def _cached_index(self, path: str) -> SegmentIndex | None:
        with self._lock:
            index = self._indexes.get(path)
            if index is not None:
                self._indexes.move_to_end(path)
            return index

    def _cache_index(self, path: str, index: SegmentIndex) -> None:
        with self._lock:
            self._indexes[path] = index
            if len(self._indexes) > INDEXES_MAX:
                self._indexes.popitem(last=False)

    def _keep_cursor(self, segment: _Segment, sequence: int, position: int) -> None:
        with self._lock:
            self._cursors[segment.path, sequence] = position
            if len(self._cursors) > CURSORS_MAX:
                self._cursors.popitem(last=False)

    def _take_partial_read(self, segment: _Segment, sequence: int) -> _PartialRead | None:
        with self._lock:
            partial_read = self._partial_reads.pop((segment.path, sequence), None)
            if partial_read is not None:
                self._partial_read_bytes -= partial_read.memory_bytes
            return partial_read

    def _keep_partial_read(self, segment: _Segment, sequence: int, partial_read: _PartialRead) -> None:
        with self._lock:
            before = self._partial_reads.pop((segment.path, sequence), None)
            self._partial_reads[segment.path, sequence] = partial_read
            self._partial_read_bytes += partial_read.memory_bytes - (before.memory_bytes if before else 0)
            while self._partial_read_bytes > PARTIAL_READ_BYTES_MAX:
                self._partial_read_bytes -= self._partial_reads.popitem(last=False)[1].memory_bytes


def _matches_segment(index: SegmentIndex, segment: _Segment) -> bool:
    """Return whether the rows of an index are entries of a segment."""
    if index.base != segment.base or index.length > segment.limit:
        return False
    buffer = ReadBuffer(segment.fd, segment.limit, HEADER_BYTES)
    for sequence, position, stored_at in index.rows:
        entry = read_entry_at(buffer, position, segment.seed)
        if entry is None or (entry.first_sequence, entry.stored_at) != (sequence, stored_at):
            return False
    return True


def _corrupt_error(log: PartitionLog, segment: _Segment, sequence: int, end_sequence: int) -> StorageCorruptError:
    last = end_sequence - 1
    which = f"sequence {sequence} is" if last <= sequence else f"sequences {sequence} to {last} are"
    return StorageCorruptError(
        f"{log.partition}: {which} damaged or missing in {segment.path}", max(end_sequence, sequence + 1)
    )


def _missing_error(log: PartitionLog, head: Head, sequence: int) -> StorageCorruptError:
    base, end = log.find_segment(head, sequence)
    reason = f"{log.log_path(base)} is missing" if base <= sequence else f"no segment in {log.folder} holds them"
    return StorageCorruptError(f"{log.partition}: sequences {sequence} to {end - 1} are lost, {reason}", end)
