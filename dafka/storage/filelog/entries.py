"""The form of an entry, which is a run of records stored at one time: a header, then their lengths and contents.

Nothing here touches a file. A header is guarded by a CRC-32C of its own, so that one can go from entry to entry without
reading what stands between, and past damage to it. That CRC begins from the partition, the segment and the header's
position, so that a header never holds where it was not written: not in a content that is a copy of a log, say.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from crc32c import crc32c

from dafka.errors import StorageError
from dafka.records import Partition

MAGIC = 0xDAF1
MAGIC_OCTETS = MAGIC.to_bytes(2, "big")

HEADER = struct.Struct(">HHIQIqII")
"""Magic, flags, octets of the body, first sequence, records, stored at, CRC of the body, CRC of the header."""

HEADER_BYTES = HEADER.size

FIRST = 1
"""Flag: an append's first entry in the partition."""

MORE = 2
"""Flag: the same append's next entry follows. It counts only if all of them are there."""

ENTRY_BYTES_MAX = 2**20
"""Contents of one entry, unless it is a single record; what a reader of one record has to read at the most."""

ENTRY_RECORDS_MAX = 4096

CONTENT_BYTES_MAX = 2**32 - 5
"""The largest content: with its length it fills the largest body."""

SEQUENCE_END_MAX = 2**64 - 1

_CRC_BYTES = 4
_MASK = 2**32 - 1


class Entry(NamedTuple):
    """A header, and where it stands in its segment."""

    position: int
    flags: int
    body_bytes: int
    first_sequence: int
    records: int
    stored_at: int
    body_crc: int

    @property
    def end_sequence(self) -> int:
        """The sequence after its last record's."""
        return self.first_sequence + self.records

    @property
    def next_position(self) -> int:
        """Where the next entry begins."""
        return self.position + HEADER_BYTES + self.body_bytes

    @property
    def content_bytes(self) -> int:
        """Its contents' octets, added up."""
        return self.body_bytes - 4 * self.records


class Run(NamedTuple):
    """Records to be written, all stored at one time."""

    first_sequence: int
    contents: Sequence[bytes]
    stored_at: int


def partition_seed(topic: bytes, address: bytes) -> int:
    """What a partition's CRCs begin from."""
    return crc32c(topic + address, crc32c(struct.pack(">HH", len(topic), len(address))))


def segment_seed(seed: int, base: int) -> int:
    """What the CRCs of a segment's headers begin from, at its position 0."""
    return crc32c(base.to_bytes(8, "big"), seed)


def parse_header(octets: bytes, offset: int, position: int, seed: int) -> Entry | None:
    """The header at this offset of some octets, which stands at this position of its segment; None if it is damaged."""
    magic, flags, body_bytes, first_sequence, count, stored_at, body_crc, crc = HEADER.unpack_from(octets, offset)
    if (
        magic != MAGIC
        or crc32c(octets[offset : offset + HEADER_BYTES - _CRC_BYTES], (seed + position) & _MASK) != crc
        or not 0 < 4 * count <= body_bytes
        or flags & ~(FIRST | MORE)
    ):
        return None
    return Entry(position, flags, body_bytes, first_sequence, count, stored_at, body_crc)


def content_ends(entry: Entry, octets: bytes, offset: int) -> list[int] | None:
    """Where in these octets, which have the entry's body at the offset, each content begins, and the last one ends.

    None if the body is damaged.
    """
    end = offset + entry.body_bytes
    if crc32c(memoryview(octets)[offset:end]) != entry.body_crc:
        return None
    lengths = struct.unpack_from(f">{entry.records}I", octets, offset)
    ends = list(accumulate(lengths, initial=offset + 4 * entry.records))
    return ends if ends[-1] == end else None


def encode(runs: Iterable[Run], position: int, seed: int) -> tuple[list[Entry], list[bytes]]:
    """The entries of one append to a partition, from this position of a segment on, and the octets to be written."""
    parts = [part for run in runs for part in _split(run)]
    entries: list[Entry] = []
    buffers: list[bytes] = []
    for number, (run, lengths) in enumerate(parts):
        flags = (FIRST if number == 0 else 0) | (MORE if number < len(parts) - 1 else 0)
        heading = struct.pack(f">{len(lengths)}I", *lengths)
        contents = b"".join(run.contents)
        crc = crc32c(contents, crc32c(heading))
        body_bytes = len(heading) + len(contents)
        entry = Entry(position, flags, body_bytes, run.first_sequence, len(lengths), run.stored_at, crc)
        header = HEADER.pack(MAGIC, *entry[1:], 0)[:-_CRC_BYTES]
        buffers += (header + crc32c(header, (seed + position) & _MASK).to_bytes(4, "big") + heading, contents)
        entries.append(entry)
        position = entry.next_position
    return entries, buffers


def encoded_bytes(records: int, content_bytes: int) -> int:
    """About what an append takes in a segment."""
    entries = 1 + records // ENTRY_RECORDS_MAX + content_bytes // ENTRY_BYTES_MAX
    return content_bytes + 4 * records + entries * HEADER_BYTES


def check_run(partition: Partition, run: Run, *, is_large: bool = False) -> None:
    """Raises `StorageError` where an entry cannot hold these records; the contents are looked at where `is_large`."""
    if run.first_sequence < 0 or run.first_sequence + len(run.contents) > SEQUENCE_END_MAX:
        raise StorageError(
            f"{partition}: sequence {run.first_sequence} is none, expected 0 up to {SEQUENCE_END_MAX - 1}"
        )
    if not -(2**63) <= run.stored_at < 2**63:
        raise StorageError(f"{partition}: the time {run.stored_at} cannot be stored, expected milliseconds since 1970")
    if is_large and max(map(len, run.contents)) > CONTENT_BYTES_MAX:
        raise StorageError(f"{partition}: a record of more than {CONTENT_BYTES_MAX} octets cannot be stored")


def _split(run: Run) -> Iterator[tuple[Run, list[int]]]:
    """Runs that an entry may hold, with their contents' lengths."""
    lengths = list(map(len, run.contents))
    if len(lengths) <= ENTRY_RECORDS_MAX and sum(lengths) <= ENTRY_BYTES_MAX:
        yield run, lengths
        return
    ends = list(accumulate(lengths, initial=0))
    start = 0
    while start < len(lengths):
        within_bytes = bisect_right(ends, ends[start] + ENTRY_BYTES_MAX) - 1
        stop = min(len(lengths), start + ENTRY_RECORDS_MAX, max(within_bytes, start + 1))
        yield Run(run.first_sequence + start, run.contents[start:stop], run.stored_at), lengths[start:stop]
        start = stop
