"""A segment's index: of about every 64 KiB, the entry that begins there, its first sequence and its time.

Both grow, so that it finds a sequence as well as a time. It is a cache, and is believed only as far as what it points
to proves right: one that is missing, damaged or of another length is built anew from the headers.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right

import attrs
from crc32c import crc32c

from dafka.storage.filelog.entries import Entry

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
