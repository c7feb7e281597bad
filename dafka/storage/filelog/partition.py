"""One partition: its folder, the segments in it, and what is known of them.

The thread that writes replaces `head` and `bases`, each as a whole; those that read take `head` first, then `bases`. A
segment is in `bases` before `head` tells of it, and it is gone from `head` before it leaves `bases` and the disk.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from typing import NamedTuple

from crc32c import crc32c

from dafka.records import Partition
from dafka.storage.base import PartitionInfo
from dafka.storage.filelog.entries import partition_seed, segment_seed
from dafka.storage.filelog.files import read_file, replace_file
from dafka.storage.filelog.layout import encode_name, to_parts

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
EARLIEST_FILE = "earliest"
"""The file that keeps the earliest sequence, where that is not a segment's first."""

BASE_DIGITS = 20


class Head(NamedTuple):
    """What a partition holds. The times are of the earliest and the latest record, 0 before there was any.

    `base`, `length` and `base_at` are the active segment's: its first sequence, its octets that count, and its first
    record's time. `closed_bytes` is what the partition's other files take.
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
        """What a storage tells of it."""
        if self.earliest == self.end:
            return PartitionInfo(self.earliest, self.end)
        return PartitionInfo(self.earliest, self.end, self.content_bytes, self.earliest_at, self.latest_at)


class PartitionLog:
    """A partition that is held. Little: there may be very many."""

    __slots__ = ("_head", "_info", "bases", "folder", "is_tail_dirty", "lock", "partition", "seed", "slot")

    def __init__(self, partition: Partition, topics: str, slot: int = -1) -> None:
        """`topics` is the folder of all topics, `slot` the partition's place in the catalog."""
        self.partition = partition
        topic, address = self.name
        self.folder = "/".join((topics, *to_parts(topic), *to_parts(address)))
        self.seed = partition_seed(topic, address)
        self.slot = slot
        self.bases: tuple[int, ...] = ()
        self.lock = threading.Lock()
        """For changing an index, and for listing the segments."""
        self.is_tail_dirty = False
        """True where what a failed append wrote could not be cut off again."""
        self._head = Head()
        self._info: PartitionInfo | None = None

    @property
    def name(self) -> tuple[bytes, bytes]:
        """Topic and address in octets, as the catalog has them. Raises `StorageError` for what octets cannot spell."""
        return encode_name(self.partition.topic), encode_name(self.partition.address)

    @property
    def head(self) -> Head:
        """What is held now."""
        return self._head

    @head.setter
    def head(self, head: Head) -> None:
        self._head = head
        self._info = None

    @property
    def info(self) -> PartitionInfo:
        """What is held now, as a storage tells it."""
        return self._info or self.compute_info()

    def compute_info(self) -> PartitionInfo:
        """Has `info` ready: listing many partitions is to be quick."""
        while True:
            head = self._head
            info = self._info = head.info()
            if head is self._head:
                return info

    def log_path(self, base: int) -> str:
        """A segment's file."""
        return f"{self.folder}/{base:0{BASE_DIGITS}}{LOG_SUFFIX}"

    def index_path(self, base: int) -> str:
        """A segment's index."""
        return f"{self.folder}/{base:0{BASE_DIGITS}}{INDEX_SUFFIX}"

    def segment_seed(self, base: int) -> int:
        """What the CRCs of a segment's headers begin from."""
        return segment_seed(self.seed, base)

    def list_bases(self) -> tuple[int, ...]:
        """The segments that are there, by their first sequences. Raises `OSError`."""
        bases = self.bases
        if not bases:
            with self.lock:
                bases = self.bases or find_bases(self.folder)
                self.bases = bases
        return bases

    def find_segment(self, head: Head, sequence: int) -> tuple[int, int]:
        """The base of the segment that should hold a sequence, and the sequence at which that ends.

        Where there is none, the end alone is greater than the sequence. Raises `OSError`.
        """
        if sequence >= head.base:
            return head.base, head.end
        bases = self.list_bases()
        number = bisect_right(bases, sequence)
        end = bases[number] if number < len(bases) else head.end
        return (bases[number - 1] if number else end), end


def find_bases(folder: str) -> tuple[int, ...]:
    """The first sequences of the segments in a folder, in order; none where it is not there. Raises `OSError`."""
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return ()
    return tuple(sorted(int(name[:BASE_DIGITS]) for name in names if is_segment_name(name, LOG_SUFFIX)))


def is_segment_name(name: str, suffix: str) -> bool:
    """Tells whether a file is named as a segment, or as a segment's index."""
    digits = name[:BASE_DIGITS]
    return (
        len(name) == BASE_DIGITS + len(suffix)
        and name.endswith(suffix)
        and digits.isascii()
        and digits.isdigit()
        and int(digits) < 2**64
    )


def read_earliest_file(folder: str) -> tuple[int, int] | None:
    """The earliest sequence, and the latest record's time, as the file `earliest` keeps them; None where it does not.

    Raises `ValueError` where it is damaged, `OSError`.
    """
    octets = read_file(f"{folder}/{EARLIEST_FILE}")
    if octets is None:
        return None
    text, _, crc = octets.rpartition(b" ")
    if crc != b"%08x\n" % crc32c(text):
        raise ValueError
    sequence, latest_at = text.split()
    return int(sequence), int(latest_at)


def write_earliest_file(folder: str, sequence: int, latest_at: int) -> None:
    """Keeps the earliest sequence, durably. Raises `OSError`."""
    text = b"%d %d" % (sequence, latest_at)
    replace_file(f"{folder}/{EARLIEST_FILE}", text + b" %08x\n" % crc32c(text))
