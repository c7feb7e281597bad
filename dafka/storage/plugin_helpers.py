"""Helpers for authors of storage plugins: URL options, times, detection of removed files, and the writer lock."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import attrs
from filelock import FileLock, Timeout

from dafka.errors import StorageBusyError, StorageError, StorageLostError, StorageUnsupportedError
from dafka.records import RecordBatch


def now_ms() -> int:
    """Return the current time.

    Returns:
        Milliseconds since 1970, UTC.
    """
    return time.time_ns() // 1_000_000


def parse_location(
    scheme: str, location: str, options: Mapping[str, Callable[[str], Any]]
) -> tuple[str, dict[str, Any]]:
    """Split the location part of a storage URL, `PATH?name=value&...`, into its path and its options.

    Args:
        scheme: The scheme of the URL, for error messages.
        location: The part of the URL after the scheme.
        options: For each known option, the function that converts its text. It raises `ValueError` with a message
            that says what was expected.

    Returns:
        The path, and the value of each option that was given.

    Raises:
        StorageError: If an option is unknown or its value is invalid.
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
    """Return a function that converts the text of an option to a whole number.

    Args:
        minimum: The smallest value that is accepted.

    Returns:
        A function that raises `ValueError` for any other text.
    """

    def convert(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < minimum:
            raise ValueError(f"expected a whole number of at least {minimum}, not {text!r}")
        return int(text)

    return convert


def one_of(*choices: str) -> Callable[[str], str]:
    """Return a function that converts the text of an option to one of several choices, ignoring case.

    Args:
        *choices: The values that are accepted.

    Returns:
        A function that raises `ValueError` for any other text.
    """

    def convert(text: str) -> str:
        for choice in choices:
            if text.lower() == choice.lower():
                return choice
        raise ValueError(f"expected {' or '.join(choices)}, not {text!r}")

    return convert


def split_by_time(batch: RecordBatch, time_ms: int, latest_stored_at: int = 0) -> Iterator[RecordBatch]:
    """Split a batch into runs of records with the same time, and raise times that would decrease.

    Args:
        batch: The records to append.
        time_ms: The time for records without `stored_at`, in milliseconds since 1970.
        latest_stored_at: The time of the partition's latest record; no run gets an earlier one.

    Yields:
        Consecutive parts of the batch. `stored_at` of each part holds the same time for all of its records.
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
    """Check that records have values and nothing else, for a storage that cannot hold more. Timestamps are allowed.

    Args:
        batches: The records to append.
        where: The storage, for the error message.

    Raises:
        StorageUnsupportedError: If a record has a key or a header, or is a tombstone.
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

    Args:
        path: The path of the open file. If there is no file, `OSError` is raised.
        is_kept_open: Whether to keep the file open: the system may reuse the inode of a removed file that is not open
            anywhere. False for SQLite databases, whose locks end when any descriptor of the file is closed.
    """

    def __init__(self, path: str, *, is_kept_open: bool = False) -> None:
        self._path = path
        self._open = None
        found: str | int = path
        if is_kept_open:
            found = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._open = weakref.finalize(self, os.close, found)
        self._file = _identify(found)

    def close(self) -> None:
        """Close the file, if it was kept open. The call is optional: an unused object closes its file by itself."""
        if self._open is not None:
            self._open()

    @property
    def is_in_place(self) -> bool:
        """Whether the same file is still at the path. True if this cannot be determined."""
        try:
            return _identify(self._path) == self._file
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True

    def check_in_place(self) -> None:
        """Check that the same file is still at the path.

        Raises:
            StorageLostError: If it was removed or replaced.
        """
        if not self.is_in_place:
            raise StorageLostError(f"{self._path} was removed or replaced while it was open")


def _identify(file: str | int) -> tuple[int, int]:
    found = os.stat(file)
    return found.st_dev, found.st_ino


@contextmanager
def writer_lock(path: str) -> Iterator[None]:
    """Exclude other writers of a path, including those in other processes, for the duration of a block.

    The lock is a lock on the file `PATH.lock`, which is not removed. It ends with the process, even if that is killed.

    Args:
        path: The path of the storage.

    Yields:
        None, while the lock is held.

    Raises:
        StorageBusyError: If another writer holds the lock. The call does not wait for it.
        StorageError: If the folder of the path does not exist or the lock file cannot be created.
    """
    real_path = Path(os.path.realpath(path))
    if not real_path.parent.is_dir():  # FileLock would create the folder
        raise StorageError(f"cannot open {path}: folder {real_path.parent} does not exist; create it first")
    lock = FileLock(f"{real_path}.lock", thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise StorageBusyError(f"{path} is in use by another writer; stop it first") from None
    except OSError as error:
        raise StorageError(f"cannot open {path}: {error.strerror}") from None
    try:
        yield
    finally:
        lock.release()
