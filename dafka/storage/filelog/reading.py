"""Reading a partition: its records, their times, and the size of a range. Any number of threads may read concurrently.

The page cache of the system caches the records. This module caches only little: the indexes used last, the positions
where earlier reads ended, and blocks that were read only partially.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

import attrs

from dafka.batches import HEADER_BYTES, slice_records
from dafka.batches.encoding import RECORD_OVERHEAD_BYTES_MAX
from dafka.errors import StorageCorruptError
from dafka.packed_bytes import Repeated
from dafka.records import RecordBatch, join
from dafka.storage.filelog.files import FilePool
from dafka.storage.filelog.index import Block, SegmentIndex, decode_rows, decode_times, read_index_files
from dafka.storage.filelog.partition import Head, PartitionLog
from dafka.storage.filelog.segment import BODY_READ_BYTES, ReadBuffer, Segment

READ_RECORDS_MAX = 2**15
"""The maximum number of records in one read; it limits reads of empty records."""

FEW_RECORDS = 256
"""A read of at most this many records begins with a small piece of the file."""

FEW_READ_BYTES = 80 * 1024
"""The size of that piece, in bytes: a record batch as `encode_records` makes it, with its header."""

INDEXES_MAX = 512
"""The maximum number of cached indexes."""

CURSORS_MAX = 4096
"""The maximum number of cached positions where reads ended."""

PARTIAL_READ_BYTES_MAX = 32 * 2**20
"""The maximum size of the cached blocks that were read partially, in bytes."""

ATTEMPTS = 3
"""The number of attempts of a read while another process drops or replaces segments."""


class _PartialRead(NamedTuple):
    """The records of a block that was read only partially, and the position after it."""

    records: RecordBatch
    next_position: int

    @property
    def memory_bytes(self) -> int:
        return self.records.content_bytes + sum(map(len, self.records.encoded))


class LogReader:
    """Reads partitions through a pool of open files.

    `refresh` updates a partition that another process writes; it is None for the writer's own reader.
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
        self, log: PartitionLog, first_sequence: int, count: int, bytes_max: int, *, with_times: bool = False
    ) -> RecordBatch | None:
        """See `Storage.read`. Raises `OSError`."""
        for attempt in range(ATTEMPTS):
            head = log.head
            if not head.earliest <= first_sequence < head.end or count < 1:
                return None
            try:
                with self.open_segment(log, head, first_sequence) as segment:
                    if segment.base > first_sequence:
                        raise FileNotFoundError
                    records = self._read_segment(segment, first_sequence, count, bytes_max)
                    return _with_times(segment, records) if with_times else records
            except (FileNotFoundError, StorageCorruptError) as caught:
                # The segment may have been trimmed or replaced, possibly by another process. If it was compacted, its
                # index may have been cached by a read that had the former file open.
                self.drop_segment(log, log.find_segment(head, first_sequence)[0])
                if self._refresh is not None:
                    log.bases = ()
                    self._refresh(log)
                error = _missing_error(log, head, first_sequence) if isinstance(caught, OSError) else caught
                if log.head == head and attempt > 0:
                    break
        if log.head.earliest <= first_sequence < log.head.end:
            raise error
        return None

    def find_sequence_by_time(self, log: PartitionLog, stored_at: int) -> int:
        """See `Storage.find_sequence_by_time`. Raises `OSError`."""
        head = log.head
        if head.earliest == head.end or stored_at > head.latest_at:
            return head.end
        if stored_at <= head.earliest_at:
            return head.earliest
        bases = [base for base in log.list_bases() if head.earliest < base <= head.base]
        first = bisect_left(bases, stored_at, key=lambda base: self.find_stored_at(log, head, base, head.latest_at))
        start = max(bases[first - 1] if first else 0, head.earliest)
        try:
            with self.open_segment(log, head, start) as segment:
                return min(max(segment.find_time(stored_at), head.earliest), head.end)
        except FileNotFoundError:
            return min(max(log.find_segment(head, start)[1], log.head.earliest), head.end)

    def find_stored_at(self, log: PartitionLog, head: Head, sequence: int, default: int) -> int:
        """Return the time of a record, or of a later one if it is damaged; the default if the segment is missing.

        Raises `OSError`.
        """
        with suppress(FileNotFoundError), self.open_segment(log, head, sequence) as segment:
            for run in segment.runs(sequence):
                return run.stored_at
        return default

    def find_last_stored_at(self, log: PartitionLog, head: Head, base: int) -> int:
        """Return the time of the last record of a segment; if it is missing, that of the partition's first record."""
        with suppress(FileNotFoundError), self.open_segment(log, head, base) as segment:
            return segment.last_stored_at()
        return head.earliest_at

    def count_content_bytes(self, log: PartitionLog, head: Head, first_sequence: int, end_sequence: int) -> int:
        """Return the total size of the contents of a range, approximate if some are damaged. Raises `OSError`."""
        total = 0
        while first_sequence < end_sequence:
            _, segment_end = log.find_segment(head, first_sequence)
            stop = min(segment_end, end_sequence)
            with suppress(FileNotFoundError), self.open_segment(log, head, first_sequence) as segment:
                total += count_segment_bytes(segment, first_sequence, stop)
            first_sequence = stop
        return total

    def load_index(self, log: PartitionLog, head: Head, base: int) -> SegmentIndex:
        """Return the current index of a segment. Raises `OSError`."""
        with self.open_segment(log, head, base) as segment:
            return self.get_index(segment)

    def get_index(self, segment: Segment) -> SegmentIndex:
        """Return the index of an open segment: from the cache, its files, or the headers. Raises `OSError`."""
        with segment.log.lock:
            path = segment.path
            index = self.find_cached_index(segment.log, segment.base) or _read_index(segment)
            # A longer index, from a concurrent append, is valid, too.
            if index.length > segment.limit and segment.base != segment.log.head.base:
                index = SegmentIndex(segment.base)  # the cached one is for a file that compaction has replaced
            if index.length < segment.limit:
                for block in segment.iterate(segment.open_buffer(), index.length, index.end_sequence):
                    index.add_block(block)
                index.length = segment.limit
            self._cache_index(path, index)
        return index

    def start_index(self, log: PartitionLog, base: int) -> None:
        """Cache the index of a new segment."""
        with log.lock:
            self._cache_index(log.log_path(base), SegmentIndex(base))

    def extend_cached_index(self, log: PartitionLog, base: int, blocks: Sequence[Block]) -> None:
        """Add appended blocks to the index of a segment, if it is cached and ends where they begin."""
        with log.lock:
            index = self.find_cached_index(log, base)
            if index is not None and index.length == blocks[0].position:
                for block in blocks:
                    index.add_block(block)

    def find_cached_index(self, log: PartitionLog, base: int) -> SegmentIndex | None:
        """Return the index of a segment if it is cached."""
        path = log.log_path(base)
        with self._lock:
            index = self._indexes.get(path)
            if index is not None:
                self._indexes.move_to_end(path)
            return index

    def drop_segment(self, log: PartitionLog, base: int) -> None:
        """Drop the cached data of a segment that was removed, or may have been replaced."""
        path = log.log_path(base)
        self.pool.drop(path)
        self.pool.drop(log.stored_path(base))
        with self._lock:
            self._indexes.pop(path, None)
            for key in [key for key in self._cursors if key[0] == path]:
                del self._cursors[key]
            for key in [key for key in self._partial_reads if key[0] == path]:
                self._partial_read_bytes -= self._partial_reads.pop(key).memory_bytes

    @contextmanager
    def open_segment(self, log: PartitionLog, head: Head, sequence: int) -> Iterator[Segment]:
        """Open the segment that should hold a sequence. Raises `OSError`."""
        base, end = log.find_segment(head, sequence)
        path = log.log_path(base)
        if self._refresh is not None and not self.pool.is_in_place(path):
            self.drop_segment(log, base)  # the writer has deleted the partition, and begun it again
        with self.pool.open_file(path) as fd:
            limit = head.length if base == head.base else os.fstat(fd).st_size
            yield Segment(log, base, end, fd, limit, self.pool, self.get_index)

    def _read_segment(self, segment: Segment, first_sequence: int, count: int, bytes_max: int) -> RecordBatch:
        buffer = segment.open_buffer(
            FEW_READ_BYTES if count <= FEW_RECORDS else min(bytes_max, BODY_READ_BYTES) + FEW_READ_BYTES
        )
        parts: list[RecordBatch] = []
        records_max = READ_RECORDS_MAX
        sequence, stop = first_sequence, min(first_sequence + count, segment.end_sequence)
        current = self._take_partial_read(segment, sequence) or self._read_first(segment, buffer, sequence)
        while True:
            part = current.records.between(sequence, stop)
            if part.content_bytes > bytes_max or len(part) > records_max:
                if parts:  # a record batch is split only if it alone is too large
                    self._keep_partial_read(segment, sequence, current)
                    break
                part = part.within(bytes_max).between(sequence, sequence + records_max)
            parts.append(slice_records(current.records, sequence, part.end_sequence))
            bytes_max -= part.content_bytes
            records_max -= len(part)
            sequence = part.end_sequence
            if sequence < current.records.end_sequence:
                self._keep_partial_read(segment, sequence, current)
                break
            is_over = sequence >= stop or bytes_max <= 0 or records_max <= 0
            block = None if is_over else segment.block_at(buffer, current.next_position, sequence)
            records = segment.decode(buffer, block) if block is not None and _may_fit(block, bytes_max) else None
            if block is None or records is None:
                self.keep_cursor(segment, sequence, current.next_position)
                break
            current = _PartialRead(records, block.next_position)
        return join(parts)

    def _read_first(self, segment: Segment, buffer: ReadBuffer, sequence: int) -> _PartialRead:
        """Return the records of the block with a sequence. Raise `StorageCorruptError` if it is damaged."""
        block = self.locate(segment, buffer, sequence)
        if block is None or block.first_sequence > sequence:
            end_sequence = segment.end_sequence if block is None else block.first_sequence
            raise _corrupt_error(segment, sequence, end_sequence)
        records = segment.decode(buffer, block)
        if records is None:
            end_sequence = segment.find_damage_end(buffer, block)
            raise _corrupt_error(segment, sequence, min(end_sequence, segment.end_sequence))
        return _PartialRead(records, block.next_position)

    def locate(self, segment: Segment, buffer: ReadBuffer, sequence: int) -> Block | None:
        """Return the block with a sequence; if it is damaged, the next one, if any."""
        with self._lock:
            position = self._cursors.pop((segment.path, sequence), 0 if sequence == segment.base else None)
        block = None if position is None else segment.block_at(buffer, position, sequence)
        return segment.locate(buffer, sequence) if block is None else block

    def _cache_index(self, path: str, index: SegmentIndex) -> None:
        with self._lock:
            self._indexes[path] = index
            if len(self._indexes) > INDEXES_MAX:
                self._indexes.popitem(last=False)

    def keep_cursor(self, segment: Segment, sequence: int, position: int) -> None:
        """Keep where a sequence begins, for the next read."""
        with self._lock:
            self._cursors[segment.path, sequence] = position
            if len(self._cursors) > CURSORS_MAX:
                self._cursors.popitem(last=False)

    def _take_partial_read(self, segment: Segment, sequence: int) -> _PartialRead | None:
        with self._lock:
            partial_read = self._partial_reads.pop((segment.path, sequence), None)
            if partial_read is not None:
                self._partial_read_bytes -= partial_read.memory_bytes
            return partial_read

    def _keep_partial_read(self, segment: Segment, sequence: int, partial_read: _PartialRead) -> None:
        with self._lock:
            before = self._partial_reads.pop((segment.path, sequence), None)
            self._partial_reads[segment.path, sequence] = partial_read
            self._partial_read_bytes += partial_read.memory_bytes - (before.memory_bytes if before else 0)
            while self._partial_read_bytes > PARTIAL_READ_BYTES_MAX:
                self._partial_read_bytes -= self._partial_reads.popitem(last=False)[1].memory_bytes


