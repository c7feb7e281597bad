"""The claim that a replica has made, and who follows it."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from dafka.broker.core.replication.epoch_tree import BranchTable
from dafka.broker.core.replication.records import NO_BRANCH, Branch, Claim, Promise, Tip
from dafka.broker.core.replication.settings import Availability


class Candidacy:
    """A claim of this replica, and the promises to follow it.

    Args:
        claim: The claim.
        availability: What the sides of a split may do.

    Attributes:
        claim: The claim.
        promises: The promises, by replica. That of this replica is the last one.
    """

    def __init__(self, claim: Claim, availability: Availability) -> None:
        self.claim = claim
        self.promises: dict[str, Promise] = {}
        self._availability = availability

    @property
    def branch(self) -> Branch:
        """The branch that is claimed."""
        return self.claim.branch

    @property
    def is_promised(self) -> bool:
        """Whether the promise of this replica itself is durable."""
        return self.claim.branch.leader in self.promises

    def has_followers(self, able: Collection[str]) -> bool:
        """Find out whether enough of the replicas that the claim names follow it, if this one does.

        Args:
            able: The living brokers that can write.

        Returns:
            Whether they do.
        """
        voters, promised = set(self.claim.voters), self.promises.keys() | {self.claim.branch.leader}
        if self._availability is Availability.BRANCH:
            return promised >= voters.intersection(able)
        return 2 * len(promised & voters) > len(voters)

    def has_former_followers(self, table: BranchTable) -> bool:
        """Return whether enough of all replicas follow it that may have acknowledged what no promised tip has."""
        if self._availability is Availability.BRANCH:
            return True
        asked = self.former_replica_sets(table)
        for each in self.promises.values():
            asked.update(each.replica_sets)
        return all(2 * len(self.promises.keys() & set(each)) > len(each) for each in asked)

    def former_replica_sets(self, table: BranchTable) -> set[tuple[str, ...]]:
        """Return the voters of the latest branch, and of those before it that no promised tip reaches beyond.

        What the replicas of an earlier branch have acknowledged is in each tip that reaches a later one.
        """
        reached = max(each.tip.branch.epoch for each in self.promises.values())
        row = table.latest
        assert row is not None
        found = {row.voters}
        while row.branch.epoch > reached and row.parent.branch != NO_BRANCH:
            row = table.rows[row.parent.branch]
            found.add(row.voters)
        return found

    def tips(self, late: Mapping[str, Tip]) -> list[Tip]:
        """Return how far the log of each replica reaches.

        Args:
            late: What those had on their sides that have come from another side of a split.

        Returns:
            Their tips.
        """
        is_branch = self._availability is Availability.BRANCH
        return [late.get(broker, each.tip) if is_branch else each.tip for broker, each in self.promises.items()]

    def knows_rows(self, table: BranchTable, tips: Collection[Tip]) -> bool:
        """Return whether a table has the rows of all branches that the promises and some tips name."""
        latest = (Tip(each.latest, 0) for each in self.promises.values())
        return all(table.chain(each) is not None for each in (*tips, *latest))
