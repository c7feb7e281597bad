"""The high watermark of a log at one replica."""

from __future__ import annotations

from dafka.broker.core.positions import UNKNOWN_OFFSET, Offset
from dafka.broker.core.replication.divergence import Rule
from dafka.broker.core.replication.epoch_tree import EpochTree
from dafka.broker.core.replication.progress import FollowerProgress
from dafka.broker.core.replication.records import NO_EPOCH_END, EpochEnd


class HighWatermark:
    """The high watermark at one replica, leader or follower: readers can read up to its offset."""

    def __init__(self, broker: str, epoch_tree: EpochTree, acks: FollowerProgress, rule: Rule) -> None:
        self.offset = Offset(0)
        self._broker = broker
        self._epoch_tree = epoch_tree
        self._acks = acks
        self._rule = rule
        self._marked = NO_EPOCH_END

    def reset(self) -> None:
        """Start again at 0, after the local log was deleted or read again."""
        self.offset, self._marked = Offset(0), NO_EPOCH_END

    def move(self, log_end: EpochEnd, acknowledged: EpochEnd, writable: frozenset[str]) -> bool:
        """Advance as far as enough replicas have acknowledged. Return whether it has advanced."""
        leader_epoch, start = self._acks.leader_epoch, self._epoch_tree.starts.get(self._acks.leader_epoch)
        if start is None or log_end.leader_epoch != leader_epoch:
            return False
        if self._marked.leader_epoch != leader_epoch:
            self._follow(log_end)
        offset = min(self.acknowledged_end(start.voters, acknowledged, writable), log_end.end_offset)
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
        return self._rule.committed_end(acks, self._broker, replicas, writable)

    def _follow(self, log_end: EpochEnd) -> None:
        """Go back to where the log diverged. Only logs with the availability "branch" can diverge."""
        common_end = self._epoch_tree.common_end(self._marked, log_end)
        if common_end is not None and common_end != self._marked:
            self.offset = min(self.offset, common_end.end_offset)
        self._marked = EpochEnd(log_end.leader_epoch, self.offset)
