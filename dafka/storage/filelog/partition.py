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
from collections.abc import Iterator
from typing import NamedTuple

import attrs
from crc32c import crc32c

from dafka.records import Partition, decode_text
from dafka.storage.base import PartitionInfo
from dafka.storage.filelog.files import read_file, replace_file
from dafka.storage.filelog.layout import encode_name, name_to_parts, walk_names

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
    """The state of a partition, as its slot in the catalog stores it. Times are 0 before the first append."""

    earliest: int = 0
    end: int = 0
    content_bytes: int = 0
    earliest_at: int = 0
    latest_at: int = 0
    """The time of the latest record ever appended, even if it has been dropped."""
    base: int = 0
    """The first sequence of the active segment."""
    length: int = 0
    """The size of the valid part of the active segment, in bytes."""
    base_at: int = 0
    """The time of the first record of the active segment."""
    closed_bytes: int = 0
    """The size of the partition's other files, in bytes."""

    def info(self) -> PartitionInfo:
        """Return the public description."""
        earliest, end, content_bytes, earliest_at, latest_at, *_ = self
        if earliest == end:
            return PartitionInfo(earliest, end, last_append_at=latest_at or None)
        return PartitionInfo(earliest, end, content_bytes, earliest_at, latest_at, latest_at)


@attrs.define(init=False, eq=False, weakref_slot=False)
class PartitionLog:
    """A partition of the file log. It uses little memory, because a file log can have very many."""

    partition: Partition
    folder: str
    seed: int
    slot: int
    """The slot of the partition in the catalog; -1 if it has none yet."""
    bases: tuple[int, ...] = ()
    is_tail_dirty: bool = False
    """Whether the end of the active segment holds a failed append that could not be truncated."""
    stored_length: int = -1
    """The size of the `.stored` file of the active segment; -1 if it has not been checked."""
    segment_content_bytes: int = 0
    """The total size of the records of the active segment, if that file has been checked."""
    lock: threading.Lock = attrs.field(factory=threading.Lock)
    """Protects changes of an index, and the listing of segments."""
    _head: Head = attrs.field(factory=Head)
    _info: PartitionInfo | None = None

    def __init__(self, partition: Partition, topics_folder: str, slot: int = -1) -> None:
        topic, address = encode_name(partition.topic), encode_name(partition.address)
        folder = "/".join((topics_folder, *name_to_parts(topic), *name_to_parts(address)))
        self.__attrs_init__(partition, folder, partition_seed(topic, address), slot)

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

    def stored_path(self, base: int) -> str:
        """Return the path of the file that says when the records of a segment were stored."""
        return f"{self.folder}/{base:0{BASE_DIGITS}}{STORED_SUFFIX}"

    def index_paths(self, base: int) -> tuple[str, str]:
        """Return the paths of the two files with the index of a segment: offsets and timestamps."""
        path = f"{self.folder}/{base:0{BASE_DIGITS}}"
        return path + INDEX_SUFFIX, path + TIME_INDEX_SUFFIX

    def segment_paths(self, base: int) -> list[str]:
        """Return the paths of a segment and the files that accompany it."""
        return [self.log_path(base), self.stored_path(base), *self.index_paths(base)]

    def segment_seed(self, base: int) -> int:
        """Return the seed of the CRCs of the `.stored` file of a segment."""
        return crc32c(base.to_bytes(8, "big"), self.seed)

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


def walk_partitions(topics_folder: str, topic: str | None = None) -> Iterator[Partition]:
    """Yield the partitions that have a folder, or those of a topic."""
    for topic_name, folder in walk_names(topics_folder):
        name = decode_text(topic_name)
        if topic is None or topic == name:
            for address, _ in walk_names(folder):
                yield Partition(name, decode_text(address))


def find_bases(folder: str) -> tuple[int, ...]:
    """Return the first sequences of the segments in a folder, in order; none if it does not exist. Raises `OSError`."""
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return ()
    return tuple(sorted(int(name[:BASE_DIGITS]) for name in names if is_segment_name(name, LOG_SUFFIX)))


def is_segment_name(name: str, suffix: str) -> bool:
    """Return whether a file has the name of a segment, or of an accompanying file, depending on the suffix."""
    digits = name.removesuffix(suffix)
    return (
        name.endswith(suffix)
        and len(digits) == BASE_DIGITS
        and digits.isascii()
        and digits.isdigit()
        and int(digits) < 2**64
    )


def read_earliest_file(folder: str) -> tuple[int, int] | None:
    """Return the earliest sequence and the time of the latest record from the file `earliest` of a partition.

    Return None if there is no such file. Raise `ValueError` if it is damaged, `OSError` if it cannot be read.
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
