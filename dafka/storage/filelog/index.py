"""The blocks of a segment, and its index: where to begin to search for a sequence.

The index is kept in two files in Kafka's format, which Kafka's tools can read. They are caches that are checked before
use.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from itertools import pairwise
from typing import NamedTuple

import attrs

from dafka.records import NO_TIMESTAMP
from dafka.storage.filelog.files import file_size, read_file, replace_file
from dafka.storage.filelog.partition import PartitionLog

ROW_EVERY_BYTES = 64 * 1024
"""The approximate distance between two rows of an index, in bytes; finding a record reads the headers between them."""

OFFSET_MAX = 2**31 - 1
"""The largest relative offset and position that Kafka reads."""

_ROW = struct.Struct(">II")
_TIME_ROW = struct.Struct(">qI")


class Block(NamedTuple):
    """A record batch at a position of a segment, by its header: records that are stored and checked together."""

    position: int
    size: int
    first_sequence: int
    records: int
    """The number of its records, including those that compaction has removed."""
    crc: int
    """The CRC of the rest of the block."""
    max_timestamp: int = NO_TIMESTAMP

    @property
    def end_sequence(self) -> int:
        """The sequence after the last record."""
        return self.first_sequence + self.records

    @property
    def next_position(self) -> int:
        """The position after it."""
        return self.position + self.size


@attrs.define
class SegmentIndex:
    """An index of the first `length` bytes of a segment, whose records end at `end_sequence`."""

    base: int
    end_sequence: int = attrs.Factory(lambda self: self.base, takes_self=True)
    length: int = 0
    rows: list[tuple[int, int, int]] = attrs.Factory(list)
    """The first sequence, position and last sequence of the indexed blocks."""
    times: list[tuple[int, int]] = attrs.Factory(list)
    """For some of the rows, in order: the largest timestamp so far, and the last sequence of its block."""
    largest: tuple[int, int] = (NO_TIMESTAMP, 0)
    """The largest timestamp, and the last sequence of its block."""

    def add_block(self, block: Block) -> None:
        """Add the next block of the segment."""
        last_sequence = block.end_sequence - 1
        if block.max_timestamp > self.largest[0]:
            self.largest = block.max_timestamp, last_sequence
        if block.position - (self.rows[-1][1] if self.rows else 0) >= ROW_EVERY_BYTES:
            self.rows.append((block.first_sequence, block.position, last_sequence))
            if self._has_larger_time():
                self.times.append(self.largest)
        self.end_sequence = block.end_sequence
        self.length = block.next_position

    def locate_sequence(self, sequence: int) -> tuple[int, int]:
        """Return the first sequence and the position of an indexed block at or before a sequence."""
        number = bisect_right(self.rows, sequence, key=lambda row: row[0]) - 1
        return self.rows[number][:2] if number >= 0 else (self.base, 0)

    def encode(self) -> tuple[bytes, bytes]:
        """Return the contents of the two files: offsets and timestamps."""
        times = [*self.times, self.largest] if self._has_larger_time() else self.times
        return (
            b"".join(_ROW.pack(last - self.base, position) for _, position, last in self.rows),
            b"".join(_TIME_ROW.pack(timestamp, last - self.base) for timestamp, last in times),
        )

    def _has_larger_time(self) -> bool:
        return self.largest[0] > (self.times[-1][0] if self.times else NO_TIMESTAMP)


def decode_rows(data: bytes | None, base: int) -> list[tuple[int, int]] | None:
    """Return the last sequence and the position of each row of an index; None if it is invalid."""
    if not data or len(data) % _ROW.size:
        return None
    rows = [(base + offset, position) for offset, position in _ROW.iter_unpack(data)]
    return rows if _increases([row[0] for row in rows]) and _increases([row[1] for row in rows]) else None


def decode_times(data: bytes | None, base: int) -> list[tuple[int, int]] | None:
    """Return the timestamp and the last sequence of each row of an index of times; None if it is invalid."""
    if data is None or len(data) % _TIME_ROW.size:
        return None
    times = [(timestamp, base + offset) for timestamp, offset in _TIME_ROW.iter_unpack(data)]
    return times if _increases([time[0] for time in times]) and _increases([time[1] for time in times]) else None


def read_index_files(log: PartitionLog, base: int) -> tuple[bytes | None, bytes | None]:
    """Return the contents of the two files with the index of a segment; None for a missing one. Raises `OSError`."""
    path, time_path = log.index_paths(base)
    return read_file(path), read_file(time_path)


def write_index(log: PartitionLog, index: SegmentIndex, *, is_durable: bool) -> int:
    """Write the files of an index, and return by how many bytes they have grown. Raises `OSError`."""
    grown = 0
    for path, data in zip(log.index_paths(index.base), index.encode(), strict=True):
        grown += len(data) - file_size(path)
        replace_file(path, data, is_durable=is_durable)
    return grown


def is_beginning(data: tuple[bytes | None, bytes | None], index: SegmentIndex) -> bool:
    """Return whether two files are an earlier version of an index, from when the segment was shorter."""
    rows, times = index.encode()
    return (
        data[0] is not None
        and data[1] is not None
        and len(data[0]) % _ROW.size == 0
        and rows.startswith(data[0])
        and len(data[1]) % _TIME_ROW.size == 0
        and times.startswith(data[1][: -_TIME_ROW.size])  # the last row is for the former end of the segment
    )


def _increases(numbers: list[int]) -> bool:
    return all(earlier < later for earlier, later in pairwise(numbers))