def count_segment_bytes(segment: Segment, first_sequence: int, end_sequence: int) -> int:
    """Return the total size of the records of a range of a segment, approximate if some are damaged."""
    if first_sequence <= segment.base and end_sequence >= segment.end_sequence:
        return segment.content_bytes()
    total = 0
    for run in segment.runs(first_sequence):
        if run.first_sequence >= end_sequence:
            break
        begin, end = max(run.first_sequence, first_sequence), min(run.end_sequence, end_sequence)
        is_whole = (begin, end) == (run.first_sequence, run.end_sequence)
        if is_whole and run.content_bytes is not None:
            total += run.content_bytes
        else:
            total += segment.count_bytes(begin, end)
    return total


def _read_index(segment: Segment) -> SegmentIndex:
    """Return the index of a segment of record batches as its files have it; an empty one if they are invalid."""
    log, base = segment.log, segment.base
    index = SegmentIndex(base)
    data, times_data = read_index_files(log, base)
    rows, times = decode_rows(data, base), decode_times(times_data, base)
    if rows is None or times is None:
        return index
    buffer = segment.open_buffer(HEADER_BYTES)
    for last_sequence, position in rows:
        block = segment.read_header(buffer, position)
        if block is None or block.end_sequence - 1 != last_sequence:
            return SegmentIndex(base)
        index.rows.append((block.first_sequence, position, last_sequence))
        index.end_sequence, index.length = block.end_sequence, block.next_position
    index.times = [time for time in times if time[1] < index.end_sequence]  # one may be of the end at that time
    index.largest = index.times[-1] if index.times else index.largest
    return index


