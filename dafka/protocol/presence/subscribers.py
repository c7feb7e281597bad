"""Peers that have subscribed to messages addressed to them.

Other nodes get answers, too, because a peer can subscribe to a prefix of its address. But known subscribers are served
first, and are dropped last under overload.
"""

from __future__ import annotations

from collections.abc import Iterator

from dafka import wire
from dafka.wire import Command


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


class EarliestResponder:
    """Answers FETCHes for records that this node does not hold with DIRECT-EARLIEST (erratum 26).

    RFC 46 has no such message. A node that understands it subscribes to it with its own address; it is never sent to
    other nodes, such as libdafka's. At most `subscribers_max` subscribers are remembered. Others get no answer, and
    wait for their records until they give up.
    """

    def __init__(self, subscribers_max: int) -> None:
        self._subscribers = SubscriberSet(Command.DIRECT_EARLIEST, subscribers_max)

    def __contains__(self, address: str) -> bool:
        """Return whether a node understands DIRECT-EARLIEST, as nodes of this project do."""
        return address in self._subscribers

    def record_subscription(self, subscription: wire.Subscription) -> None:
        """Record a peer's subscription, to any command, or that it ended."""
        self._subscribers.record_subscription(subscription)

    def answer(
        self, fetch: wire.Fetch, own_address: str, sequence: int, unrecoverable_end: int
    ) -> wire.DirectEarliest | None:
        """Answer the sender of a FETCH with the first sequence that this node has of the partition.

        Args:
            fetch: The request.
            own_address: This node's address.
            sequence: The first sequence that this node holds of the partition.
            unrecoverable_end: The sequence before which no node holds any record, as far as this node knows.

        Returns:
            The answer; None if the requestor does not understand it.
        """
        if fetch.address not in self._subscribers:
            return None
        return wire.DirectEarliest(
            fetch.address, own_address, fetch.partition, fetch.subject, sequence, unrecoverable_end
        )
