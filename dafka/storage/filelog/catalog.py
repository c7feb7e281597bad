"""The catalog: the name and the state of each partition, so that opening and listing need not visit the folders.

The catalog is a cache of two files. `catalog.names` has a frame per partition and only grows. `catalog.heads` has, in
the same order, a slot per partition, which is written after each change. The CRC of a slot is seeded with its
partition, so that a slot is valid for one partition only. If anything is missing, damaged or inconsistent, the folders
are read instead.

Slots are trusted while the system that wrote them runs, or if the writer closed the catalog. After a power failure, a
slot may have reached the disk before the data it describes, or not at all.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from functools import cache

from crc32c import crc32c

from dafka.storage.filelog.files import read_file, replace_file, write_at
from dafka.storage.filelog.partition import Head, partition_seed

NAMES_FILE = "catalog.names"
HEADS_FILE = "catalog.heads"

GOOD, CHANGING, VACANT = 0, 1, 2
"""The state of a slot. CHANGING: read the folder if the writer is gone. VACANT: the partition does not exist."""

IN_USE, CLOSED, UNSYNCED = 0, 1, 2
"""The state of the catalog. UNSYNCED: in use by a writer that does not sync before it writes a slot."""

_FRAME = struct.Struct(">HHI")
_HEADER = struct.Struct(">8sI36s")
_HEADER_BYTES = _HEADER.size + 4
_MAGIC = b"DAFKACAT"
_SLOT = struct.Struct(">QQQqqQQqQI")
SLOT_BYTES = _SLOT.size + 4
_BOOT_ID_PATH = "/proc/sys/kernel/random/boot_id"

Name = tuple[bytes, bytes]
"""A topic and an address."""


@cache
def boot_id() -> bytes:
    """Return the identifier of this boot of the system, or b"" if it is unknown."""
    try:
        return (read_file(_BOOT_ID_PATH) or b"").strip()[:36]
    except OSError:
        return b""


def encode_slot(seed: int, state: int, head: Head) -> bytes:
    """Return the bytes of a slot, for the partition with this seed."""
    data = _SLOT.pack(*head, state)
    return data + crc32c(data, seed).to_bytes(4, "big")


def decode_slot(data: bytes, seed: int) -> tuple[int, Head] | None:
    """Return the state and the head of a slot; None if it is damaged or of another partition."""
    if len(data) != SLOT_BYTES or crc32c(data[:-4], seed) != int.from_bytes(data[-4:], "big"):
        return None
    *fields, state = _SLOT.unpack_from(data)
    return state, Head(*fields)


class CatalogReader:
    """The catalog on disk as of the last `load`. Every method raises `OSError`."""

    def __init__(self, folder: str) -> None:
        self.names: list[Name] = []
        self.is_complete = False
        """Whether all names are known and there is a slot for each."""
        self.is_trusted = False
        """Whether the slots are trusted."""
        self.is_closed = False
        """Whether its writer closed it after syncing everything."""
        self.is_of_earlier_boot = False
        """Whether the system has restarted since the catalog was written, so that no written file is unsynced."""
        self.is_unsynced = False
        """Whether its writer was killed, and may have left any segment unsynced."""
        self._names_path = f"{folder}/{NAMES_FILE}"
        self._heads_path = f"{folder}/{HEADS_FILE}"
        self._names_state: tuple[int, int] = (0, 0)
        self._names_end = 0
        self._slots = b""

    def load(self) -> bool:
        """Read the changes. Return False if the names that were read before were replaced."""
        is_same = self._load_names()
        heads = read_file(self._heads_path) or b""
        self.is_trusted = _is_trusted(heads[:_HEADER_BYTES])
        _, state, boot = _parse_header(heads[:_HEADER_BYTES])
        self.is_closed = self.is_trusted and state == CLOSED
        self.is_of_earlier_boot = b"" != boot != boot_id() != b""
        self.is_unsynced = state == UNSYNCED and not self.is_of_earlier_boot
        self._slots = heads[_HEADER_BYTES:]
        self.is_complete = (
            len(heads) >= _HEADER_BYTES
            and self._names_end == self._names_state[1]
            and len(self._slots) == len(self.names) * SLOT_BYTES
        )
        return is_same

    def loaded_slot(self, number: int, seed: int) -> tuple[int, Head]:
        """Return the state and the head of a slot as loaded; CHANGING if it is damaged or not trusted."""
        found = decode_slot(self.loaded_bytes(number), seed) if self.is_trusted else None
        return found or (CHANGING, Head())

    def loaded_bytes(self, slot: int) -> bytes:
        """Return the bytes of a slot as loaded."""
        return self._slots[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES]

    def read_slot(self, slot: int) -> bytes | None:
        """Return the bytes of a slot on disk now; None if it is not trusted or the names may have been replaced."""
        if slot < 0 or not self.is_complete:
            return None
        try:
            stat = os.stat(self._names_path)
            fd = os.open(self._heads_path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            if stat.st_ino != self._names_state[0] or not _is_trusted(os.pread(fd, _HEADER_BYTES, 0)):
                return None
            return os.pread(fd, SLOT_BYTES, _HEADER_BYTES + slot * SLOT_BYTES)
        finally:
            os.close(fd)

    def _load_names(self) -> bool:
        try:
            stat = os.stat(self._names_path)
            state = (stat.st_ino, stat.st_size)
        except FileNotFoundError:
            state = (0, 0)
        if state == self._names_state:
            return True
        is_same = state[0] == self._names_state[0] and state[1] > self._names_end
        if not is_same:
            self.names, self._names_end = [], 0
        data = read_file(self._names_path) or b""
        position = self._names_end
        while position + _FRAME.size <= len(data):
            topic_bytes, address_bytes, crc = _FRAME.unpack_from(data, position)
            start = position + _FRAME.size
            topic = data[start : start + topic_bytes]
            address = data[start + topic_bytes : start + topic_bytes + address_bytes]
            if len(address) != address_bytes or partition_seed(topic, address) != crc:
                break
            self.names.append((topic, address))
            position = start + topic_bytes + address_bytes
        self._names_state = (state[0], len(data))
        self._names_end = position
        return is_same


class CatalogWriter:
    """The writer of the catalog. `is_synced` says whether segments are synced before their slots are written.

    Every method raises `OSError`.
    """

    def __init__(self, folder: str, *, is_synced: bool = True) -> None:
        self._folder = folder
        self._in_use = IN_USE if is_synced else UNSYNCED
        self._names_fd = self._heads_fd = -1
        self._names_bytes = 0
        self._count = 0

    def open(self, count: int) -> None:
        """Continue the existing catalog, which must be complete, and mark it as in use, durably."""
        flags = os.O_RDWR | os.O_CLOEXEC
        self._names_fd = os.open(f"{self._folder}/{NAMES_FILE}", flags)
        self._heads_fd = os.open(f"{self._folder}/{HEADS_FILE}", flags)
        self._names_bytes = os.fstat(self._names_fd).st_size
        self._count = count
        self._mark(self._in_use)

    def create(self, slots: Sequence[tuple[Name, int, Head]]) -> None:
        """Create a new catalog, replacing an existing one, and open it."""
        heads = b"".join(encode_slot(partition_seed(*name), state, head) for name, state, head in slots)
        replace_file(f"{self._folder}/{NAMES_FILE}", b"".join(_frame(name) for name, _, _ in slots))
        replace_file(f"{self._folder}/{HEADS_FILE}", _header(self._in_use) + heads)
        self.open(len(slots))

    def add_slots(self, names: Sequence[Name]) -> int:
        """Add slots for partitions that are being created, and return the number of the first one."""
        slots = b"".join(encode_slot(partition_seed(*name), CHANGING, Head()) for name in names)
        frames = b"".join(map(_frame, names))
        write_at(self._heads_fd, [slots], _HEADER_BYTES + self._count * SLOT_BYTES)
        write_at(self._names_fd, [frames], self._names_bytes)
        first = self._count
        self._names_bytes += len(frames)
        self._count += len(names)
        return first

    def undo_add_slots(self) -> None:
        """Restore the lengths of both files after a failed `add_slots`."""
        os.ftruncate(self._heads_fd, _HEADER_BYTES + self._count * SLOT_BYTES)
        os.ftruncate(self._names_fd, self._names_bytes)

    def write_slot(self, slot: int, seed: int, state: int, head: Head) -> None:
        """Write one slot."""
        write_at(self._heads_fd, [encode_slot(seed, state, head)], _HEADER_BYTES + slot * SLOT_BYTES)

    def close(self, *, is_clean: bool) -> None:
        """Close the files, and mark the catalog as closed if `is_clean`: if all partitions are durable."""
        try:
            if is_clean and self._heads_fd >= 0:
                os.fsync(self._names_fd)
                os.fsync(self._heads_fd)
                self._mark(CLOSED)
        finally:
            for fd in (self._heads_fd, self._names_fd):
                if fd >= 0:  # opening it may have failed
                    os.close(fd)
            self._heads_fd = self._names_fd = -1

    def _mark(self, state: int) -> None:
        write_at(self._heads_fd, [_header(state)], 0)
        os.fsync(self._heads_fd)


def _is_trusted(header: bytes) -> bool:
    magic, state, boot = _parse_header(header)
    return magic == _MAGIC and (state == CLOSED or boot == boot_id() != b"")


def _parse_header(header: bytes) -> tuple[bytes, int, bytes]:
    """Return the magic, the state and the boot; empty values if the header is damaged."""
    if len(header) != _HEADER_BYTES or crc32c(header[:-4]) != int.from_bytes(header[-4:], "big"):
        return b"", IN_USE, b""
    magic, state, boot = _HEADER.unpack_from(header)
    return magic, state, boot.rstrip(b"\0")


def _header(state: int) -> bytes:
    data = _HEADER.pack(_MAGIC, state, boot_id())
    return data + crc32c(data).to_bytes(4, "big")


def _frame(name: Name) -> bytes:
    topic, address = name
    return _FRAME.pack(len(topic), len(address), partition_seed(topic, address)) + topic + address
