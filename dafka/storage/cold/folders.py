"""A folder as an object store, such as one on a network file system.

Objects are written to a file of another name, synced, and renamed. A version is what the file contains: only one
process writes to a tier at a time, which the lock of its hot storage ensures.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256

from dafka.durable_files import sync_folder
from dafka.storage.cold.object_store import (
    ListedObject,
    ObjectConflictError,
    ObjectMissingError,
    ObjectStoreError,
    Version,
)
from dafka.storage.filelog.files import ancestors, is_temporary_file, make_folders, replace_file


class FolderStore:
    """Objects as files in a folder, which is created when it is needed."""

    def __init__(self, folder: str) -> None:
        self._folder = folder.rstrip("/") or "/"
        self._synced: set[str] = set()
        """The folders that are durable."""

    def read(self, name: str) -> tuple[bytes, Version]:
        """See `ObjectStore.read`."""
        with self._errors(name), open(self._path(name), "rb") as file:
            data = file.read()
            with suppress(PermissionError):  # of a reader that may not list the folder
                self._sync_folders(os.path.dirname(self._path(name)))
            return data, _version_of(data)

    def read_range(self, name: str, start: int, end: int) -> bytes:
        """See `ObjectStore.read_range`."""
        with self._errors(name), open(self._path(name), "rb", buffering=0) as file:
            return os.pread(file.fileno(), end - start, start)

    def write(self, name: str, data: bytes) -> None:
        """See `ObjectStore.write`."""
        with self._errors(name):
            path = self._path(name)
            folder = os.path.dirname(path)
            for changed in make_folders(folder):
                sync_folder(changed)
            self._sync_folders(folder)
            replace_file(path, data)

    def replace(self, name: str, data: bytes, version: Version | None) -> Version:
        """See `ObjectStore.replace`."""
        try:
            found: Version | None = self.read(name)[1]
        except ObjectMissingError:
            found = None
        if found != version:
            raise ObjectConflictError(f"{self._path(name)} was replaced by another process")
        self.write(name, data)
        return _version_of(data)

    def delete(self, names: Iterable[str]) -> None:
        """See `ObjectStore.delete`. Folders that become empty are removed."""
        for name in names:
            with self._errors(name), suppress(FileNotFoundError):
                path = self._path(name)
                os.unlink(path)
                with suppress(OSError):
                    while (path := os.path.dirname(path)) != self._folder:
                        os.rmdir(path)

    def list(self, prefix: str) -> Iterator[ListedObject]:
        """See `ObjectStore.list`."""
        with self._errors(prefix):
            for folder, _, names in os.walk(self._path(prefix.rstrip("/"))):
                for name in names:
                    if not is_temporary_file(name):
                        path = os.path.join(folder, name)
                        yield ListedObject(os.path.relpath(path, self._folder), os.stat(path).st_size)

    def _sync_folders(self, folder: str) -> None:
        """Sync a folder and those above it, once: a process that was killed may have changed them without syncing."""
        if folder not in self._synced:
            for each in ancestors(f"{folder}/", os.path.dirname(self._folder)):
                sync_folder(each)
            self._synced.add(folder)

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, NotADirectoryError):
            raise ObjectMissingError(f"{self._path(name)}: there is no such file") from None
        except OSError as error:
            raise ObjectStoreError(f"{error.filename or self._path(name)}: {error.strerror or error}") from None


def _version_of(data: bytes) -> Version:
    return Version(sha256(data).hexdigest())
