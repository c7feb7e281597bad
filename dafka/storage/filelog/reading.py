"""Reading a partition: records, times, and what a range of it holds. Any number of threads may read at once.

The system's page cache is the cache of contents. What is kept here is small: the indexes used last, where the reads
before this one ended, and the entry in which one ended half-way.
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
"""Records of one read, so that empty ones do not make it endless."""

FEW_RECORDS = 256
"""Up to so many are looked for in a small piece of the file first."""

INDEXES_MAX = 512
CURSORS_MAX = 4096
HALF_READ_BYTES_MAX = 32 * 2**20
ATTEMPTS = 3


class _PartialRead(NamedTuple):
    entry: Entry
    contents: PackedContents

    @property
    def memory_bytes(self) -> int:
        return self.entry.body_bytes


class _Segment(NamedTuple):
    """An open one; `limit` octets of it count."""

    path: str
    base: int
    end_sequence: int
    seed: int
    fd: int
    limit: int


class LogReader:
    """Reads partitions through a pool of files; `refresh` brings a log up to date with what another process wrote."""

    def __init__(self, pool: FilePool, refresh: Callable[[PartitionLog], None] | None = None) -> None:
        self.pool = pool
        self._refresh = refresh
        self._lock = threading.Lock()
        self._indexes: OrderedDict[str, SegmentIndex] = OrderedDict()
        self._cursors: OrderedDict[tuple[str, int], int] = OrderedDict()
        self._half_read: OrderedDict[tuple[str, int], _PartialRead] = OrderedDict()
        self._half_read_bytes = 0

    def read(
        self, log: PartitionLog, first_sequence: int, count: int, bytes_max: int, *, with_times: bool
    ) -> RecordBatch | None:
        """See `Storage.read`. Raises `OSError` too."""
        for attempt in range(ATTEMPTS):
            head = log.head
            if not head.earliest <= first_sequence < head.end or count < 1:
                return None
            try:
                with self._segment(log, head, first_sequence) as segment:
                    if segment.base > first_sequence:
                        raise FileNotFoundError
                    return self._read(log, segment, first_sequence, min(count, READ_RECORDS_MAX), bytes_max, with_times)
            except (FileNotFoundError, StorageCorruptError) as error:
                # It may have been trimmed or replaced meanwhile, also by another process.
                path = log.log_path(log.find_segment(head, first_sequence)[0])
                if self._refresh is not None:
                    self.forget(path)
                    self.pool.forget(path)
                    log.bases = ()
                    self._refresh(log)
                now = log.head
                is_settled = now == head and (self._refresh is None or attempt > 0)
                if now.earliest <= first_sequence < now.end and (is_settled or attempt == ATTEMPTS - 1):
                    raise _missing(log, head, first_sequence) if isinstance(error, OSError) else error from None
        return None

    def find_sequence_by_time(self, log: PartitionLog, stored_at: int) -> int:
        """See `Storage.find_sequence_by_time`. Raises `OSError`."""
        head = log.head
        if head.earliest == head.end or stored_at > head.latest_at:
            return head.end
        if stored_at <= head.earliest_at:
            return head.earliest
        bases = [base for base in log.list_bases() if head.earliest < base <= head.base]
        first = bisect_right(bases, False, key=lambda base: self._begins_at(log, head, base) >= stored_at)
        start = max(bases[first - 1] if first else 0, head.earliest)
        try:
            with self._segment(log, head, start) as segment:
                sequence, position = self.index(log, segment).before_time(stored_at)
                for entry in iterate_entries(
                    ReadBuffer(segment.fd, segment.limit, HEADER_READ_BYTES), position, sequence, segment.seed
                ):
                    if entry.stored_at >= stored_at:
                        return max(entry.first_sequence, head.earliest)
                return segment.end_sequence
        except FileNotFoundError:
            return min(max(log.find_segment(head, start)[1], log.head.earliest), head.end)

    def stored_at(self, log: PartitionLog, head: Head, sequence: int) -> int:
        """The time of a record; where that is damaged, of one after it or of the earliest. Raises `OSError`."""
        with suppress(FileNotFoundError), self._segment(log, head, sequence) as segment:
            entry = self._locate(log, segment, ReadBuffer(segment.fd, segment.limit, HEADER_READ_BYTES), sequence)
            if entry is not None:
                return entry.stored_at
        return head.earliest_at

    def last_stored_at(self, log: PartitionLog, head: Head, base: int) -> int:
        """The time of a segment's last record; where the segment is missing, of the partition's first."""
        with suppress(FileNotFoundError):
            return self.load_index(log, head, base).last_stored_at
        return head.earliest_at

    def content_bytes(self, log: PartitionLog, head: Head, first_sequence: int, end_sequence: int) -> int:
        """The contents of these records, added up; of an entry whose body is damaged, about. Raises `OSError`."""
        total = 0
        while first_sequence < end_sequence:
            _, segment_end = log.find_segment(head, first_sequence)
            stop = min(segment_end, end_sequence)
            with suppress(FileNotFoundError), self._segment(log, head, first_sequence) as segment:
                total += self._content_bytes(log, segment, first_sequence, stop)
            first_sequence = stop
        return total

    def load_index(self, log: PartitionLog, head: Head, base: int) -> SegmentIndex:
        """A segment's index, up to date. Raises `OSError`."""
        with self._segment(log, head, base) as segment:
            return self.index(log, segment)

    def index(self, log: PartitionLog, segment: _Segment) -> SegmentIndex:
        """An open segment's index: kept, else read, else made from the headers. Raises `OSError`."""
        with log.lock:
            index = self._kept_index(segment.path)
            if index is None:
                index = SegmentIndex.decode(read_file(log.index_path(segment.base)) or b"")
                if index is None or not _holds(index, segment):
                    index = SegmentIndex.empty(segment.base)
            # One that goes further, for an append came meanwhile, serves as well.
            if index.length < segment.limit:
                extend_index(index, segment.fd, segment.limit, segment.seed)
            self._keep_index(segment.path, index)
        return index

    def start_index(self, log: PartitionLog, base: int) -> None:
        """Keeps the index of a segment that is just begun."""
        with log.lock:
            self._keep_index(log.log_path(base), SegmentIndex.empty(base))

    def extend_cached_index(self, log: PartitionLog, base: int, entries: list[Entry]) -> None:
        """Takes appended entries into the segment's index, where that is kept and goes as far."""
        with log.lock:
            index = self._kept_index(log.log_path(base))
            if index is not None and index.length == entries[0].position:
                for entry in entries:
                    index.add(entry)

    def cached_index(self, log: PartitionLog, base: int) -> SegmentIndex | None:
        """A segment's index, if that is at hand."""
        return self._kept_index(log.log_path(base))

    def forget(self, path: str) -> None:
        """To be called where a segment was removed."""
        with self._lock:
            self._indexes.pop(path, None)

    @contextmanager
    def _segment(self, log: PartitionLog, head: Head, sequence: int) -> Iterator[_Segment]:
        base, end = log.find_segment(head, sequence)
        path = log.log_path(base)
        with self.pool.lease(path) as fd:
            limit = head.length if base == head.base else os.fstat(fd).st_size
            yield _Segment(path, base, end, log.segment_seed(base), fd, limit)

    def _read(
        self, log: PartitionLog, segment: _Segment, first_sequence: int, count: int, bytes_max: int, with_times: bool
    ) -> RecordBatch:
        window = ReadBuffer(segment.fd, segment.limit, HEADER_READ_BYTES if count <= FEW_RECORDS else BODY_READ_BYTES)
        parts: list[Sequence[bytes]] = []
        times: list[int] = []
        sequence, stop = first_sequence, min(first_sequence + count, segment.end_sequence)
        partial_read = self._take_half_read(segment, sequence)
        entry = partial_read.entry if partial_read else self._locate(log, segment, window, sequence)
        if entry is None or entry.first_sequence > sequence:
            raise _corrupt(log, segment, sequence, segment.end_sequence if entry is None else entry.first_sequence)
        while True:
            contents = partial_read.contents if partial_read else read_body_at(window, entry)
            if contents is None:
                if not parts:
                    raise _corrupt(log, segment, sequence, min(entry.end_sequence, segment.end_sequence))
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
                self._keep_half_read(segment, sequence, _PartialRead(entry, contents))
                break
            next_entry = (
                read_entry_at(window, entry.next_position, segment.seed) if sequence < stop and bytes_max > 0 else None
            )
            if next_entry is None or next_entry.first_sequence != sequence:
                self._keep_cursor(segment, sequence, entry.next_position)
                break
            entry, partial_read = next_entry, None
        return RecordBatch(log.partition, first_sequence, join_contents(parts), times if with_times else None)

    def _locate(self, log: PartitionLog, segment: _Segment, window: ReadBuffer, sequence: int) -> Entry | None:
        """The entry with this sequence; where it is damaged, the next one, if any."""
        with self._lock:
            position = self._cursors.pop((segment.path, sequence), None)
        entry = None if position is None else read_entry_at(window, position, segment.seed)
        if entry is not None and entry.first_sequence <= sequence < entry.end_sequence:
            return entry
        row_sequence, position = self.index(log, segment).before_sequence(sequence)
        for entry in iterate_entries(window, position, row_sequence, segment.seed):
            if entry.end_sequence > sequence:
                return entry
        return None

    def _begins_at(self, log: PartitionLog, head: Head, base: int) -> int:
        with suppress(FileNotFoundError), self._segment(log, head, base) as segment:
            for entry in iterate_entries(
                ReadBuffer(segment.fd, segment.limit, HEADER_READ_BYTES), 0, base, segment.seed
            ):
                return entry.stored_at
        return head.latest_at

    def _content_bytes(self, log: PartitionLog, segment: _Segment, first_sequence: int, end_sequence: int) -> int:
        index = self.index(log, segment)
        if first_sequence <= segment.base and end_sequence >= index.end_sequence:
            return index.content_bytes
        window = ReadBuffer(segment.fd, segment.limit, HEADER_READ_BYTES)
        sequence, position = index.before_sequence(first_sequence)
        total = 0
        for entry in iterate_entries(window, position, sequence, segment.seed):
            if entry.first_sequence >= end_sequence:
                break
            begin = max(first_sequence - entry.first_sequence, 0)
            end = max(min(end_sequence - entry.first_sequence, entry.records), begin)
            if begin == 0 and end == entry.records:
                total += entry.content_bytes
            elif begin < entry.records:
                contents = read_body_at(window, entry)
                share = entry.content_bytes * (end - begin) // entry.records
                total += share if contents is None else contents.ends[end] - contents.ends[begin]
        return total

    def _kept_index(self, path: str) -> SegmentIndex | None:
        with self._lock:
            index = self._indexes.get(path)
            if index is not None:
                self._indexes.move_to_end(path)
            return index

    def _keep_index(self, path: str, index: SegmentIndex) -> None:
        with self._lock:
            self._indexes[path] = index
            if len(self._indexes) > INDEXES_MAX:
                self._indexes.popitem(last=False)

    def _keep_cursor(self, segment: _Segment, sequence: int, position: int) -> None:
        with self._lock:
            self._cursors[segment.path, sequence] = position
            if len(self._cursors) > CURSORS_MAX:
                self._cursors.popitem(last=False)

    def _take_half_read(self, segment: _Segment, sequence: int) -> _PartialRead | None:
        with self._lock:
            partial_read = self._half_read.pop((segment.path, sequence), None)
            if partial_read is not None:
                self._half_read_bytes -= partial_read.memory_bytes
            return partial_read

    def _keep_half_read(self, segment: _Segment, sequence: int, partial_read: _PartialRead) -> None:
        with self._lock:
            before = self._half_read.pop((segment.path, sequence), None)
            self._half_read[segment.path, sequence] = partial_read
            self._half_read_bytes += partial_read.memory_bytes - (before.memory_bytes if before else 0)
            while self._half_read_bytes > HALF_READ_BYTES_MAX:
                self._half_read_bytes -= self._half_read.popitem(last=False)[1].memory_bytes


def _holds(index: SegmentIndex, segment: _Segment) -> bool:
    """Tells whether an index's rows are entries of this segment."""
    if index.base != segment.base or index.length > segment.limit:
        return False
    window = ReadBuffer(segment.fd, segment.limit, HEADER_BYTES)
    for sequence, position, stored_at in index.rows:
        entry = read_entry_at(window, position, segment.seed)
        if entry is None or (entry.first_sequence, entry.stored_at) != (sequence, stored_at):
            return False
    return True


def _corrupt(log: PartitionLog, segment: _Segment, sequence: int, end_sequence: int) -> StorageCorruptError:
    last = end_sequence - 1
    which = f"sequence {sequence} is" if last <= sequence else f"sequences {sequence} to {last} are"
    return StorageCorruptError(
        f"{log.partition}: {which} damaged or missing in {segment.path}", max(end_sequence, sequence + 1)
    )


def _missing(log: PartitionLog, head: Head, sequence: int) -> StorageCorruptError:
    base, end = log.find_segment(head, sequence)
    reason = f"{log.log_path(base)} is missing" if base <= sequence else f"no segment in {log.folder} holds them"
    return StorageCorruptError(f"{log.partition}: sequences {sequence} to {end - 1} are lost, {reason}", end)
