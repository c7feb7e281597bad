"""Who wants to be told, in answer to a FETCH, that the records asked for are not here (erratum 26).

RFC 46 has no word for it. A node that understands DIRECT-EARLIEST subscribes to it with its own address; to any other,
libdafka's for one, it is never sent.
"""

from __future__ import annotations

from dafka import wire
from dafka.protocol.presence.audience import Audience
from dafka.wire import Command


class Askers:
    """Remembers at most `askers_max` subscribers; a further one waits for its records as if nobody answered."""

    def __init__(self, askers_max: int) -> None:
        self._audience = Audience(Command.DIRECT_EARLIEST, askers_max)

    def subscribed(self, subscription: wire.Subscription) -> None:
        """A peer subscribed, to this or to something else, or unsubscribed."""
        self._audience.subscribed(subscription)

    def answer(self, fetch: wire.Fetch, own_address: str, sequence: int, gone: int) -> wire.DirectEarliest | None:
        """Tells who fetched that this node holds the partition from `sequence` on, and what it knows to be gone."""
        if fetch.address not in self._audience:
            return None
        return wire.DirectEarliest(fetch.address, own_address, fetch.partition, fetch.subject, sequence, gone)
