"""Who leads a log: the state machine of one replica.

`transitions.py` has the table of its states and transitions. Leaders and replicas exchange only durable control records
(`VoteRequest`, `Vote`, `EpochStart`). Each can come late, and in any order between brokers. The control records of one
broker come in the order in which it made them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs

from dafka.broker.core.metadata.leader_and_isr import next_epoch
from dafka.broker.core.positions import FIRST_OFFSET
from dafka.broker.core.replication.divergence import RULES, LateVotes
from dafka.broker.core.replication.effects import Lead, ReplicaAction, StepDown, WriteControl
from dafka.broker.core.replication.election import Election, VoteRecord
from dafka.broker.core.replication.election_timer import ElectionTimer
from dafka.broker.core.replication.election_triggers import ElectionTriggers
from dafka.broker.core.replication.epoch_tree import EpochTree, LocalEpochs
from dafka.broker.core.replication.peers import Peers
from dafka.broker.core.replication.records import (
    NO_EPOCH,
    RECOVERY_EPOCHS,
    ControlRecord,
    EpochEnd,
    EpochStart,
    LeaderAndEpoch,
    Vote,
    VoteRequest,
)
from dafka.broker.core.replication.settings import ReplicaSettings
from dafka.broker.core.replication.states import Elected, Follower, Leader, Starting, State
from dafka.broker.core.replication.transitions import Transition


class Elections:
    """The elections of one log, as one replica takes part in them.

    `number` is that of this broker, and unique. The epoch tree contains the first epoch. Tests set `on_transition`,
    which is called before each transition with the next state and the effects.
    """

    def __init__(
        self,
        log: str,
        broker: str,
        number: int,
        settings: ReplicaSettings,
        epoch_tree: EpochTree,
        local_epochs: LocalEpochs,
    ) -> None:
        assert epoch_tree.latest is not None
        first = epoch_tree.latest
        self.state: State = Follower()
        self.now = float("-inf")
        self.rule = RULES[settings.availability]
        self.votes = VoteRecord()
        self.peers = Peers(log, broker, first, epoch_tree, local_epochs, self.votes, self.rule)
        self.on_transition: Callable[[Transition, State, tuple[ReplicaAction, ...]], None] | None = None
        self._log = log
        self._broker = broker
        self._number = number
        self._epoch_tree = epoch_tree
        self._local_epochs = local_epochs
        self._first_epoch = self._largest_epoch = first.leader_epoch.epoch
        self._acknowledged_epoch = NO_EPOCH
        self._late_votes = LateVotes()
        self._timer = ElectionTimer(settings)
        self._triggers = ElectionTriggers(
            log, broker, settings, self.rule, self.peers, epoch_tree, local_epochs, self._late_votes
        )

    @property
    def is_complete(self) -> bool:
        """Whether this replica leads and stores all records before its epoch."""
        led_epoch = self.state.led_epoch
        return led_epoch is not None and self._local_epochs.is_complete(led_epoch)

    @property
    def settled_until(self) -> float:
        """When time alone makes this replica request votes or resign: infinity if never, minus infinity if soon."""
        return float("-inf") if self._timer.is_running else self._triggers.settled_until

    def renumber(self, number: int) -> None:
        """Set the number of this broker, which has changed."""
        self._number = number

    def record_new_epoch(self, leader_epoch: LeaderAndEpoch) -> None:
        """Record that this replica acknowledges records of another epoch from now on."""
        self._acknowledged_epoch = leader_epoch
        self._timer.record_new_epoch()

    # Events

    def restore(self, own: Iterable[ControlRecord], others: Iterable[tuple[str, ControlRecord]]) -> None:
        """Restore the control records of this broker, in their order, and of the others, each with its broker."""
        for broker, record in others:
            self._record(broker, record)
        for record in own:
            self._record(self._broker, record)
            if isinstance(record, Vote):
                self.votes.add_own(
                    self.votes.find_vote_request(record.leader_epoch) or VoteRequest(self._log, record.leader_epoch, ())
                )

    def resume(self) -> list[ReplicaAction]:
        """Lead again after a restart, if this replica stores the latest epoch and has voted for no later one."""
        start = self.peers.latest
        if start.leader_epoch.leader != self._broker:
            return self._follow_epoch_start(start)
        can_lead = (
            self._local_epochs.is_complete(start.leader_epoch) and self._voted_epoch() <= start.leader_epoch.epoch
        )
        return self._lead(Transition.RESUME, start) if can_lead else []

    def receive(self, broker: str, record: ControlRecord) -> list[ReplicaAction]:
        """Process a control record of another broker."""
        self._record(broker, record)
        if isinstance(record, VoteRequest):
            return self._consider(record)
        if isinstance(record, EpochStart):
            return [*self._follow_epoch_start(record), *self._count_votes()]
        vote_request = self.votes.find_vote_request(record.leader_epoch)
        # A request that was refused can be right: others vote for it.
        return [*([] if vote_request is None else self._consider(vote_request)), *self._count_votes()]

    def written(self, record: ControlRecord) -> list[ReplicaAction]:
        """Record that a control record of this broker is durable."""
        self._record(self._broker, record)
        if not isinstance(record, EpochStart):
            return self._count_votes()
        if not isinstance(self.state, Starting) or self.state.leader_epoch != record.leader_epoch:
            return []  # it voted for another epoch while this start was written
        self._wait_for_votes()  # time to read the records before the epoch
        return self._lead(Transition.LEAD, record)

    def set_alive(self, alive: frozenset[str], now: float, unwritable: frozenset[str]) -> list[ReplicaAction]:
        """Set the living brokers, including this one, and the brokers among them that cannot write."""
        if self.peers.alive != alive:
            self._timer.shorten_wait(now, self.peers.rank())
        self.peers.alive, self.peers.writable = alive, alive - unwritable if unwritable else alive
        return [*self.advance(now), *self._count_votes()]

    def advance(self, now: float) -> list[ReplicaAction]:
        """Request votes if the log has no leader, or resign if this replica leads and cannot get acknowledgements."""
        self._update_time(now)
        state, triggers = self.state, self._triggers
        if triggers.is_cut_off(now):
            return self._resign(Transition.RESIGN_CUT_OFF)
        if not triggers.should_request_votes(state, now):
            self._timer.stop()
            return self._advance_led(now)
        if not self._timer.is_due(now, triggers.wait_s) or isinstance(state, Starting):
            return []  # a replica that starts an epoch needs no other one
        if triggers.is_stuck():
            self._timer.stop()
            return self._resign(Transition.RESIGN_INCOMPLETE)
        self._wait_for_votes()
        self._timer.record_request()
        if isinstance(state, Leader):
            transition = Transition.REQUEST_NEXT_EPOCH
        elif self.peers.leader in self.peers.writable - {self._broker}:
            transition = Transition.REQUEST_TRANSFER
        else:
            transition = Transition.REQUEST_VOTES
        return self._request_votes(transition, self.peers.newest)

    def _advance_led(self, now: float) -> list[ReplicaAction]:
        """Withdraw an election that is not needed, or make learners voters, while the log has a leader."""
        state = self.state
        actions: list[ReplicaAction] = []
        if isinstance(state, Follower) and state.election is not None and not state.election.vote_request.is_transfer:
            actions = self.take(Transition.WITHDRAW, Follower())
        if self._triggers.are_learners_in_sync(state, now):
            actions = self._request_votes(Transition.PROMOTE_LEARNERS, attrs.evolve(self.peers.latest, learners=()))
        return actions

    def idle(self, now: float) -> None:
        """Record that nothing has happened until a time, because this replica was settled."""
        self.now = max(self.now, now)
        self._record_end(self.now)

    def transfer_leadership(self, requester: str = "") -> list[ReplicaAction]:
        """Request votes against a living leader, if this replica stores the latest epoch and should lead.

        It should if it is the preferred one, or the leader itself is the requester.
        """
        leader, order = self.peers.leader, self.peers.rank_writable()
        if (
            not isinstance(self.state, Follower)
            or leader in {"", self._broker}
            or not self._local_epochs.is_complete(self.peers.latest.leader_epoch)
            or self._broker not in (order if requester == leader else order[:1])
        ):
            return []
        return self._request_votes(Transition.REQUEST_TRANSFER, self.peers.newest)

    def change_replicas(self, replicas: Iterable[str], generation: int) -> list[ReplicaAction]:
        """Begin an epoch with other replicas, as the leader, which remains one of them.

        The generation is that of the command that has ordered them. The epoch begins when more than half of the former
        and of the new replicas have voted for it. If all former replicas stay, the added ones are learners until they
        are in sync: until then they would make a quorum harder to reach.
        """
        found, voters = tuple(replicas), self.peers.latest.voters
        if not self.is_complete or self._broker not in found or generation < self.peers.newest.generation:
            return []
        learners = tuple(each for each in found if each not in voters) if set(voters) <= set(found) else ()
        wanted = attrs.evolve(self.peers.latest, replicas=found, learners=learners, generation=generation)
        return self._request_votes(Transition.CHANGE_REPLICAS, wanted)

    def recover(self, generation: int) -> list[ReplicaAction]:
        """Begin an epoch with this replica alone, without votes: a quorum is lost for good.

        The epoch continues what this replica stores. Records that only others have are lost.
        """
        self._largest_epoch += RECOVERY_EPOCHS
        leader_epoch, log_end, led_epoch = self._next_epoch(), self._local_epochs.log_end(), self.state.led_epoch
        start = EpochStart(self._log, leader_epoch, log_end, (self._broker,), (), generation)
        self.votes.add_own(VoteRequest(self._log, leader_epoch, start.replicas, (), generation))
        effects = [] if led_epoch is None else [StepDown(led_epoch)]
        return self.take(Transition.RECOVER, Starting(leader_epoch), *effects, WriteControl(start))

    # Transitions

    def take(self, transition: Transition, state: State, *effects: ReplicaAction) -> list[ReplicaAction]:
        """Change the state by a row of the table, and return its effects. Nothing else changes the state."""
        if self.on_transition is not None:
            self.on_transition(transition, state, effects)
        self.state = state
        return list(effects)

    def _lead(self, transition: Transition, start: EpochStart) -> list[ReplicaAction]:
        self.peers.progress.begin(start.leader_epoch)
        return self.take(transition, Leader(start.leader_epoch), Lead(start))

    def _request_votes(self, transition: Transition, wanted: EpochStart) -> list[ReplicaAction]:
        """Request votes for an epoch with the replicas of an epoch start, present or wanted."""
        led_epoch = self.state.led_epoch
        if self.is_complete and self._late_votes.leader_epoch != led_epoch:
            self._late_votes.clear()  # this epoch continues the right log, and is complete
        leader_epoch = self._next_epoch()
        self._triggers.record_request()
        is_transfer = transition is Transition.REQUEST_TRANSFER
        vote_request = VoteRequest(
            self._log, leader_epoch, wanted.replicas, wanted.learners, wanted.generation, is_transfer
        )
        election = Election(vote_request, self.rule)
        state = Follower(election) if led_epoch is None else Leader(led_epoch, election)
        return self.take(transition, state, WriteControl(vote_request))

    def _consider(self, vote_request: VoteRequest) -> list[ReplicaAction]:
        """Vote for the request of another replica, if its epoch is later than all votes of this replica."""
        is_asked = self._broker in vote_request.replicas or self._broker in self.peers.known
        if (
            not is_asked
            or not self.peers.may_request(vote_request)
            or vote_request.leader_epoch.leader == self._broker
            or vote_request.leader_epoch.epoch <= self._voted_epoch()
            or self._follows_another(vote_request)
        ):
            return []
        return self._vote_for_another(Transition.VOTE, vote_request)

    def _follows_another(self, vote_request: VoteRequest) -> bool:
        """Return whether this replica follows a living leader that only the requesting replica does not hear.

        Otherwise each broker that comes back would stop logs that continue without it. For a transfer, the leader votes
        first, and its followers after it: otherwise it could still answer readers while the next one already leads. It
        votes only for a replica that it hears: others relay requests of replicas that could not lead.
        """
        peers, candidate = self.peers, vote_request.leader_epoch.leader
        leader = peers.leader
        if self.rule.can_diverge or leader not in peers.writable or leader == candidate:
            return False
        if leader == self._broker:
            return (
                isinstance(self.state, Leader)
                and self.is_complete
                and peers.has_quorum_without(self.state, candidate)
                and not (vote_request.is_transfer and candidate in peers.alive)
            )
        latest = peers.latest
        return self._broker not in latest.voters or self._local_epochs.log_end().leader_epoch == latest.leader_epoch

    def _follow_epoch_start(self, start: EpochStart) -> list[ReplicaAction]:
        """Vote for an epoch that has begun, if its vote request was not processed: this broker was down."""
        voted_epoch = max(self.votes.own_epoch, self._first_epoch)
        if start.leader_epoch.epoch <= voted_epoch or self._broker not in self.peers.known:
            return []
        vote_request = VoteRequest(self._log, start.leader_epoch, start.replicas, start.learners, start.generation)
        return self._vote_for_another(Transition.FOLLOW, vote_request)

    def _vote_for_another(self, transition: Transition, vote_request: VoteRequest) -> list[ReplicaAction]:
        """Vote for an epoch of another replica. An election of this one for a later epoch continues."""
        self._late_votes.clear()
        election = self.state.election
        is_later = election is not None and election.leader_epoch.epoch > vote_request.leader_epoch.epoch
        actions = self._vote_for(transition, vote_request, Follower(election if is_later else None))
        self._timer.record_request()
        return actions

    def _resign(self, transition: Transition) -> list[ReplicaAction]:
        """Vote for an epoch that nobody requests, so that other replicas request votes when they hear of it."""
        return self._vote_for(transition, VoteRequest(self._log, self._next_epoch(), ()), Follower())

    def _vote_for(self, transition: Transition, vote_request: VoteRequest, state: State) -> list[ReplicaAction]:
        latest = self.peers.latest
        # These are the voters of the latest known epoch, and of all later ones that can have begun.
        replica_sets = (latest.voters, *self.votes.pending_voters(latest.leader_epoch.epoch))
        self.votes.add_own(vote_request)
        if vote_request.replicas:  # the election gets as much time as this replica's own
            self._wait_for_votes()
        vote = Vote(
            self._log,
            vote_request.leader_epoch,
            self._local_epochs.log_end(),
            tuple(dict.fromkeys(replica_sets)),
            latest.leader_epoch,
            self._local_epochs.log_start,
        )
        led_epoch = self.state.led_epoch
        effects = [] if led_epoch is None else [StepDown(led_epoch)]
        return self.take(transition, state, *effects, WriteControl(vote))

    def _count_votes(self) -> list[ReplicaAction]:
        """Vote for itself, or start the epoch, if enough others have voted for it.

        This replica is the last to vote for itself: until others have voted, it follows the former leader.
        """
        state, election = self.state, self.state.election
        if election is None or not election.has_quorum(self.peers.writable):
            return []
        if isinstance(state, Elected):
            return self._start_epoch(election)
        if election.leader_epoch.epoch <= self._voted_epoch():
            return []
        return self._vote_for(Transition.ELECT, election.vote_request, Elected(election))

    def _start_epoch(self, election: Election) -> list[ReplicaAction]:
        """Start the epoch, unless its own vote is being written, or an epoch start is on its way."""
        log_ends = election.log_ends(self._late_votes.log_ends)
        latest = EpochEnd(self.peers.latest.leader_epoch, FIRST_OFFSET)
        request = election.vote_request
        if (
            not election.has_own_vote
            or request.generation < self.peers.newest.generation  # it requests votes again, for the newest replicas
            or not election.knows_epoch_starts(self._epoch_tree, [*log_ends, latest])
            or not election.has_quorum_of_former_voters(self._epoch_tree)
        ):
            return []
        parent = self.rule.choose_parent(log_ends, self._epoch_tree)
        start = EpochStart(
            self._log,
            request.leader_epoch,
            parent,
            request.replicas,
            request.learners,
            request.generation,
            election.log_start(parent, self._epoch_tree),
        )
        return self.take(Transition.START, Starting(request.leader_epoch), WriteControl(start))

    # Records and times

    def _record(self, broker: str, record: ControlRecord) -> None:
        self._largest_epoch = max(self._largest_epoch, record.leader_epoch.epoch)
        if isinstance(record, EpochStart):
            self._epoch_tree.add(record)
            self.peers.add_known(record.replicas)
            self._triggers.record_epoch_start()
        elif isinstance(record, VoteRequest):
            self.votes.record_request(record)
            self.peers.add_known(record.replicas)
        else:
            self.votes.record_vote(broker, record.leader_epoch.epoch)
            election = self.state.election
            if election is not None and record.leader_epoch == election.leader_epoch:
                election.votes[broker] = record
            elif record.leader_epoch == self.state.led_epoch:
                self._late_votes.add(broker, record.leader_epoch, record.log_end)

    def _next_epoch(self) -> LeaderAndEpoch:
        """Return an unused epoch of this broker that is later than all known ones."""
        self._largest_epoch = next_epoch(max(self._largest_epoch, self._local_epochs.latest.epoch), self._number)
        return LeaderAndEpoch(self._largest_epoch, self._broker)

    def _voted_epoch(self) -> int:
        """Return the latest epoch of which this replica cannot vote for an earlier one."""
        log_end = self._local_epochs.log_end()
        return max(self.votes.own_epoch, self._acknowledged_epoch.epoch, log_end.leader_epoch.epoch)

    def _wait_for_votes(self) -> None:
        """Give a new election time to get its votes."""
        self._timer.wait_for_votes(self.now, self.peers.rank())

    def _update_time(self, now: float) -> None:
        """Update the time and the caught-up times of the followers. Start all waits again if the clock was set back."""
        if now < self.now:
            self._timer.reset()
            self._triggers.reset()
            self.peers.progress.set_back(now)
        self._record_end(min(self.now, now))
        self.now = now

    def _record_end(self, at: float) -> None:
        """Record which followers were caught up with this leader at a time."""
        if self.state.led_epoch is not None:
            self.peers.progress.record_end(self._local_epochs.end_of(self.state.led_epoch), at)
