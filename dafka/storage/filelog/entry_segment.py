"""Segments of version 1, which are read but not written: entries of records that were stored at the same time.

An entry is a header, the length of each content, and the contents. The header has a CRC-32C of its own, so that a
reader can go from entry to entry without reading the bodies, and past damage. The CRC is seeded with the partition, the
segment and the position, so that a header is valid only where it was written. The entries of one append are valid only
together.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator

import attrs
from crc32c import crc32c

from dafka.packed_bytes import LENGTH_BYTES, PackedContents
from dafka.records import RecordBatch
from dafka.storage.filelog.blocks import Block, StoredRun, Tail
from dafka.storage.filelog.segment import BODY_READ_BYTES, HEADER_READ_BYTES, ReadBuffer, Segment

MAGIC = 0xDAF1
MAGIC_BYTES = MAGIC.to_bytes(2, "big")

HEADER = struct.Struct(">HHIQIqII")
"""Magic, flags, body size, first sequence, number of records, time, CRC of the body, CRC of the header."""

HEADER_BYTES = HEADER.size

FLAG_FIRST = 1
"""Flag: the first entry of an append to the partition."""

FLAG_MORE = 2
"""Flag: another entry of the same append follows. The append is valid only if all of its entries are present."""

SEQUENCE_END_MAX = 2**64 - 1

_CRC_BYTES = 4
_MASK = 2**32 - 1


def parse_header(data: bytes, offset: int, position: int, seed: int) -> Block | None:
    """Decode the header at an offset of `data` and a position of its segment; return None if it is damaged."""
    magic, flags, body_bytes, first_sequence, count, stored_at, body_crc, crc = HEADER.unpack_from(data, offset)
    if (
        magic != MAGIC
        or crc32c(data[offset : offset + HEADER_BYTES - _CRC_BYTES], (seed + position) & _MASK) != crc
        or not 0 < LENGTH_BYTES * count <= body_bytes
        or flags & ~(FLAG_FIRST | FLAG_MORE)
        or first_sequence > SEQUENCE_END_MAX - count
    ):
        return None
    return Block(
        position,
        HEADER_BYTES + body_bytes,
        first_sequence,
        count,
        body_crc,
        stored_at=stored_at,
        content_bytes=body_bytes - LENGTH_BYTES * count,
        flags=flags,
    )


def read_body(entry: Block, data: bytes, offset: int) -> PackedContents | None:
    """Decode the body of an entry at an offset of `data`; return None if it is damaged."""
    begin, end = offset + LENGTH_BYTES * entry.records, offset + entry.size - HEADER_BYTES
    if crc32c(memoryview(data)[offset:end]) != entry.crc:
        return None
    contents = PackedContents(data[begin:end], data[offset:begin])
    return contents if contents.ends[-1] == end - begin else None


@attrs.define
class EntrySegment(Segment):
    """A segment of version 1."""

    @property
    def _seed(self) -> int:
        return self.log.segment_seed(self.base)

    def iterate(self, buffer: ReadBuffer, position: int, sequence: int) -> Iterator[Block]:
        """See `Segment.iterate`."""
        while position < buffer.limit:
            entry = self.read_header(buffer, position)
            if entry is None or entry.first_sequence < sequence:
                entry = self._find_entry(buffer, position + 1, sequence)
            if entry is None:
                return
            yield entry
            position, sequence = entry.next_position, entry.end_sequence

    def decode(self, buffer: ReadBuffer, block: Block) -> RecordBatch | None:
        """See `Segment.decode`."""
        contents = self._read_contents(buffer, block)
        return None if contents is None else RecordBatch(self.log.partition, block.first_sequence, contents)

    def scan_tail(self, position: int, sequence: int) -> Tail:
        """See `Segment.scan_tail`."""
        buffer = self.open_buffer(BODY_READ_BYTES)
        tail = Tail(position, sequence, sequence)
        damaged: list[tuple[int, int, int]] = []
        is_complete = False
        for entry in self.iterate(buffer, position, sequence):
            if entry.position != position:
                damaged.append((position, sequence, entry.first_sequence))
                is_complete = False
            if self._read_contents(buffer, entry) is None:
                damaged.append((entry.position, entry.first_sequence, entry.end_sequence))
                is_complete = False
            elif entry.flags & FLAG_FIRST:
                is_complete = True
            position, sequence = entry.next_position, entry.end_sequence
            tail.seen_end = sequence
            if is_complete and not entry.flags & FLAG_MORE:
                tail.length, tail.end, tail.damaged = position, sequence, damaged.copy()
                is_complete = False
        return tail

    def runs(self, sequence: int) -> Iterator[StoredRun]:
        """See `Segment.runs`."""
        first_sequence, position = (
            (self.base, 0) if sequence <= self.base else self.load_index(self).locate_sequence(sequence)
        )
        for entry in self.iterate(self.open_buffer(), position, first_sequence):
            if entry.end_sequence > sequence:
                yield StoredRun(entry.first_sequence, entry.end_sequence, entry.stored_at, entry.content_bytes)

    def find_time(self, stored_at: int) -> int:
        """See `Segment.find_time`."""
        rows = self.load_index(self).rows
        headers = self.open_buffer(HEADER_BYTES)

        def time_at(row: tuple[int, int, int]) -> int:
            entry = self.read_header(headers, row[1])
            return stored_at if entry is None else entry.stored_at

        number = bisect_left(rows, stored_at, key=time_at) - 1
        for run in self.runs(rows[number][0] if number >= 0 else self.base):
            if run.stored_at >= stored_at:
                return run.first_sequence
        return self.end_sequence

    def last_stored_at(self) -> int:
        """See `Segment.last_stored_at`."""
        return self.load_index(self).last_stored_at

    def content_bytes(self) -> int:
        """See `Segment.content_bytes`."""
        return self.load_index(self).content_bytes

    def read_header(self, buffer: ReadBuffer, position: int) -> Block | None:
        """See `Segment.read_header`."""
        offset = buffer.find(position, HEADER_BYTES)
        entry = None if offset < 0 else parse_header(buffer.data, offset, position, self._seed)
        return entry if entry is not None and entry.next_position <= buffer.limit else None

    def _find_entry(self, buffer: ReadBuffer, position: int, sequence: int) -> Block | None:
        """Return the first good entry at or after a position that has at least this sequence."""
        while position + HEADER_BYTES <= buffer.limit:
            size = min(HEADER_READ_BYTES, buffer.limit - position)
            offset = buffer.find(position, size)
            if offset < 0:
                return None
            found = buffer.data.find(MAGIC_BYTES, offset, offset + size)
            if found < 0:
                position += size - 1  # the magic may cross the border
                continue
            position += found - offset
            entry = self.read_header(buffer, position)
            if entry is not None and sequence <= entry.first_sequence:
                return entry
            position += 1
        return None

    def _read_contents(self, buffer: ReadBuffer, entry: Block) -> PackedContents | None:
        offset = buffer.find(entry.position + HEADER_BYTES, entry.size - HEADER_BYTES)
        return None if offset < 0 else read_body(entry, buffer.data, offset)
