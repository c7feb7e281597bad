"""Connections to the file of a store, their transactions, and their errors."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from urllib.parse import quote

from dafka.errors import StorageError, StorageFormatError
from dafka.records import decode_text
from dafka.storage.sqlite.schema import has_tables

BUSY_TIMEOUT_S = 30.0
"""How long a connection waits for a lock of another process."""

PAGE_BYTES = 16 * 1024
"""The page size of new files. A record larger than a quarter of a page takes whole pages of its own."""


def connect(path: str, *, read_only: bool) -> sqlite3.Connection:
    """Return a connection that any thread may use, one at a time. Transactions are not started implicitly."""
    connection = sqlite3.connect(
        f"file:{quote(os.fsencode(path))}?mode={'ro' if read_only else 'rwc'}",
        uri=True,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
    )
    connection.text_factory = decode_text  # never fails; callers check for wrong types
    return connection


@contextmanager
def storage_errors(path: str) -> Iterator[None]:
    """Raise errors of SQLite as `StorageError`, in one line."""
    try:
        yield
    except (sqlite3.Error, OverflowError, UnicodeError, MemoryError) as error:
        is_closed = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_CANTOPEN
        reason = _find_obstacle(path) if is_closed else ""
        raise StorageError(f"{path}: {describe_error(error)}{reason and f': {reason}'}") from error


def _find_obstacle(path: str) -> str:
    """Return why SQLite cannot open a file, as far as its permissions show it; empty if they do not."""
    for each in (path, f"{path}-wal", f"{path}-shm"):
        if os.path.exists(each) and not os.access(each, os.R_OK):
            return f"{each} is not readable for this user"
    folder = os.path.dirname(path) or "."
    if os.path.isdir(folder) and not os.access(folder, os.W_OK):
        return f"the folder {folder} is not writable, which SQLite needs also for reading"
    return ""


def describe_error(error: Exception) -> str:
    """Return the message of an error in one line."""
    return " ".join(str(error).split())


@contextmanager
def snapshot(connection: sqlite3.Connection) -> Iterator[None]:
    """Run the reads of a block on one snapshot of the database."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit the changes of a block, or roll them back if it raises."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def reject_other_files(path: str) -> None:
    """Raise `StorageFormatError` for a path that is not a store, before a lock file is created next to it.

    The file is read through SQLite. If this process opened and closed the file itself, POSIX would release the locks
    that SQLite holds on it, for example those of a writer in this process.
    """
    if os.path.isdir(path):
        raise StorageFormatError(f"{path} is a folder, not a dafka store")
    if not os.path.exists(path):
        return
    with (
        suppress(sqlite3.Error, UnicodeError),  # opening the store reports the same error
        closing(connect(path, read_only=True)) as connection,
    ):
        has_tables(connection, path)


def prepare_database(path: str, *, read_only: bool) -> None:
    """Create the file with its tables if it is missing or empty, unless `read_only`.

    Raise `StorageError` if the file is missing and `read_only` is true, or SQLite cannot open it;
    `StorageFormatError` if it is not a store.
    """
    if read_only and not os.path.exists(path):
        raise StorageError(f"{path} does not exist")
    with storage_errors(path), closing(connect(path, read_only=read_only)) as connection:
        is_store = has_tables(connection, path)
        if read_only:
            if not is_store:
                raise StorageFormatError(f"{path} is not a dafka store, but an empty database")
            return
        if not is_store:
            connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.execute("PRAGMA journal_mode = WAL")
        if not is_store:
            # Imported here because sqlite-utils takes longer to load than a store takes to open.
            from dafka.storage.sqlite.migrations import migrate  # noqa: PLC0415

            migrate(connection)
