"""A segment's index: of about every 64 KiB, the entry that begins there, its first sequence and its time.

Both grow, so that it finds a sequence as well as a time. It is a cache, and is believed only as far as what it points
to proves right: one that is missing, damaged or of another length is built anew from the headers.
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
"""What is gone through, header by header, to find a record."""

_ROW = struct.Struct(">QQq")
_TRAILER = struct.Struct(">8sIQQQQqq")
_MAGIC = b"DAFKAIDX"


@attrs.define
class SegmentIndex:
    """Of the segment's first `length` octets, which hold the records from `base` up to `end_sequence`.

    `rows` are (first sequence, position, stored at); `content_bytes` adds up the contents, the times are the first and
    the last record's.
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
        """Of a segment without records."""
        return cls(base, base)

    def add(self, entry: Entry) -> None:
        """Takes in the segment's next entry."""
        if not self.rows:
            self.first_stored_at = entry.stored_at
        if not self.rows or entry.position - self.rows[-1][1] >= ROW_EVERY_BYTES:
            self.rows.append((entry.first_sequence, entry.position, entry.stored_at))
        self.end_sequence = entry.end_sequence
        self.length = entry.next_position
        self.content_bytes += entry.content_bytes
        self.last_stored_at = entry.stored_at

    def before_sequence(self, sequence: int) -> tuple[int, int]:
        """The sequence and the position of an entry from which this one can be reached."""
        number = bisect_right(self.rows, sequence, key=lambda row: row[0]) - 1
        return self.rows[number][:2] if number >= 0 else (self.base, 0)

    def before_time(self, stored_at: int) -> tuple[int, int]:
        """The sequence and the position of an entry before which all were stored before this time."""
        number = bisect_left(self.rows, stored_at, key=lambda row: row[2]) - 1
        return self.rows[number][:2] if number >= 0 else (self.base, 0)

    def encode(self) -> bytes:
        """As it stands in its file."""
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
    def decode(cls, octets: bytes) -> SegmentIndex | None:
        """What stands in an index's file; None if it is damaged."""
        trailer_at = len(octets) - _TRAILER.size - 4
        if trailer_at < 0 or crc32c(memoryview(octets)[:-4]) != int.from_bytes(octets[-4:], "big"):
            return None
        magic, count, base, end_sequence, length, content_bytes, first_at, last_at = _TRAILER.unpack_from(
            octets, trailer_at
        )
        if magic != _MAGIC or count * _ROW.size != trailer_at:
            return None
        rows = list(_ROW.iter_unpack(octets[:trailer_at]))
        return cls(base, end_sequence, length, content_bytes, first_at, last_at, rows)


HEADER_READ_BYTES = 64 * 1024
"""Read at once for headers."""

BODY_READ_BYTES = 2**20
"""Read at once for contents."""


class ReadBuffer:
    """The part of a segment that was read last."""

    def __init__(self, fd: int, limit: int, chunk_bytes: int) -> None:
        """`limit` is how many of the file's octets count; at least `chunk_bytes` are read at once, where there are."""
        self.octets = b""
        self.limit = limit
        self._fd = fd
        self._start = 0
        self._chunk_bytes = chunk_bytes

    def find(self, position: int, size: int) -> int:
        """The offset, in `octets`, of what stands at this position; -1 where there is not so much. Raises `OSError`."""
        offset = position - self._start
        if offset < 0 or offset + size > len(self.octets):
            if position + size > self.limit:
                return -1
            self.octets = self._read(position, size)
            self._start = position
            offset = 0
        return offset if offset + size <= len(self.octets) else -1

    def _read(self, position: int, size: int) -> bytes:
        octets = os.pread(self._fd, min(max(size, self._chunk_bytes), self.limit - position), position)
        while len(octets) < size:  # the system gives no more than 2 GiB at once
            more = os.pread(self._fd, size - len(octets), position + len(octets))
            if not more:
                break
            octets += more
        return octets


def read_entry_at(window: ReadBuffer, position: int, seed: int) -> Entry | None:
    """The entry at this position, if its header is good and all of it can be there."""
    offset = window.find(position, HEADER_BYTES)
    entry = None if offset < 0 else parse_header(window.octets, offset, position, seed)
    return entry if entry is not None and entry.next_position <= window.limit else None


def read_body_at(window: ReadBuffer, entry: Entry) -> PackedContents | None:
    """The entry's contents; None if its body is damaged."""
    offset = window.find(entry.position + HEADER_BYTES, entry.body_bytes)
    return None if offset < 0 else read_body(entry, window.octets, offset)


def iterate_entries(window: ReadBuffer, position: int, sequence: int, seed: int) -> Iterator[Entry]:
    """The entries from this one on, whose first sequence is given, by their headers.

    What is damaged is left out: the entry after it has another sequence than the end of the one before.
    """
    while position < window.limit:
        entry = read_entry_at(window, position, seed)
        if entry is None or not sequence <= entry.first_sequence <= SEQUENCE_END_MAX - entry.records:
            entry = _next_entry(window, position + 1, sequence, seed)
        if entry is None:
            return
        yield entry
        position, sequence = entry.next_position, entry.end_sequence


def _next_entry(window: ReadBuffer, position: int, sequence: int, seed: int) -> Entry | None:
    """The first entry at this position or behind it that is good and has this sequence or a later one."""
    while position + HEADER_BYTES <= window.limit:
        size = min(HEADER_READ_BYTES, window.limit - position)
        offset = window.find(position, size)
        if offset < 0:
            return None
        found = window.octets.find(MAGIC_BYTES, offset, offset + size)
        if found < 0:
            position += size - 1  # the magic may stand across the border
            continue
        position += found - offset
        entry = read_entry_at(window, position, seed)
        if entry is not None and sequence <= entry.first_sequence <= SEQUENCE_END_MAX - entry.records:
            return entry
        position += 1
    return None


def extend_index(index: SegmentIndex, fd: int, limit: int, seed: int) -> None:
    """Takes in what the segment holds beyond the index, up to the limit."""
    for entry in iterate_entries(ReadBuffer(fd, limit, HEADER_READ_BYTES), index.length, index.end_sequence, seed):
        index.add(entry)
    index.length = limit
