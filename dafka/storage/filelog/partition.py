"""One partition: its folder, its segments, and the state of the active one.

The writing thread replaces `head` and `bases`, each as a whole; reading threads read `head` first, then `bases`. A
segment is added to `bases` before `head` includes it. It is removed from `head` before it is removed from `bases` and
the disk.
"""

from __future__ import annotations

import os
import re
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
EARLIEST_FILE = "earliest"

_SEGMENT_NAME = re.compile(r"([0-9]{20})(\.log|\.stored|\.index|\.timeindex)")
"""The first sequence of a segment, and the suffix of the file. All files but the first may be missing."""


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

    @property
    def earliest_path(self) -> str:
        """The path of the file that holds the earliest sequence if it is not the first one of a segment."""
        return f"{self.folder}/{EARLIEST_FILE}"

    def log_path(self, base: int) -> str:
        """Return the path of a segment."""
        return f"{self.folder}/{base:020}{LOG_SUFFIX}"

    def stored_path(self, base: int) -> str:
        """Return the path of the file that says when the records of a segment were stored."""
        return f"{self.folder}/{base:020}{STORED_SUFFIX}"

    def index_paths(self, base: int) -> tuple[str, str]:
        """Return the paths of the two files with the index of a segment: offsets and timestamps."""
        path = f"{self.folder}/{base:020}"
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
                bases = self.bases or self.find_bases()
                self.bases = bases
        return bases

    def find_bases(self) -> tuple[int, ...]:
        """Return the first sequences of the segments in the folder; none if it does not exist. Raises `OSError`."""
        try:
            names = os.listdir(self.folder)
        except (FileNotFoundError, NotADirectoryError):
            return ()
        found = filter(None, map(parse_segment_name, names))
        return tuple(sorted(base for base, suffix in found if suffix == LOG_SUFFIX))

    def read_earliest(self) -> tuple[int, int] | None:
        """Return the earliest sequence and the time of the latest record from the file `earliest`.

        Return None if there is no such file. Raise `ValueError` if it is damaged, `OSError` if it cannot be read.
        """
        data = read_file(self.earliest_path)
        if data is None:
            return None
        text, _, crc = data.rpartition(b" ")
        if crc != b"%08x\n" % crc32c(text):
            raise ValueError
        sequence, latest_at = text.split()
        return int(sequence), int(latest_at)

    def write_earliest(self, sequence: int, latest_at: int) -> None:
        """Write the file `earliest` durably. Raises `OSError`."""
        text = b"%d %d" % (sequence, latest_at)
        replace_file(self.earliest_path, text + b" %08x\n" % crc32c(text))

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


def parse_segment_name(name: str) -> tuple[int, str] | None:
    """Return the first sequence and the suffix of a file of a segment; None if it has another name."""
    found = _SEGMENT_NAME.fullmatch(name)
    return (int(found[1]), found[2]) if found is not None and int(found[1]) < 2**64 else None
