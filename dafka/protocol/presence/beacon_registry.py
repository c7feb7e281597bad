"""The nodes that a tower introduces, and the connections on which their beacons arrive.

A plain tower cannot verify the address in a beacon, but it can tell connections apart. Therefore limits apply to each
connection: it may introduce a limited number of nodes, and send beacons at a limited rate. An address belongs to the
connection that introduced it first, until that connection ends or sends no beacon for the timeout.

A node that uses the second form of beacons is gone when its connection ends, and registers again when it reconnects.
While its connection lives, it registers seldom. If another connection claims its address meanwhile, the tower asks all
nodes to register soon, and reassigns the address only if its node does not.
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
"""The time, in timeouts, after which a connected node of the second form with an overdue registration is forgotten. A
slow node registers late; a paused one does not register."""

MANY_NODES = "too many nodes"
MANY_OF_ONE_CONNECTION = "too many nodes of one connection"
ADDRESS_IN_USE = "address of another node"
TOO_OFTEN = "too many beacons"


@attrs.define
class _Node:
    connection: int
    heard_at: float
    claimed_at: float = float("-inf")
    """When another connection claimed its address; reset when the node is heard."""
    may_be_late: bool = False


@attrs.define
class _Connection:
    bucket: TokenBucket
    addresses: set[str] = attrs.field(factory=set)


class BeaconRegistry:
    """The nodes whose beacons a tower accepts, by address.

    A node is forgotten after `timeout_s` without a beacon. A node that uses the second form registers at least every
    `registration_s`. `is_connected` is only called when two connections use one address, or a node is silent.
    """

    def __init__(
        self, nodes_max: int, timeout_s: float, is_connected: Callable[[int], bool], registration_s: float = 0.0
    ) -> None:
        self.discarded: Counter[str] = Counter()
        self._nodes_max = nodes_max
        self._timeout_s = timeout_s
        self._is_connected = is_connected
        self._overdue_s = registration_s + timeout_s
        self._late_s = registration_s + LATE_FACTOR * timeout_s
        self._claimed_until = float("-inf")
        self._nodes: dict[str, _Node] = {}
        self._connections: dict[int, _Connection] = {}
        self._disconnected: list[tuple[str, int]] = []
        self._look_due = float("inf")

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
        """Record a beacon, and return whether to accept it. A refused beacon is counted in `discarded`.

        A node that uses the second form (`may_be_late`) leaves when this connection ends, or when its next registration
        is overdue for `LATE_FACTOR` timeouts.
        """
        reason = self._refusal(address, connection, now)
        if reason:
            self.discarded[reason] += 1
        else:
            self._nodes[address].may_be_late = may_be_late
            is_prompt = not may_be_late or connection < 0
            self._look_due = min(self._look_due, now + (self._timeout_s if is_prompt else self._overdue_s))
        return not reason

    def is_address_claimed(self, now: float) -> bool:
        """Return whether nodes must register soon, since one of them may have lost its address."""
        return now < self._claimed_until

    def expire(self, now: float) -> list[str]:
        """Forget nodes whose connection has ended and silent nodes, and return them.

        It checks for silent nodes only when one can be silent, and at most four times per timeout.
        """
        gone = [
            address
            for address, connection in self._disconnected
            if address in self._nodes and self._nodes[address].connection == connection
        ]
        self._disconnected.clear()
        for address in gone:
            self._forget_node(address)
        if now >= self._look_due:
            silent = [address for address, node in self._nodes.items() if self._is_silent(node, now)]
            for address in silent:
                self._forget_node(address)
            gone += silent
            due = min(map(self._silence_due, self._nodes.values()), default=float("inf"))
            self._look_due = max(due, now + self._timeout_s / 4)
        return gone

    def deadline(self) -> float:
        """Return when to call `expire`, unless a connection ends before."""
        return self._look_due

    def _silence_due(self, node: _Node) -> float:
        return node.heard_at + (self._overdue_s if node.may_be_late and node.connection >= 0 else self._timeout_s)

    def _is_silent(self, node: _Node, now: float) -> bool:
        if now < self._silence_due(node):
            return False
        if not node.may_be_late or node.connection < 0:  # its connection had ended when its beacon was read
            return True
        return now - node.heard_at >= self._late_s or not self._is_connected(node.connection)

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
            if self._keeps_address(node, now):
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

    def _keeps_address(self, node: _Node, now: float) -> bool:
        """Return whether a node keeps its address although another connection claims it."""
        if not self._is_connected(node.connection):
            return False
        if now - node.heard_at < self._timeout_s:
            return True
        if not node.may_be_late:
            return False
        if node.claimed_at < node.heard_at:
            node.claimed_at = now
            self._claimed_until = now + self._timeout_s
        return now - node.claimed_at < self._timeout_s

    def _forget_node(self, address: str) -> None:
        node = self._nodes.pop(address)
        if node.connection in self._connections:
            self._connections[node.connection].addresses.discard(address)
