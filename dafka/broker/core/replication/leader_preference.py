"""In which order the replicas of a log are preferred as its leaders."""

from __future__ import annotations

from collections.abc import Collection

from dafka.protocol.rendezvous import rank_nodes


class LeaderOrder:
    """The order of the replicas of one log: those that are named come first, then the log's rendezvous order counts.

    Args:
        log: The name of the log.

    Attributes:
        unfit: The brokers that lead only if no other replica can: they are drained or full.
    """

    def __init__(self, log: str) -> None:
        self.unfit: frozenset[str] = frozenset()
        self._log = log
        self._preferred: tuple[str, ...] = ()
        self._ranked: dict[str, None] = {}

    def set(self, preferred: tuple[str, ...], unfit: frozenset[str]) -> bool:
        """Note which brokers are preferred, the first one most, and which are unfit; return whether that is new."""
        before = self._preferred, self.unfit
        self._preferred, self.unfit = preferred, unfit
        return before != (preferred, unfit)

    def rank(self, replicas: tuple[str, ...]) -> list[str]:
        """Return replicas, the most preferred one first."""
        if self._ranked.keys() != set(replicas):
            self._ranked = dict.fromkeys(rank_nodes(self._log, replicas))
        named = [each for each in self._preferred if each in self._ranked]
        return [*named, *(each for each in self._ranked if each not in named)]

    def rank_able(self, replicas: tuple[str, ...], able: Collection[str]) -> list[str]:
        """Return those replicas that are able to lead, the most preferred one first, unfit ones last."""
        return sorted((each for each in self.rank(replicas) if each in able), key=self.unfit.__contains__)
