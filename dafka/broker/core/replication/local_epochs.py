"""The leader epochs that one replica stores, and the end of its log."""

from __future__ import annotations

from collections.abc import Mapping

from dafka.broker.core.positions import Offset
from dafka.broker.core.replication.epoch_tree import EpochTree
from dafka.broker.core.replication.records import NO_EPOCH, NO_EPOCH_END, EpochEnd, LeaderAndEpoch


class LocalEpochs:
    """The leader epochs that one replica stores. The first one begins without an index record."""

    def __init__(self, epoch_tree: EpochTree, first: LeaderAndEpoch) -> None:
        self._epoch_tree = epoch_tree
        self._first = first
        self.restore({})

    def restore(self, ends: Mapping[LeaderAndEpoch, Offset]) -> None:
        """Replace the stored epochs: each with the offset after its last index record."""
        self._ends = {self._first: Offset(0), **ends}
        self.latest = max(self._ends)
        self._complete: set[LeaderAndEpoch] = set()
        self._latest_complete = NO_EPOCH

    def add(self, leader_epoch: LeaderAndEpoch, end_offset: Offset) -> None:
        """Record that an epoch is stored up to an offset."""
        self._ends[leader_epoch] = max(end_offset, self._ends.get(leader_epoch, Offset(0)))
        self.latest = max(leader_epoch, self.latest)

    def end_of(self, leader_epoch: LeaderAndEpoch) -> Offset:
        """Return the offset up to which an epoch is stored; 0 if it is not."""
        return self._ends.get(leader_epoch, Offset(0))

    def is_complete(self, leader_epoch: LeaderAndEpoch) -> bool:
        """Return whether an epoch is stored from its start, together with everything before it."""
        if leader_epoch in self._complete:
            return True
        if leader_epoch not in self._ends or not self.reaches(EpochEnd(leader_epoch, self._ends[leader_epoch])):
            return False
        self._complete.add(leader_epoch)
        return True

    def reaches(self, log_end: EpochEnd) -> bool:
        """Return whether everything is stored that a log with some end consists of."""
        while log_end.leader_epoch != NO_EPOCH and log_end.leader_epoch not in self._complete:
            start = self._epoch_tree.starts.get(log_end.leader_epoch)
            if start is None or self._ends.get(log_end.leader_epoch, -1) < log_end.end_offset:
                return False
            log_end = start.parent
        return self.end_of(log_end.leader_epoch) >= log_end.end_offset

    def log_end(self) -> EpochEnd:
        """Return the end of the log: the latest complete epoch, and its end."""
        if self.latest > self._latest_complete:
            later = [each for each in self._ends if each > self._latest_complete]
            for leader_epoch in sorted(later, reverse=True):
                if self.is_complete(leader_epoch):
                    self._latest_complete = leader_epoch
                    break
        end_offset = self._ends.get(self._latest_complete)
        return NO_EPOCH_END if end_offset is None else EpochEnd(self._latest_complete, end_offset)
