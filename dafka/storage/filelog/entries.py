"""The encoding of an entry: a run of records with the same time, as a header, the lengths and the contents.

Nothing in this module touches a file. The header has a CRC-32C of its own, so that a reader can go from entry to entry
without reading the bodies, and past damage. The CRC is seeded with the partition, the segment and the position, so that
a header is valid only where it was written, and not in a content that is a copy of a log.
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
"""Magic, flags, body size, first sequence, number of records, time, CRC of the body, CRC of the header."""

HEADER_BYTES = HEADER.size

FLAG_FIRST = 1
"""Flag: the first entry of an append to the partition."""

FLAG_MORE = 2
"""Flag: another entry of the same append follows. The append is valid only if all of its entries are present."""

ENTRY_BYTES_MAX = 2**20
"""The maximum size of the contents of an entry with several records. It limits what reading one record costs."""

ENTRY_RECORDS_MAX = 4096
"""The maximum number of records in an entry."""

CONTENT_BYTES_MAX = 2**32 - 5
"""The largest content: with its length, it fills the largest body."""

SEQUENCE_END_MAX = 2**64 - 1

_CRC_BYTES = 4
_MASK = 2**32 - 1


class Entry(NamedTuple):
    """A decoded header, and its position in the segment."""

    position: int
    flags: int
    body_bytes: int
    first_sequence: int
    records: int
    stored_at: int
    body_crc: int

    @property
    def end_sequence(self) -> int:
        """The sequence after the last record."""
        return self.first_sequence + self.records

    @property
    def next_position(self) -> int:
        """The position of the next entry."""
        return self.position + HEADER_BYTES + self.body_bytes

    @property
    def content_bytes(self) -> int:
        """The total size of the contents."""
        return self.body_bytes - LENGTH_BYTES * self.records


class Run(NamedTuple):
    """Records to write, all with the same time."""

    first_sequence: int
    contents: Sequence[bytes]
    stored_at: int


def partition_seed(topic: bytes, address: bytes) -> int:
    """Return the seed of a partition's CRCs."""
    return crc32c(topic + address, crc32c(struct.pack(">HH", len(topic), len(address))))


def segment_seed(seed: int, base: int) -> int:
    """Return the seed of the CRCs of a segment's headers, for position 0."""
    return crc32c(base.to_bytes(8, "big"), seed)


def parse_header(data: bytes, offset: int, position: int, seed: int) -> Entry | None:
    """Decode the header at an offset of `data` and a position of its segment; return None if it is damaged."""
    magic, flags, body_bytes, first_sequence, count, stored_at, body_crc, crc = HEADER.unpack_from(data, offset)
    if (
        magic != MAGIC
        or crc32c(data[offset : offset + HEADER_BYTES - _CRC_BYTES], (seed + position) & _MASK) != crc
        or not 0 < 4 * count <= body_bytes
        or flags & ~(FLAG_FIRST | FLAG_MORE)
    ):
        return None
    return Entry(position, flags, body_bytes, first_sequence, count, stored_at, body_crc)


def read_body(entry: Entry, data: bytes, offset: int) -> PackedContents | None:
    """Decode the body of an entry at an offset of `data`; return None if it is damaged."""
    begin, end = offset + LENGTH_BYTES * entry.records, offset + entry.body_bytes
    if crc32c(memoryview(data)[offset:end]) != entry.body_crc:
        return None
    contents = PackedContents(data[begin:end], data[offset:begin])
    return contents if contents.ends[-1] == end - begin else None


def encode_entries(runs: Iterable[Run], position: int, seed: int) -> tuple[list[Entry], list[bytes]]:
    """Return the entries of one append to a partition, and the bytes to write at a position of a segment."""
    parts = [part for run in runs for part in _split(run)]
    entries: list[Entry] = []
    buffers: list[bytes] = []
    for number, run in enumerate(parts):
        flags = (FLAG_FIRST if number == 0 else 0) | (FLAG_MORE if number < len(parts) - 1 else 0)
        contents = pack(run.contents)
        crc = crc32c(contents.data, crc32c(contents.lengths))
        body_bytes = len(contents.lengths) + len(contents.data)
        entry = Entry(position, flags, body_bytes, run.first_sequence, len(contents), run.stored_at, crc)
        header = HEADER.pack(MAGIC, *entry[1:], 0)[:-_CRC_BYTES]
        heading = header + crc32c(header, (seed + position) & _MASK).to_bytes(4, "big") + contents.lengths
        buffers += (heading, contents.data)
        entries.append(entry)
        position = entry.next_position
    return entries, buffers


def estimate_bytes(records: int, content_bytes: int) -> int:
    """Return the approximate size of an append in a segment."""
    entries = 1 + records // ENTRY_RECORDS_MAX + content_bytes // ENTRY_BYTES_MAX
    return content_bytes + 4 * records + entries * HEADER_BYTES


def check_run(partition: Partition, run: Run, *, is_large: bool = False) -> None:
    """Raise `StorageError` if entries cannot hold these records. Sizes of contents are checked only if `is_large`."""
    if run.first_sequence < 0 or run.first_sequence + len(run.contents) > SEQUENCE_END_MAX:
        raise StorageError(
            f"{partition}: expected sequences from 0 to {SEQUENCE_END_MAX - 1}, "
            f"not {run.first_sequence} to {run.first_sequence + len(run.contents) - 1}"
        )
    if not -(2**63) <= run.stored_at < 2**63:
        raise StorageError(
            f"{partition}: expected a time in milliseconds since 1970, within 64 bits, not {run.stored_at}"
        )
    if is_large and max(map(len, run.contents)) > CONTENT_BYTES_MAX:
        raise StorageError(
            f"{partition}: expected contents of at most {CONTENT_BYTES_MAX} bytes, not {max(map(len, run.contents))}"
        )


def _split(run: Run) -> Iterator[Run]:
    """Split a run into runs that fit into one entry."""
    start = 0
    while start < len(run.contents):
        part = take_within(run.contents, start, ENTRY_RECORDS_MAX, ENTRY_BYTES_MAX)
        yield Run(run.first_sequence + start, part, run.stored_at)
        start += len(part)
