"""The connections of a listener: how many there are, and which of them ends when there are too many."""

from __future__ import annotations

from collections import Counter

import trio


class ConnectionQuotas:
    """All connections of a listener.

    Args:
        connections_max: How many there may be.
        per_address_max: How many there may be from one address; 0 for as many as in all.

    Attributes:
        admitted: How many connections were admitted since the listener started.
        refused: How many connections were closed because there were too many.
    """

    def __init__(self, connections_max: int, per_address_max: int = 0) -> None:
        self.admitted = 0
        self.refused = 0
        self._connections_max = connections_max
        self._per_address_max = per_address_max or connections_max
        self._current: set[trio.CancelScope] = set()
        self._silent: dict[trio.CancelScope, str] = {}
        self._hosts: Counter[str] = Counter()

    def __len__(self) -> int:
        """Return the number of connections."""
        return len(self._current)

    def admit(self, host: str) -> trio.CancelScope | None:
        """Admit a connection, in place of one that has not sent a request yet if there are too many.

        Args:
            host: The address of the client.

        Returns:
            The scope in which to serve it; None if there are too many connections.
        """
        if self._hosts[host] >= self._per_address_max and not self._end_oldest(host):
            self.refused += 1
            return None
        if len(self._current) >= self._connections_max and not self._end_oldest():
            self.refused += 1
            return None
        self.admitted += 1
        scope = trio.CancelScope()
        self._current.add(scope)
        self._silent[scope] = host
        self._hosts[host] += 1
        return scope

    def mark_served(self, scope: trio.CancelScope) -> None:
        """Note that a client has sent a request: it keeps its place."""
        self._silent.pop(scope, None)

    def leave(self, scope: trio.CancelScope, host: str) -> None:
        """Note the end of a connection that was admitted, unless its place was taken before."""
        if scope in self._current:
            self._remove(scope, host)

    def _end_oldest(self, host: str | None = None) -> bool:
        for scope, each in self._silent.items():
            if host in {None, each}:
                scope.cancel()
                self._remove(scope, each)
                return True
        return False

    def _remove(self, scope: trio.CancelScope, host: str) -> None:
        self._current.remove(scope)
        self._silent.pop(scope, None)
        self._hosts[host] -= 1
        if not self._hosts[host]:
            del self._hosts[host]
