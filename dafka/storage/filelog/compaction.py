"""Rewriting a segment without the records that compaction removes.

The segment is copied, a part at a time, to a temporary file, which replaces it once it is durable. If the process is
killed, the segment is therefore either unchanged or compacted. The active segment is never rewritten: it is closed
before, so that partitions smaller than a segment are compacted, too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from itertools import pairwise

import attrs

from dafka.batches import (
    COMPRESSED_BYTES_MAX,
    ENCODED_BYTES_MAX,
    SPAN_MAX,
    Compression,
    compression_of,
    encode_records,
    read_header,
)
from dafka.batches.compacted import encode_rest
from dafka.packed_bytes import Repeated
from dafka.records import RecordBatch, join
from dafka.storage.capabilities import Compactable, Compacted, FindRemoved
from dafka.storage.filelog.files import file_size, remove_files, temporary_path, write_at
from dafka.storage.filelog.partition import PartitionLog
from dafka.storage.filelog.reading import LogReader
from dafka.storage.filelog.segment import BODY_READ_BYTES
from dafka.storage.filelog.stored import StoredRow, StoredRun
from dafka.storage.filelog.writer import LogWriter

STEP_BYTES = 2**18
"""The number of bytes of a segment that are read at a time: a few milliseconds of work."""

SHORT_SEGMENTS_MAX = 8
"""The number of segments of a partition from which on an active segment is closed only if it is not short."""

SHORT_BYTES = 2**18
"""The size that an active segment must have to be closed, for each segment more. So the number of segments grows with
the square root of what is appended, however often a small partition is compacted."""

FULL_BATCH_BYTES = ENCODED_BYTES_MAX // 2
"""The size from which a compacted batch is not joined with others again, in bytes."""


def find_compactable(log: PartitionLog, clean_end: int) -> Compactable:
    """See `CompactsPartitions.find_compactable`. Raises `OSError`."""
    head = log.head
    bases = [base for base in log.list_bases() if base <= head.base]
    clean = dirty = 0
    for base, end in pairwise(bases):
        size = file_size(log.log_path(base))
        clean, dirty = (clean + size, dirty) if end <= clean_end else (clean, dirty + size)
    end = head.base
    if head.length > max(len(bases) - 1 - SHORT_SEGMENTS_MAX, 0) * SHORT_BYTES:
        end, dirty = head.end, dirty + head.length
    return Compactable(max(min(end, head.end - 1), head.earliest), clean, dirty)


def find_segments(log: PartitionLog, end_sequence: int) -> list[int]:
    """Return the first sequences of the segments to rewrite, in order. Raises `OSError`."""
    return [base for base in log.list_bases() if base < min(end_sequence, log.head.base)]


class SegmentCompaction:
    """The compaction of the segment with this base, up to a sequence. Every method raises `OSError`."""

    def __init__(
        self, reader: LogReader, log: PartitionLog, base: int, end_sequence: int, find_removed: FindRemoved
    ) -> None:
        self._reader = reader
        self._log = log
        self._base = base
        self._end_sequence = end_sequence
        self._earliest = log.head.earliest
        self._find_removed = find_removed
        self._path = temporary_path(log.log_path(base))
        self._fd = -1
        self._read_to = self._written = 0
        self._sequence = base
        self._waiting: list[RecordBatch] = []
        self._compression = Compression.NONE
        self._runs: list[StoredRun] = []
        self._run = 0
        self._rows: list[StoredRow] = []
        self._content_bytes = 0
        self._done = Compacted()
        self._is_over = False

    def step(self) -> int:
        """Rewrite the next part. Return how many bytes were read; 0 when there is nothing left to do."""
        if self._is_over:
            return 0
        try:
            before = self._read_to
            self._rewrite_part()
            return self._read_to - before
        except FileNotFoundError:  # retention has dropped the segment
            self._give_up()
            return 0

    def finish(self, writer: LogWriter) -> Compacted:
        """Replace the segment with the temporary file. Must not be called during another change of the file log."""
        log, base = self._log, self._base
        is_there = writer.find_log(log.partition) is log and base in log.list_bases() and base != log.head.base
        is_whole = log.head.earliest <= max(self._earliest, base)
        if not self._done.records_removed or not is_there or not is_whole:
            return Compacted(self._done.bytes_read)
        seed = log.segment_seed(base)
        rows = b"".join([row.encode(seed) for row in self._rows])
        writer.replace_segment(log, base, self._path, rows, self._done.bytes_removed)
        return self._done

    def close(self) -> None:
        """Remove the temporary file if it was not used."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            remove_files([self._path])

    def _rewrite_part(self) -> None:
        log = self._log
        with self._reader.open_segment(log, log.head, self._base) as segment:
            if segment.base != self._base:
                self._give_up()
                return
            if self._fd < 0:
                self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
                self._runs = [*segment.runs(self._base)]
            buffer = segment.open_buffer(min(STEP_BYTES, BODY_READ_BYTES))
            stop = self._read_to + STEP_BYTES
            while self._read_to < min(stop, segment.limit):
                block = segment.block_at(buffer, self._read_to, self._sequence)
                records = None if block is None else segment.decode(buffer, block)
                if block is None or records is None:  # damaged segments stay as they are
                    self._give_up()
                    return
                self._add(records, block.size)
                time.sleep(0)  # gives an append the interpreter lock, for which it would otherwise wait milliseconds
                self._read_to, self._sequence = block.next_position, block.end_sequence
            if self._read_to < segment.limit:
                return
            if self._sequence != segment.end_sequence:
                self._give_up()
                return
        self._write_waiting()
        os.fsync(self._fd)
        self._is_over = True

    def _add(self, records: RecordBatch, size: int) -> None:
        """Add the records of the next block."""
        stored_at = self._stored_at(records.end_sequence)
        removed = self._find_removed(attrs.evolve(records, stored_at=Repeated(stored_at, len(records))))
        is_last = records.end_sequence > self._end_sequence
        if is_last:
            removed = removed[: max(self._end_sequence - records.first_sequence, 0)].ljust(len(records), b"\0")
        left = records.without(removed)
        before, after = self._not_dropped(records), self._not_dropped(left)
        gone = before.held_count - after.held_count
        self._done = self._done.plus(Compacted(size, gone, before.content_bytes - after.content_bytes))
        is_full = left.compacted is None or size >= FULL_BATCH_BYTES or len(left) >= SPAN_MAX // 2
        if left.held_count == records.held_count and is_full:
            self._write_waiting()
            self._write(left.encoded)
        elif is_last and read_header(records.encoded[0]).is_transactional:  # readers may have to skip the rest
            self._write_waiting()
            self._write([encode_rest(records.encoded[0], left)])
        else:
            if not self._waiting:
                self._compression = compression_of(records.encoded)
            self._waiting.append(attrs.evolve(left, encoded=()))
            if self._is_much_waiting():
                self._write_waiting()
        self._add_rows(left)
        self._content_bytes += left.content_bytes

    def _not_dropped(self, records: RecordBatch) -> RecordBatch:
        """Return the records that retention had not dropped at the start. `finish` gives up if it has dropped more."""
        return records.between(self._earliest, records.end_sequence)

    def _is_much_waiting(self) -> bool:
        waiting = self._waiting
        return (
            waiting[-1].end_sequence - waiting[0].first_sequence >= SPAN_MAX
            or sum(batch.content_bytes for batch in waiting) >= self._batch_bytes_max
        )

    @property
    def _batch_bytes_max(self) -> int:
        return ENCODED_BYTES_MAX if self._compression is Compression.NONE else COMPRESSED_BYTES_MAX

    def _write_waiting(self) -> None:
        if self._waiting:
            self._write(encode_records(join(self._waiting), self._compression, self._batch_bytes_max))
            self._waiting = []

    def _write(self, encoded: Sequence[bytes]) -> None:
        write_at(self._fd, encoded, self._written)
        self._written += sum(map(len, encoded))

    def _stored_at(self, end_sequence: int) -> int:
        """Return when the record before a sequence was stored."""
        run = self._run
        while run + 1 < len(self._runs) and self._runs[run].end_sequence < end_sequence:
            run += 1
        return self._runs[run].stored_at

    def _add_rows(self, left: RecordBatch) -> None:
        """Add rows for the records of a block; records that were stored at the same time share one."""
        while self._run < len(self._runs) and self._runs[self._run].end_sequence <= left.end_sequence:
            run = self._runs[self._run]
            self._run += 1
            before = left.between(left.first_sequence, run.end_sequence)
            row = StoredRow(run.end_sequence, run.stored_at, self._content_bytes + before.content_bytes)
            if self._rows and self._rows[-1].stored_at == row.stored_at:
                self._rows[-1] = row
            else:
                self._rows.append(row)

    def _give_up(self) -> None:
        self._done = Compacted(self._done.bytes_read)
        self._is_over = True
