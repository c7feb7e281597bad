"""One partition: its folder, its segments, and the state of the active one.

The writing thread replaces `head` and `bases`, each as a whole; reading threads read `head` first, then `bases`. A
segment is added to `bases` before `head` includes it. It is removed from `head` before it is removed from `bases` and
the disk.
"""

from __future__ import annotations

import os
import struct
import threading
from bisect import bisect_right
from typing import NamedTuple

from crc32c import crc32c

from dafka.records import Partition
from dafka.storage.base import PartitionInfo
from dafka.storage.filelog.files import read_file, replace_file
from dafka.storage.filelog.layout import encode_name, name_to_parts

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
STORED_SUFFIX = ".stored"
SUFFIXES = (LOG_SUFFIX, STORED_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX)
"""The files of a segment; all but the first may be missing."""

EARLIEST_FILE = "earliest"
"""The file that holds the earliest sequence if it is not the first one of a segment."""

BASE_DIGITS = 20
"""The number of digits of a segment's first sequence in its file name."""


class Head(NamedTuple):
    """The state of a partition, as its slot in the catalog stores it.

    Attributes:
        earliest: The sequence of the first record held.
        end: The sequence of the next record.
        content_bytes: The total size of the contents.
        earliest_at: The time of the first record held; 0 before the first append.
        latest_at: The time of the latest record ever appended; 0 before the first append.
        base: The first sequence of the active segment.
        length: The size of the valid part of the active segment, in bytes.
        base_at: The time of the first record of the active segment.
        closed_bytes: The size of the partition's other files, in bytes.
    """

    earliest: int = 0
    end: int = 0
    content_bytes: int = 0
    earliest_at: int = 0
    latest_at: int = 0
    base: int = 0
    length: int = 0
    base_at: int = 0
    closed_bytes: int = 0

    def info(self) -> PartitionInfo:
        """Return the public description."""
        if self.earliest == self.end:
            return PartitionInfo(self.earliest, self.end, last_append_at=self.latest_at or None)
        return PartitionInfo(
            self.earliest, self.end, self.content_bytes, self.earliest_at, self.latest_at, self.latest_at
        )


