"""A segment of a partition: Kafka's record batches, one after the other, as Kafka stores them.

Only a whole batch has a CRC, which covers neither its base offset nor its length. A batch is therefore taken for good
by its header only if the next one follows it, or nothing does; otherwise its CRC decides.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import attrs
from crc32c import crc32c

from dafka.batches import HEADER_BYTES, SPAN_MAX, decode_records
from dafka.errors import BatchError
from dafka.records import RecordBatch
from dafka.storage.filelog.files import FilePool, replace_file
from dafka.storage.filelog.index import Block, SegmentIndex
from dafka.storage.filelog.partition import PartitionLog
from dafka.storage.filelog.stored import StoredRow, StoredRows, StoredRun, drop_replaced
from dafka.storage.plugin_helpers import now_ms

HEADER_READ_BYTES = 64 * 1024
"""The size of a read, in bytes, when only headers are needed."""

BODY_READ_BYTES = 2**20
"""The size of a read, in bytes, when records are needed."""

SEQUENCE_END_MAX = 2**63 - 1

_HEADER = struct.Struct(">qi4xBIhi8xq14xi")
"""Base offset, length, magic, CRC, attributes, last offset delta, largest timestamp, number of records."""

_MAGIC = 2
_MAGIC_AT = 16
_LENGTH_END = 12
CRC_END = 21
"""The position in a batch of what its CRC covers."""

_RECORD_BYTES_MIN = 7
_COMPRESSION_MASK = 0x07
_COMPRESSION_MAX = 4
_ATTRIBUTES = 0x3F
_CANDIDATE = re.compile(rb"\x02(?=.{4}\x00[\x00-\x3f])", re.DOTALL)
"""The magic of a batch whose attributes are possible."""


def parse_header(data: bytes | memoryview, offset: int, position: int) -> Block | None:
    """Decode the header at an offset of `data` and a position of its segment; return None if it is damaged."""
    base_offset, length, magic, crc, attributes, last_delta, max_timestamp, count = _HEADER.unpack_from(data, offset)
    size = length + _LENGTH_END
    if (
        magic != _MAGIC
        or size < HEADER_BYTES + (_RECORD_BYTES_MIN - 1 if count else 0)
        or count < 0
        or (last_delta != count - 1 and not count <= last_delta < SPAN_MAX)
        or last_delta < 0
        or attributes & ~_ATTRIBUTES
        or attributes & _COMPRESSION_MASK > _COMPRESSION_MAX
        or not 0 <= base_offset < SEQUENCE_END_MAX - last_delta
    ):
        return None
    return Block(position, size, base_offset, last_delta + 1, crc, max_timestamp)


class ReadBuffer:
    """A buffer with the part that was read last of a file, of which `limit` bytes are valid."""

    def __init__(self, fd: int, limit: int, chunk_bytes: int) -> None:
        self.data = b""
        self.limit = limit
        self._fd = fd
        self._start = 0
        self._chunk_bytes = chunk_bytes

    def find(self, position: int, size: int) -> int:
        """Read `size` bytes at a position, and return their offset in `data`; -1 past the limit. Raises `OSError`."""
        offset = position - self._start
        if offset < 0 or offset + size > len(self.data):
            if position + size > self.limit:
                return -1
            self.data = self._read(position, size)
            self._start = position
            offset = 0
        return offset if offset + size <= len(self.data) else -1

    def _read(self, position: int, size: int) -> bytes:
        data = os.pread(self._fd, min(max(size, self._chunk_bytes), self.limit - position), position)
        while len(data) < size:  # one call returns at most 2 GiB
            more = os.pread(self._fd, size - len(data), position + len(data))
            if not more:
                break
            data += more
        return data


@attrs.define
class Tail:
    """The result of scanning the end of a segment: how far it is valid, and which blocks before that are damaged."""

    length: int
    end: int
    """The sequence after the last record of the valid part."""
    seen_end: int
    """The sequence after the last record for which a header was found."""
    damaged: list[tuple[int, int, int]] = attrs.Factory(list)
    """The position, first sequence and end sequence of damage within the valid part."""


@attrs.define
class Segment:
    """An open segment, with the records from `base` up to `end_sequence`. Every method raises `OSError`."""

    log: PartitionLog
    base: int
    end_sequence: int
    fd: int
    limit: int
    """The size of the valid part of the file, in bytes."""
    pool: FilePool
    load_index: Callable[[Segment], SegmentIndex]

    @property
    def path(self) -> str:
        """The path of the file."""
        return self.log.log_path(self.base)

    def block_at(self, buffer: ReadBuffer, position: int, sequence: int) -> Block | None:
        """Return the block at a position if its header is good and it begins with a sequence."""
        block = self.read_header(buffer, position)
        return block if block is not None and block.first_sequence == sequence else None

    def open_buffer(self, chunk_bytes: int = HEADER_READ_BYTES) -> ReadBuffer:
        """Return a buffer that reads this segment."""
        return ReadBuffer(self.fd, self.limit, chunk_bytes)

    def locate(self, buffer: ReadBuffer, sequence: int) -> Block | None:
        """Return the block with a sequence; if it is damaged, the next one, if any."""
        first_sequence, position = self.load_index(self).locate_sequence(sequence)
        for block in self.iterate(buffer, position, first_sequence):
            if block.end_sequence > sequence:
                return block
        return None

    def count_bytes(self, first_sequence: int, end_sequence: int) -> int:
        """Return the total size of the records of a range, by reading them; damaged ones do not count."""
        buffer = self.open_buffer(BODY_READ_BYTES)
        block_sequence, position = self.load_index(self).locate_sequence(first_sequence)
        total = 0
        for block in self.iterate(buffer, position, block_sequence):
            if block.first_sequence >= end_sequence:
                break
            records = self.decode(buffer, block) if block.end_sequence > first_sequence else None
            if records is not None:
                total += records.between(first_sequence, end_sequence).content_bytes
        return total

    def find_damage_end(self, buffer: ReadBuffer, block: Block) -> int:
        """Return the sequence after a damaged block, whose header may be wrong."""
        for found in self.iterate(buffer, block.position, block.first_sequence):
            return found.end_sequence if found.position == block.position else found.first_sequence
        return self.end_sequence

    def iterate(self, buffer: ReadBuffer, position: int, sequence: int) -> Iterator[Block]:
        """Yield the blocks by their headers, from the one on that has this position and first sequence.

        Damaged blocks are skipped: the next one then begins with a higher sequence than the end of the one before.
        """
        block = self.block_at(buffer, position, sequence)
        while position < buffer.limit:
            following = None if block is None else self.block_at(buffer, block.next_position, block.end_sequence)
            if block is not None and following is None and block.next_position != buffer.limit:
                block = block if self._is_intact(buffer, block) else None
            if block is None:
                block = self._find_batch(buffer, position + 1, sequence)
                if block is None:
                    return
                following = self.block_at(buffer, block.next_position, block.end_sequence)
            yield block
            position, sequence = block.next_position, block.end_sequence
            block = following

    def decode(self, buffer: ReadBuffer, block: Block) -> RecordBatch | None:
        """Return the records of a block, or None if it is damaged."""
        offset = buffer.find(block.position, block.size)
        if offset < 0:
            return None
        try:
            data = buffer.data[offset : offset + block.size]
            return decode_records(self.log.partition, data)
        except BatchError:
            return None

    def scan_tail(self, position: int, sequence: int) -> Tail:
        """Read and check everything from a block on. Damage is reported only if something good follows it."""
        buffer = self.open_buffer(BODY_READ_BYTES)
        tail = Tail(position, sequence, sequence)
        damaged: list[tuple[int, int, int]] = []
        for block in self.iterate(buffer, position, sequence):
            if block.position != position:
                damaged.append((position, sequence, block.first_sequence))
            position, sequence = block.next_position, block.end_sequence
            tail.seen_end = sequence
            if self._is_intact(buffer, block):
                tail.length, tail.end, tail.damaged = position, sequence, damaged.copy()
            else:
                damaged.append((block.position, block.first_sequence, block.end_sequence))
        return tail

    def runs(self, sequence: int) -> Iterator[StoredRun]:
        """Yield when the records were stored, from the run with a sequence on."""
        end, stored_at = self.base, self.log.head.earliest_at
        with self._open_rows() as rows:
            for run in rows.runs(sequence, self.end_sequence):
                yield run
                end, stored_at = run.end_sequence, run.stored_at
            if end == self.base < sequence:
                row = rows.last_before(rows.count)
                end, stored_at = row.end_sequence, row.stored_at if row.end_sequence > self.base else stored_at
        if end < self.end_sequence:
            yield StoredRun(end, self.end_sequence, stored_at, None)

    def find_time(self, stored_at: int) -> int:
        """Return the sequence of the first record that was stored at a time or later; the end if there is none."""
        with self._open_rows() as rows:
            number = rows.find_time(stored_at)
            if number < rows.count:
                return min(rows.last_before(number).end_sequence, self.end_sequence)
        return self.end_sequence

    def last_stored_at(self) -> int:
        """Return when the last record was stored."""
        with self._open_rows() as rows:
            number = rows.find_sequence(self.end_sequence - 1)
            row = rows.row_at(number) if number < rows.count else rows.last_before(number)
        return self.log.head.earliest_at if row is None or row.end_sequence <= self.base else row.stored_at

    def content_bytes(self) -> int:
        """Return the total size of the records, approximate if some are damaged."""
        with self._open_rows() as rows:
            number = rows.find_sequence(self.end_sequence - 1)
            row = rows.row_at(number) if number < rows.count else None
            if row is not None and row.end_sequence == self.end_sequence:
                return row.content_bytes
            row = rows.last_before(number)
        return row.content_bytes + self.count_bytes(row.end_sequence, self.end_sequence)

    def repair_rows(self, latest_at: int, find_later_time: Callable[[], int] = now_ms) -> tuple[int, StoredRow]:
        """Make the `.stored` file fit the segment; see `StoredRows.fit`."""
        with self.pool.open_file(self.log.stored_path(self.base), is_created=True) as fd:
            rows = StoredRows(fd, self.base, self.log.segment_seed(self.base))
            return rows.fit(self.end_sequence, self.count_bytes, latest_at, find_later_time)

    def drop_bad_rows(self) -> None:
        """Rewrite the `.stored` file, if there is one, without rows that are damaged or contradict others.

        After a power failure, a row may be there that an append wrote and took back, and that the row of a later append
        has replaced.
        """
        with self._open_rows() as rows:
            good = drop_replaced([row for _, row in rows.iterate(0)])
        if len(good) < rows.count:
            self._replace_rows(good)

    def recount_rows(self) -> None:
        """Rewrite the `.stored` file if it counts other bytes than the segment's records have."""
        with self._open_rows() as rows:
            found = [row for _, row in rows.iterate(0)]
        counted: list[StoredRow] = []
        first_sequence, total = self.base, 0
        for row in found:
            total += self.count_bytes(first_sequence, row.end_sequence)
            counted.append(row._replace(content_bytes=total))
            first_sequence = row.end_sequence
        if counted != found:
            self._replace_rows(counted)

    def _replace_rows(self, rows: Iterable[StoredRow]) -> None:
        path, seed = self.log.stored_path(self.base), self.log.segment_seed(self.base)
        replace_file(path, b"".join([row.encode(seed) for row in rows]))
        self.pool.drop(path)

    def read_header(self, buffer: ReadBuffer, position: int) -> Block | None:
        """Return the block at a position if its header is good, and it is within the limit."""
        offset = buffer.find(position, HEADER_BYTES)
        block = None if offset < 0 else parse_header(buffer.data, offset, position)
        return block if block is not None and block.next_position <= buffer.limit else None

    def _is_intact(self, buffer: ReadBuffer, block: Block) -> bool:
        offset = buffer.find(block.position, block.size)
        return offset >= 0 and crc32c(memoryview(buffer.data)[offset + CRC_END : offset + block.size]) == block.crc

    def _find_batch(self, buffer: ReadBuffer, position: int, sequence: int) -> Block | None:
        """Return the first good batch at or after a position that has at least this sequence."""
        while position + HEADER_BYTES <= buffer.limit:
            size = min(HEADER_READ_BYTES, buffer.limit - position)
            offset = buffer.find(position, size)
            if offset < 0:
                return None
            window = buffer.data[offset : offset + size]
            for found in _CANDIDATE.finditer(window, _MAGIC_AT):
                block = self.read_header(buffer, position + found.start() - _MAGIC_AT)
                if (
                    block is not None
                    and sequence <= block.first_sequence < max(self.end_sequence, sequence + 1)
                    and self._is_intact(buffer, block)
                ):
                    return self._check_chain(buffer, block)
            if size < HEADER_READ_BYTES:
                return None
            position += size - HEADER_BYTES  # a header may cross the border
        return None

    def _check_chain(self, buffer: ReadBuffer, block: Block) -> Block | None:
        """Return a batch that was found, or the next one if that shows that this one is part of a damaged record."""
        last, following = block, self.block_at(buffer, block.next_position, block.end_sequence)
        while following is not None:
            last, following = following, self.block_at(buffer, following.next_position, following.end_sequence)
        if last.next_position == buffer.limit:
            return block
        other = self._find_batch(buffer, last.next_position, block.first_sequence)
        return block if other is None or other.first_sequence >= last.end_sequence else other

    @contextmanager
    def _open_rows(self) -> Iterator[StoredRows]:
        with ExitStack() as stack:
            fd: int | None = None
            with suppress(FileNotFoundError):
                fd = stack.enter_context(self.pool.open_file(self.log.stored_path(self.base)))
            yield StoredRows(fd, self.base, self.log.segment_seed(self.base))
