"""The parts of a segment: blocks of records, runs with the same time, and the end of the segment."""

from __future__ import annotations

from typing import NamedTuple

import attrs

from dafka.records import NO_TIMESTAMP


class Block(NamedTuple):
    """A record batch, by its header: records that are stored and checked together.

    Attributes:
        position: Its position in the segment.
        size: Its size, in bytes.
        first_sequence: The sequence of its first record.
        records: The number of its records, including those that compaction has removed.
        crc: The CRC of the rest of the block.
        max_timestamp: The largest timestamp of its records.
    """

    position: int
    size: int
    first_sequence: int
    records: int
    crc: int
    max_timestamp: int = NO_TIMESTAMP

    @property
    def end_sequence(self) -> int:
        """The sequence after the last record."""
        return self.first_sequence + self.records

    @property
    def next_position(self) -> int:
        """The position after it."""
        return self.position + self.size


class StoredRun(NamedTuple):
    """Consecutive records that were stored at the same time.

    Attributes:
        first_sequence: The sequence of the first record.
        end_sequence: The sequence after the last record.
        stored_at: When they were stored.
        content_bytes: Their total size; None if they must be read to know it.
    """

    first_sequence: int
    end_sequence: int
    stored_at: int
    content_bytes: int | None


@attrs.define
class Tail:
    """The result of scanning the end of a segment: how far it is valid, and which blocks before that are damaged.

    Attributes:
        length: The size of the valid part, in bytes.
        end: The sequence after the last record of the valid part.
        seen_end: The sequence after the last record for which a header was found.
        damaged: The position, first sequence and end sequence of damage within the valid part.
    """

    length: int
    end: int
    seen_end: int
    damaged: list[tuple[int, int, int]] = attrs.Factory(list)
