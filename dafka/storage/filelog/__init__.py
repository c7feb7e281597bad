"""Storage in a folder of log files, `filelog:FOLDER`: a folder a partition, segments that only grow, and no database.

Options: `segment_bytes` (64 MiB) and `segment_ms` (7 days) say when a new segment begins, `fsync` when records are
durable: `batch`, when `append` returns; a number, at the latest after so many milliseconds; `never`, when the system
likes it, or `flush` is called. docs/reference/filelog-format.md describes the files.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from dafka.errors import StorageError
from dafka.storage.base import Storage
from dafka.storage.filelog.files import FilePool
from dafka.storage.filelog.follower import Follower
from dafka.storage.filelog.marker import LOCK_FILE, make_identity, prepare, read_identity
from dafka.storage.filelog.opening import open_writer
from dafka.storage.filelog.storage import FilelogStorage, storage_errors
from dafka.storage.support import parse_place, whole_number, writer_lock

__all__ = ["FilelogStorage", "open_filelog"]

SEGMENT_BYTES = 64 * 2**20
SEGMENT_MS = 7 * 24 * 3600 * 1000


@asynccontextmanager
async def open_filelog(place: str, *, read_only: bool = False) -> AsyncIterator[Storage]:
    """Opens `filelog:FOLDER?segment_bytes=N&segment_ms=N&fsync=batch|never|MS`; see `open_storage`.

    A writer makes the folder where there is none, in one that is there.
    """
    options = {"segment_bytes": whole_number(1), "segment_ms": whole_number(1), "fsync": _read_fsync}
    folder, found = parse_place("filelog", place, options)
    if not folder or "\0" in folder:
        raise StorageError("storage 'filelog:': expected a folder, as in filelog:dafka-log")
    folder = folder.rstrip("/") or "/"

    def open_for_reading() -> FilelogStorage:
        with storage_errors(folder):
            identity = read_identity(folder)
            follower = Follower(folder, FilePool(os.O_RDONLY))
            follower.load()
            return FilelogStorage(folder, identity, follower)

    if read_only:
        storage = await trio.to_thread.run_sync(open_for_reading)
        try:
            yield storage
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(storage.close)
        return

    def open_locked() -> FilelogStorage:
        with storage_errors(folder):
            identity = make_identity(folder)
            writer, repairs = open_writer(
                folder,
                segment_bytes=found.get("segment_bytes", SEGMENT_BYTES),
                segment_ms=found.get("segment_ms", SEGMENT_MS),
                sync_delay_ms=found.get("fsync", 0),
            )
            return FilelogStorage(folder, identity, writer, repairs)

    with storage_errors(folder):
        await trio.to_thread.run_sync(prepare, folder)
    with writer_lock(f"{folder}/{LOCK_FILE.removesuffix('.lock')}"):
        storage = await trio.to_thread.run_sync(open_locked)
        try:
            yield storage
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(storage.close)


def _read_fsync(text: str) -> int | None:
    """The delay in milliseconds; None for never."""
    if text in ("batch", "never"):
        return 0 if text == "batch" else None
    if text.isascii() and text.isdigit() and int(text):
        return int(text)
    raise ValueError(f"expected batch, never or a number of milliseconds, not {text!r}")
