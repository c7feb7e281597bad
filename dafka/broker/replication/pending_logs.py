"""Logs that wait to be read. Those that cannot be read are tried again a moment later."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

import attrs
import trio

READ_AGAIN_S = 1.0
"""Seconds after which records are read again that could not be read."""

_Log = TypeVar("_Log", bound=Hashable)


@attrs.define(eq=False)
class PendingLogs(Generic[_Log]):
    """Logs, or the names of logs, each of which waits once."""

    _waiting: dict[_Log, None] = attrs.field(init=False, factory=dict)
    _failed: dict[_Log, None] = attrs.field(init=False, factory=dict)
    _is_waiting: trio.Event = attrs.field(init=False, factory=trio.Event)

    def __iter__(self) -> Iterator[_Log]:
        return iter(self._waiting)

    def put(self, log: _Log) -> None:
        """Add a log, which `take` then returns."""
        self._waiting[log] = None
        self._is_waiting.set()

    def put_failed(self, log: _Log) -> None:
        """Add a log that could not be read. It is read again with the next one, or after `READ_AGAIN_S`."""
        self._failed[log] = None

    def discard(self, log: _Log) -> None:
        """Remove a log, if it waits."""
        self._waiting.pop(log, None)
        self._failed.pop(log, None)

    async def take(self) -> list[_Log]:
        """Wait for logs, and remove and return all that wait."""
        with trio.move_on_after(READ_AGAIN_S if self._failed else math.inf):
            await self._is_waiting.wait()
        taken = list(self._waiting | self._failed)
        self._waiting, self._failed, self._is_waiting = {}, {}, trio.Event()
        return taken
