"""When the records of a segment were stored, and their size: a file beside the segment, with a row for each append.

The rows are written before the records, and synced with less haste than they. After a power failure rows may be
missing, and a row may describe more records than there are. Recovery then makes the file fit its segment again.
Damaged rows are passed over: their records count as stored when those of the next good row were.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from crc32c import crc32c

from dafka.storage.filelog.files import write_at

_ROW = struct.Struct(">QqQ")
ROW_BYTES = _ROW.size + 4
"""The size of a row, in bytes."""

_CHUNK_ROWS = 1024


class StoredRun(NamedTuple):
    """Consecutive records that were stored at the same time."""

    first_sequence: int
    end_sequence: int
    stored_at: int
    content_bytes: int | None
    """Their total size; None if they must be read to know it."""


class StoredRow(NamedTuple):
    """A row of the file: when the records after the previous row were stored."""

    end_sequence: int
    stored_at: int
    content_bytes: int
    """The total size of all records of the segment up to there."""

    def encode(self, seed: int) -> bytes:
        """Return the bytes of the row, for the segment with this seed."""
        data = _ROW.pack(*self)
        return data + crc32c(data, seed).to_bytes(4, "big")


def decode_row(data: bytes, seed: int) -> StoredRow | None:
    """Return a row, or None if it is damaged or of another segment."""
    if len(data) != ROW_BYTES or crc32c(data[:-4], seed) != int.from_bytes(data[-4:], "big"):
        return None
    return StoredRow(*_ROW.unpack_from(data))


class StoredRows:
    """The rows of the segment with this base, in a file that may be missing. Every method raises `OSError`."""

    def __init__(self, fd: int | None, base: int, seed: int) -> None:
        self.base = base
        self.seed = seed
        self.count = 0 if fd is None else os.fstat(fd).st_size // ROW_BYTES
        self._fd = fd

    def row_at(self, number: int) -> StoredRow | None:
        """Return a row, or None if it is damaged or missing."""
        return self._decode(self._read(number, 1))

    def find_sequence(self, sequence: int) -> int:
        """Return the number of the first good row that ends after a sequence; `count` if there is none."""
        return self._find(lambda row: row.end_sequence > sequence)

    def find_time(self, stored_at: int) -> int:
        """Return the number of the first good row with this time or a later one; `count` if there is none."""
        return self._find(lambda row: row.stored_at >= stored_at)

    def last_before(self, number: int) -> StoredRow:
        """Return the last good row before a number; one without records if there is none."""
        while number > 0:
            number -= 1
            row = self.row_at(number)
            if row is not None:
                return row
        return StoredRow(self.base, 0, 0)

    def iterate(self, number: int) -> Iterator[tuple[int, StoredRow]]:
        """Yield the good rows from a number on, with their numbers."""
        while number < self.count:
            data = self._read(number, _CHUNK_ROWS)
            for offset in range(0, len(data), ROW_BYTES):
                row = self._decode(data[offset : offset + ROW_BYTES])
                if row is not None:
                    yield number + offset // ROW_BYTES, row
            number += _CHUNK_ROWS

    def runs(self, sequence: int, end_sequence: int) -> Iterator[StoredRun]:
        """Yield the runs from the one with a sequence on, up to the end of the segment or of the rows."""
        number = self.find_sequence(sequence)
        before = self.last_before(number)
        for _, row in self.iterate(number):
            if row.end_sequence <= before.end_sequence or before.end_sequence >= end_sequence:
                continue
            content_bytes = row.content_bytes - before.content_bytes if row.end_sequence <= end_sequence else None
            yield StoredRun(before.end_sequence, min(row.end_sequence, end_sequence), row.stored_at, content_bytes)
            before = row

    def fit(
        self,
        end_sequence: int,
        count_bytes: Callable[[int, int], int],
        latest_at: int,
        find_later_time: Callable[[], int],
    ) -> tuple[int, StoredRow]:
        """Make the file fit a segment with this end, whose last record was stored at a time or later.

        `count_bytes` returns the size of the records of a range. Records without a row count as stored at
        `find_later_time()` if no row comes before them. Return the size of the file in bytes, and its last row.
        """
        assert self._fd is not None
        size = os.fstat(self._fd).st_size
        kept, last, missing = 0, StoredRow(self.base, 0, 0), b""
        if end_sequence > self.base:
            kept = self.find_sequence(end_sequence - 1)
            row = self.row_at(kept)
            if row is not None and row.end_sequence == end_sequence and row.stored_at >= latest_at:
                kept, last = kept + 1, row
            else:
                before = self.last_before(kept)
                stored_at = max(latest_at, before.stored_at if row is None else row.stored_at) or find_later_time()
                content_bytes = before.content_bytes + count_bytes(before.end_sequence, end_sequence)
                last = StoredRow(end_sequence, stored_at, content_bytes)
                missing = last.encode(self.seed)
        if kept * ROW_BYTES < size:
            os.ftruncate(self._fd, kept * ROW_BYTES)
        if missing:
            write_at(self._fd, [missing], kept * ROW_BYTES)
        return kept * ROW_BYTES + len(missing), last

    def _find(self, is_reached: Callable[[StoredRow], bool]) -> int:
        """Return the number of the first valid row that satisfies a condition, by binary search."""
        low, high = 0, self.count
        while low < high:
            middle = (low + high) // 2
            number, row = self._first_good(middle)
            if row is None or number >= high or is_reached(row):
                high = middle
            else:
                low = number + 1
        return self._first_good(low)[0]

    def _first_good(self, number: int) -> tuple[int, StoredRow | None]:
        row = self.row_at(number) if number < self.count else None
        return (number, row) if row is not None else next(self.iterate(number), (self.count, None))

    def _read(self, number: int, count: int) -> bytes:
        assert self._fd is not None
        return os.pread(self._fd, count * ROW_BYTES, number * ROW_BYTES)

    def _decode(self, data: bytes) -> StoredRow | None:
        row = decode_row(data, self.seed)
        return row if row is not None and row.end_sequence > self.base else None


def drop_replaced(rows: list[StoredRow]) -> list[StoredRow]:
    """Drop each row with an earlier time than one before it, or with no lower end than one after it."""
    in_time: list[StoredRow] = []
    for row in rows:
        if not in_time or row.stored_at >= in_time[-1].stored_at:
            in_time.append(row)
    kept: list[StoredRow] = []
    for row in reversed(in_time):
        if not kept or row.end_sequence < kept[-1].end_sequence:
            kept.append(row)
    return kept[::-1]