def _may_fit(block: Block, bytes_max: int) -> bool:
    """Return whether the records of a block may have at most this size, judged by the size of the block."""
    return block.size - HEADER_BYTES - RECORD_OVERHEAD_BYTES_MAX * block.records <= bytes_max


def _with_times(segment: Segment, records: RecordBatch) -> RecordBatch:
    times: list[int] = []
    end = records.end_sequence
    for run in segment.runs(records.first_sequence):
        count = min(run.end_sequence, end) - max(run.first_sequence, records.first_sequence)
        if count == len(records):
            return attrs.evolve(records, stored_at=Repeated(run.stored_at, count))
        times += [run.stored_at] * count
        if run.end_sequence >= end:
            break
    return attrs.evolve(records, stored_at=times)


def _corrupt_error(segment: Segment, sequence: int, end_sequence: int) -> StorageCorruptError:
    last = end_sequence - 1
    which = f"sequence {sequence} is" if last <= sequence else f"sequences {sequence} to {last} are"
    return StorageCorruptError(
        f"{segment.log.partition}: {which} damaged or missing in {segment.path}", max(end_sequence, sequence + 1)
    )


def _missing_error(log: PartitionLog, head: Head, sequence: int) -> StorageCorruptError:
    base, end = log.find_segment(head, sequence)
    reason = f"{log.log_path(base)} is missing" if base <= sequence else f"no segment in {log.folder} holds them"
    return StorageCorruptError(f"{log.partition}: sequences {sequence} to {end - 1} are lost, {reason}", end)
