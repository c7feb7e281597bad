"""The acknowledgements of a log's replicas in one leader epoch."""

from __future__ import annotations

from collections.abc import Iterable

from dafka.broker.core.positions import Offset
from dafka.broker.core.replication.records import NO_EPOCH, LeaderAndEpoch


class FollowerProgress:
    """The offsets up to which replicas store the log in one leader epoch, the latest that was acknowledged."""

    def __init__(self) -> None:
        self.leader_epoch = NO_EPOCH
        self.ends: dict[str, Offset] = {}
        self._caught_up_at: dict[str, float] = {}
        self._previous_end = Offset(0)

    def begin(self, leader_epoch: LeaderAndEpoch) -> None:
        """Start with another epoch, or start again."""
        self.leader_epoch, self.ends, self._caught_up_at = leader_epoch, {}, {}

    def add(self, broker: str, leader_epoch: LeaderAndEpoch, end_offset: Offset) -> None:
        """Record that a replica stores an epoch up to an offset."""
        if leader_epoch != self.leader_epoch:
            self.begin(leader_epoch)
        self.ends[broker] = max(end_offset, self.ends.get(broker, Offset(0)))

    def record_end(self, end_offset: Offset, at: float) -> None:
        """Record the end of the leader's log. Replicas that store its previous end were caught up at this time."""
        self._caught_up_at.update((each, at) for each, end in self.ends.items() if end >= self._previous_end)
        self._previous_end = end_offset

    def set_back(self, now: float) -> None:
        """Reset all times, because the clock was set back."""
        self._caught_up_at = dict.fromkeys(self._caught_up_at, now)

    def caught_up_at(self, broker: str) -> float:
        """Return when a replica last reached the leader's previous end; minus infinity if it never has."""
        return self._caught_up_at.get(broker, float("-inf"))

    def acknowledged_count(self, replicas: Iterable[str]) -> int:
        """Return how many of some brokers have acknowledged records of the epoch."""
        return len(self.ends.keys() & set(replicas))
