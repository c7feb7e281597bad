"""Open files, limited in number, and files that are replaced atomically."""

from __future__ import annotations

import os
import shutil
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice

import attrs

from dafka.durable_files import sync_folder

OPEN_FILES_MAX = 256
"""The maximum number of open files: far below the usual limit of a process, which is 1,024."""

TEMPORARY_SUFFIX = ".tmp"

_BUFFERS_MAX = 1024  # IOV_MAX of every system in use


@attrs.define(eq=False)
class _File:
    fd: int
    users: int = 0
    is_dropped: bool = False


class FilePool:
    """A cache of open files, least recently used first out. Threads may use it, and the same file, concurrently."""

    def __init__(self, flags: int, files_max: int = OPEN_FILES_MAX) -> None:
        self._flags = flags | os.O_CLOEXEC
        self._files_max = files_max
        self._files: OrderedDict[str, _File] = OrderedDict()
        self._lock = threading.Lock()

    @contextmanager
    def open_file(self, path: str, *, is_created: bool = False) -> Iterator[int]:
        """Yield the descriptor of a file, which stays open at least for the duration of the block. Raises `OSError`."""
        with self._lock:
            file = self._files.get(path)
            if file is None:
                # Opened under the lock: a file that was unlinked and dropped must not be added again.
                flags = self._flags | os.O_CREAT if is_created else self._flags
                file = self._files[path] = _File(os.open(path, flags, 0o644))
            else:
                self._files.move_to_end(path)
            file.users += 1
            if len(self._files) > self._files_max:
                self._evict()
        try:
            yield file.fd
        finally:
            with self._lock:
                file.users -= 1
                if file.is_dropped and not file.users:
                    os.close(file.fd)

    def open_paths(self) -> list[str]:
        """Return the paths of the files that are open."""
        with self._lock:
            return list(self._files)

    def is_in_place(self, path: str) -> bool:
        """Return whether the open file is still at its path. Only for use while no other thread unlinks files."""
        with self.open_file(path) as fd, suppress(FileNotFoundError, NotADirectoryError):
            return os.path.samestat(os.stat(path), os.fstat(fd))
        return False

    def drop(self, path: str) -> None:
        """Drop a file that was unlinked, or whose path may now belong to another file."""
        with self._lock:
            file = self._files.pop(path, None)
            if file is not None:
                self._close_when_unused(file)

    def close(self) -> None:
        """Close all files; those in use are closed when they are no longer used."""
        with self._lock:
            while self._files:
                self._close_when_unused(self._files.popitem()[1])

    def _evict(self) -> None:
        unused = (path for path, file in self._files.items() if not file.users)
        for path in list(islice(unused, len(self._files) - self._files_max)):
            self._close_when_unused(self._files.pop(path))

    def _close_when_unused(self, file: _File) -> None:
        if file.users:
            file.is_dropped = True
        else:
            os.close(file.fd)


def write_at(fd: int, buffers: Sequence[bytes], position: int) -> None:
    """Write all of the buffers, with as few system calls as possible. Raises `OSError`."""
    rest = list(buffers)
    while rest:
        written = os.pwritev(fd, rest[:_BUFFERS_MAX], position)
        position += written
        complete = 0
        while complete < len(rest) and written >= len(rest[complete]):
            written -= len(rest[complete])
            complete += 1
        del rest[:complete]
        if written:
            rest[0] = rest[0][written:]


def read_file(path: str) -> bytes | None:
    """Return the contents of a file, or None if it does not exist. Raises `OSError`."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


def file_size(path: str) -> int:
    """Return the size of a file in bytes, or 0 if it does not exist. Raises `OSError`."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def replace_file(path: str, data: bytes, *, is_durable: bool = True) -> None:
    """Replace the contents of a file atomically. Raises `OSError`."""
    temporary = temporary_path(path)
    try:
        with open(temporary, "wb", buffering=0) as file:
            write_at(file.fileno(), [data], 0)
            if is_durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    if is_durable:
        sync_folder(os.path.dirname(path))


def remove_files(paths: Iterable[str]) -> None:
    """Remove files, if they exist. Raises `OSError`."""
    for path in paths:
        with suppress(FileNotFoundError):
            os.unlink(path)


def make_folders(path: str) -> list[str]:
    """Create a folder and its missing parents, and return the folders that have changed. Raises `OSError`."""
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path) or "."
    for made in reversed(missing):
        os.mkdir(made)
    return [os.path.dirname(made) or "." for made in reversed(missing)]


def make_durable_folders(path: str) -> None:
    """Create a folder and its missing parents durably. Raises `OSError`."""
    changed = {os.path.dirname(path) or "."}  # even if it was there: its creator may have been killed before the sync
    for folder in changed.union(make_folders(path)):
        sync_folder(folder)


def ancestors(path: str, root: str) -> Iterator[str]:
    """Yield the folder of a path, and the folders above it up to and including a root."""
    while path != root:
        path = os.path.dirname(path)
        yield path


def remove_folders(path: str, top: str) -> str:
    """Remove a folder and its parents below `top` that become empty; return the first folder that is left."""
    shutil.rmtree(path, ignore_errors=True)
    while (path := os.path.dirname(path)) != top:
        try:
            os.rmdir(path)
        except OSError:
            break
    return path


def temporary_path(path: str) -> str:
    """Return the path of the file that will replace another one."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}{TEMPORARY_SUFFIX}")


def is_temporary_file(name: str) -> bool:
    """Return whether a killed process left this file, which would have replaced another one."""
    return name.startswith(".") and name.endswith(TEMPORARY_SUFFIX)
