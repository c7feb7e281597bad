"""Peers that have subscribed to messages addressed to them.

Other nodes get answers, too, because a peer can subscribe to a prefix of its address. But known subscribers are served
first, and are dropped last under overload.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dafka import wire
from dafka.wire import Command

CONNECTIONS_MAX = 10_000
"""The maximum number of remembered connections of each kind. Forgotten peers count as peers that need regular HEADs."""


class SubscriberSet:
    """The addresses that have subscribed to one command, at most `subscribers_max` of them."""

    def __init__(self, command: Command, subscribers_max: int) -> None:
        self._command = command
        self._subscribers_max = subscribers_max
        self._subscribers: dict[str, None] = {}

    def __contains__(self, address: str) -> bool:
        return address in self._subscribers

    def __len__(self) -> int:
        return len(self._subscribers)

    def __iter__(self) -> Iterator[str]:
        return iter(self._subscribers)

    def record_subscription(self, subscription: wire.Subscription) -> None:
        """Record a peer's subscription, to any command, or that it ended."""
        if subscription.command is not self._command or not subscription.topic:
            return
        if not subscription.active:
            self._subscribers.pop(subscription.topic, None)
        elif len(self._subscribers) < self._subscribers_max:
            self._subscribers[subscription.topic] = None


class EarliestResponder(SubscriberSet):
    """Answers FETCHes for records that this node does not hold with DIRECT-EARLIEST (erratum 26).

    RFC 46 has no such message. A node that understands it subscribes to it with its own address; it is never sent to
    other nodes, such as libdafka's. Subscribers beyond the limit get no answer, and wait for their records until they
    give up.
    """

    def __init__(self, subscribers_max: int) -> None:
        super().__init__(Command.DIRECT_EARLIEST, subscribers_max)

    def answer(
        self, fetch: wire.Fetch, own_address: str, sequence: int, unrecoverable_end: int
    ) -> wire.DirectEarliest | None:
        """Answer a FETCH with the first sequence that this node holds of the partition.

        As far as this node knows, no node holds records before `unrecoverable_end`. Return None if the requestor does
        not understand the answer.
        """
        if fetch.address not in self:
            return None
        return wire.DirectEarliest(
            fetch.address, own_address, fetch.partition, fetch.subject, sequence, unrecoverable_end
        )


class HeadListeners:
    """The connections whose peers need HEADs at a regular interval, as RFC 46 demands.

    A node of this project asks a new peer for its heads, and repeats its questions, so an unchanged HEAD is of little
    use to it. A node of libdafka continues to fetch only when another HEAD comes (erratum 17), and other
    implementations may rely on HEADs, too. A node of this project is known by its subscription to DIRECT-EARLIEST, with
    its own address, on the same connection. `is_connected` returns whether a connection, by its number, still exists.
    """

    def __init__(self, is_connected: Callable[[int], bool]) -> None:
        self._is_connected = is_connected
        self._foreign: set[int] = set()
        self._own_kind: set[int] = set()

    def record_subscription(self, connection: int, frame: bytes) -> None:
        """Record a subscription frame of a peer (ZeroMQ RFC 29); the connection is negative if it has ended."""
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
