"""Uploads of clients: requests that are received in pieces, as memory allows, and not too slowly."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sized
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol, TypeVar

import trio

SMALL_BYTES = 16 * 1024
"""Requests up to this size need no reserved memory: they are received in one piece."""


ROOMY_PARTS = 64
"""While more than half of the memory is free, an upload can take the free memory, divided by this number, for what it
will receive next."""

PACE_BYTES = 2**20
"""The minimum rate at which a client must send a request, in bytes per second."""


class SlowUploadError(Exception):
    """A client sent a request too slowly."""


_Data = TypeVar("_Data", bound=Sized)


class UploadMemory(Protocol):
    """The memory that uploads take: a `MemoryPool`."""

    @property
    def bytes_max(self) -> int:
        """Its size."""

    @property
    def left_bytes(self) -> int:
        """The free memory."""

    async def wait_piece(self, upload: Upload, size: int) -> int:
        """Wait until an upload can take a piece of memory."""

    def waiting_for_upload(self, scope: trio.CancelScope, upload: Upload) -> AbstractContextManager[None]:
        """Register an upload that waits for its client, so that it can be ended while others need the memory."""

    def record_begun(self, upload: Upload) -> None:
        """Record that an upload needs no or less memory."""

    def give_back(self, size: int) -> None:
        """Return memory."""


class Upload:
    """A request that is being received. Its memory grows to twice the received size.

    While more than half of the memory is free, it can grow by a 64th of what is free, so that it comes in fewer pieces.
    Leaving the context gives the memory back. Up to 16 KiB, a request needs no reserved memory. `lag_s` is how far the
    client is behind the rate of 1 MiB/s, which `limit_ms` limits when nobody else needs the memory. `receiving_s` is
    the total time of waiting for pieces. `count_arrived` returns how much of a piece has arrived, if it is received
    only when it is complete.
    """

    def __init__(
        self,
        pool: UploadMemory,
        source: str,
        declared_bytes: int,
        limit_ms: int,
        count_arrived: Callable[[], int] = lambda: 0,
    ) -> None:
        self.source = source
        self.count_arrived = count_arrived
        self.size = 0
        self.lag_s = 0.0
        self.receiving_s = 0.0
        self._pool = pool
        self._declared_bytes = min(declared_bytes, pool.bytes_max) if declared_bytes > SMALL_BYTES else 0
        self._limit_s = limit_ms / 1000

    def __enter__(self) -> Upload:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def missing_bytes(self) -> int:
        """The memory that it can still need."""
        return max(self._declared_bytes - self.size, 0)

    async def receive(self, receive: Callable[[int], Awaitable[_Data]], kept: int, most: int) -> _Data:
        """Receive a piece of at most `most` bytes when there is memory for it.

        `kept` is the received part of the request that is in memory, in bytes. Raise `SlowUploadError` if the client is
        too far behind the rate, or behind it while others need the memory.
        """
        free = self._pool.left_bytes
        roomy = free // ROOMY_PARTS if 2 * free > self._pool.bytes_max else 0
        ahead = max(min(max(kept, roomy), most), SMALL_BYTES)
        target = min(kept + ahead, self._declared_bytes)
        if target < self.size:
            self._give_back(self.size - target)
        elif self.size - kept < SMALL_BYTES and target > self.size:
            await self._pool.wait_piece(self, target - self.size)
        ahead = self.size - kept
        begun_at = trio.current_time()
        with trio.CancelScope(deadline=begun_at + self._limit_s - self.lag_s) as scope:
            if self.size:
                with self._pool.waiting_for_upload(scope, self):
                    data = await receive(min(ahead, most) if ahead > 0 else most)
            else:
                data = await receive(most)
            waited_s = trio.current_time() - begun_at
            self.receiving_s += waited_s
            self.lag_s = max(self.lag_s + waited_s - len(data) / PACE_BYTES, 0.0)
            return data
        why = f"within {self._limit_s:.0f} s" if trio.current_time() >= scope.deadline else "while others need memory"
        raise SlowUploadError(f"expected 1 MiB in a second, and more {why}; {kept} bytes were received")

    def complete(self, size: int) -> None:
        """Reduce the memory to the received size, because the request is complete."""
        self._declared_bytes = min(size, self.size)
        self._give_back(self.size - self._declared_bytes)

    def close(self) -> None:
        """Give all memory back."""
        self._declared_bytes = 0
        self._give_back(self.size)

    def _give_back(self, size: int) -> None:
        if size > 0:
            self.size -= size
            self._pool.record_begun(self)
            self._pool.give_back(size)
