"""Computes checksums of records, with which copies in several storages are compared."""

from __future__ import annotations

import struct
from contextlib import aclosing
from hashlib import sha256

import attrs

from dafka.records import Partition, Record
from dafka.storage.base import Storage
from dafka.storage.opening import read_range

_SEQUENCE, _LENGTH = struct.Struct(">q"), struct.Struct(">i")


@attrs.frozen
class RecordsChecksum:
    """A checksum of records.

    Attributes:
        first_sequence: The sequence of the first record.
        end_sequence: The sequence after the last one.
        checksum: The SHA-256 of their sequences, values, keys and headers, as hexadecimal digits. Times do not count:
            some storages have none.
    """

    first_sequence: int
    end_sequence: int
    checksum: str


async def compute_checksum(
    storage: Storage, partition: Partition, first_sequence: int, end_sequence: int
) -> RecordsChecksum:
    """Return the checksum of the stored records in a range of sequences. Raise `StorageError` if one is damaged."""
    info = await storage.find_partition(partition)
    earliest, end = (0, 0) if info is None else (info.earliest_sequence, info.end_sequence)
    first, end = max(first_sequence, earliest), min(end_sequence, end)
    found = sha256()
    async with aclosing(read_range(storage, partition, first, end)) as batches:
        async for batch in batches:
            for record in batch:
                found.update(_encode(record))
    return RecordsChecksum(first, max(first, end), found.hexdigest())


def _encode(record: Record) -> bytes:
    texts = [part for name, value in record.headers for part in (name.encode(), value)]
    parts = [_SEQUENCE.pack(record.sequence)]
    for part in (record.value, record.key, *texts):
        parts += (_LENGTH.pack(-1 if part is None else len(part)), part or b"")
    return b"".join(parts)
