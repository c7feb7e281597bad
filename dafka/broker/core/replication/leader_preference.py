"""The order in which the replicas of a log are preferred as leaders."""

from __future__ import annotations

from collections.abc import Collection

from dafka.protocol.rendezvous import rank_nodes


class LeaderPreference:
    """The preferred order of one log's replicas: first the named ones, then the others in rendezvous order.

    Brokers that are drained or full are ineligible: they lead only if no other replica can.
    """

    def __init__(self, log: str) -> None:
        self.ineligible_leaders: frozenset[str] = frozenset()
        self._log = log
        self._preferred: tuple[str, ...] = ()
        self._ranked: dict[str, None] = {}

    def set(self, preferred: tuple[str, ...], ineligible_leaders: frozenset[str]) -> bool:
        """Set the preferred brokers, best first, and the ineligible ones. Return whether anything has changed."""
        before = self._preferred, self.ineligible_leaders
        self._preferred, self.ineligible_leaders = preferred, ineligible_leaders
        return before != (preferred, ineligible_leaders)

    def rank(self, replicas: tuple[str, ...]) -> list[str]:
        """Return replicas, the most preferred one first."""
        if self._ranked.keys() != set(replicas):
            self._ranked = dict.fromkeys(rank_nodes(self._log, replicas))
        named = [each for each in self._preferred if each in self._ranked]
        return [*named, *(each for each in self._ranked if each not in named)]

    def rank_writable(self, replicas: tuple[str, ...], writable: Collection[str]) -> list[str]:
        """Return the writable replicas, the most preferred one first, ineligible leaders last."""
        return sorted(
            (each for each in self.rank(replicas) if each in writable), key=self.ineligible_leaders.__contains__
        )