class PartitionLog:
    """A partition of the file log. It uses little memory, because a file log can have very many.

    Args:
        partition: The partition.
        topics: The folder of all topics.
        slot: The slot of the partition in the catalog; -1 if it has none yet.
    """

    __slots__ = (
        "_head",
        "_info",
        "bases",
        "folder",
        "is_tail_dirty",
        "lock",
        "partition",
        "seed",
        "segment_content_bytes",
        "slot",
        "stored_length",
    )

    def __init__(self, partition: Partition, topics: str, slot: int = -1) -> None:
        self.partition = partition
        topic, address = self.name
        self.folder = "/".join((topics, *name_to_parts(topic), *name_to_parts(address)))
        self.seed = partition_seed(topic, address)
        self.slot = slot
        self.bases: tuple[int, ...] = ()
        self.lock = threading.Lock()
        """Protects changes of an index, and the listing of segments."""
        self.is_tail_dirty = False
        """Whether the end of the active segment holds a failed append that could not be truncated."""
        self.stored_length = -1
        """The size of the `.stored` file of the active segment; -1 if it has not been checked."""
        self.segment_content_bytes = 0
        """The total size of the records of the active segment, if that file has been checked."""
        self._head = Head()
        self._info: PartitionInfo | None = None

    def forget_tail(self) -> None:
        """Forget what is known of the active segment, because another one takes its place."""
        self.stored_length = -1

    @property
    def name(self) -> tuple[bytes, bytes]:
        """The topic and the address as bytes. Raises `StorageError` if they cannot be encoded."""
        return encode_name(self.partition.topic), encode_name(self.partition.address)

    @property
    def head(self) -> Head:
        """The current state of the partition."""
        return self._head

    @head.setter
    def head(self, head: Head) -> None:
        self._head = head
        self._info = None

    @property
    def info(self) -> PartitionInfo:
        """The public description of the current state."""
        return self._info or self.compute_info()

    def compute_info(self) -> PartitionInfo:
        """Compute and cache `info`, so that listing many partitions is quick."""
        while True:
            head = self._head
            info = self._info = head.info()
            if head is self._head:
                return info

    def log_path(self, base: int) -> str:
        """Return the path of a segment."""
        return f"{self.folder}/{base:0{BASE_DIGITS}}{LOG_SUFFIX}"

    def index_path(self, base: int) -> str:
        """Return the path of the index of a segment."""
        return f"{self.folder}/{base:0{BASE_DIGITS}}{INDEX_SUFFIX}"

    def time_index_path(self, base: int) -> str:
        """Return the path of the index of timestamps of a segment."""
        return f"{self.folder}/{base:0{BASE_DIGITS}}{TIME_INDEX_SUFFIX}"

    def stored_path(self, base: int) -> str:
        """Return the path of the file that says when the records of a segment were stored."""
        return f"{self.folder}/{base:0{BASE_DIGITS}}{STORED_SUFFIX}"

    def side_paths(self, base: int) -> list[str]:
        """Return the paths of the files that accompany a segment."""
        return [self.stored_path(base), self.index_path(base), self.time_index_path(base)]

    def segment_seed(self, base: int) -> int:
        """Return the seed of the CRCs of a segment and its `.stored` file."""
        return segment_seed(self.seed, base)

    def list_bases(self) -> tuple[int, ...]:
        """Return the first sequences of the segments, in order. Raises `OSError`."""
        bases = self.bases
        if not bases:
            with self.lock:
                bases = self.bases or find_bases(self.folder)
                self.bases = bases
        return bases

    def find_segment(self, head: Head, sequence: int) -> tuple[int, int]:
        """Return the base of the segment that should hold a sequence, and the sequence after that segment.

        If no segment holds the sequence, the base is greater than the sequence. Raises `OSError`.
        """
        if sequence >= head.base:
            return head.base, head.end
        bases = self.list_bases()
        number = bisect_right(bases, sequence)
        end = bases[number] if number < len(bases) else head.end
        return (bases[number - 1] if number else end), end


def partition_seed(topic: bytes, address: bytes) -> int:
    """Return the seed of a partition's CRCs."""
    return crc32c(topic + address, crc32c(struct.pack(">HH", len(topic), len(address))))


def segment_seed(seed: int, base: int) -> int:
    """Return the seed of a segment's CRCs, in a partition with this seed."""
    return crc32c(base.to_bytes(8, "big"), seed)


def find_bases(folder: str) -> tuple[int, ...]:
    """Return the first sequences of the segments in a folder, in order; none if it does not exist. Raises `OSError`."""
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return ()
    return tuple(sorted(int(name[:BASE_DIGITS]) for name in names if is_segment_name(name, LOG_SUFFIX)))


def is_segment_name(name: str, suffix: str) -> bool:
    """Return whether a file has the name of a segment, or of an accompanying file, depending on the suffix."""
    digits = name[:BASE_DIGITS]
    return (
        len(name) == BASE_DIGITS + len(suffix)
        and name.endswith(suffix)
        and digits.isascii()
        and digits.isdigit()
        and int(digits) < 2**64
    )


def read_earliest_file(folder: str) -> tuple[int, int] | None:
    """Read the file `earliest` of a partition.

    Args:
        folder: The folder of the partition.

    Returns:
        The earliest sequence and the time of the latest record; None if there is no such file.

    Raises:
        ValueError: If the file is damaged.
        OSError: If it cannot be read.
    """
    data = read_file(f"{folder}/{EARLIEST_FILE}")
    if data is None:
        return None
    text, _, crc = data.rpartition(b" ")
    if crc != b"%08x\n" % crc32c(text):
        raise ValueError
    sequence, latest_at = text.split()
    return int(sequence), int(latest_at)


def write_earliest_file(folder: str, sequence: int, latest_at: int) -> None:
    """Write the file `earliest` durably. Raises `OSError`."""
    text = b"%d %d" % (sequence, latest_at)
    replace_file(f"{folder}/{EARLIEST_FILE}", text + b" %08x\n" % crc32c(text))
