"""Segments of version 2: a sequence of record batches, as Kafka stores them.

A batch's CRC covers all of its records, but neither its base offset nor its length. A header alone is therefore trusted
only if the next batch, or the end of the segment, follows; otherwise the CRC is checked.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import attrs
from crc32c import crc32c

from dafka.batches import HEADER_BYTES, SPAN_MAX, decode_records
from dafka.errors import BatchError
from dafka.records import RecordBatch
from dafka.storage.filelog.blocks import Block, StoredRun, Tail
from dafka.storage.filelog.segment import BODY_READ_BYTES, HEADER_READ_BYTES, ReadBuffer, Segment
from dafka.storage.filelog.stored import StoredRows

SEQUENCE_END_MAX = 2**63 - 1

_HEADER = struct.Struct(">qi4xBIhi8xq14xi")
"""Base offset, length, magic, CRC, attributes, last offset delta, largest timestamp, number of records."""

_MAGIC = 2
_MAGIC_AT = 16
_LENGTH_END = 12
_CRC_END = 21
_RECORD_BYTES_MIN = 7
_COMPRESSION_MASK = 0x07
_COMPRESSION_MAX = 4
_ATTRIBUTES = 0x3F
_CANDIDATE = re.compile(rb"\x02(?=.{4}\x00[\x00-\x3f])", re.DOTALL)
"""The magic of a batch whose attributes are possible."""


def parse_header(data: bytes, offset: int, position: int) -> Block | None:
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


@attrs.define
class BatchSegment(Segment):
    """A segment of version 2."""

    def iterate(self, buffer: ReadBuffer, position: int, sequence: int) -> Iterator[Block]:
        """See `Segment.iterate`."""
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
        """See `Segment.decode`."""
        offset = buffer.find(block.position, block.size)
        if offset < 0:
            return None
        try:
            data = buffer.data[offset : offset + block.size]
            return decode_records(self.log.partition, data)
        except BatchError:
            return None

    def scan_tail(self, position: int, sequence: int) -> Tail:
        """See `Segment.scan_tail`."""
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
        """See `Segment.runs`."""
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
        """See `Segment.find_time`."""
        with self._open_rows() as rows:
            number = rows.find_time(stored_at)
            if number < rows.count:
                return min(rows.last_before(number).end_sequence, self.end_sequence)
        return self.end_sequence

    def last_stored_at(self) -> int:
        """See `Segment.last_stored_at`."""
        with self._open_rows() as rows:
            number = rows.find_sequence(self.end_sequence - 1)
            row = rows.row_at(number) if number < rows.count else rows.last_before(number)
        return self.log.head.earliest_at if row is None or row.end_sequence <= self.base else row.stored_at

    def content_bytes(self) -> int:
        """See `Segment.content_bytes`."""
        with self._open_rows() as rows:
            number = rows.find_sequence(self.end_sequence - 1)
            row = rows.row_at(number) if number < rows.count else None
            if row is not None and row.end_sequence == self.end_sequence:
                return row.content_bytes
            row = rows.last_before(number)
        return row.content_bytes + self.count_bytes(row.end_sequence, self.end_sequence)

    def read_header(self, buffer: ReadBuffer, position: int) -> Block | None:
        """See `Segment.read_header`."""
        offset = buffer.find(position, HEADER_BYTES)
        block = None if offset < 0 else parse_header(buffer.data, offset, position)
        return block if block is not None and block.next_position <= buffer.limit else None

    def _is_intact(self, buffer: ReadBuffer, block: Block) -> bool:
        offset = buffer.find(block.position, block.size)
        return offset >= 0 and crc32c(memoryview(buffer.data)[offset + _CRC_END : offset + block.size]) == block.crc

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
        """Return a batch that was found, or the next one if this one turns out to be part of a damaged record."""
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
