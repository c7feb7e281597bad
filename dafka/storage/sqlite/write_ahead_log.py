"""The write-ahead log: kept small while readers come and go, and made durable on demand.

SQLite copies the log back into the database every so many pages, but begins it anew only at a moment when no reader
is in it. Where readers overlap there is never such a moment: then the writer waits for those that are reading, while
new ones read the database instead, and cuts the log. It waits briefly: a reader that stays for minutes makes the log
grow, not the appends wait.
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
"""A log longer than this is cut at the next write, as soon as readers let it. One append may write more."""

CHECKPOINT_BYTES = 16 * 2**20
"""The longer the log, the more of its pages are copied back once that were written several times."""

READERS_TIMEOUT_S = 0.1
"""How long an append waits for readers to leave the log."""

POLL_S = 0.002

RETRY_S = (0.1, 2.0)
"""When to try again where they did not: at first, and at the most, for it doubles."""


class WriteAheadLog:
    """The log of one writer. All methods belong into the writer's turn, except `checkpoint`."""

    def __init__(self, path: str, writer: sqlite3.Connection, helper: sqlite3.Connection, synchronous: str) -> None:
        """`helper` is a connection for `checkpoint` alone."""
        self._path = f"{os.path.realpath(path)}-wal"
        self._place: FileIdentity | None = None
        self._writer = writer
        self._helper = helper
        self._synchronous = synchronous
        self._next_cut = 0.0
        self._retry_s = RETRY_S[0]
        writer.execute(f"PRAGMA journal_size_limit = {LOG_BYTES_MAX}")
        writer.execute(f"PRAGMA synchronous = {synchronous}")
        (page_bytes,) = writer.execute("PRAGMA page_size").fetchone()
        self._copy_back_pages = CHECKPOINT_BYTES // page_bytes
        writer.execute(f"PRAGMA wal_autocheckpoint = {self._copy_back_pages}")

    def check_not_removed(self) -> None:
        """Raises `StorageLostError` where the log was removed, which SQLite would not notice. Call after a commit."""
        if self._place is None:
            with suppress(FileNotFoundError):
                self._place = FileIdentity(self._path)
        else:
            self._place.check_unchanged()

    def remove(self) -> None:
        """To be called when the database was lost, and is closed: its log must not be applied to another one."""
        if self._place is not None and self._place.is_in_place:
            for path in (self._path, f"{self._path.removesuffix('-wal')}-shm"):
                with suppress(OSError):
                    os.unlink(path)

    def bound(self) -> None:
        """Cuts the log where it has grown long. Call after a commit; never fails: what was committed stays so."""
        try:
            if os.stat(self._path).st_size <= LOG_BYTES_MAX or time.monotonic() < self._next_cut:
                return
            if self._checkpoint("TRUNCATE"):
                self._next_cut, self._retry_s = 0.0, RETRY_S[0]
            else:
                self._next_cut = time.monotonic() + self._retry_s
                self._retry_s = min(self._retry_s * 2, RETRY_S[1])
        except (OSError, sqlite3.Error):
            return  # the next write says what is wrong

    @contextmanager
    def without_sync(self) -> Iterator[None]:
        """Commits within neither wait for the disk nor copy the log back: for what a power cut may undo."""
        self._writer.execute("PRAGMA wal_autocheckpoint = 0")
        if self._synchronous != "OFF":
            self._writer.execute("PRAGMA synchronous = NORMAL")
        try:
            yield
        finally:
            self._writer.execute(f"PRAGMA synchronous = {self._synchronous}")
            self._writer.execute(f"PRAGMA wal_autocheckpoint = {self._copy_back_pages}")

    def checkpoint(self) -> None:
        """What `without_sync` left to do, as far as readers let it; the writer goes on meanwhile. Never fails."""
        with suppress(sqlite3.Error):
            self._helper.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def flush(self) -> None:
        """Returns when everything committed is durable."""
        if self._synchronous in ("FULL", "EXTRA"):
            return
        self._writer.execute("PRAGMA synchronous = FULL")
        try:
            # Writing page 1, even as it is, is a commit, and a commit that is durable makes all before it so.
            self._writer.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            if self._synchronous == "OFF" and not self._checkpoint("FULL"):
                os.sync()  # what was copied back without waiting for the disk
        finally:
            self._writer.execute(f"PRAGMA synchronous = {self._synchronous}")

    def _checkpoint(self, mode: str) -> bool:
        """Tells whether it came to its end."""
        deadline = time.monotonic() + READERS_TIMEOUT_S
        self._writer.execute("PRAGMA busy_timeout = 0")  # SQLite itself would look again ever more rarely
        try:
            while True:
                (busy, *_) = self._writer.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
                if not busy or time.monotonic() > deadline:
                    return not busy
                time.sleep(POLL_S)
        finally:
            self._writer.execute(f"PRAGMA busy_timeout = {round(BUSY_TIMEOUT_S * 1000)}")
