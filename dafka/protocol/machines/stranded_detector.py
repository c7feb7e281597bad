"""Detects that no store can continue a producer's partition, because all stores have lost acknowledged records."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from dafka import wire
from dafka.protocol.presence.subscribers import SubscriberSet
from dafka.wire import Command

ASKING_S = 15.0
"""Seconds for which a FETCH for records that the producer does not have shows that its store still misses them; stores
repeat such FETCHes more often."""

STRANDED_CHECK_S = 0.5
"""Seconds between two checks whether any store can still continue the partition."""

NODES_MAX = 10_000
"""The maximum number of connected nodes that are remembered."""


@attrs.define
class _Lack:
    """A store's FETCHes for records that neither it nor the producer has: the first and the last time."""

    sequence: int
    since: float
    asked_at: float


class StrandedDetector:
    """The stores of one producer that miss records which stores had acknowledged.

    The partition is stranded after `after_s` seconds without a store that can continue it; 0: never. `stored_ends` has,
    by store, the end of the records that it has acknowledged.
    """

    def __init__(self, after_s: float, stored_ends: Mapping[str, int], stores_max: int) -> None:
        self.is_stranded = False
        """Whether no store can continue the partition: for long enough, all connected stores have been asking for
        records that stores had acknowledged, so all of them have lost these."""
        self._after_s = after_s
        self._stored_ends = stored_ends
        self._connected_stores = SubscriberSet(Command.CONSUMER_HELLO, stores_max)
        self._nodes: set[str] = set()
        self._lacking: dict[str, _Lack] = {}
        self._holder_at = 0.0
        self._due = float("inf")

    def record_subscription(self, subscription: wire.Subscription) -> None:
        """Record a peer's subscription, to any command, or that it ended. Stores subscribe to CONSUMER-HELLO."""
        self._connected_stores.record_subscription(subscription)

    def peer_joined(self, address: str) -> None:
        """Record a node that discovery found."""
        if len(self._nodes) < NODES_MAX:
            self._nodes.add(address)

    def peer_left(self, address: str) -> None:
        """Record that discovery lost a node."""
        self._nodes.discard(address)

    def record_fetch(self, fetch: wire.Fetch, now: float) -> None:
        """Record that a node asks for records that only stores can have."""
        if not self._after_s or fetch.address not in self._connected_stores:
            return
        lack = self._lacking.get(fetch.address)
        if lack is not None and lack.sequence == fetch.sequence and now - lack.asked_at <= ASKING_S:
            lack.asked_at = now
        else:  # its first question, or it has received records since the last one
            self._lacking[fetch.address] = _Lack(fetch.sequence, now, now)
        self._due = min(self._due, now + STRANDED_CHECK_S)

    def have_all_stores(self, end_sequence: int) -> bool:
        """Return whether every connected store has acknowledged all records before a sequence."""
        return all(self._stored_ends.get(store, 0) >= end_sequence for store in self._connected_stores)

    def record_ack(self, address: str, end_sequence: int) -> None:
        """Record that a store has acknowledged all records before a sequence."""
        lack = self._lacking.get(address)
        if lack is not None and end_sequence > lack.sequence:
            del self._lacking[address]

    def tick(self, now: float) -> None:
        """Check whether no store can continue the partition. A store that does not ask may have the records."""
        if now < self._due:
            return
        asking = {
            address: lack
            for address, lack in self._lacking.items()
            if address in self._connected_stores and now - lack.asked_at <= ASKING_S
        }
        self._lacking = asking
        if not asking:
            self._due = float("inf")
            return
        self._due = now + STRANDED_CHECK_S
        if self._has_holder(asking):
            self._holder_at = now
        since = max(self._holder_at, *(lack.since for lack in asking.values()))
        has_repeated = all(lack.asked_at > lack.since for lack in asking.values())
        self.is_stranded = has_repeated and now - since >= self._after_s

    def deadline(self) -> float:
        """Return when to call `tick`."""
        return self._due

    def _has_holder(self, asking: Mapping[str, _Lack]) -> bool:
        """Return whether a connected store may have the records: it does not ask for them."""
        if any(store not in asking for store in self._connected_stores):
            return True
        first = min(lack.sequence for lack in asking.values())
        ends = self._stored_ends.items()
        return any(end > first and store in self._nodes and store not in asking for store, end in ends)
