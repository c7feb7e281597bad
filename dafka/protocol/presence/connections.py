"""The connections of one node to its peers' publishers, and when the node is settled.

A node is settled once it has found its peers and connected to them: from then on it receives what they send. Any peer
can announce endpoints that do not answer. A limited number of them is tried at a time, and the others wait in a queue.

A slow node sends its beacons late, but libzmq's threads keep its connections alive. So a peer that discovery has lost
is kept until its connection is lost, too, unless that connection is young. If discovery has lost all peers because no
tower is heard any more, peers with young connections are kept as well.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable

from dafka.endpoints import ConnectionChange, PeerEndpoint

CONNECTING_MAX = 256
"""Endpoints that have never answered, and may be invalid, that a node tries at the same time at most."""

TRY_S = 1.0
"""Seconds that a peer has to answer before a new peer replaces it, if too many have not answered."""

QUEUED_TRY_S = 5.0
"""Seconds that a peer has to answer before the next peer in the queue replaces it."""

STEADY_S = 30.0
"""Seconds for which a connection must have lasted to show that its peer still lives. A younger one may lead to another
node at the same endpoint, since discovery takes a while to lose a peer."""

CONNECT_S = 1.0
"""Seconds to wait for connections to the peers that were found; some may have left."""


class ConnectionManager:
    """The endpoints that a node connects to. At most `connecting_max` that have never answered are tried at once."""

    def __init__(self, connecting_max: int = CONNECTING_MAX) -> None:
        self.is_settled = False
        """Whether the peers that were running before have been found and connected to."""
        self._connecting_max = connecting_max
        self._connecting: OrderedDict[PeerEndpoint, float] = OrderedDict()
        self._queue: OrderedDict[PeerEndpoint, None] = OrderedDict()
        self._endpoints: Counter[PeerEndpoint] = Counter()
        self._answered: set[PeerEndpoint] = set()
        self._connected_since: dict[PeerEndpoint, float] = {}
        self._are_peers_found = False
        self._settle_due = float("inf")

    def __len__(self) -> int:
        """Return the number of peers that the node is connected to, or connecting to."""
        return self._endpoints.total()

    def add_peer(self, endpoint: PeerEndpoint) -> bool:
        """Add a peer, and return whether its endpoint is new. A second connection to one would duplicate messages."""
        self._endpoints[endpoint] += 1
        return self._endpoints[endpoint] == 1

    def begin_connecting(self, endpoint: PeerEndpoint, now: float) -> list[PeerEndpoint] | None:
        """Make room to connect to a new endpoint, and return the endpoints to disconnect first.

        Return None if the endpoint has to wait; `next_queued` returns it later.
        """
        replaced: list[PeerEndpoint] = []
        if len(self._connecting) >= self._connecting_max:
            oldest, since = next(iter(self._connecting.items()))
            if now - since < TRY_S:
                self._queue[endpoint] = None
                return None
            del self._connecting[oldest]
            self._queue[oldest] = None
            replaced.append(oldest)
        self._connecting[endpoint] = now
        return replaced

    def next_queued(self, now: float) -> PeerEndpoint | None:
        """Remove the next endpoint for `begin_connecting` from the queue, and return it; None if it is not time yet."""
        return self._queue.popitem(last=False)[0] if now >= self._queue_due() else None

    def remove_peer(self, endpoint: PeerEndpoint) -> bool:
        """Remove a peer, and return whether there is a connection to end."""
        if endpoint not in self._endpoints:
            return False
        self._endpoints[endpoint] -= 1
        if self._endpoints[endpoint] > 0:
            return False
        del self._endpoints[endpoint]
        self._answered.discard(endpoint)
        self._connected_since.pop(endpoint, None)
        self._connecting.pop(endpoint, None)
        if endpoint in self._queue:
            del self._queue[endpoint]
            return False
        return True

    def record_changes(self, changes: Iterable[ConnectionChange], now: float) -> None:
        """Record that connections were made or lost."""
        for change in changes:
            endpoint = change.peer
            if endpoint not in self._endpoints:
                continue
            if change.is_made:
                self._connecting.pop(endpoint, None)
                self._answered.add(endpoint)
                self._connected_since.setdefault(endpoint, now)
            else:
                self._connected_since.pop(endpoint, None)

    def shows_life(self, endpoint: PeerEndpoint, now: float, *, is_tower_silent: bool = False) -> bool:
        """Return whether the connection to an endpoint shows that the one peer of that endpoint still lives."""
        since = self._connected_since.get(endpoint)
        if since is None or self._endpoints[endpoint] > 1:
            return False
        return is_tower_silent or now - since >= STEADY_S

    def peers_found(self, now: float) -> None:
        """Record that discovery has found the peers that were running before."""
        self._are_peers_found = True
        self._settle_due = now + CONNECT_S

    def try_settle(self, now: float) -> bool:
        """Settle if it is time, and return whether the node has settled just now."""
        if self.is_settled or not self._are_peers_found:
            return False
        self.is_settled = now >= self._settle_due or self._answered.issuperset(self._endpoints)
        return self.is_settled

    def deadline(self) -> float:
        """Return when to call `try_settle` and `next_queued` again if nothing happens before."""
        return min(self._queue_due(), float("inf") if self.is_settled else self._settle_due)

    def _queue_due(self) -> float:
        """Return when to connect to the first endpoint in the queue."""
        if not self._queue:
            return float("inf")
        has_capacity = len(self._connecting) < self._connecting_max
        return 0.0 if has_capacity else next(iter(self._connecting.values())) + QUEUED_TRY_S
