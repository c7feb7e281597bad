"""Object stores: their interface, and requests from Trio in worker threads, limited, tried again, and counted.

There are two object stores: `BucketStore` and `FolderStore`. Their functions block. They have three outcomes beside
success: `ObjectMissingError`, `ObjectConflictError` and `ObjectStoreError`. An answer can still be wrong: readers check
lengths and checksums.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol, TypeVar

import trio

from dafka.errors import StorageError

REQUESTS_MAX = 8
"""The number of concurrent requests."""

ATTEMPTS = 4
"""How often a request is tried until it fails."""

FIRST_PAUSE_S = 0.1
"""The pause before the second attempt, in seconds. Each further one is twice as long, and they vary by a half."""

REST_S = 1.0
"""How long requests are refused at once after one has failed in all attempts, in seconds; twice as long each time."""

REST_S_MAX = 30.0
"""The maximum of that time, in seconds."""

_T = TypeVar("_T")


class ObjectStoreError(StorageError):
    """The object store failed or did not answer in time. Trying again may help."""


class ObjectMissingError(ObjectStoreError):
    """There is no object of this name."""


class ObjectConflictError(ObjectStoreError):
    """The object is not the expected version."""


class Version(NamedTuple):
    """A version of an object, for conditional replacements. A field that the store does not have is None."""

    e_tag: str | None = None
    version: str | None = None


class ListedObject(NamedTuple):
    """An object in a list, and its size in bytes."""

    name: str
    size: int


class ObjectStore(Protocol):
    """Objects by name. Names are relative to the place at which the store was opened."""

    def read(self, name: str) -> tuple[bytes, Version]:
        """Return an object and its version. Raises `ObjectMissingError`, `ObjectStoreError`."""

    def read_range(self, name: str, start: int, end: int) -> bytes:
        """Return a part of an object; it may be shorter than asked for, which the caller checks.

        Raises `ObjectMissingError`, `ObjectStoreError`.
        """

    def write(self, name: str, data: bytes) -> None:
        """Write an object durably, replacing one that is there.

        Raises `ObjectStoreError`; the object may have been written nevertheless.
        """

    def replace(self, name: str, data: bytes, version: Version | None) -> Version:
        """Replace a version of an object durably, or create it if `version` is None, and return the new version.

        Raises `ObjectConflictError` if the object is another version, or there is one already. Raises
        `ObjectStoreError`; the object may have been replaced nevertheless.
        """

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects; those that are not there are ignored. Raises `ObjectStoreError`."""

    def list(self, prefix: str) -> Iterator[ListedObject]:
        """Yield the objects whose names begin with a prefix that ends in a slash. Raises `ObjectStoreError`."""


class RetryingObjectStore:
    """An object store for Trio.

    A request that fails is tried again after growing pauses. If it fails in the end, the store rests: further requests
    fail at once for a while, so that no reader waits long for a store that is down.

    `connect` opens the store, in a worker thread, when it is needed for the first time. Requests that are tried again
    count again.
    """

    def __init__(self, connect: Callable[[], ObjectStore]) -> None:
        self.requests = 0
        self.failures = 0
        self.last_error = ""
        self._connect = connect
        self._store: ObjectStore | None = None
        self._limiter = trio.CapacityLimiter(REQUESTS_MAX)
        self._rest_s = 0.0
        self._rests_until = -float("inf")

    async def read(self, name: str) -> tuple[bytes, Version]:
        """See `ObjectStore.read`."""
        return await self._request(lambda store: store.read(name))

    async def read_range(self, name: str, start: int, end: int) -> bytes:
        """See `ObjectStore.read_range`."""
        return await self._request(lambda store: store.read_range(name, start, end))

    async def write(self, name: str, data: bytes) -> None:
        """See `ObjectStore.write`."""
        await self._request(lambda store: store.write(name, data))

    async def replace(self, name: str, data: bytes, version: Version | None) -> Version:
        """See `ObjectStore.replace`. Tried once: an attempt that failed may have replaced the object."""
        return await self._request(lambda store: store.replace(name, data, version), attempts=1)

    async def delete(self, names: Iterable[str]) -> None:
        """See `ObjectStore.delete`."""
        listed = list(names)
        if listed:
            await self._request(lambda store: store.delete(listed))

    async def list(self, prefix: str) -> list[ListedObject]:
        """See `ObjectStore.list`."""
        return await self._request(lambda store: list(store.list(prefix)))

    async def pause(self, attempt: int) -> None:
        """Wait before an attempt, the second of which has the number 1."""
        await trio.sleep(FIRST_PAUSE_S * 2 ** (attempt - 1) * random.uniform(0.5, 1.5))

    async def _request(self, ask: Callable[[ObjectStore], _T], attempts: int = ATTEMPTS) -> _T:
        if trio.current_time() < self._rests_until:
            raise ObjectStoreError(f"{self.last_error} (the object store failed a moment ago)")
        for attempt in range(attempts):
            if attempt:
                await self.pause(attempt)
            self.requests += 1
            try:
                # Not abandoned when it is cancelled: a write that goes on could meet those of the next process.
                found = await trio.to_thread.run_sync(self._ask, ask, limiter=self._limiter)
            except (ObjectMissingError, ObjectConflictError):
                raise
            except ObjectStoreError as error:
                self.failures += 1
                self.last_error = str(error)
                failure = error
            else:
                self.last_error = ""
                self._rest_s = 0.0
                return found
        self._rest_s = min(max(2 * self._rest_s, REST_S), REST_S_MAX)
        self._rests_until = trio.current_time() + self._rest_s
        raise failure

    def _ask(self, ask: Callable[[ObjectStore], _T]) -> _T:
        if self._store is None:
            self._store = self._connect()
        return ask(self._store)
