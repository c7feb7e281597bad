"""What the sides of a partitioned network can do, as rules for elections and commits, by the availability of a log."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from dafka.broker.core.positions import UNKNOWN_OFFSET
from dafka.broker.core.replication.epoch_tree import EpochTree
from dafka.broker.core.replication.records import NO_EPOCH, EpochEnd, LeaderAndEpoch
from dafka.broker.core.replication.settings import Availability


class MajorityRule:
    """The side with more than half of the voters continues, so that logs never diverge in what is committed."""

    can_diverge = False

    def can_elect(self, voters: Collection[str], writable: frozenset[str]) -> bool:
        """Return whether the writable brokers include enough voters to begin an epoch."""
        return 2 * len(writable.intersection(voters)) > len(voters)

    def has_quorum(self, voters: Collection[str], voted: set[str], writable: frozenset[str]) -> bool:
        """Return whether enough of the requested voters have voted."""
        return 2 * len(voted.intersection(voters)) > len(voters)

    def choose_parent(self, log_ends: Collection[EpochEnd], epoch_tree: EpochTree) -> EpochEnd:
        """Return the log end that a new epoch continues: the longest of the latest epoch."""
        return max(log_ends, key=lambda each: (each.leader_epoch.epoch, each.end_offset))

    def committed_end(
        self, ends: Mapping[str, int], broker: str, voters: Sequence[str], writable: frozenset[str]
    ) -> int:
        """Return the end, of the log or of its index, that enough voters have acknowledged; -1 without enough."""
        return sorted((ends.get(each, UNKNOWN_OFFSET) for each in voters), reverse=True)[len(voters) // 2]


class DivergentRule:
    """Each side continues by itself. When they meet again, one of the divergent epochs continues."""

    can_diverge = True

    def can_elect(self, voters: Collection[str], writable: frozenset[str]) -> bool:
        """Return whether the writable brokers include a voter."""
        return not writable.isdisjoint(voters)

    def has_quorum(self, voters: Collection[str], voted: set[str], writable: frozenset[str]) -> bool:
        """Return whether all writable voters have voted."""
        return voted >= writable.intersection(voters)

    def choose_parent(self, log_ends: Collection[EpochEnd], epoch_tree: EpochTree) -> EpochEnd:
        """Return the log end that a new epoch continues: the one that most replicas have, then the longest."""

        def support(log_end: EpochEnd) -> int:
            return sum(epoch_tree.common_end(each, log_end) == each for each in log_ends)

        return max(log_ends, key=lambda each: (support(each), each.end_offset, each.leader_epoch))

    def committed_end(
        self, ends: Mapping[str, int], broker: str, voters: Sequence[str], writable: frozenset[str]
    ) -> int:
        """Return the end that all living voters have acknowledged; see `MajorityRule.committed_end`."""
        required = writable.intersection(voters)
        return min(end for each, end in ends.items() if each == broker or each in required)


Rule: TypeAlias = MajorityRule | DivergentRule

RULES: Mapping[Availability, Rule] = {Availability.MAJORITY: MajorityRule(), Availability.BRANCH: DivergentRule()}
"""The rules of each availability."""


class LateVotes:
    """The votes for a leader that came after its epoch had begun, from replicas that were partitioned away."""

    __slots__ = ("leader_epoch", "log_ends")

    def __init__(self) -> None:
        self.leader_epoch: LeaderAndEpoch = NO_EPOCH
        self.log_ends: dict[str, EpochEnd] = {}

    def add(self, broker: str, leader_epoch: LeaderAndEpoch, log_end: EpochEnd) -> None:
        """Add a vote, and forget those for an earlier epoch."""
        if leader_epoch != self.leader_epoch:
            self.leader_epoch, self.log_ends = leader_epoch, {}
        self.log_ends[broker] = log_end

    def clear(self) -> None:
        """Forget the log ends: the next epoch of this replica does not depend on them."""
        self.log_ends = {}
