"""Whom a node is connected to, and when it has settled.

Settled is who has found the others, and is connected to them: what they send from then on is received.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

CONNECT_S = 1.0
"""How long settling waits for connections to the nodes that were found; one that is gone must not hold it up."""


class Links:
    """Attributes:
    is_settled: whether the nodes that were there before have been found, and are connected to.
    """

    def __init__(self) -> None:
        self.is_settled = False
        self._endpoints: Counter[str] = Counter()
        self._connected: set[str] = set()
        self._is_found = False
        self._settle_due = float("inf")

    def __len__(self) -> int:
        """How many nodes are connected to, or being connected to."""
        return self._endpoints.total()

    def join(self, endpoint: str) -> bool:
        """One more node is said to be there. True where that is news: a second connection would bring all twice."""
        self._endpoints[endpoint] += 1
        return self._endpoints[endpoint] == 1

    def leave(self, endpoint: str) -> bool:
        """One node less is said to be there. True where nobody is any more."""
        if endpoint not in self._endpoints:
            return False
        self._endpoints[endpoint] -= 1
        if self._endpoints[endpoint] > 0:
            return False
        del self._endpoints[endpoint]
        self._connected.discard(endpoint)
        return True

    def connect(self, endpoints: Iterable[str]) -> None:
        """Connections to these have been made."""
        self._connected.update(endpoints)
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
        """When `settle` is to be asked again, whatever happens or not."""
        return float("inf") if self.is_settled else self._settle_due
