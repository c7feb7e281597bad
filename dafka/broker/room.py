"""Room: the memory that all connections share, for requests that are being received and for answers that wait.

The addresses of clients take turns, so that one with many connections does not push the others aside.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio

SMALL_BYTES = 16 * 1024
"""Requests up to this size need no room: they are received in one piece."""


@attrs.define(eq=False)
class _Waiter:
    size: int
    admitted: trio.Event = attrs.field(factory=trio.Event)


class ReceivingRoom:
    """The memory for large requests that are being received.

    Args:
        bytes_max: The size of all of them together. A request that is larger has it for itself.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._left = bytes_max
        self._waiting: OrderedDict[str, deque[_Waiter]] = OrderedDict()

    @property
    def taken_bytes(self) -> int:
        """The size of the requests that are being received."""
        return self._bytes_max - self._left

    @asynccontextmanager
    async def take(self, host: str, size: int) -> AsyncIterator[None]:
        """Wait for room for a request, and keep it for the duration of a block.

        Args:
            host: The address of the client.
            size: The size of the request.

        Yields:
            Nothing.
        """
        waiter = _Waiter(min(size, self._bytes_max))
        self._waiting.setdefault(host, deque()).append(waiter)
        self._admit()
        try:
            await waiter.admitted.wait()
            yield
        finally:
            if waiter.admitted.is_set():
                self._left += waiter.size
            else:
                self._waiting[host].remove(waiter)
                if not self._waiting[host]:
                    del self._waiting[host]
            self._admit()

    def _admit(self) -> None:
        while self._waiting:
            host, waiters = next(iter(self._waiting.items()))
            if waiters[0].size > self._left:
                return  # the others wait, too, so that a large request is not passed by smaller ones forever
            waiter = waiters.popleft()
            self._left -= waiter.size
            waiter.admitted.set()
            if waiters:
                self._waiting.move_to_end(host)
            else:
                del self._waiting[host]


class AnswerRoom:
    """The memory for answers that clients have not read yet.

    Nobody waits for it: if little is left, answers to Fetch are smaller, and clients fetch more often.

    Args:
        bytes_max: The size of all answers together.
    """

    def __init__(self, bytes_max: int) -> None:
        self._left = bytes_max

    @property
    def left_bytes(self) -> int:
        """The size that further answers may have; negative if there are too many."""
        return self._left

    def grant(self, wanted: int) -> int:
        """Take room for an answer that will be read from logs: half of what is left at most.

        Args:
            wanted: The largest size that the client accepts.

        Returns:
            The size that the answer may have, at least `SMALL_BYTES` or `wanted`.
        """
        granted = min(wanted, max(self._left // 2, SMALL_BYTES))
        self._left -= granted
        return granted

    def take(self, size: int) -> None:
        """Take room for an answer that is there."""
        self._left -= size

    def give_back(self, size: int) -> None:
        """Give room back: the answer was sent, or is not needed."""
        self._left += size
