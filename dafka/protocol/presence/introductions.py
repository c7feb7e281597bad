"""Whom a tower introduces: a node has one connection to it, by which it names itself, and nobody else does.

A stranger can name itself as it likes, and invent nodes. But what comes by one connection can be told from what comes
by another: each has so many nodes, and beacons so often; and a node's address is that connection's by which it came
first, until that is gone or silent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import attrs

from dafka.protocol.token_bucket import TokenBucket

NODES_PER_CONNECTION_MAX = 64
"""Nodes that one connection introduces. A node has a connection of its own."""

BEACONS_BURST = 2000
"""Beacons at once by one connection."""

BEACONS_PER_S = 200.0
"""Beacons a second by one connection, for ever: a node sends one, and one for newcomers."""

MANY_NODES = "too many nodes"
MANY_OF_ONE_CONNECTION = "too many nodes of one connection"
ANOTHERS_ADDRESS = "the address of another node"
TOO_OFTEN = "too many beacons"


@attrs.define
class _Node:
    source: int
    heard: float


@attrs.define
class _Connection:
    bucket: TokenBucket
    addresses: set[str] = attrs.field(factory=set)


class BeaconRegistry:
    """Attributes:
    discarded: beacons not passed on, by reason.
    """

    def __init__(self, nodes_max: int, timeout: float, is_there: Callable[[int], bool]) -> None:
        """A node is forgotten when it was silent for `timeout` seconds; `is_there` says of a connection if it is."""
        self.discarded: Counter[str] = Counter()
        self._nodes_max = nodes_max
        self._timeout = timeout
        self._is_there = is_there
        self._nodes: dict[str, _Node] = {}
        self._connections: dict[int, _Connection] = {}
        self._swept_at = 0.0

    def __len__(self) -> int:
        """Nodes that are there."""
        return len(self._nodes)

    def sources(self) -> list[int]:
        """The connections by which beacons came, the newest last."""
        return list(self._connections)

    def admit(self, address: str, source: int, now: float) -> bool:
        """A beacon of this node came by this connection: is it to be passed on?"""
        reason = self._refuse(address, source, now)
        if reason:
            self.discarded[reason] += 1
        return not reason

    def sweep(self, now: float) -> None:
        """Forgets who has been silent, and whose connections are no more."""
        if now - self._swept_at < self._timeout / 4:
            return
        self._swept_at = now
        for address in [address for address, node in self._nodes.items() if now - node.heard >= self._timeout]:
            self._forget(address)
        for source in [source for source in self._connections if not self._is_there(source)]:
            del self._connections[source]

    def _refuse(self, address: str, source: int, now: float) -> str:
        connection = self._connections.get(source)
        if connection is None:
            connection = self._connections[source] = _Connection(TokenBucket(BEACONS_PER_S, BEACONS_BURST, now))
        if not connection.bucket.try_take(now):
            return TOO_OFTEN
        node = self._nodes.get(address)
        if node is not None and node.source != source:
            if now - node.heard < self._timeout and self._is_there(node.source):
                return ANOTHERS_ADDRESS
            self._forget(address)
            node = None
        if node is None:
            if len(connection.addresses) >= NODES_PER_CONNECTION_MAX:
                return MANY_OF_ONE_CONNECTION
            if len(self._nodes) >= self._nodes_max:
                return MANY_NODES
            connection.addresses.add(address)
            node = self._nodes[address] = _Node(source, now)
        node.heard = now
        return ""

    def _forget(self, address: str) -> None:
        node = self._nodes.pop(address)
        if node.source in self._connections:
            self._connections[node.source].addresses.discard(address)
