"""Which branches of a log one replica holds, and how far its log reaches."""

from __future__ import annotations

from collections.abc import Mapping

from dafka.broker.core.replication.epoch_tree import EpochTree
from dafka.broker.core.replication.records import NO_EPOCH, NO_EPOCH_END, EpochEnd, LeaderAndEpoch


class LocalEpochs:
    """The branches that one replica holds.

    Args:
        table: The branch table.
        first: The first branch, which begins without an index record.
    """

    def __init__(self, table: EpochTree, first: LeaderAndEpoch) -> None:
        self._table = table
        self._first = first
        self.restore({})

    def restore(self, ends: Mapping[LeaderAndEpoch, int]) -> None:
        """Take over what is held of each branch: the offset after its last index record."""
        self._ends = {self._first: 0, **ends}
        self._latest = max(self._ends)
        self._complete: set[LeaderAndEpoch] = set()
        self._latest_complete = NO_EPOCH

    def add(self, branch: LeaderAndEpoch, end_offset: int) -> None:
        """Note that a branch is held up to an offset."""
        self._ends[branch] = max(end_offset, self._ends.get(branch, 0))
        self._latest = max(branch, self._latest)

    def end_of(self, branch: LeaderAndEpoch) -> int:
        """Return the offset up to which a branch is held; 0 if it is not."""
        return self._ends.get(branch, 0)

    def is_complete(self, branch: LeaderAndEpoch) -> bool:
        """Return whether a branch is held, from its beginning on, and all before it."""
        if branch in self._complete:
            return True
        if branch not in self._ends or not self.reaches(EpochEnd(branch, self._ends[branch])):
            return False
        self._complete.add(branch)
        return True

    def reaches(self, tip: EpochEnd) -> bool:
        """Return whether everything is held of which a log consists that reaches to a tip."""
        while tip.branch != NO_EPOCH and tip.branch not in self._complete:
            row = self._table.rows.get(tip.branch)
            if row is None or self._ends.get(tip.branch, -1) < tip.end_offset:
                return False
            tip = row.parent
        return self.end_of(tip.branch) >= tip.end_offset

    def tip(self) -> EpochEnd:
        """Return how far the log reaches: the latest branch that is complete, and its end."""
        if self._latest > self._latest_complete:
            later = [each for each in self._ends if each > self._latest_complete]
            for branch in sorted(later, reverse=True):
                if self.is_complete(branch):
                    self._latest_complete = branch
                    break
        end_offset = self._ends.get(self._latest_complete)
        return NO_EPOCH_END if end_offset is None else EpochEnd(self._latest_complete, end_offset)
