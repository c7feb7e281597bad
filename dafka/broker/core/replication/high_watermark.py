"""How far readers may read a log at one replica."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from dafka.broker.core.replication.epoch_tree import EpochTree
from dafka.broker.core.replication.progress import FollowerProgress
from dafka.broker.core.replication.records import NO_EPOCH_END, EpochEnd
from dafka.broker.core.replication.settings import Availability


class HighWatermark:
    """The high watermark at one replica, be it the leader or not.

    Args:
        broker: The address of this broker.
        table: The branch table.
        acks: What the replicas have acknowledged.
        availability: What the sides of a split may do.

    Attributes:
        offset: The offset up to which readers may read.
    """

    def __init__(self, broker: str, table: EpochTree, acks: FollowerProgress, availability: Availability) -> None:
        self.offset = 0
        self._broker = broker
        self._table = table
        self._acks = acks
        self._availability = availability
        self._marked = NO_EPOCH_END

    def reset(self) -> None:
        """Begin anew: what was held is deleted, or was read again."""
        self.offset, self._marked = 0, NO_EPOCH_END

    def move(self, tip: EpochEnd, acknowledged: EpochEnd, writable: AbstractSet[str]) -> bool:
        """Move as far as enough replicas have acknowledged.

        Args:
            tip: How far the log of this replica reaches.
            acknowledged: What this replica has acknowledged last.
            writable: The living brokers that can write.

        Returns:
            Whether that is further than before.
        """
        branch, row = self._acks.branch, self._table.rows.get(self._acks.branch)
        if row is None or tip.branch != branch:
            return False
        if self._marked.branch != branch:
            self._follow(tip)
        offset = min(self.acknowledged_end(row.voters, acknowledged, writable), tip.end_offset)
        if offset <= self.offset:
            return False
        self.offset, self._marked = offset, EpochEnd(branch, offset)
        return True

    def acknowledged_end(self, replicas: tuple[str, ...], acknowledged: EpochEnd, writable: AbstractSet[str]) -> int:
        """Return the offset up to which enough replicas have acknowledged the branch; -1 if there are not enough."""
        acks = dict(self._acks.ends)
        if acknowledged.branch == self._acks.branch:
            acks[self._broker] = max(acknowledged.end_offset, acks.get(self._broker, -1))
        if self._broker not in acks:
            return -1
        if self._availability is Availability.MAJORITY:
            return sorted((acks.get(each, -1) for each in replicas), reverse=True)[len(replicas) // 2]
        asked = writable & set(replicas)
        return min(end for each, end in acks.items() if each == self._broker or each in asked)

    def _follow(self, tip: EpochEnd) -> None:
        """Go back to where the log has forked, which logs of the availability "branch" may do."""
        fork = self._table.fork(self._marked, tip)
        if fork is not None and fork != self._marked:
            self.offset = min(self.offset, fork.end_offset)
        self._marked = EpochEnd(tip.branch, self.offset)
