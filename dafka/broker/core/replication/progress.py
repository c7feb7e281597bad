"""What the replicas of a log have acknowledged of one branch."""

from __future__ import annotations

from collections.abc import Iterable

from dafka.broker.core.replication.records import NO_EPOCH, LeaderAndEpoch


class FollowerProgress:
    """The acknowledgements of one branch, that of the largest epoch of which there are any.

    Attributes:
        branch: The branch.
        ends: The offset up to which each replica holds the log.
    """

    def __init__(self) -> None:
        self.branch = NO_EPOCH
        self.ends: dict[str, int] = {}
        self._caught_up_at: dict[str, float] = {}
        self._end_before = 0

    def begin(self, branch: LeaderAndEpoch) -> None:
        """Begin with another branch, or anew."""
        self.branch, self.ends, self._caught_up_at = branch, {}, {}

    def add(self, broker: str, branch: LeaderAndEpoch, end_offset: int) -> None:
        """Note that a replica holds a branch up to an offset."""
        if branch != self.branch:
            self.begin(branch)
        self.ends[broker] = max(end_offset, self.ends.get(broker, 0))

    def note_end(self, end_offset: int, at: float) -> None:
        """Note how far the leader's log reaches, and that whoever holds what it held before did so at a time."""
        self._caught_up_at.update((each, at) for each, end in self.ends.items() if end >= self._end_before)
        self._end_before = end_offset

    def set_back(self, now: float) -> None:
        """Note that the clock was set back."""
        self._caught_up_at = dict.fromkeys(self._caught_up_at, now)

    def caught_up_at(self, broker: str) -> float:
        """Return when a replica last held all that the leader held before; minus infinity if it never has."""
        return self._caught_up_at.get(broker, float("-inf"))

    def holding(self, replicas: Iterable[str]) -> int:
        """Return how many of some brokers have acknowledged the branch."""
        return len(self.ends.keys() & set(replicas))
