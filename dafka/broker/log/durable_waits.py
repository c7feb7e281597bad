"""The waits of requests until something is durable: each ends in time, or when the storage has failed for a while.

Unwritten records stay, and are written when the storage takes them again. So a request whose wait has ended is
answered that it may be carried out later. Requests that come while the storage fails are refused at once, and never
carried out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from dafka.errors import StorageError

DURABLE_S = 30.0
"""How long a request waits at most until something is durable."""

FAILING_S = 5.0
"""How long the storage fails until requests do not wait for it any more."""


class DurableWaits:
    """The waits of all requests to a broker.

    Attributes:
        problem: Why the storage has taken nothing for a while; empty if it takes what comes.
    """

    def __init__(self) -> None:
        self.problem = ""
        self._failing_since: float | None = None
        self._waiting: set[trio.CancelScope] = set()

    def note_failure(self, reason: str) -> None:
        """Note that an attempt to write has failed. All waits end if it has been so for a while.

        Args:
            reason: The reason.
        """
        now = trio.current_time()
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since >= FAILING_S:
            self.problem = reason
            for each in self._waiting:
                each.cancel()

    def note_success(self) -> None:
        """Record that the storage has written everything that waited."""
        self.problem, self._failing_since = "", None

    def check(self) -> None:
        """Raise `StorageError` if the storage takes nothing at present."""
        if self.problem:
            raise StorageError(f"nothing can be stored at present: {self.problem}")

    @contextmanager
    def bounded(self, wait_s: float = DURABLE_S) -> Iterator[None]:
        """Bound a wait until something is durable.

        Args:
            wait_s: How long it may last, in seconds.

        Yields:
            Nothing.

        Raises:
            StorageError: It has lasted longer, or the storage fails.
        """
        with trio.move_on_after(wait_s) as scope:
            self._waiting.add(scope)
            try:
                yield
            finally:
                self._waiting.discard(scope)
        if scope.cancelled_caught:
            reason = self.problem or f"it is not durable after {wait_s:.0f} s"
            raise StorageError(f"{reason}; it may be stored later")


class Written:
    """A change that a request has made, until it is durable.

    Args:
        waits: The waits of all requests.
        durable: Set when the change is durable.
    """

    def __init__(self, waits: DurableWaits, durable: trio.Event) -> None:
        self._waits = waits
        self._durable = durable

    async def wait(self) -> None:
        """Wait until the change is durable. Raises `StorageError` if the storage fails, or that lasts too long."""
        with self._waits.bounded():
            await self._durable.wait()
