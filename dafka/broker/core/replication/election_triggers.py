"""The reasons for which a replica requests votes, or resigns."""

from __future__ import annotations

from dafka.broker.core.replication.divergence import LateVotes, Rule
from dafka.broker.core.replication.election_timer import Debounce
from dafka.broker.core.replication.epoch_tree import EpochTree, LocalEpochs
from dafka.broker.core.replication.peers import Peers
from dafka.broker.core.replication.settings import ReplicaSettings
from dafka.broker.core.replication.states import Leader, State
from dafka.protocol.rendezvous import weigh_node

JOINING_WAIT_S = 3.0
"""How much later a replica that still copies a new log requests votes, in seconds."""


class ElectionTriggers:
    """Decides whether one replica requests votes, or resigns. When it does so is up to `ElectionTimer`."""

    def __init__(
        self,
        log: str,
        broker: str,
        settings: ReplicaSettings,
        rule: Rule,
        peers: Peers,
        epoch_tree: EpochTree,
        local_epochs: LocalEpochs,
        late_votes: LateVotes,
    ) -> None:
        self._broker = broker
        self._settings = settings
        self._rule = rule
        self._peers = peers
        self._epoch_tree = epoch_tree
        self._local_epochs = local_epochs
        self._late_votes = late_votes
        self._log = log
        self._ready, self._cut_off, self._learners_in_sync = Debounce(), Debounce(), Debounce()

    @property
    def settled_until(self) -> float:
        """When time alone makes this replica request votes or resign: infinity if never, minus infinity if soon."""
        if self._cut_off.is_running:
            return float("-inf")
        return self._ready.due_at(self._transfer_after_s()) if self._ready.is_running else float("inf")

    def reset(self) -> None:
        """Measure all times again, because the clock was set back."""
        for each in (self._ready, self._cut_off, self._learners_in_sync):
            each.end()

    def record_request(self) -> None:
        """Measure the time of the learners again, as this replica requests votes."""
        self._learners_in_sync.end()

    def record_epoch_start(self) -> None:
        """Measure the time of a preferred leader again, so that others can lead, too."""
        self._ready.end()

    # Requesting votes

    def should_request_votes(self, state: State, now: float) -> bool:
        """Return whether to request votes as soon as the timer is due.

        It is if the log has no leader that should continue, and this replica can be elected.
        """
        peers = self._peers
        if self._broker not in peers.writable.intersection(peers.newest.voters) or not peers.can_elect:
            return False
        has_rival = peers.has_rival()
        if (
            isinstance(state, Leader)
            and self._local_epochs.is_complete(state.led_epoch)
            and not has_rival
            and not peers.is_superseded(state)
            and not self._should_follow_others(state)
        ):
            return False
        leader = peers.leader
        if leader in {"", self._broker} or leader not in peers.writable:
            return True  # this one has restarted, or misses records before its epoch: it begins another one
        if leader not in peers.newest.voters:
            return True  # it led one side of a split, while the other side removed it: it can begin no other epoch
        return has_rival or self._is_due_to_transfer(leader, now)

    def _should_follow_others(self, state: Leader) -> bool:
        """Return whether replicas that were partitioned away have an epoch that should continue instead of this one.

        They voted for this leader only after its epoch had begun.
        """
        if not self._rule.can_diverge or self._late_votes.leader_epoch != state.led_epoch:
            return False
        own, peers = self._local_epochs.log_end(), self._peers
        late = {
            each: log_end
            for each, log_end in self._late_votes.log_ends.items()
            if self._epoch_tree.common_end(log_end, own) not in {None, log_end}
        }
        log_ends = [late.get(each, own) for each in peers.latest.voters if each in peers.alive]
        return self._rule.choose_parent(log_ends, self._epoch_tree) != own

    def _is_due_to_transfer(self, leader: str, now: float) -> bool:
        """Return whether this replica is preferred to the leader, and has been ready to take over for long enough."""
        peers = self._peers
        is_ready = peers.rank_writable()[0] == self._broker != leader and self._local_epochs.is_complete(
            peers.latest.leader_epoch
        )
        return self._ready.has_lasted(is_ready, now, self._transfer_after_s() if is_ready else 0.0)

    def _transfer_after_s(self) -> float:
        """Return for how long this replica must be ready to take over, in seconds: not all logs move at once."""
        ineligible = self._peers.preference.ineligible_leaders
        if self._peers.leader in ineligible and self._broker not in ineligible:
            return self._settings.election_timeout_s
        return self._settings.preferred_leader_after_s * (1 + weigh_node(self._log, self._broker)[0] / 256)

    def wait_s(self) -> float:
        """Return how long others have to request votes before this replica does, in seconds.

        Replicas that need not fetch anything take over sooner.
        """
        order = self._peers.rank_writable()
        wait_s = order.index(self._broker) * self._settings.stagger_s
        latest = self._peers.latest
        if self._peers.is_joining and not self._local_epochs.is_complete(latest.leader_epoch):
            wait_s += JOINING_WAIT_S
        elif not self._local_epochs.reaches(latest.parent):
            wait_s += 2 * len(order) * self._settings.stagger_s
        elif not self._local_epochs.is_complete(latest.leader_epoch):
            wait_s += len(order) * self._settings.stagger_s
        return wait_s

    def are_learners_in_sync(self, state: State, now: float) -> bool:
        """Return whether this replica leads, and all learners have been in sync for some time."""
        latest, wait_s = self._peers.latest, self._settings.learners_in_sync_s
        are_in_sync = (
            isinstance(state, Leader)
            and state.led_epoch == latest.leader_epoch
            and bool(latest.learners)
            and self._local_epochs.is_complete(state.led_epoch)
            and set(latest.learners)
            <= set(self._peers.in_sync(state, self._local_epochs.end_of(state.led_epoch), now, wait_s))
        )
        return self._learners_in_sync.has_lasted(are_in_sync, now, wait_s)

    # Resigning

    def is_cut_off(self, now: float) -> bool:
        """Return whether others see this replica as leader, and it has not heard most of them for some time."""
        peers = self._peers
        is_cut_off = peers.is_leader and not peers.is_quorum_active and not self._rule.can_diverge
        return self._cut_off.has_lasted(is_cut_off, now, self._settings.election_timeout_s)

    def is_stuck(self) -> bool:
        """Return whether this leader still misses records before its epoch, and another replica could lead instead."""
        peers = self._peers
        is_incomplete = peers.is_leader and not self._local_epochs.reaches(peers.latest.parent)
        return is_incomplete and len(peers.writable.intersection(peers.latest.voters)) > 1
