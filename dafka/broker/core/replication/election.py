"""An election: the vote request of a replica, and the votes for it; and the record of all votes."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import attrs

from dafka.broker.core.metadata.log_replicas import recovery_of
from dafka.broker.core.positions import FIRST_OFFSET, Offset
from dafka.broker.core.replication.divergence import Rule
from dafka.broker.core.replication.epoch_tree import EpochTree
from dafka.broker.core.replication.records import NO_EPOCH, EpochEnd, LeaderAndEpoch, Vote, VoteRequest


@attrs.define(eq=False, slots=False)
class Election:
    """An election that this replica has started. It votes last."""

    vote_request: VoteRequest
    _rule: Rule
    votes: dict[str, Vote] = attrs.field(factory=dict)

    @property
    def leader_epoch(self) -> LeaderAndEpoch:
        """The leader epoch that begins if this replica is elected."""
        return self.vote_request.leader_epoch

    @property
    def is_transfer(self) -> bool:
        """Whether it replaces a living leader by a preferred one."""
        return self.vote_request.is_transfer

    @property
    def has_own_vote(self) -> bool:
        """Whether this replica's own vote is durable."""
        return self.vote_request.leader_epoch.leader in self.votes

    def has_quorum(self, writable: frozenset[str]) -> bool:
        """Return whether enough of the requested voters have voted, if this replica votes too."""
        voted = self.votes.keys() | {self.vote_request.leader_epoch.leader}
        return self._rule.has_quorum(self.vote_request.voters, voted, writable)

    def has_quorum_of_former_voters(self, epoch_tree: EpochTree) -> bool:
        """Return whether a quorum of each former voter set has voted.

        Such a set can have committed records that no vote includes.
        """
        if self._rule.can_diverge:
            return True
        voter_sets = self.former_replica_sets(epoch_tree)
        for each in self.votes.values():
            voter_sets.update(each.replica_sets)
        return all(2 * len(self.votes.keys() & set(each)) > len(each) for each in voter_sets)

    def former_replica_sets(self, epoch_tree: EpochTree) -> set[tuple[str, ...]]:
        """Return the voters of the latest epoch, and of all earlier epochs that no voter's log goes beyond.

        A log that reaches a later epoch includes everything that an earlier epoch committed. A recovery continues a log
        without the voters of earlier epochs.
        """
        reached = max(each.log_end.leader_epoch.epoch for each in self.votes.values())
        start = epoch_tree.latest
        assert start is not None
        found = {start.voters}
        while start.leader_epoch.epoch > reached and start.parent.leader_epoch != NO_EPOCH:
            former = epoch_tree.starts[start.parent.leader_epoch]
            if recovery_of(former.generation) < recovery_of(start.generation):
                break
            start = former
            found.add(start.voters)
        return found

    def log_ends(self, late: Mapping[str, EpochEnd]) -> list[EpochEnd]:
        """Return the end of each voter's log. Replicas that returned late can have divergent ones."""
        late = late if self._rule.can_diverge else {}
        return [late.get(broker, each.log_end) for broker, each in self.votes.items()]

    def log_start(self, parent: EpochEnd, epoch_tree: EpochTree) -> Offset:
        """Return the latest start of the log that the votes include, in a log that continues a parent.

        Enough replicas have stored each start before which records were deleted, so one of the votes includes it.
        """
        shared = ((each.log_start, epoch_tree.common_end(each.log_end, parent)) for each in self.votes.values())
        return max(FIRST_OFFSET if end is None else min(start, end.end_offset) for start, end in shared)

    def knows_epoch_starts(self, epoch_tree: EpochTree, log_ends: Collection[EpochEnd]) -> bool:
        """Return whether the epoch tree has all epochs that the votes and some log ends name."""
        latest = (EpochEnd(each.latest, FIRST_OFFSET) for each in self.votes.values())
        return all(epoch_tree.chain(each) is not None for each in (*log_ends, *latest))


class VoteRecord:
    """The vote requests and votes of the replicas of one log. `own` is the last request that this replica voted for."""

    __slots__ = ("_epochs", "_own_requests", "_requests", "own")

    def __init__(self) -> None:
        self.own: VoteRequest | None = None
        self._own_requests: list[VoteRequest] = []
        self._requests: dict[LeaderAndEpoch, VoteRequest] = {}
        self._epochs: dict[str, int] = {}

    @property
    def own_epoch(self) -> int:
        """The epoch that this replica voted for last; -1 if it has not voted."""
        return -1 if self.own is None else self.own.leader_epoch.epoch

    def epoch_of(self, broker: str) -> int:
        """Return the latest epoch that a broker voted for; -1 if it has not voted."""
        return self._epochs.get(broker, -1)

    def find_vote_request(self, leader_epoch: LeaderAndEpoch) -> VoteRequest | None:
        """Return the vote request for a leader epoch, if it is known."""
        return self._requests.get(leader_epoch)

    def record_request(self, vote_request: VoteRequest) -> None:
        """Record the vote request of any broker."""
        self._requests[vote_request.leader_epoch] = vote_request

    def record_vote(self, broker: str, epoch: int) -> None:
        """Record the vote of any broker."""
        self._epochs[broker] = max(epoch, self.epoch_of(broker))

    def add_own(self, vote_request: VoteRequest) -> None:
        """Record that this replica votes for a request."""
        self.own = vote_request
        self._own_requests.append(vote_request)

    def pending_replicas(self) -> set[str]:
        """Return the replicas of the epochs that this replica voted for. They need not have begun."""
        return {each for vote_request in self._own_requests for each in vote_request.replicas}

    def pending_voters(self, epoch: int) -> list[tuple[str, ...]]:
        """Return the voters of the epochs that this replica voted for and that can still begin, or have begun unheard.

        `epoch` is the latest one that has begun. The voters are in the order of the votes. A resignation has none.
        """
        self._own_requests = [each for each in self._own_requests if self._can_begin(each.leader_epoch, epoch)]
        return [each.voters for each in self._own_requests if each.replicas]

    def _can_begin(self, requested: LeaderAndEpoch, latest: int) -> bool:
        """Return whether an epoch can begin after the latest known one, or has begun unheard.

        If its candidate has voted for a later epoch, it has not begun, and never does: the control records of a broker
        come in their order, so that its start would be known.
        """
        return requested.epoch > latest and self.epoch_of(requested.leader) <= requested.epoch
