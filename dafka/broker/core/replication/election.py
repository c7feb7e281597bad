"""The claim that a replica has made, and who follows it."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from dafka.broker.core.replication.epoch_tree import EpochTree
from dafka.broker.core.replication.records import NO_EPOCH, EpochEnd, LeaderAndEpoch, Vote, VoteRequest
from dafka.broker.core.replication.settings import Availability


class Election:
    """A claim of this replica, and the promises to follow it.

    Args:
        vote_request: The vote request of this replica.
        availability: What the sides of a split may do.

    Attributes:
        vote_request: The vote request of this replica.
        votes: The votes, by replica. That of this replica is the last one.
    """

    def __init__(self, vote_request: VoteRequest, availability: Availability) -> None:
        self.vote_request = vote_request
        self.votes: dict[str, Vote] = {}
        self._availability = availability

    @property
    def branch(self) -> LeaderAndEpoch:
        """The branch that is claimed."""
        return self.vote_request.branch

    @property
    def has_own_vote(self) -> bool:
        """Whether the promise of this replica itself is durable."""
        return self.vote_request.branch.leader in self.votes

    def has_quorum(self, writable: Collection[str]) -> bool:
        """Find out whether enough of the replicas that the claim names follow it, if this one does.

        Args:
            writable: The living brokers that can write.

        Returns:
            Whether they do.
        """
        voters, voted = set(self.vote_request.voters), self.votes.keys() | {self.vote_request.branch.leader}
        if self._availability is Availability.BRANCH:
            return voted >= voters.intersection(writable)
        return 2 * len(voted & voters) > len(voters)

    def has_quorum_of_former_voters(self, table: EpochTree) -> bool:
        """Return whether enough of all replicas follow it that may have acknowledged what no promised tip has."""
        if self._availability is Availability.BRANCH:
            return True
        asked = self.former_replica_sets(table)
        for each in self.votes.values():
            asked.update(each.replica_sets)
        return all(2 * len(self.votes.keys() & set(each)) > len(each) for each in asked)

    def former_replica_sets(self, table: EpochTree) -> set[tuple[str, ...]]:
        """Return the voters of the latest branch, and of those before it that no promised tip reaches beyond.

        What the replicas of an earlier branch have acknowledged is in each tip that reaches a later one.
        """
        reached = max(each.tip.branch.epoch for each in self.votes.values())
        row = table.latest
        assert row is not None
        found = {row.voters}
        while row.branch.epoch > reached and row.parent.branch != NO_EPOCH:
            row = table.rows[row.parent.branch]
            found.add(row.voters)
        return found

    def tips(self, late: Mapping[str, EpochEnd]) -> list[EpochEnd]:
        """Return how far the log of each replica reaches.

        Args:
            late: What those had on their sides that have come from another side of a split.

        Returns:
            Their tips.
        """
        is_branch = self._availability is Availability.BRANCH
        return [late.get(broker, each.tip) if is_branch else each.tip for broker, each in self.votes.items()]

    def knows_rows(self, table: EpochTree, tips: Collection[EpochEnd]) -> bool:
        """Return whether a table has the rows of all branches that the promises and some tips name."""
        latest = (EpochEnd(each.latest, 0) for each in self.votes.values())
        return all(table.chain(each) is not None for each in (*tips, *latest))
