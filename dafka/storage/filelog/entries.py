"""The form of an entry, which is a run of records stored at one time: a header, then their lengths and contents.

Nothing here touches a file. A header is guarded by a CRC-32C of its own, so that one can go from entry to entry without
reading what stands between, and past damage to it. That CRC begins from the partition, the segment and the header's
position, so that a header never holds where it was not written: not in a content that is a copy of a log, say.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from crc32c import crc32c

from dafka.contents import LENGTH_BYTES, PackedContents, pack, take_within
from dafka.errors import StorageError
from dafka.records import Partition

MAGIC = 0xDAF1
MAGIC_BYTES = MAGIC.to_bytes(2, "big")

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
        return self.body_bytes - LENGTH_BYTES * self.records


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


def read_body(entry: Entry, octets: bytes, offset: int) -> PackedContents | None:
    """The contents from these octets, which have the entry's body at the offset; None if the body is damaged."""
    begin, end = offset + LENGTH_BYTES * entry.records, offset + entry.body_bytes
    if crc32c(memoryview(octets)[offset:end]) != entry.body_crc:
        return None
    contents = PackedContents(octets[begin:end], octets[offset:begin])
    return contents if contents.ends[-1] == end - begin else None


def encode(runs: Iterable[Run], position: int, seed: int) -> tuple[list[Entry], list[bytes]]:
    """The entries of one append to a partition, from this position of a segment on, and the octets to be written."""
    parts = [part for run in runs for part in _split(run)]
    entries: list[Entry] = []
    buffers: list[bytes] = []
    for number, run in enumerate(parts):
        flags = (FIRST if number == 0 else 0) | (MORE if number < len(parts) - 1 else 0)
        contents = pack(run.contents)
        crc = crc32c(contents.octets, crc32c(contents.lengths))
        body_bytes = len(contents.lengths) + len(contents.octets)
        entry = Entry(position, flags, body_bytes, run.first_sequence, len(contents), run.stored_at, crc)
        header = HEADER.pack(MAGIC, *entry[1:], 0)[:-_CRC_BYTES]
        heading = header + crc32c(header, (seed + position) & _MASK).to_bytes(4, "big") + contents.lengths
        buffers += (heading, contents.octets)
        entries.append(entry)
        position = entry.next_position
    return entries, buffers


def estimate_bytes(records: int, content_bytes: int) -> int:
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


def _split(run: Run) -> Iterator[Run]:
    """Runs that an entry may hold."""
    start = 0
    while start < len(run.contents):
        part = take_within(run.contents, start, ENTRY_RECORDS_MAX, ENTRY_BYTES_MAX)
        yield Run(run.first_sequence + start, part, run.stored_at)
        start += len(part)
