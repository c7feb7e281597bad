"""Limits the connections of a server, and chooses which of them to close at the limit."""

from __future__ import annotations

from collections import Counter

import trio


class ConnectionQuotas:
    """The connections of a server and their limits: for all, and for each address, if that is not 0.

    It counts the connections that were admitted, and refused because there were too many, since the server started.
    """

    def __init__(self, connections_max: int, per_address_max: int = 0) -> None:
        self.admitted = 0
        self.refused = 0
        self._connections_max = connections_max
        self._per_address_max = per_address_max or connections_max
        self._current: set[trio.CancelScope] = set()
        self._silent: dict[trio.CancelScope, str] = {}
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        """Return the number of connections."""
        return len(self._current)

    def admit(self, host: str) -> trio.CancelScope | None:
        """Return the scope in which to serve a connection; None if there are too many.

        At a limit, it replaces the oldest one that has not sent a request yet.
        """
        if self._counts[host] >= self._per_address_max and not self._replace_oldest(host):
            self.refused += 1
            return None
        if len(self._current) >= self._connections_max and not self._replace_oldest():
            self.refused += 1
            return None
        self.admitted += 1
        scope = trio.CancelScope()
        self._current.add(scope)
        self._silent[scope] = host
        self._counts[host] += 1
        return scope

    def mark_served(self, scope: trio.CancelScope) -> None:
        """Record that a client has sent a request, so that its connection is not replaced."""
        self._silent.pop(scope, None)

    def leave(self, scope: trio.CancelScope, host: str) -> None:
        """Record the end of an admitted connection, unless it was replaced before."""
        if scope in self._current:
            self._remove(scope, host)

    def _replace_oldest(self, host: str | None = None) -> bool:
        for scope, each in self._silent.items():
            if host in {None, each}:
                scope.cancel()
                self._remove(scope, each)
                return True
        return False

    def _remove(self, scope: trio.CancelScope, host: str) -> None:
        self._current.remove(scope)
        self._silent.pop(scope, None)
        self._counts[host] -= 1
        if not self._counts[host]:
            del self._counts[host]
