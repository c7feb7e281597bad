"""Files that survive a power failure: replaces small ones, such as users and keys, and syncs whole folders."""

from __future__ import annotations

import ctypes
import os
import platform
import stat
import struct
import sys
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

_DURABLE_FILESYSTEMS = {0xEF53: "ext4", 0x58465342: "XFS", 0x9123683E: "Btrfs"}
"""The numbers of the file systems on which `syncfs` waits for the disk. On others, such as FUSE, it may not."""

_REPORTING_LINUX = (5, 8)
"""The first version of Linux in which `syncfs` reports that data could not be written."""

_STATFS_BYTES = 512
"""More than the size of a `struct statfs`, whose first number says which file system it is."""


def replace_text(path: Path, text: str, mode: int, *, keeps_mode: bool = True) -> None:
    """Replace the text of a file atomically and durably. Raises `OSError`.

    The file gets the mode. If it exists and `keeps_mode`, it keeps its own.
    """
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode) if keeps_mode and path.exists() else mode)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    sync_folder(path.parent)


def sync_folder(path: str | Path) -> None:
    """Make the creation, renaming and removal of files in a folder durable. Raises `OSError`."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def can_sync_filesystem(fd: int) -> bool:
    """Return whether `sync_filesystem` makes the files durable that are on the file system of an open file."""
    library = _find_library()
    if library is None:
        return False
    found = ctypes.create_string_buffer(_STATFS_BYTES)
    if library.fstatfs(fd, found) != 0:
        return False
    return ctypes.c_long.from_buffer(found).value in _DURABLE_FILESYSTEMS


def sync_filesystem(fd: int) -> None:
    """Make durable everything that was written to the file system of an open file, by any process. Raises `OSError`.

    An error is one of any file of the file system since the open file was opened, or since the last error.
    """
    library = _find_library()
    if library is None:
        raise NotImplementedError("this system cannot sync a file system")
    if library.syncfs(fd) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@cache
def _find_library() -> ctypes.CDLL | None:
    """Return the C library if its `syncfs` reports errors."""
    if sys.platform != "linux" or struct.calcsize("P") != 8:
        return None
    version = tuple(int(part) for part in platform.release().split(".")[:2] if part.isdigit())
    return ctypes.CDLL(None, use_errno=True) if version >= _REPORTING_LINUX else None
