"""Reading a segment, by its headers, its bodies, and its index.

The index lists an entry for about every 64 KiB of the segment: its first sequence, position and time. All three
increase, so the index finds sequences and times. It is a cache that is checked before it is used: an index that is
missing, damaged, or of another length is rebuilt from the headers. Nothing in this module changes a file.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

import attrs
from crc32c import crc32c

from dafka.contents import PackedContents
from dafka.storage.filelog.entries import (
    HEADER_BYTES,
    MAGIC_BYTES,
    SEQUENCE_END_MAX,
    Entry,
    parse_header,
    read_body,
)

ROW_EVERY_BYTES = 64 * 1024
"""The approximate distance between two rows of an index, in bytes; finding a record reads the headers between them."""

_ROW = struct.Struct(">QQq")
_TRAILER = struct.Struct(">8sIQQQQqq")
_MAGIC = b"DAFKAIDX"


@attrs.define
class SegmentIndex:
    """The index of the first `length` bytes of a segment.

    Attributes:
        base: The first sequence of the segment.
        end_sequence: The sequence after the last record that is indexed.
        length: The size of the indexed part, in bytes.
        content_bytes: The total size of the contents.
        first_stored_at: The time of the first record.
        last_stored_at: The time of the last record.
        rows: First sequence, position and time of the indexed entries.
    """

    base: int
    end_sequence: int
    length: int = 0
    content_bytes: int = 0
    first_stored_at: int = 0
    last_stored_at: int = 0
    rows: list[tuple[int, int, int]] = attrs.Factory(list)

    @classmethod
    def empty(cls, base: int) -> SegmentIndex:
        """Return the index of a segment without records."""
        return cls(base, base)

    def add_entry(self, entry: Entry) -> None:
        """Add the next entry of the segment."""
        if not self.rows:
            self.first_stored_at = entry.stored_at
        if not self.rows or entry.position - self.rows[-1][1] >= ROW_EVERY_BYTES:
            self.rows.append((entry.first_sequence, entry.position, entry.stored_at))
        self.end_sequence = entry.end_sequence
        self.length = entry.next_position
        self.content_bytes += entry.content_bytes
        self.last_stored_at = entry.stored_at

    def locate_sequence(self, sequence: int) -> tuple[int, int]:
        """Return the first sequence and the position of an indexed entry at or before a sequence."""
        number = bisect_right(self.rows, sequence, key=lambda row: row[0]) - 1
        return self.rows[number][:2] if number >= 0 else (self.base, 0)

    def locate_time(self, stored_at: int) -> tuple[int, int]:
        """Return the first sequence and position of an indexed entry; all entries before it are older than a time."""
        number = bisect_left(self.rows, stored_at, key=lambda row: row[2]) - 1
        return self.rows[number][:2] if number >= 0 else (self.base, 0)

    def encode(self) -> bytes:
        """Return the contents of the index file."""
        rows = b"".join(_ROW.pack(*row) for row in self.rows)
        trailer = _TRAILER.pack(
            _MAGIC,
            len(self.rows),
            self.base,
            self.end_sequence,
            self.length,
            self.content_bytes,
            self.first_stored_at,
            self.last_stored_at,
        )
        return rows + trailer + crc32c(rows + trailer).to_bytes(4, "big")

    @classmethod
    def decode(cls, data: bytes) -> SegmentIndex | None:
        """Decode an index file; return None if it is damaged."""
        trailer_at = len(data) - _TRAILER.size - 4
        if trailer_at < 0 or crc32c(memoryview(data)[:-4]) != int.from_bytes(data[-4:], "big"):
            return None
        magic, count, base, end_sequence, length, content_bytes, first_at, last_at = _TRAILER.unpack_from(
            data, trailer_at
        )
        if magic != _MAGIC or count * _ROW.size != trailer_at:
            return None
        rows = list(_ROW.iter_unpack(data[:trailer_at]))
        return cls(base, end_sequence, length, content_bytes, first_at, last_at, rows)


HEADER_READ_BYTES = 64 * 1024
"""The size of a read, in bytes, when only headers are needed."""

BODY_READ_BYTES = 2**20
"""The size of a read, in bytes, when contents are needed."""


class ReadBuffer:
    """The part of a segment that was read last.

    Args:
        fd: The descriptor of the segment.
        limit: The size of the valid part of the file, in bytes.
        chunk_bytes: The minimum size of a read, in bytes.
    """

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


def read_entry_at(buffer: ReadBuffer, position: int, seed: int) -> Entry | None:
    """Return the entry at a position; None if its header is damaged or the entry exceeds the limit."""
    offset = buffer.find(position, HEADER_BYTES)
    entry = None if offset < 0 else parse_header(buffer.data, offset, position, seed)
    return entry if entry is not None and entry.next_position <= buffer.limit else None


def read_body_at(buffer: ReadBuffer, entry: Entry) -> PackedContents | None:
    """Return the contents of an entry, or None if its body is damaged."""
    offset = buffer.find(entry.position + HEADER_BYTES, entry.body_bytes)
    return None if offset < 0 else read_body(entry, buffer.data, offset)


def iterate_entries(buffer: ReadBuffer, position: int, sequence: int, seed: int) -> Iterator[Entry]:
    """Yield the entries from a position on, by their headers.

    Damaged entries are skipped: the next entry then begins with a higher sequence than the end of the one before.

    Args:
        buffer: The segment.
        position: The position of the first entry.
        sequence: Its first sequence.
        seed: The seed of the segment's CRCs.

    Yields:
        The entries.
    """
    while position < buffer.limit:
        entry = read_entry_at(buffer, position, seed)
        if entry is None or not sequence <= entry.first_sequence <= SEQUENCE_END_MAX - entry.records:
            entry = _next_entry(buffer, position + 1, sequence, seed)
        if entry is None:
            return
        yield entry
        position, sequence = entry.next_position, entry.end_sequence


def _next_entry(buffer: ReadBuffer, position: int, sequence: int, seed: int) -> Entry | None:
    """Return the first valid entry at or after a position that has at least this sequence."""
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
        entry = read_entry_at(buffer, position, seed)
        if entry is not None and sequence <= entry.first_sequence <= SEQUENCE_END_MAX - entry.records:
            return entry
        position += 1
    return None


def extend_index(index: SegmentIndex, fd: int, limit: int, seed: int) -> None:
    """Add the entries between the end of the index and the limit."""
    for entry in iterate_entries(ReadBuffer(fd, limit, HEADER_READ_BYTES), index.length, index.end_sequence, seed):
        index.add_entry(entry)
    index.length = limit
