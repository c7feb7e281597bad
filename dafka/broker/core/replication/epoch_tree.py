"""The leader epochs of one log: where each began, and what one replica stores of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from dafka.broker.core.metadata.log_replicas import recovery_of
from dafka.broker.core.positions import FIRST_OFFSET, OFFSET_MAX, Offset
from dafka.broker.core.replication.records import NO_EPOCH, NO_EPOCH_END, EpochEnd, EpochStart, LeaderAndEpoch


class EpochTree:
    """The known epoch starts of one log. Each names its parent, so they form a tree.

    `newest` is the start with the newest replicas: the latest one of the highest generation. `latest` is the latest one
    since the last recovery: without it, others can have begun later epochs meanwhile.
    """

    __slots__ = ("latest", "newest", "starts")

    def __init__(self, starts: Iterable[EpochStart] = ()) -> None:
        self.starts: dict[LeaderAndEpoch, EpochStart] = {}
        self.latest: EpochStart | None = None
        self.newest: EpochStart | None = None
        for start in starts:
            self.add(start)

    def add(self, start: EpochStart) -> None:
        """Add an epoch start."""
        self.starts[start.leader_epoch] = start
        if self.latest is None or _time(start) >= _time(self.latest):
            self.latest = start
        if self.newest is None or _age(start) >= _age(self.newest):
            self.newest = start

    def chain(self, log_end: EpochEnd) -> list[EpochEnd] | None:
        """Return the epochs that a log consists of, the last one first, each with its end in that log.

        Return None if an epoch start is not known yet.
        """
        found = []
        while log_end.leader_epoch != NO_EPOCH:
            start = self.starts.get(log_end.leader_epoch)
            if start is None:
                return None
            found.append(log_end)
            log_end = start.parent
        return found

    def epoch_at(self, last: LeaderAndEpoch, offset: Offset) -> int:
        """Return the number of the leader epoch of the record before an offset, in a log with this last epoch.

        It is the first known one if the offset is before all of them.
        """
        start = self.starts[last]
        while start.parent.end_offset >= offset and start.parent.leader_epoch in self.starts:
            start = self.starts[start.parent.leader_epoch]
        return start.leader_epoch.epoch

    def common_end(self, first: EpochEnd, second: EpochEnd) -> EpochEnd | None:
        """Return the last position that two logs have in common; None if an epoch start is not known yet."""
        one, other = self.chain(first), self.chain(second)
        if one is None or other is None:
            return None
        ends = {each.leader_epoch: each.end_offset for each in other}
        for each in one:
            if each.leader_epoch in ends:
                return EpochEnd(each.leader_epoch, min(each.end_offset, ends[each.leader_epoch]))
        return NO_EPOCH_END

    def divergences(self, log_end: EpochEnd) -> dict[int, tuple[int, Offset]]:
        """Return where a log diverges from the epochs that it does not contain.

        By the number of each of these epochs, it is the epoch and the end of the part that it shares with the log.
        """
        chain = {each.leader_epoch for each in self.chain(log_end) or ()}
        found = {}
        for leader_epoch, start in self.starts.items():
            common_end = None if leader_epoch in chain else self.common_end(start.parent, log_end)
            if common_end is not None:
                found[leader_epoch.epoch] = common_end.leader_epoch.epoch, common_end.end_offset
        return found

    def has_replica(self, broker: str, recovery: int = 0) -> bool:
        """Return whether a broker is or was a replica since a recovery; see `recovery_of`."""
        starts = self.starts.values()
        return any(broker in each.replicas for each in starts if recovery_of(each.generation) >= recovery)

    def recovered_end(self, recovery: int) -> Offset:
        """Return up to which offset the log is the same as before all recoveries after one; see `recovery_of`."""
        later = (each for each in self.starts.values() if recovery_of(each.generation) > recovery)
        return min((each.parent.end_offset for each in later), default=OFFSET_MAX)

    def leaves(self) -> Iterator[EpochStart]:
        """Yield the starts of epochs that no other epoch continues."""
        parents = {start.parent.leader_epoch for start in self.starts.values()}
        for leader_epoch, start in self.starts.items():
            if leader_epoch not in parents:
                yield start


class LocalEpochs:
    """The leader epochs that one replica stores. The first one begins without an index record.

    `log_start` is the latest start of the log that a leader has decided, as far as it is stored.
    """

    __slots__ = ("_complete", "_ends", "_epoch_tree", "_first", "_latest_complete", "latest", "log_start")

    def __init__(self, epoch_tree: EpochTree, first: LeaderAndEpoch) -> None:
        self._epoch_tree = epoch_tree
        self._first = first
        self.log_start = FIRST_OFFSET
        self.restore({})

    def restore(self, ends: Mapping[LeaderAndEpoch, Offset]) -> None:
        """Replace the stored epochs: each with the offset after its last index record."""
        self._ends = {self._first: FIRST_OFFSET, **ends}
        self.latest = max(self._ends)
        self._complete = _NONE_COMPLETE
        self._latest_complete = NO_EPOCH

    def add(self, leader_epoch: LeaderAndEpoch, end_offset: Offset) -> None:
        """Record that an epoch is stored up to an offset."""
        self._ends[leader_epoch] = max(end_offset, self._ends.get(leader_epoch, FIRST_OFFSET))
        self.latest = max(leader_epoch, self.latest)

    def end_of(self, leader_epoch: LeaderAndEpoch) -> Offset:
        """Return the offset up to which an epoch is stored; 0 if it is not."""
        return self._ends.get(leader_epoch, FIRST_OFFSET)

    def is_complete(self, leader_epoch: LeaderAndEpoch) -> bool:
        """Return whether an epoch is stored from its start, together with everything before it."""
        if leader_epoch in self._complete:
            return True
        if leader_epoch not in self._ends or not self.reaches(EpochEnd(leader_epoch, self._ends[leader_epoch])):
            return False
        if leader_epoch != self._first:  # a log begins with that one, so there is nothing to remember
            self._complete |= {leader_epoch}
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


_NONE_COMPLETE: frozenset[LeaderAndEpoch] = frozenset()
"""What most logs share, to save memory."""


def _age(start: EpochStart) -> tuple[int, LeaderAndEpoch]:
    return start.generation, start.leader_epoch


def _time(start: EpochStart) -> tuple[int, LeaderAndEpoch]:
    return recovery_of(start.generation), start.leader_epoch
