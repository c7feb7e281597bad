"""What one replica of a log knows of the others: who is alive, what they have voted for, and what they store."""

from __future__ import annotations

from collections.abc import Callable, Collection

from dafka.broker.core.metadata.leader_and_isr import NOBODY, share_replicas, share_set
from dafka.broker.core.positions import FIRST_OFFSET, UNKNOWN_OFFSET, Offset
from dafka.broker.core.replication.divergence import Rule
from dafka.broker.core.replication.election import VoteRecord
from dafka.broker.core.replication.epoch_tree import EpochTree, LocalEpochs
from dafka.broker.core.replication.high_watermark import FollowerProgress
from dafka.broker.core.replication.records import EpochStart, VoteRequest
from dafka.broker.core.replication.states import Leader
from dafka.protocol.rendezvous import rank_nodes


class LeaderPreference:
    """The preferred order of one log's replicas: first the named ones, then the others in rendezvous order.

    Brokers that are drained, full or stopping are ineligible: they lead only if no other replica can.
    """

    __slots__ = ("_log", "_preferred", "_ranked", "_ranked_of", "ineligible_leaders")

    def __init__(self, log: str) -> None:
        self.ineligible_leaders = NOBODY
        self._log = log
        self._preferred: tuple[str, ...] = ()
        self._ranked: tuple[str, ...] = ()
        self._ranked_of: tuple[str, ...] = ()

    def set(self, preferred: tuple[str, ...], ineligible_leaders: frozenset[str]) -> bool:
        """Set the preferred brokers, best first, and the ineligible ones. Return whether anything has changed."""
        before = self._preferred, self.ineligible_leaders
        self._preferred, self.ineligible_leaders = preferred, ineligible_leaders or NOBODY
        return before != (preferred, ineligible_leaders)

    def rank(self, replicas: tuple[str, ...]) -> list[str]:
        """Return replicas, the most preferred one first."""
        if self._ranked_of != replicas:
            self._ranked_of, self._ranked = replicas, share_replicas(rank_nodes(self._log, replicas))
        if self._preferred == self._ranked:
            return list(self._preferred)
        named = [each for each in self._preferred if each in self._ranked]
        return [*named, *(each for each in self._ranked if each not in named)]

    def rank_writable(self, replicas: tuple[str, ...], writable: Collection[str]) -> list[str]:
        """Return the writable replicas, the most preferred one first, ineligible leaders last."""
        return sorted(
            (each for each in self.rank(replicas) if each in writable), key=self.ineligible_leaders.__contains__
        )


