"""Bounds the waits of requests for durability: by time, and when the storage has failed for a while.

Pending writes stay, and are retried until the storage works again. So the error for a request whose wait has ended says
that its change can still be stored later. Requests that arrive while the storage fails are refused at once and have no
effect.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import trio

from dafka.errors import StorageError

DURABLE_S = 30.0
"""The longest wait of a request for durability."""

FAILING_S = 5.0
"""How long the storage can fail before requests stop waiting for it."""


class DurableWaits:
    """The waits of all requests to a broker.

    `problem` says why the storage has accepted no writes for a while; it is empty if the storage works.
    """

    def __init__(self) -> None:
        self.problem = ""
        self._failing_since: float | None = None
        self._waiting: set[trio.CancelScope] = set()

    def record_failure(self, reason: str) -> None:
        """Record that a write has failed. All waits end if writes have failed for a while."""
        now = trio.current_time()
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since >= FAILING_S:
            self.problem = reason
            for each in self._waiting:
                each.cancel()

    def record_success(self) -> None:
        """Record that a write has succeeded."""
        self.problem, self._failing_since = "", None

    def check(self) -> None:
        """Raise `StorageError` if the storage currently fails."""
        if self.problem:
            raise StorageError(f"nothing can be stored at present: {self.problem}")

    @contextmanager
    def bounded(self, wait_s: float = DURABLE_S) -> Iterator[None]:
        """Limit a wait for durability. Raise `StorageError` if it takes longer, or if the storage fails."""
        with trio.move_on_after(wait_s) as scope:
            self._waiting.add(scope)
            try:
                yield
            finally:
                self._waiting.discard(scope)
        if scope.cancelled_caught:
            reason = self.problem or f"it is not durable after {wait_s:.0f} s"
            raise StorageError(f"{reason}; it may be stored later")


@attrs.frozen(eq=False)
class Written:
    """A change by a request that becomes durable later."""

    _waits: DurableWaits
    _durable: trio.Event

    async def wait(self) -> None:
        """Wait until the change is durable. Raises `StorageError` if the storage fails or the wait is too long."""
        with self._waits.bounded():
            await self._durable.wait()
