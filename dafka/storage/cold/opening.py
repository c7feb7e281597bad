"""Opening a storage of two tiers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from urllib.parse import unquote

import trio

from dafka.errors import StorageError
from dafka.exceptions import unwrap_group
from dafka.extras import require_extra
from dafka.storage.base import Storage
from dafka.storage.cold.folders import FolderStore
from dafka.storage.cold.manifest_store import ManifestStore
from dafka.storage.cold.object_store import ObjectStore, ObjectStoreError, RetryingObjectStore
from dafka.storage.cold.options import ColdOptions, split_tiered, write_tier
from dafka.storage.opening import open_one_tier
from dafka.storage.tiers import tier_folder


@asynccontextmanager
async def open_tiered(location: str, *, read_only: bool = False) -> AsyncIterator[Storage]:
    """Open `tiered:HOT?cold=URL&local_retention_ms=N&local_retention_bytes=N`; see `open_storage`.

    While it is open for writing, records beyond the local retention move to the object store in the background.

    Args:
        location: The URL of the hot storage, with its own options and those of the cold tier (`ColdOptions`).
        read_only: Whether to open the storage for reading only.

    Yields:
        The storage.

    Raises:
        MissingExtraError: If a package that a cold tier needs is not installed.
        StorageError: If an option is wrong, the hot storage cannot be opened, or the object store has never been
            reached and cannot be reached now.
    """
    hot_url, options = split_tiered(location)
    with require_extra("cold", "a cold tier"):
        from dafka.storage.cold.tiered import TieredStorage  # noqa: PLC0415 (needs the extra)
    folder = tier_folder(hot_url)
    object_store = RetryingObjectStore(partial(connect, options))
    async with open_one_tier(hot_url, read_only=read_only) as hot:
        manifest_store = ManifestStore(object_store, hot.identity, folder, is_writer=not read_only)
        await _load(manifest_store, is_writer=not read_only)
        with unwrap_group():
            async with trio.open_nursery() as nursery:
                storage = TieredStorage(hot, object_store, manifest_store, options, nursery, is_writer=not read_only)
                if not read_only:
                    await _save_options(folder, options)
                    await storage.offloader.finish_moves()
                    nursery.start_soon(storage.offloader.keep_moving)
                try:
                    yield storage
                finally:
                    nursery.cancel_scope.cancel()


def connect(options: ColdOptions) -> ObjectStore:
    """Return the object store of a cold tier. No request is made.

    Raise `MissingExtraError` if it needs a package that is not installed, and `StorageError` if the URL is not valid.
    """
    if options.cold.startswith(("/", "file:")):
        return FolderStore(unquote(options.place.removeprefix("file://")))
    with require_extra("cold", f"the cold tier {options.place}"):
        from dafka.storage.cold.buckets import BucketStore  # noqa: PLC0415 (needs the extra)
    return BucketStore(options.cold, options.cold_timeout_ms)


async def _load(manifest_store: ManifestStore, *, is_writer: bool) -> None:
    """Load the manifest: for a reader its copy, for a writer what the object store has, if that can be reached."""
    has_copy = await manifest_store.load_copy()
    if has_copy and not is_writer:
        return
    try:
        await manifest_store.refresh()
    except ObjectStoreError:
        if not has_copy:
            raise


async def _save_options(folder: str | None, options: ColdOptions) -> None:
    if folder is None:
        return
    try:
        await trio.to_thread.run_sync(write_tier, folder, options)
    except OSError as error:
        raise StorageError(f"{error.filename or folder}: {error.strerror or error}") from None