class Peers:
    """The replicas of one log, as one broker sees them.

    `known` are all brokers that are or were replicas, or that a vote request names.
    """

    def __init__(
        self,
        log: str,
        broker: str,
        first: EpochStart,
        epoch_tree: EpochTree,
        local_epochs: LocalEpochs,
        votes: VoteRecord,
        rule: Rule,
    ) -> None:
        self.alive = self.writable = NOBODY
        self.known: frozenset[str] = share_set(first.replicas)
        self.preference = LeaderPreference(log)
        self.progress = FollowerProgress()
        self._broker = broker
        self._first = first.leader_epoch
        self._epoch_tree = epoch_tree
        self._local_epochs = local_epochs
        self._votes = votes
        self._rule = rule

    @property
    def latest(self) -> EpochStart:
        """The start of the latest leader epoch."""
        assert self._epoch_tree.latest is not None
        return self._epoch_tree.latest

    @property
    def newest(self) -> EpochStart:
        """The epoch start with the newest replicas, which the next epoch begins with. Nearly always the latest one."""
        assert self._epoch_tree.newest is not None
        return self._epoch_tree.newest

    def add_known(self, replicas: tuple[str, ...]) -> None:
        """Add replicas that a record names to the known brokers."""
        if not self.known.issuperset(replicas):
            self.known |= share_set(replicas)

    def may_request(self, vote_request: VoteRequest) -> bool:
        """Return whether a broker may request votes for some replicas, as far as this broker knows.

        It is a voter of the newest replicas, or has ordered newer ones. A replica that was removed is neither.
        """
        newest = self.newest
        if vote_request.generation != newest.generation:
            return vote_request.generation > newest.generation
        return vote_request.leader_epoch.leader in newest.voters

    @property
    def leader(self) -> str:
        """The leader; empty if there is none."""
        leader_epoch = self.latest.leader_epoch
        return "" if self._votes.epoch_of(leader_epoch.leader) > leader_epoch.epoch else leader_epoch.leader

    @property
    def is_leader(self) -> bool:
        """Whether others follow this broker, and it has voted for no later epoch, even if that vote is not durable."""
        latest = self.latest.leader_epoch
        return latest.leader == self._broker and self._votes.own_epoch <= latest.epoch

    # Who is alive

    @property
    def is_quorum_active(self) -> bool:
        """Whether more than half of the voters are alive."""
        voters = self.latest.voters
        return 2 * len(self.alive.intersection(voters)) > len(voters)

    @property
    def can_elect(self) -> bool:
        """Whether the writable brokers include enough voters to begin an epoch."""
        return self._rule.can_elect(self.newest.voters, self.writable)

    def can_elect_without(self, brokers: Collection[str]) -> bool:
        """Return whether the living brokers without some include enough voters to begin an epoch."""
        return self._rule.can_elect(self.newest.voters, self.alive.difference(brokers))

    @property
    def is_joining(self) -> bool:
        """Whether this broker still copies the log to become a replica, and the others have a quorum without it."""
        latest = self.latest
        others = self.alive.intersection(latest.voters) - {self._broker}
        is_needed = latest.leader_epoch.leader == self._broker or 2 * len(others) <= len(latest.voters)
        if self._broker not in latest.replicas or is_needed:
            return False
        start = self._epoch_tree.starts.get(self._local_epochs.log_end().leader_epoch)
        return start is None or self._broker not in start.replicas

    def rank_writable(self) -> list[str]:
        """Return the living voters that can write, the most preferred leader first."""
        return self.preference.rank_writable(self.newest.voters, self.writable)

    def rank(self) -> int:
        """Return how many living voters are preferred to this one as leaders."""
        order = self.rank_writable()
        return order.index(self._broker) if self._broker in order else len(order)

    # What they have voted for

    def is_superseded(self, leader: Leader) -> bool:
        """Return whether a replica has voted for a later epoch than the one that this replica leads."""
        return any(leader.is_superseded_by(self._votes.epoch_of(each)) for each in self.latest.replicas)

    def has_quorum_without(self, leader: Leader, candidate: str) -> bool:
        """Return whether more than half of the voters are alive and still follow this leader, without a candidate.

        A broker that comes back can have voted for a later epoch than the one it knew, and request votes before it
        knows the leader. This alone is no reason to follow it.
        """
        voters = self.latest.voters
        others = self.alive.intersection(voters) - {candidate}
        return 2 * sum(not leader.is_superseded_by(self._votes.epoch_of(each)) for each in others) > len(voters)

    def has_rival(self) -> bool:
        """Return whether another epoch has a living leader that does not follow the latest epoch yet."""
        if not self._rule.can_diverge:
            return False
        latest = self.latest.leader_epoch
        return any(
            start.leader_epoch.leader in self.alive and self._votes.epoch_of(start.leader_epoch.leader) < latest.epoch
            for start in self._epoch_tree.leaves()
            if start.leader_epoch != latest
        )

    # What they store

    def acknowledged_end(self, broker: str, leader: Leader) -> Offset:
        """Return the offset up to which a replica has acknowledged the led epoch; -1 if it has not.

        The first epoch begins without an index record, so it has nothing to acknowledge.
        """
        return self.progress.ends.get(broker, FIRST_OFFSET if leader.led_epoch == self._first else UNKNOWN_OFFSET)

    def in_sync(self, leader: Leader, end_offset: Offset, now: float, within_s: float) -> tuple[str, ...]:
        """Return the living replicas that are in sync with this leader, including this one.

        They have acknowledged the epoch up to an offset, or were caught up within a number of seconds.
        """
        return tuple(
            each
            for each in self._epoch_tree.starts[leader.led_epoch].replicas
            if each == self._broker
            or (
                each in self.alive
                and (
                    self.acknowledged_end(each, leader) >= end_offset
                    or now - self.progress.caught_up_at(each) <= within_s
                )
            )
        )

    def followed_since(self, leader: Leader, heard_since: Callable[[str], float]) -> float:
        """Return since when more than half of the voters are known to hear this leader and to follow no other one.

        `heard_since` returns since when a broker is known to hear this one. The time is infinity if no other broker is
        needed, minus infinity if they are not known to hear it.
        """
        voters = self.latest.voters
        times = sorted(
            (
                float("inf") if each == self._broker else heard_since(each)
                for each in voters
                if each == self._broker
                or (
                    self.acknowledged_end(each, leader) >= 0 and not leader.is_superseded_by(self._votes.epoch_of(each))
                )
            ),
            reverse=True,
        )
        return times[len(voters) // 2] if len(voters) // 2 < len(times) else float("-inf")

    def have_acknowledged_latest(self) -> bool:
        """Return whether more than half of the voters have acknowledged records of the latest epoch.

        The leader need not: what others acknowledge was durable there first.
        """
        latest = self.latest
        if self.progress.leader_epoch != latest.leader_epoch or not self.progress.ends:
            return False
        having = {latest.leader_epoch.leader, *self.progress.ends}
        return 2 * len(having.intersection(latest.voters)) > len(latest.voters)
