"""Requests to an object store from Trio: in worker threads, limited in number, tried again, and counted."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import TypeVar

import attrs
import trio

from dafka.storage.cold.objects import (
    ListedObject,
    ObjectConflictError,
    ObjectMissingError,
    ObjectStore,
    ObjectStoreError,
    Version,
)

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


@attrs.define
class RequestCounts:
    """What was asked of an object store since it was opened.

    Attributes:
        requests: Requests, with those that were tried again.
        failures: Requests that failed.
        bytes_read: Bytes that were read.
        bytes_written: Bytes that were written.
        last_error: The latest failure; empty if the latest request succeeded.
    """

    requests: int = 0
    failures: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    last_error: str = ""


class RetryingObjectStore:
    """An object store for Trio.

    A request that fails is tried again after growing pauses. If it fails in the end, the store rests: further requests
    fail at once for a while, so that no reader waits long for a store that is down.

    Args:
        connect: Opens the object store, in a worker thread, when it is needed for the first time.
    """

    def __init__(self, connect: Callable[[], ObjectStore]) -> None:
        self._connect = connect
        self._store: ObjectStore | None = None
        self._limiter = trio.CapacityLimiter(REQUESTS_MAX)
        self._rest_s = 0.0
        self._rests_until = -float("inf")
        self.counts = RequestCounts()

    @property
    def is_resting(self) -> bool:
        """Whether the store has failed a moment ago, so that requests fail at once."""
        return trio.current_time() < self._rests_until

    async def read(self, name: str) -> tuple[bytes, Version]:
        """See `ObjectStore.read`."""
        data, version = await self._request(lambda store: store.read(name))
        self.counts.bytes_read += len(data)
        return data, version

    async def read_range(self, name: str, start: int, end: int) -> bytes:
        """See `ObjectStore.read_range`."""
        data = await self._request(lambda store: store.read_range(name, start, end))
        self.counts.bytes_read += len(data)
        return data

    async def write(self, name: str, data: bytes) -> None:
        """See `ObjectStore.write`."""
        await self._request(lambda store: store.write(name, data))
        self.counts.bytes_written += len(data)

    async def replace(self, name: str, data: bytes, version: Version | None) -> Version:
        """See `ObjectStore.replace`. Tried once: an attempt that failed may have replaced the object."""
        done = await self._request(lambda store: store.replace(name, data, version), attempts=1)
        self.counts.bytes_written += len(data)
        return done

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
        if self.is_resting:
            await trio.lowlevel.checkpoint()
            raise ObjectStoreError(f"{self.counts.last_error} (the object store failed a moment ago)")
        for attempt in range(attempts):
            if attempt:
                await self.pause(attempt)
            self.counts.requests += 1
            try:
                # Not abandoned when it is cancelled: a write that goes on could meet those of the next process.
                found = await trio.to_thread.run_sync(self._ask, ask, limiter=self._limiter)
            except (ObjectMissingError, ObjectConflictError):
                raise
            except ObjectStoreError as error:
                self.counts.failures += 1
                self.counts.last_error = str(error)
                failure = error
            else:
                self.counts.last_error = ""
                self._rest_s = 0.0
                return found
        self._rest_s = min(max(2 * self._rest_s, REST_S), REST_S_MAX)
        self._rests_until = trio.current_time() + self._rest_s
        raise failure

    def _ask(self, ask: Callable[[ObjectStore], _T]) -> _T:
        if self._store is None:
            self._store = self._connect()
        return ask(self._store)
