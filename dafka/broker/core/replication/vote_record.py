"""The vote requests and votes of one log, as far as one replica knows them."""

from __future__ import annotations

from dafka.broker.core.replication.records import LeaderAndEpoch, VoteRequest


class VoteRecord:
    """The vote requests and votes of the replicas of one log. `own` is the last request that this replica voted for."""

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
        """Return the voters of the epochs that this replica voted for, and forget the votes for epochs that have begun.

        `epoch` is the latest one that has begun. The voters are in the order of the votes. A resignation has none.
        """
        self._own_requests = [each for each in self._own_requests if each.leader_epoch.epoch > epoch]
        return [each.voters for each in self._own_requests if each.replicas]
