"""The nodes that a tower introduces, and the connections on which their beacons arrive.

A plain tower cannot verify the address in a beacon, but it can tell connections apart. Therefore limits apply to each
connection: it may introduce a limited number of nodes, and send beacons at a limited rate. An address belongs to the
connection that introduced it first, until that connection ends or sends no beacon for the timeout.

A node that uses the second form of beacons is gone when its connection ends: it registers again if it connects again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import attrs

from dafka.protocol.token_bucket import TokenBucket

NODES_PER_CONNECTION_MAX = 64
"""Nodes that one connection may introduce. A correct node introduces itself only."""

BEACONS_BURST = 2000
"""Beacons of one connection that are accepted at once."""

BEACONS_PER_S = 200.0
"""Beacons of one connection that are accepted per second in the long run. A node sends one in each interval, and one
for each batch of new nodes.
"""

LATE_FACTOR = 5
"""Timeouts without a beacon after which a node that uses the second form is forgotten although its connection lives. A
node that is slow sends its beacons late; one that is paused sends none."""

MANY_NODES = "too many nodes"
MANY_OF_ONE_CONNECTION = "too many nodes of one connection"
ADDRESS_IN_USE = "address of another node"
TOO_OFTEN = "too many beacons"


@attrs.define
class _Node:
    connection: int
    heard_at: float
    may_be_late: bool = False


@attrs.define
class _Connection:
    bucket: TokenBucket
    addresses: set[str] = attrs.field(factory=set)


class BeaconRegistry:
    """The nodes whose beacons a tower accepts, by address.

    Attributes:
        discarded: Beacons refused, by reason.
    """

    def __init__(self, nodes_max: int, timeout_s: float, is_connected: Callable[[int], bool]) -> None:
        """Create an empty registry.

        Args:
            nodes_max: Nodes known at once.
            timeout_s: Seconds without a beacon after which a node is forgotten.
            is_connected: Returns whether a connection, identified by its number, still exists. It is only called when
                two connections use one address, or a node is silent.
        """
        self.discarded: Counter[str] = Counter()
        self._nodes_max = nodes_max
        self._timeout_s = timeout_s
        self._is_connected = is_connected
        self._nodes: dict[str, _Node] = {}
        self._connections: dict[int, _Connection] = {}
        self._disconnected: list[tuple[str, int]] = []
        self._expired_at = 0.0

    def __len__(self) -> int:
        """Return the number of known nodes."""
        return len(self._nodes)

    def __contains__(self, address: str) -> bool:
        """Return whether a node of this address is known."""
        return address in self._nodes

    def connections(self) -> list[int]:
        """Return the connections that have sent beacons, the newest last."""
        return list(self._connections)

    def admit_beacon(self, address: str, connection: int, now: float, *, may_be_late: bool = False) -> bool:
        """Note a beacon, and return whether to accept it. A refused beacon is counted in `discarded`.

        Args:
            address: The node's address.
            connection: The number of the connection on which it arrived.
            now: The time in seconds.
            may_be_late: Whether the node stays for `LATE_FACTOR` timeouts while this connection lives, and leaves when
                it ends: it uses the second form.

        Returns:
            Whether the beacon is accepted.
        """
        reason = self._refusal(address, connection, now)
        if reason:
            self.discarded[reason] += 1
        else:
            self._nodes[address].may_be_late = may_be_late
        return not reason

    def expire(self, now: float) -> list[str]:
        """Forget nodes whose connection has ended and silent nodes, and return them.

        It looks for silent nodes at most four times per timeout.
        """
        gone = [
            address
            for address, connection in self._disconnected
            if address in self._nodes and self._nodes[address].connection == connection
        ]
        self._disconnected.clear()
        for address in gone:
            self._forget_node(address)
        if now - self._expired_at >= self._timeout_s / 4:
            self._expired_at = now
            silent = [address for address, node in self._nodes.items() if self._is_silent(node, now)]
            for address in silent:
                self._forget_node(address)
            gone += silent
        return gone

    def _is_silent(self, node: _Node, now: float) -> bool:
        silence = now - node.heard_at
        if silence < self._timeout_s:
            return False
        return (
            not node.may_be_late or silence >= LATE_FACTOR * self._timeout_s or not self._is_connected(node.connection)
        )

    def forget_connection(self, number: int) -> None:
        """Forget a connection that has ended. `expire` forgets its nodes that use the second form.

        The others are remembered until they are silent.
        """
        connection = self._connections.pop(number, None)
        if connection is not None:
            self._disconnected += [
                (address, number) for address in connection.addresses if self._nodes[address].may_be_late
            ]

    def _refusal(self, address: str, number: int, now: float) -> str:
        connection = self._connections.get(number)
        if connection is None:
            connection = self._connections[number] = _Connection(TokenBucket(BEACONS_PER_S, BEACONS_BURST, now))
        if not connection.bucket.try_take(now):
            return TOO_OFTEN
        node = self._nodes.get(address)
        if node is not None and node.connection != number:
            if now - node.heard_at < self._timeout_s and self._is_connected(node.connection):
                return ADDRESS_IN_USE
            self._forget_node(address)
            node = None
        if node is None:
            if len(connection.addresses) >= NODES_PER_CONNECTION_MAX:
                return MANY_OF_ONE_CONNECTION
            if len(self._nodes) >= self._nodes_max:
                return MANY_NODES
            connection.addresses.add(address)
            node = self._nodes[address] = _Node(number, now)
        node.heard_at = now
        return ""

    def _forget_node(self, address: str) -> None:
        node = self._nodes.pop(address)
        if node.connection in self._connections:
            self._connections[node.connection].addresses.discard(address)
