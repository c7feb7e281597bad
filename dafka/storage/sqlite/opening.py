"""Opening a store's file: `sqlite:PATH`, or `sqlite:PATH?synchronous=NORMAL`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, nullcontext
from functools import partial
from pathlib import Path

import trio

from dafka.errors import StorageError, StorageFormatError
from dafka.storage.base import Storage
from dafka.storage.sqlite.connection import connect, refuse_other, storage_errors
from dafka.storage.sqlite.schema import SCHEMA_VERSION, read_version
from dafka.storage.sqlite.storage import SqliteStorage
from dafka.storage.support import one_of, parse_place, writer_lock

PAGE_BYTES = 16 * 1024
"""Of new files. A record of more than a quarter of a page takes whole pages of its own."""

SYNCHRONOUS = ("FULL", "EXTRA", "NORMAL", "OFF")


@asynccontextmanager
async def open_sqlite(place: str, *, read_only: bool = False) -> AsyncIterator[Storage]:
    """Opens `sqlite:PATH?synchronous=FULL`; see `open_storage`. Makes the file where there is none."""
    path, options = parse_place("sqlite", place, {"synchronous": one_of(*SYNCHRONOUS)})
    if not path or "\0" in path:
        raise StorageError("storage 'sqlite:': expected a path, as in sqlite:dafka.db")
    await trio.to_thread.run_sync(refuse_other, path)
    synchronous = None if read_only else options.get("synchronous", "FULL")
    with nullcontext() if read_only else writer_lock(path):
        storage = await trio.to_thread.run_sync(_open, path, synchronous)
        try:
            yield storage
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(storage.close)


def _open(path: str, synchronous: str | None) -> SqliteStorage:
    read_only = synchronous is None
    if read_only and not Path(path).exists():
        raise StorageError(f"{path} does not exist")
    open_connection = partial(connect, path, read_only=read_only)
    with storage_errors(path):
        with closing(open_connection()) as connection:
            version = read_version(connection, path)
            if read_only and not version:
                raise StorageFormatError(f"{path} is not a dafka store, but an empty database")
            if not read_only:
                if not version:
                    connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
                connection.execute("PRAGMA journal_mode = WAL")
                if version < SCHEMA_VERSION:
                    from dafka.storage.sqlite.migrations import migrate  # noqa: PLC0415 (see there)

                    migrate(connection)
                    version = SCHEMA_VERSION
        storage = SqliteStorage(path, open_connection, version, synchronous)
        try:
            storage.load()
        except BaseException:
            storage.close()
            raise
        return storage
