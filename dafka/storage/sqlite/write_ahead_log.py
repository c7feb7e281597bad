"""The write-ahead log of a writer: keeping it small, and making it durable on demand.

SQLite copies the log into the database (a checkpoint) after a number of pages, but can restart the log only when no
reader uses it. If readers overlap, that never happens. The writer then waits for the readers that use the log, while
new readers use the database, and truncates the log. It waits only briefly: a reader that takes minutes makes the log
grow instead of blocking appends.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from dafka.storage.plugin_helpers import FileIdentity
from dafka.storage.sqlite.connection import BUSY_TIMEOUT_S
from dafka.storage.sqlite.schema import SCHEMA_VERSION

LOG_BYTES_MAX = 32 * 2**20
"""The size in bytes above which the log is truncated after the next commit. One append may exceed it."""

CHECKPOINT_BYTES = 16 * 2**20
"""The size in bytes at which SQLite runs a checkpoint. Pages that were written repeatedly are copied only once."""

READERS_TIMEOUT_S = 0.1
"""How long an append waits for readers to stop using the log."""

POLL_S = 0.002
"""How often the append checks this."""

RETRY_S = (0.1, 2.0)
"""The first and the longest delay before the next attempt to truncate; the delay doubles."""


class WriteAheadLog:
    """The log of the database of one writer. The caller must hold the write lock, except for `checkpoint`.

    `helper` is a connection that only `checkpoint` uses, and `synchronous` the value of `PRAGMA synchronous`.
    """

    def __init__(self, path: str, writer: sqlite3.Connection, helper: sqlite3.Connection, synchronous: str) -> None:
        self._path = f"{os.path.realpath(path)}-wal"
        self._file_identity: FileIdentity | None = None
        self._writer = writer
        self._helper = helper
        self._synchronous = synchronous
        self._next_truncate_at = 0.0
        self._retry_s = RETRY_S[0]
        writer.execute(f"PRAGMA journal_size_limit = {LOG_BYTES_MAX}")
        writer.execute(f"PRAGMA synchronous = {synchronous}")
        (page_bytes,) = writer.execute("PRAGMA page_size").fetchone()
        self._checkpoint_pages = CHECKPOINT_BYTES // page_bytes
        writer.execute(f"PRAGMA wal_autocheckpoint = {self._checkpoint_pages}")

    def sync_found(self) -> None:
        """Make the log's contents durable: a killed process may have committed them without syncing."""
        with suppress(FileNotFoundError):
            if os.stat(self._path).st_size:
                self._commit_version()

    def check_not_removed(self) -> None:
        """Raise `StorageLostError` if the log was removed, which SQLite does not notice. Call this after a commit."""
        if self._file_identity is None:
            with suppress(FileNotFoundError):
                self._file_identity = FileIdentity(self._path)
        else:
            self._file_identity.check_in_place()

    def remove_files(self) -> None:
        """Remove the log of a database that was lost and is closed, so that it is not applied to another database."""
        if self._file_identity is not None and self._file_identity.is_in_place:
            for path in (self._path, f"{self._path.removesuffix('-wal')}-shm"):
                with suppress(OSError):
                    os.unlink(path)

    def truncate_if_large(self) -> None:
        """Truncate the log if it is large. Call this after a commit; it never fails, because the commit succeeded."""
        try:
            if os.stat(self._path).st_size <= LOG_BYTES_MAX or time.monotonic() < self._next_truncate_at:
                return
            if self._run_checkpoint("TRUNCATE"):
                self._next_truncate_at, self._retry_s = 0.0, RETRY_S[0]
            else:
                self._next_truncate_at = time.monotonic() + self._retry_s
                self._retry_s = min(self._retry_s * 2, RETRY_S[1])
        except (OSError, sqlite3.Error):
            return  # the next write reports the error

    @contextmanager
    def without_sync(self) -> Iterator[None]:
        """Run commits that neither wait for the disk nor run checkpoints: for changes that a power cut may undo."""
        self._writer.execute("PRAGMA wal_autocheckpoint = 0")
        if self._synchronous != "OFF":
            self._writer.execute("PRAGMA synchronous = NORMAL")
        try:
            yield
        finally:
            self._writer.execute(f"PRAGMA synchronous = {self._synchronous}")
            self._writer.execute(f"PRAGMA wal_autocheckpoint = {self._checkpoint_pages}")

    def checkpoint(self) -> None:
        """Run the checkpoint that `without_sync` left out, as far as readers allow. It never fails."""
        with suppress(sqlite3.Error):
            self._helper.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def flush(self) -> None:
        """Make everything that was committed durable."""
        if self._synchronous in ("FULL", "EXTRA"):
            return
        self._writer.execute("PRAGMA synchronous = FULL")
        try:
            self._commit_version()
            if self._synchronous == "OFF" and not self._run_checkpoint("FULL"):
                os.sync()  # for pages that checkpoints wrote without waiting for the disk
        finally:
            self._writer.execute(f"PRAGMA synchronous = {self._synchronous}")

    def _commit_version(self) -> None:
        """Rewrite page 1 without a change. A durable commit makes all commits before it durable."""
        self._writer.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def _run_checkpoint(self, mode: str) -> bool:
        """Run a checkpoint, and return whether it was completed."""
        deadline = time.monotonic() + READERS_TIMEOUT_S
        self._writer.execute("PRAGMA busy_timeout = 0")  # SQLite's own waiting polls less and less often
        try:
            while True:
                (busy, *_) = self._writer.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
                if not busy or time.monotonic() > deadline:
                    return not busy
                time.sleep(POLL_S)
        finally:
            self._writer.execute(f"PRAGMA busy_timeout = {round(BUSY_TIMEOUT_S * 1000)}")
