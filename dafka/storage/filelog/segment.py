"""The interface of a segment in either form, and the buffer for reading one.

`batch_segment` reads segments of record batches, which this version writes. `entry_segment` reads those of version 1.
Nothing here changes a file.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import attrs

from dafka.records import RecordBatch
from dafka.storage.filelog.blocks import Block, StoredRun, Tail
from dafka.storage.filelog.files import FilePool
from dafka.storage.filelog.index import SegmentIndex
from dafka.storage.filelog.partition import PartitionLog

HEADER_READ_BYTES = 64 * 1024
"""The size of a read, in bytes, when only headers are needed."""

BODY_READ_BYTES = 2**20
"""The size of a read, in bytes, when records are needed."""


class ReadBuffer:
    """A buffer with the part of a segment that was read last.

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


@attrs.define
class Segment(ABC):
    """An open segment. Every method raises `OSError`.

    Attributes:
        log: The partition.
        base: The sequence of its first record.
        end_sequence: The sequence after its last record.
        fd: The descriptor of the file.
        limit: The size of the valid part of the file, in bytes.
        pool: The open files.
        load_index: Returns the index of a segment.
    """

    log: PartitionLog
    base: int
    end_sequence: int
    fd: int
    limit: int
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

    @abstractmethod
    def read_header(self, buffer: ReadBuffer, position: int) -> Block | None:
        """Return the block at a position if its header is good, and it is within the limit."""

    @abstractmethod
    def iterate(self, buffer: ReadBuffer, position: int, sequence: int) -> Iterator[Block]:
        """Yield the blocks from a position on, by their headers.

        Damaged blocks are skipped: the next one then begins with a higher sequence than the end of the one before.

        Args:
            buffer: The buffer of the segment.
            position: The position of a block.
            sequence: Its first sequence.

        Yields:
            The blocks.
        """

    @abstractmethod
    def decode(self, buffer: ReadBuffer, block: Block) -> RecordBatch | None:
        """Return the records of a block, or None if it is damaged."""

    @abstractmethod
    def scan_tail(self, position: int, sequence: int) -> Tail:
        """Read and check everything from a block on. Damage is reported only if a valid block follows it."""

    @abstractmethod
    def runs(self, sequence: int) -> Iterator[StoredRun]:
        """Yield the runs of records with equal times, from the run that contains a sequence on."""

    @abstractmethod
    def find_time(self, stored_at: int) -> int:
        """Return the sequence of the first record that was stored at a time or later; the end if there is none."""

    @abstractmethod
    def last_stored_at(self) -> int:
        """Return when the last record was stored."""

    @abstractmethod
    def content_bytes(self) -> int:
        """Return the total size of the records, approximate if some are damaged."""
