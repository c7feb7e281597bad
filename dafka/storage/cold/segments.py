"""A segment of a cold tier: consecutive records of a partition in one Parquet object, as the manifest has it."""

from __future__ import annotations

import re
from hashlib import sha256

import attrs

from dafka.records import Partition, encode_text

NAME_LENGTH_MAX = 160
"""The maximum length of a topic or an address in the name of an object. S3 allows 1,024 bytes for the whole name."""

RECORDS_FOLDER = "records"
"""The folder of all Parquet objects of a store."""

_SAFE = re.compile(rb"[^A-Za-z0-9_.-]")


def escape_part(name: str) -> str:
    """Return a topic or an address as a part of the name of an object, which differs for each.

    ASCII letters, digits, `_`, `-` and `.` stand for themselves, and every other byte is `!XX`. A part that would be
    empty or consist of dots begins with `!`. A long one is cut, and ends in `!` and a hash.
    """
    data = encode_text(name)
    text = _SAFE.sub(lambda found: b"!%02X" % found[0][0], data).decode()
    if len(text) > NAME_LENGTH_MAX:
        return f"{text[: NAME_LENGTH_MAX - 33]}!{sha256(data).hexdigest()[:32]}"
    return text if text.strip(".") else f"!{text}"


def partition_folder(partition: Partition) -> str:
    """Return the folder of a partition's objects, which ends in a slash."""
    return f"{RECORDS_FOLDER}/{escape_part(partition.topic)}/{escape_part(partition.address)}/"


@attrs.frozen(kw_only=True, cache_hash=True)
class Segment:
    """Consecutive records of a partition in one object.

    Attributes:
        first: The sequence of the first record in the object.
        end: The sequence after the last one.
        start: The sequence of the first record that has not been trimmed.
        content_bytes: The total size of the values, keys and headers of the records from `start` on, in bytes.
        first_at: When the record at `start` was stored, in ms since 1970.
        last_at: When the last record was stored, in ms since 1970.
        tail_bytes: The size of the end of the object, which says where the columns of each row group are.
        tail_crc: The CRC-32C of that end.
        digest: The beginning of the SHA-256 of the object, in hexadecimal.
    """

    partition: Partition
    first: int
    end: int
    start: int
    content_bytes: int
    first_at: int
    last_at: int
    object_bytes: int
    tail_bytes: int
    tail_crc: int
    digest: str

    @property
    def name(self) -> str:
        """The name of the object: the same records have the same name, so that an upload can be repeated."""
        return f"{partition_folder(self.partition)}{self.first:020}-{self.end:020}-{self.digest}.parquet"

    @property
    def count(self) -> int:
        """The number of records that have not been trimmed."""
        return self.end - self.start


def digest_of(data: bytes) -> str:
    """Return the digest of an object that its name has."""
    return sha256(data).hexdigest()[:24]
