"""The manifest of a cold tier in its object store, with a copy on the disk of the hot storage.

A change writes the objects that the new manifest names, then replaces its root if nobody else has, then saves the copy.
Until the root is replaced, nothing has changed. Objects that the new manifest does not name any more are deleted after
it. Names of those that could not be deleted stay in the manifest.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Sequence
from contextlib import suppress
from uuid import uuid4

import trio

from dafka.errors import StorageBusyError, StorageError, StorageFormatError
from dafka.exceptions import unwrap_group
from dafka.storage.cold.contents import ColdContents
from dafka.storage.cold.manifest import (
    CHUNKS_FOLDER,
    ROOT,
    Chunk,
    Manifest,
    decode_chunk,
    decode_root,
    encode_segments,
)
from dafka.storage.cold.object_store import ObjectMissingError, ObjectStoreError, RetryingObjectStore, Version
from dafka.storage.cold.segments import Segment, escape_part
from dafka.storage.filelog.files import make_durable_folders, read_file, replace_file

COPY_FILE = "manifest.json"
"""The name of the copy of the root, with its version."""


class ManifestStore:
    """The manifest of one store, whose address is the folder of its objects.

    The copy is in a folder, if there is one. A process that changes the tier, a writer, saves it; others follow it.
    """

    def __init__(self, object_store: RetryingObjectStore, store: str, folder: str | None, *, is_writer: bool) -> None:
        self.contents = ColdContents()
        self.manifest = Manifest(store=store)
        self.is_stale = True
        """Whether a newer version may be there, because the object store has not been asked yet."""
        self.lock = trio.Lock()
        """Held while the tier changes."""
        self.writing: set[str] = set()
        """The names of segments' objects that may be being written now, which are not deleted."""
        self._object_store = object_store
        self._folder = folder
        self._is_writer = is_writer
        self._version: Version | None = None
        self._saved: Version | None = None
        self._copied: set[str] = set()
        self._copy_state: object = None
        self._chunks: dict[str, Chunk] = {}
        self._deleted: set[str] = set()

    def object_name(self, name: str) -> str:
        """Return the name of one of the store's objects in the object store."""
        return f"{escape_part(self.manifest.store)}/{name}"

    async def load_copy(self) -> bool:
        """Take over the copy, if there is one that can be used. Return whether there is. Raises `StorageError`."""
        found = None if self._folder is None else await trio.to_thread.run_sync(self._read_copy, self._folder)
        if found is not None:
            self._take(*found)
            self._saved, self._copied = self._version, {chunk.name for chunk in self.manifest.chunks}
        return found is not None

    async def follow(self) -> None:
        """Take over what another process has changed: from the copy, or from the object store if there is no copy.

        Raise `StorageError` if it cannot be read.
        """
        if self._folder is None:
            await self.refresh()
            return
        state = await trio.to_thread.run_sync(_identify, f"{self._folder}/{COPY_FILE}")
        if state != self._copy_state:
            await self.load_copy()
            self._copy_state = state

    async def refresh_stale(self) -> None:
        """Ask the object store, if a newer version may be there. Raise `StorageError` if it cannot be read.

        Called before records are dropped: the newer version may hold some of them, which would be back with it.
        """
        if self.is_stale:
            await self.refresh()

    async def refresh(self) -> None:
        """Take over the manifest of the object store. Raise `StorageFormatError` if it is damaged."""
        try:
            data, version = await self._object_store.read(self.object_name(ROOT))
        except ObjectMissingError:
            if self._version is not None:
                raise StorageError(f"{self.object_name(ROOT)}: the manifest of the cold tier is gone") from None
            self.is_stale = False
            return
        if version != self._version:
            self._take(await self._complete(data), version)
            await self.save_copy()
        self.is_stale = False

    async def change(self, *, added: Sequence[Segment] = (), removed: Collection[Segment] = ()) -> None:
        """Add segments, whose objects have been written, and remove others. The caller holds `lock`.

        Raise `StorageBusyError` if another process changes the tier of this store, and `StorageError` if the object
        store or the disk fails. The change may have been made nevertheless, which is found later.
        """
        await self.refresh_stale()
        after = self.manifest.change(uuid4().hex, added=added, removed=removed, deleted=self._deleted)
        for chunk in after.chunks:
            if chunk.name not in self._chunks:
                await self._object_store.write(self.object_name(chunk.name), encode_segments(chunk.segments))
        with trio.CancelScope(shield=True):  # otherwise a change that was made would not be known here
            version = await self._replace_root(after)
            self._take(after, version, (removed, added))
            await self.save_copy()
        await self.delete_dropped()

    async def delete_dropped(self) -> None:
        """Delete the objects that the manifest does not need any more, as far as the object store allows it."""
        names = [name for name in self.manifest.dropped if name not in self._deleted and name not in self.writing]
        with suppress(ObjectStoreError):
            await self._object_store.delete(map(self.object_name, names))
            self._deleted.update(names)

    async def _replace_root(self, after: Manifest) -> Version:
        name = self.object_name(ROOT)
        try:
            return await self._object_store.replace(name, after.encode(), self._version)
        except ObjectStoreError:
            self.is_stale = True
            version: Version | None = None
            with suppress(ObjectMissingError):
                data, version = await self._object_store.read(name)
                if decode_root(data, name).manifest.writer == after.writer:
                    self.is_stale = False
                    return version  # it was replaced, although the answer did not arrive
            if version == self._version:
                self.is_stale = False
                raise
            raise StorageBusyError(
                f"{name} was replaced by another process: two stores with the same address use this cold tier; stop one"
            ) from None

    async def _complete(self, data: bytes) -> Manifest:
        """Return the manifest of a root, with its chunks."""
        root = decode_root(data, self.object_name(ROOT))
        if root.manifest.store != self.manifest.store:
            raise StorageFormatError(f"{self.object_name(ROOT)} is the manifest of store {root.manifest.store}")
        chunks = dict(self._chunks)

        async def fetch(name: str) -> None:
            place = self.object_name(name)
            chunks[name] = decode_chunk(name, (await self._object_store.read(place))[0], place)

        with unwrap_group():
            async with trio.open_nursery() as nursery:
                for name in root.chunk_names:
                    if name not in chunks:
                        nursery.start_soon(fetch, name)
        return root.complete(chunks)

    def _take(
        self,
        manifest: Manifest,
        version: Version | None,
        changes: tuple[Collection[Segment], Sequence[Segment]] | None = None,
    ) -> None:
        self.manifest = manifest
        self._version = version
        self._chunks = {chunk.name: chunk for chunk in manifest.chunks}
        self._deleted.intersection_update(manifest.dropped)
        if changes is None:
            self.contents = ColdContents(manifest.segments())
        else:
            self.contents.replace(*changes)

    # The copy

    async def save_copy(self) -> None:
        """Save the copy, if it is not of the present version. Raises `StorageError`."""
        if self._folder is not None and self._is_writer and self._saved != self._version:
            version = self._version
            await trio.to_thread.run_sync(self._write_copy, self._folder, self.manifest, version)
            self._saved = version

    def _write_copy(self, folder: str, manifest: Manifest, version: Version | None) -> None:
        names = {chunk.name for chunk in manifest.chunks}
        try:
            make_durable_folders(f"{folder}/{CHUNKS_FOLDER}")
            for chunk in manifest.chunks:
                if chunk.name not in self._copied:
                    replace_file(f"{folder}/{chunk.name}", encode_segments(chunk.segments))
            document = {"version": version, "root": manifest.encode().decode()}
            replace_file(f"{folder}/{COPY_FILE}", json.dumps(document).encode())
            for name in self._copied - names:
                with suppress(FileNotFoundError):
                    os.unlink(f"{folder}/{name}")
        except OSError as error:
            raise StorageError(f"{error.filename or folder}: {error.strerror or error}") from None
        self._copied = names

    def _read_copy(self, folder: str) -> tuple[Manifest, Version] | None:
        """Return the manifest of the copy; None if there is none, or it cannot be used."""
        try:
            data = read_file(f"{folder}/{COPY_FILE}")
            if data is None:
                return None
            document = json.loads(data)
            root = decode_root(document["root"].encode(), f"{folder}/{COPY_FILE}")
            chunks = dict(self._chunks)
            for name in root.chunk_names:
                if name not in chunks:
                    chunk = read_file(f"{folder}/{name}")
                    if chunk is None:
                        return None
                    chunks[name] = decode_chunk(name, chunk, f"{folder}/{name}")
        except (ValueError, KeyError, StorageFormatError):
            return None
        except OSError as error:
            raise StorageError(f"{error.filename or folder}: {error.strerror or error}") from None
        if root.manifest.store != self.manifest.store:
            return None
        return root.complete(chunks), Version(*document["version"])


def _identify(path: str) -> tuple[int, int] | None:
    """Return what differs when a file is replaced; None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns
