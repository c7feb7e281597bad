"""The acknowledgements of a log's replicas, and the high watermark that follows from them."""

from __future__ import annotations

import attrs

from dafka.broker.core.positions import FIRST_OFFSET, FIRST_SEQUENCE, UNKNOWN_OFFSET, Offset, RecordSequence
from dafka.broker.core.replication.divergence import Rule
from dafka.broker.core.replication.epoch_tree import EpochTree
from dafka.broker.core.replication.records import NO_EPOCH, NO_EPOCH_END, EpochEnd, LeaderAndEpoch


class FollowerProgress:
    """The offsets up to which replicas store the log in one leader epoch, the latest that was acknowledged.

    `index_ends` has the sequence after the last index record that each of them has acknowledged.
    """

    __slots__ = ("_caught_up_at", "_previous_end", "ends", "index_ends", "leader_epoch")

    def __init__(self) -> None:
        self.leader_epoch = NO_EPOCH
        self.ends: dict[str, Offset] = {}
        self.index_ends: dict[str, RecordSequence] = {}
        self._caught_up_at: dict[str, float] = {}
        self._previous_end = FIRST_OFFSET

    def begin(self, leader_epoch: LeaderAndEpoch) -> None:
        """Start with another epoch, or start again."""
        self.leader_epoch, self.ends, self.index_ends, self._caught_up_at = leader_epoch, {}, {}, {}

    def add(
        self,
        broker: str,
        leader_epoch: LeaderAndEpoch,
        end_offset: Offset,
        index_end: RecordSequence = FIRST_SEQUENCE,
    ) -> None:
        """Record that a replica stores an epoch up to an offset, and its index up to a sequence."""
        if leader_epoch != self.leader_epoch:
            self.begin(leader_epoch)
        self.ends[broker] = max(end_offset, self.ends.get(broker, FIRST_OFFSET))
        self.index_ends[broker] = max(index_end, self.index_ends.get(broker, FIRST_SEQUENCE))

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


@attrs.define(eq=False, slots=False)
class HighWatermark:
    """The high watermark at one replica, leader or follower: readers can read up to its offset.

    A follower knows it from the acknowledgements that it hears, or because its leader announces it.
    """

    _broker: str
    _epoch_tree: EpochTree
    _acks: FollowerProgress
    _rule: Rule
    offset: Offset = FIRST_OFFSET
    _marked: EpochEnd = NO_EPOCH_END
    _announced: EpochEnd = NO_EPOCH_END

    def reset(self) -> None:
        """Start again at 0, after the local log was deleted or read again."""
        self.offset, self._marked = FIRST_OFFSET, NO_EPOCH_END

    def announced(self, leader_epoch: LeaderAndEpoch, offset: Offset) -> None:
        """Record the high watermark that the leader of an epoch has announced."""
        self._announced = max(self._announced, EpochEnd(leader_epoch, offset))

    def move(self, log_end: EpochEnd, acknowledged: EpochEnd, writable: frozenset[str]) -> bool:
        """Advance as far as enough replicas have acknowledged. Return whether it has advanced."""
        leader_epoch = log_end.leader_epoch
        is_acknowledged = leader_epoch == self._acks.leader_epoch and leader_epoch in self._epoch_tree.starts
        if not is_acknowledged and leader_epoch != self._announced.leader_epoch:
            return False
        if self._marked.leader_epoch != leader_epoch:
            self._follow(log_end)
        offset = self._announced.end_offset if leader_epoch == self._announced.leader_epoch else UNKNOWN_OFFSET
        if is_acknowledged:
            voters = self._epoch_tree.starts[leader_epoch].voters
            offset = max(offset, self.acknowledged_end(voters, acknowledged, writable))
        offset = min(offset, log_end.end_offset)
        if offset <= self.offset:
            return False
        self.offset, self._marked = offset, EpochEnd(leader_epoch, offset)
        return True

    def acknowledged_end(self, replicas: tuple[str, ...], acknowledged: EpochEnd, writable: frozenset[str]) -> Offset:
        """Return the offset that enough replicas have acknowledged in this epoch; -1 if there are not enough."""
        acks = dict(self._acks.ends)
        if acknowledged.leader_epoch == self._acks.leader_epoch:
            acks[self._broker] = max(acknowledged.end_offset, acks.get(self._broker, UNKNOWN_OFFSET))
        if self._broker not in acks:
            return UNKNOWN_OFFSET
        return Offset(self._rule.committed_end(acks, self._broker, replicas, writable))

    def _follow(self, log_end: EpochEnd) -> None:
        """Go back to where the log diverged. Only logs with the availability "branch" can diverge."""
        common_end = self._epoch_tree.common_end(self._marked, log_end)
        if common_end is not None and common_end != self._marked:
            self.offset = min(self.offset, common_end.end_offset)
        self._marked = EpochEnd(log_end.leader_epoch, self.offset)
