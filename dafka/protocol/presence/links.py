"""Whom a node is connected to, and when it has settled.

Settled is who has found the others, and is connected to them: what they send from then on is received.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable

from dafka.endpoints import PeerEndpoint

CONNECTING_MAX = 256
"""Nodes connected to at the same time that have never answered. Their endpoints may point anywhere."""

TRY_S = 1.0
"""How long a node is given to answer before another one takes its place, where there are too many such."""

TURN_S = 5.0
"""How long it keeps its place where nobody new comes; then those in line have their turn."""

CONNECT_S = 1.0
"""How long settling waits for connections to the nodes that were found; one that is gone must not hold it up."""


class Links:
    """Attributes:
    is_settled: whether the nodes that were there before have been found, and are connected to.
    """

    def __init__(self, connecting_max: int = CONNECTING_MAX) -> None:
        self.is_settled = False
        self._connecting_max = connecting_max
        self._unproven: OrderedDict[PeerEndpoint, float] = OrderedDict()
        self._line: OrderedDict[PeerEndpoint, None] = OrderedDict()
        self._endpoints: Counter[PeerEndpoint] = Counter()
        self._connected: set[PeerEndpoint] = set()
        self._is_found = False
        self._settle_due = float("inf")

    def __len__(self) -> int:
        """How many nodes are connected to, or being connected to."""
        return self._endpoints.total()

    def join(self, endpoint: PeerEndpoint) -> bool:
        """One more node is said to be there. True where that is news: a second connection would bring all twice."""
        self._endpoints[endpoint] += 1
        return self._endpoints[endpoint] == 1

    def begin(self, endpoint: PeerEndpoint, now: float) -> list[PeerEndpoint] | None:
        """May a connection to this one be begun, who is news? Gives whose is to be ended for it; None: not now."""
        ended: list[PeerEndpoint] = []
        if len(self._unproven) >= self._connecting_max:
            oldest, since = next(iter(self._unproven.items()))
            if now - since < TRY_S:
                self._line[endpoint] = None
                return None
            del self._unproven[oldest]
            self._line[oldest] = None
            ended.append(oldest)
        self._unproven[endpoint] = now
        return ended

    def turn(self, now: float) -> PeerEndpoint | None:
        """Who of those in line is to have a turn now; then `begin` it. None where nobody, or nobody can."""
        if not self._line:
            return None
        is_room = len(self._unproven) < self._connecting_max
        if not is_room and now - next(iter(self._unproven.values())) < TURN_S:
            return None
        return self._line.popitem(last=False)[0]

    def leave(self, endpoint: PeerEndpoint) -> bool:
        """One node less is said to be there. True where nobody is any more, and there is a connection to end."""
        if endpoint not in self._endpoints:
            return False
        self._endpoints[endpoint] -= 1
        if self._endpoints[endpoint] > 0:
            return False
        del self._endpoints[endpoint]
        self._connected.discard(endpoint)
        self._unproven.pop(endpoint, None)
        if endpoint in self._line:
            del self._line[endpoint]
            return False
        return True

    def connect(self, endpoints: Iterable[PeerEndpoint]) -> None:
        """Connections to these have been made."""
        for endpoint in endpoints:
            self._unproven.pop(endpoint, None)
            self._connected.add(endpoint)
        self._connected.intersection_update(self._endpoints)

    def find(self, now: float) -> None:
        """Discovery has found the nodes that were there before."""
        self._is_found = True
        self._settle_due = now + CONNECT_S

    def settle(self, now: float) -> bool:
        """True once: when this node has settled."""
        if self.is_settled or not self._is_found:
            return False
        self.is_settled = now >= self._settle_due or self._connected.issuperset(self._endpoints)
        return self.is_settled

    def deadline(self) -> float:
        """When `settle` and `turn` are to be asked again, whatever happens or not."""
        turn_due = float("inf")
        if self._line:
            is_room = len(self._unproven) < self._connecting_max
            turn_due = 0.0 if is_room else next(iter(self._unproven.values())) + TURN_S
        return min(turn_due, float("inf") if self.is_settled else self._settle_due)
