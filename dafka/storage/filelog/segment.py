"""Going through a segment: from header to header, past damage, and into the bodies.

Everything takes an open file's descriptor and how much of it counts; nothing here changes a file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from dafka.contents import PackedContents
from dafka.storage.filelog.entries import (
    HEADER_BYTES,
    MAGIC_OCTETS,
    SEQUENCE_END_MAX,
    Entry,
    parse_header,
    read_body,
)
from dafka.storage.filelog.index import SegmentIndex

HOP_BYTES = 64 * 1024
"""Read at once for headers."""

SCAN_BYTES = 2**20
"""Read at once for contents."""


class Window:
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


def entry_at(window: Window, position: int, seed: int) -> Entry | None:
    """The entry at this position, if its header is good and all of it can be there."""
    offset = window.find(position, HEADER_BYTES)
    entry = None if offset < 0 else parse_header(window.octets, offset, position, seed)
    return entry if entry is not None and entry.next_position <= window.limit else None


def body_at(window: Window, entry: Entry) -> PackedContents | None:
    """The entry's contents; None if its body is damaged."""
    offset = window.find(entry.position + HEADER_BYTES, entry.body_bytes)
    return None if offset < 0 else read_body(entry, window.octets, offset)


def hop(window: Window, position: int, sequence: int, seed: int) -> Iterator[Entry]:
    """The entries from this one on, whose first sequence is given, by their headers.

    What is damaged is left out: the entry after it has another sequence than the end of the one before.
    """
    while position < window.limit:
        entry = entry_at(window, position, seed)
        if entry is None or not sequence <= entry.first_sequence <= SEQUENCE_END_MAX - entry.records:
            entry = _next_entry(window, position + 1, sequence, seed)
        if entry is None:
            return
        yield entry
        position, sequence = entry.next_position, entry.end_sequence


def _next_entry(window: Window, position: int, sequence: int, seed: int) -> Entry | None:
    """The first entry at this position or behind it that is good and has this sequence or a later one."""
    while position + HEADER_BYTES <= window.limit:
        size = min(HOP_BYTES, window.limit - position)
        offset = window.find(position, size)
        if offset < 0:
            return None
        found = window.octets.find(MAGIC_OCTETS, offset, offset + size)
        if found < 0:
            position += size - 1  # the magic may stand across the border
            continue
        position += found - offset
        entry = entry_at(window, position, seed)
        if entry is not None and sequence <= entry.first_sequence <= SEQUENCE_END_MAX - entry.records:
            return entry
        position += 1
    return None


def extend_index(index: SegmentIndex, fd: int, limit: int, seed: int) -> None:
    """Takes in what the segment holds beyond the index, up to the limit."""
    for entry in hop(Window(fd, limit, HOP_BYTES), index.length, index.end_sequence, seed):
        index.add(entry)
    index.length = limit
