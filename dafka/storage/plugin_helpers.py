"""Helpers for authors of storage plugins: URL options, times, detection of removed files, and the writer lock."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import parse_qsl

import attrs
import trio
from filelock import FileLock, Timeout

from dafka.errors import StorageBusyError, StorageError, StorageLostError, StorageUnsupportedError
from dafka.records import RecordBatch


class _Closeable(Protocol):
    def close(self) -> None: ...


_Storage = TypeVar("_Storage", bound=_Closeable)


def now_ms() -> int:
    """Return the current time in milliseconds since 1970, UTC."""
    return time.time_ns() // 1_000_000


def parse_location(
    scheme: str, location: str, options: Mapping[str, Callable[[str], Any]]
) -> tuple[str, dict[str, Any]]:
    """Split the location part of a storage URL, `PATH?name=value&...`, into its path and its options.

    `options` has a function for each known option, which converts its text, or raises `ValueError` with a message that
    says what was expected. Raise `StorageError`, which names the scheme, if an option is unknown or its value invalid.
    """
    path, _, query = location.partition("?")
    found: dict[str, Any] = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name not in options:
            raise StorageError(f"storage '{scheme}:': unknown option {name!r}, expected {' or '.join(options)}")
        try:
            found[name] = options[name](text)
        except ValueError as error:
            raise StorageError(f"storage '{scheme}:': {name}: {error}") from None
    return path, found


def int_at_least(minimum: int) -> Callable[[str], int]:
    """Return a function that converts text to a whole number of at least `minimum`, or raises `ValueError`."""

    def convert(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < minimum:
            raise ValueError(f"expected a whole number of at least {minimum}, not {text!r}")
        return int(text)

    return convert


def one_of(*choices: str) -> Callable[[str], str]:
    """Return a function that converts text to one of these choices, ignoring case, or raises `ValueError`."""

    def convert(text: str) -> str:
        for choice in choices:
            if text.lower() == choice.lower():
                return choice
        raise ValueError(f"expected {' or '.join(choices)}, not {text!r}")

    return convert


def split_by_time(batch: RecordBatch, time_ms: int, latest_stored_at: int = 0) -> Iterator[RecordBatch]:
    """Split a batch into runs of records with the same `stored_at`, and raise times that would decrease.

    Records without `stored_at` get `time_ms`. No run gets an earlier time than that of the partition's latest record.
    """
    times = [time_ms] * len(batch) if batch.stored_at is None else batch.stored_at
    first_sequence = batch.first_sequence
    for stored_at, equal in groupby(times):
        count = len(list(equal))
        latest_stored_at = max(latest_stored_at, stored_at)
        run = batch.between(first_sequence, first_sequence + count)
        yield attrs.evolve(run, stored_at=[latest_stored_at] * count)
        first_sequence += count


def require_only_values(batches: Iterable[RecordBatch], where: str) -> None:
    """Raise `StorageUnsupportedError` if a record has a key or headers, or is a tombstone. Timestamps are allowed.

    The error message names `where`, a storage that holds only values.
    """
    for batch in batches:
        if not batch.has_only_values:
            for record in batch:
                if record.key is not None or record.headers or record.value is None:
                    what = "a key" if record.key is not None else "headers" if record.headers else "no value"
                    raise StorageUnsupportedError(
                        f"{batch.partition}: sequence {record.sequence} has {what}, and {where} holds only values; "
                        "use another storage"
                    )


class FileIdentity:
    """The device and inode of a file, to detect that the file was removed or replaced while it was open.

    The file is kept open if `is_kept_open`, because the system may reuse the inode of a removed file that is not open
    anywhere. It is false for SQLite databases, whose locks end when any descriptor of the file is closed. Opening
    raises `OSError` if there is no file.
    """

    def __init__(self, path: str, *, is_kept_open: bool = False) -> None:
        self._path = path
        self._open = None
        found: str | int = path
        if is_kept_open:
            found = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._open = weakref.finalize(self, os.close, found)
        self._file = os.stat(found)

    def close(self) -> None:
        """Close the file, if it was kept open. The call is optional: an unused object closes its file by itself."""
        if self._open is not None:
            self._open()

    @property
    def is_in_place(self) -> bool:
        """Whether the same file is still at the path. True if this cannot be determined."""
        try:
            return os.path.samestat(os.stat(self._path), self._file)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True

    def check_in_place(self) -> None:
        """Raise `StorageLostError` if the file was removed or replaced."""
        if not self.is_in_place:
            raise StorageLostError(f"{self._path} was removed or replaced while it was open")


@asynccontextmanager
async def opened_in_thread(open_storage: Callable[[], _Storage]) -> AsyncIterator[_Storage]:
    """Open a storage in a worker thread for the duration of a block, and close it in one even if it is cancelled."""
    storage = await trio.to_thread.run_sync(open_storage)
    try:
        yield storage
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(storage.close)


@contextmanager
def writer_lock(path: str, name: str = "") -> Iterator[None]:
    """Exclude other writers of a path, including those in other processes, for the duration of a block.

    The lock is a lock on the file `PATH.lock`, which is not removed. It ends with the process, even if that is killed.
    Raise `StorageBusyError` if another writer holds the lock; the call does not wait for it. Raise `StorageError` if
    the folder of the path does not exist or the lock file cannot be created. Errors call the storage by its `name`, or
    by the path.
    """
    name = name or path
    real_path = Path(os.path.realpath(path))
    if not real_path.parent.is_dir():  # FileLock would create the folder
        raise StorageError(f"cannot open {name}: folder {real_path.parent} does not exist; create it first")
    lock = FileLock(f"{real_path}.lock", thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise StorageBusyError(f"{name} is in use by another writer; stop it first") from None
    except OSError as error:
        raise StorageError(f"cannot open {name}: {error.strerror}") from None
    try:
        yield
    finally:
        lock.release()
