"""Coordinates the clean stop of a broker: some waits end at once, while it answers the received requests."""

from __future__ import annotations

import math
from weakref import WeakSet

import trio


class Stopping:
    """Whether a broker is stopping.

    Attributes:
        begun: Set when the stop begins.
    """

    def __init__(self) -> None:
        self.begun = trio.Event()
        self._scopes: WeakSet[trio.CancelScope] = WeakSet()

    @property
    def has_begun(self) -> bool:
        """Whether the broker is stopping."""
        return self.begun.is_set()

    def interrupting(self) -> trio.CancelScope:
        """Return a scope for a wait that can end without a result. It is cancelled when the broker begins to stop."""
        scope = trio.CancelScope(deadline=-math.inf if self.has_begun else math.inf)
        self._scopes.add(scope)
        return scope

    def begin(self) -> None:
        """Begin to stop."""
        self.begun.set()
        for scope in self._scopes:
            scope.cancel()

    async def begin_when_cancelled(self) -> None:
        """Begin to stop when this task is cancelled."""
        try:
            await trio.sleep_forever()
        finally:
            self.begin()
