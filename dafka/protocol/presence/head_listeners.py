"""The peers that need HEADs at a regular interval, as RFC 46 demands.

A node of this project asks a new peer for its heads, and repeats its questions, so an unchanged HEAD is of little use
to it. A node of libdafka continues to fetch only when another HEAD comes (erratum 17), and other implementations may
rely on HEADs, too. A node of this project is known by its subscription to DIRECT-EARLIEST, with its own address, on the
same connection.
"""

from __future__ import annotations

from collections.abc import Callable

from dafka.wire import Command

CONNECTIONS_MAX = 10_000
"""The maximum number of remembered connections of each kind. Forgotten peers count as peers that need regular HEADs."""


class HeadListeners:
    """The connections whose peers take HEADs.

    Args:
        is_connected: Returns whether a connection, by its number, still exists.
    """

    def __init__(self, is_connected: Callable[[int], bool]) -> None:
        self._is_connected = is_connected
        self._foreign: set[int] = set()
        self._own_kind: set[int] = set()

    def record_subscription(self, connection: int, frame: bytes) -> None:
        """Record a subscription frame of a peer (ZeroMQ RFC 29).

        Args:
            connection: The number of the connection; negative if it has ended.
            frame: `%x01` (subscribe) or `%x00` (unsubscribe), and the prefix.
        """
        if connection < 0 or frame[:1] != b"\1":
            return
        if frame[1:2] == Command.DIRECT_EARLIEST.value and len(frame) > 2:
            self._forget_ended(self._own_kind)
            self._foreign.discard(connection)
            if len(self._own_kind) < CONNECTIONS_MAX:
                self._own_kind.add(connection)
        elif frame[1:2] in (b"", Command.HEAD.value) and connection not in self._own_kind:
            self._forget_ended(self._foreign)
            if len(self._foreign) < CONNECTIONS_MAX:
                self._foreign.add(connection)

    def need_regular_heads(self) -> bool:
        """Return whether a peer that takes HEADs is not known to be a node of this project."""
        self._foreign = {each for each in self._foreign if self._is_connected(each)}
        return bool(self._foreign)

    def _forget_ended(self, connections: set[int]) -> None:
        if len(connections) >= CONNECTIONS_MAX:
            connections.intersection_update([each for each in connections if self._is_connected(each)])
