"""Open files, fewer than there may be, and files that are replaced whole."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

OPEN_FILES_MAX = 128
"""Far below a process's usual limit of 1,024, and enough to keep those in use open."""

TEMPORARY_SUFFIX = ".tmp"

_BUFFERS_MAX = 1024  # IOV_MAX of every system in use


class _File:
    __slots__ = ("fd", "is_forgotten", "users")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.users = 0
        self.is_forgotten = False


class FilePool:
    """Keeps the files used last open. Any thread may use it, and each other's files at once."""

    def __init__(self, flags: int, files_max: int = OPEN_FILES_MAX) -> None:
        self._flags = flags | os.O_CLOEXEC
        self._files_max = files_max
        self._files: OrderedDict[str, _File] = OrderedDict()
        self._lock = threading.Lock()

    @contextmanager
    def lease(self, path: str) -> Iterator[int]:
        """The file's descriptor, which stays open for the length of the block at least. Raises `OSError`."""
        with self._lock:
            file = self._files.get(path)
            if file is None:
                # Under the lock: a file opened before its path was unlinked must not come in after it was forgotten.
                file = self._files[path] = _File(os.open(path, self._flags))
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
                if file.is_forgotten and not file.users:
                    os.close(file.fd)

    def paths(self) -> list[str]:
        """The files that are open."""
        with self._lock:
            return list(self._files)

    def is_in_place(self, path: str) -> bool:
        """Does the file that is open stand at its path? To be asked where nobody removes any meanwhile."""
        with self.lease(path) as fd:
            opened = os.fstat(fd)
            try:
                found = os.stat(path)
            except (FileNotFoundError, NotADirectoryError):
                return False
            return (found.st_dev, found.st_ino) == (opened.st_dev, opened.st_ino)

    def forget(self, path: str) -> None:
        """To be called after a file was unlinked, or where another may stand at its path."""
        with self._lock:
            file = self._files.pop(path, None)
            if file is not None:
                self._drop(file)

    def close(self) -> None:
        """Closes all files, those in use as soon as they are not."""
        with self._lock:
            while self._files:
                self._drop(self._files.popitem()[1])

    def _evict(self) -> None:
        for path in [path for path, file in self._files.items() if not file.users]:
            if len(self._files) <= self._files_max:
                return
            self._drop(self._files.pop(path))

    def _drop(self, file: _File) -> None:
        if file.users:
            file.is_forgotten = True
        else:
            os.close(file.fd)


def write_at(fd: int, buffers: Sequence[bytes], position: int) -> None:
    """Writes all of the buffers, with as few calls as it can be done. Raises `OSError`."""
    rest = list(buffers)
    while rest:
        written = os.pwritev(fd, rest[:_BUFFERS_MAX], position)
        position += written
        whole = 0
        while whole < len(rest) and written >= len(rest[whole]):
            written -= len(rest[whole])
            whole += 1
        del rest[:whole]
        if written:
            rest[0] = rest[0][written:]


def read_file(path: str) -> bytes | None:
    """What stands in a file; None where there is none. Raises `OSError`."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


def file_size(path: str) -> int:
    """How large a file is; 0 where there is none. Raises `OSError`."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def replace_file(path: str, octets: bytes, *, is_durable: bool = True) -> None:
    """Puts a file in place of the one there, if any, so that either of them is found, whole. Raises `OSError`."""
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}{TEMPORARY_SUFFIX}")
    try:
        with open(temporary, "wb", buffering=0) as file:
            write_at(file.fileno(), [octets], 0)
            if is_durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    if is_durable:
        sync_folder(folder)


def sync_folder(path: str) -> None:
    """Makes what was made, renamed or removed in a folder durable. Raises `OSError`."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folders(path: str) -> list[str]:
    """Makes a folder and those above it that are missing; gives the folders that have changed. Raises `OSError`."""
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for made in reversed(missing):
        os.mkdir(made)
    return [os.path.dirname(made) for made in reversed(missing)]


def is_temporary(name: str) -> bool:
    """Tells whether a file is one that `replace_file` left behind when its process was killed."""
    return name.startswith(".") and name.endswith(TEMPORARY_SUFFIX)
