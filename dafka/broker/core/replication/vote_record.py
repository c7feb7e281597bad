"""What the replicas of one log have claimed and promised, as far as one of them knows."""

from __future__ import annotations

from dafka.broker.core.replication.records import LeaderAndEpoch, VoteRequest


class VoteRecord:
    """The claims and promises of the replicas of one log.

    Attributes:
        own: The claim that this replica has promised to follow last; None if it has promised nothing.
    """

    def __init__(self) -> None:
        self.own: VoteRequest | None = None
        self._own_claims: list[VoteRequest] = []
        self._claims: dict[LeaderAndEpoch, VoteRequest] = {}
        self._epochs: dict[str, int] = {}

    @property
    def own_epoch(self) -> int:
        """The epoch that this replica has promised last; -1 if it has promised nothing."""
        return -1 if self.own is None else self.own.branch.epoch

    def epoch_of(self, broker: str) -> int:
        """Return the latest epoch that a broker has promised; -1 if it has promised nothing."""
        return self._epochs.get(broker, -1)

    def find_vote_request(self, branch: LeaderAndEpoch) -> VoteRequest | None:
        """Return the claim to begin a branch, if it is known."""
        return self._claims.get(branch)

    def note_claim(self, vote_request: VoteRequest) -> None:
        """Note a claim of any broker."""
        self._claims[vote_request.branch] = vote_request

    def note_promise(self, broker: str, epoch: int) -> None:
        """Note a promise of any broker."""
        self._epochs[broker] = max(epoch, self.epoch_of(broker))

    def add_own(self, vote_request: VoteRequest) -> None:
        """Note that this replica promises to follow a claim."""
        self.own = vote_request
        self._own_claims.append(vote_request)

    def asked_replicas(self) -> set[str]:
        """Return the replicas of the branches that this replica has promised to follow, and that may not have begun."""
        return {each for vote_request in self._own_claims for each in vote_request.replicas}

    def asked_voters(self, epoch: int) -> list[tuple[str, ...]]:
        """Return the voters of the branches that this replica has promised to follow, and forget earlier promises.

        Args:
            epoch: The epoch of the latest branch that has begun. Only later ones count.

        Returns:
            Their voters, in the order of the promises. A resignation has none.
        """
        self._own_claims = [each for each in self._own_claims if each.branch.epoch > epoch]
        return [each.voters for each in self._own_claims if each.replicas]
