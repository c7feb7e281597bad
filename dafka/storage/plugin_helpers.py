"""What plugins share: reading their part of a URL, telling the time, and keeping a second writer out."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import attrs
from filelock import FileLock, Timeout

from dafka.errors import StorageBusyError, StorageError, StorageLostError
from dafka.records import RecordBatch


def now_ms() -> int:
    """The time, in milliseconds since 1970, UTC."""
    return time.time_ns() // 1_000_000


def parse_location(scheme: str, place: str, options: Mapping[str, Callable[[str], Any]]) -> tuple[str, dict[str, Any]]:
    """Takes `PATH?name=value&...` apart; `options` gives each known option the function that reads its value.

    Raises `StorageError` for an option that is unknown, or whose function raises `ValueError`, whose text says what
    was expected.
    """
    path, _, query = place.partition("?")
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
    """Reads an option's value: a whole number of at least this."""

    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < minimum:
            raise ValueError(f"expected a whole number of at least {minimum}, not {text!r}")
        return int(text)

    return read


def one_of(*choices: str) -> Callable[[str], str]:
    """Reads an option's value: one of these, in upper or lower case."""

    def read(text: str) -> str:
        for choice in choices:
            if text.lower() == choice.lower():
                return choice
        raise ValueError(f"expected {' or '.join(choices)}, not {text!r}")

    return read


def split_by_time(batch: RecordBatch, time_ms: int, latest_stored_at: int = 0) -> Iterator[RecordBatch]:
    """The batch in runs of records that were stored at one time, none before the partition's latest.

    `time_ms` is for records that bring no time. Each run's `stored_at` holds the same time for each of its records.
    """
    times = [time_ms] * len(batch) if batch.stored_at is None else batch.stored_at
    first_sequence = batch.first_sequence
    for stored_at, equal in groupby(times):
        count = len(list(equal))
        latest_stored_at = max(latest_stored_at, stored_at)
        run = batch.between(first_sequence, first_sequence + count)
        yield attrs.evolve(run, stored_at=[latest_stored_at] * count)
        first_sequence += count


class FileIdentity:
    """A file that is open, and the path at which it must go on standing."""

    def __init__(self, path: str) -> None:
        """Raises `OSError` where there is nothing."""
        self._path = path
        self._file = _identify(path)

    @property
    def is_in_place(self) -> bool:
        """Is it still there? Where that cannot be told, it counts as there."""
        try:
            return _identify(self._path) == self._file
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True

    def check_unchanged(self) -> None:
        """Raises `StorageLostError` where it is gone, or another file stands there."""
        if not self.is_in_place:
            raise StorageLostError(f"{self._path} was removed or replaced while it was open")


def _identify(path: str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino


@contextmanager
def writer_lock(path: str) -> Iterator[None]:
    """Keeps every other writer of this path out, in other processes too; `PATH.lock` stays behind, and means nothing.

    The lock goes with the process, however it ends. Raises `StorageBusyError` at once where it is taken,
    `StorageError` where there is no folder to make it in.
    """
    real_path = Path(os.path.realpath(path))
    if not real_path.parent.is_dir():  # the lock would make it
        raise StorageError(f"cannot open {path}: there is no folder {real_path.parent}")
    lock = FileLock(f"{real_path}.lock", thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise StorageBusyError(f"{path} is being written to by another store") from None
    except OSError as error:
        raise StorageError(f"cannot open {path}: {error.strerror}") from None
    try:
        yield
    finally:
        lock.release()
