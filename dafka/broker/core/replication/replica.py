"""The state machine of one replica of one log: its leader, its end, and its acknowledgements.

Leaders and replicas exchange only durable control records (`VoteRequest`, `Vote`, `EpochStart`), index records and
acknowledgements of index records. Each can come late, and in any order between brokers. The control records of one
broker come in the order in which it made them.

Why no record that more than half of the replicas have acknowledged is lost (`Availability.MAJORITY`): an epoch begins
with the votes of more than half of the replicas. A replica acknowledges a record only while it has voted for no later
epoch. So each set of votes includes one whose log has the record, and the new epoch continues the longest log of the
latest epoch among the votes. After a change of replicas, an election needs a quorum of each voter set that can have
committed records which no vote includes. `docs/explanation/replication-safety.md` has the whole argument.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from dafka.broker.core.replication.effects import (
    Acknowledge,
    AdvanceHighWatermark,
    Lead,
    ReplicaAction,
    StepDown,
    WriteControl,
)
from dafka.broker.core.replication.election import Election
from dafka.broker.core.replication.election_timer import Debounce, ElectionTimer
from dafka.broker.core.replication.epoch_tree import EpochTree
from dafka.broker.core.replication.high_watermark import HighWatermark
from dafka.broker.core.replication.leader_preference import LeaderPreference
from dafka.broker.core.replication.local_epochs import LocalEpochs
from dafka.broker.core.replication.progress import FollowerProgress
from dafka.broker.core.replication.records import (
    NO_EPOCH,
    NO_EPOCH_END,
    ControlRecord,
    EpochEnd,
    EpochStart,
    LeaderAndEpoch,
    Vote,
    VoteRequest,
    next_epoch,
)
from dafka.broker.core.replication.settings import Availability, ReplicaSettings
from dafka.broker.core.replication.vote_record import VoteRecord
from dafka.protocol.rendezvous import weigh_node

JOINED_S = 3.0
"""For how many seconds a learner must be in sync before it becomes a voter. A reassignment can make it one sooner,
together with the removal of another replica."""

JOINING_WAIT_S = 3.0
"""How much later a replica that still copies a new log requests votes, in seconds."""


class Replica:
    """One replica of one log.

    To start, also for the first time, call `restore` with all control records that this broker stores, `restore_local`
    with the stored end of each epoch, then `resume`.

    Args:
        log: The name of the log.
        broker: The address of this broker.
        number: The number of this broker, which is unique.
        replicas: The replicas of the first epoch, which needs no control record. The first one leads it.
        settings: How the log is replicated.
        first_epoch: The number of the first leader epoch.

    Attributes:
        epoch_tree: The leader epochs of the log.
        local_epochs: The leader epochs that this replica stores.
        led_epoch: The leader epoch that this replica leads; None if it leads none.
    """

    def __init__(
        self,
        log: str,
        broker: str,
        number: int,
        replicas: Iterable[str],
        settings: ReplicaSettings,
        first_epoch: int = 0,
    ) -> None:
        found = tuple(replicas)
        self._first = LeaderAndEpoch(first_epoch, found[0])
        self.epoch_tree = EpochTree([EpochStart(log, self._first, NO_EPOCH_END, found)])
        self.led_epoch: LeaderAndEpoch | None = None
        self._log = log
        self._broker = broker
        self._number = number
        self._settings = settings
        self._transfer_after_s = settings.preferred_leader_after_s * (1 + weigh_node(log, broker)[0] / 256)
        self._alive: frozenset[str] = frozenset()
        self._writable = self._alive
        self._order = LeaderPreference(log)
        self.local_epochs = LocalEpochs(self.epoch_tree, self._first)
        self._acknowledged = NO_EPOCH_END
        self._vote_record = VoteRecord()
        self._largest_epoch = first_epoch
        self._election: Election | None = None
        self._late_log_ends: dict[str, EpochEnd] = {}
        self._late_for = NO_EPOCH
        self._acks = FollowerProgress()
        self._mark = HighWatermark(broker, self.epoch_tree, self._acks, settings.availability)
        self._known_replicas = set(found)
        self._now = float("-inf")
        self._timer = ElectionTimer(settings)
        self._ready, self._cut_off, self._learners_in_sync = Debounce(), Debounce(), Debounce()

    # State

    @property
    def latest(self) -> EpochStart:
        """The start of the latest leader epoch."""
        assert self.epoch_tree.latest is not None
        return self.epoch_tree.latest

    @property
    def replicas(self) -> tuple[str, ...]:
        """The replicas, as far as this replica knows."""
        return self.latest.replicas

    @property
    def voters(self) -> tuple[str, ...]:
        """The replicas that count for a quorum, as far as this replica knows: all but the learners."""
        return self.latest.voters

    @property
    def leader(self) -> str:
        """The leader, as far as this replica knows; empty if there is none."""
        leader_epoch = self.latest.leader_epoch
        return "" if self._vote_record.epoch_of(leader_epoch.leader) > leader_epoch.epoch else leader_epoch.leader

    def has_voted(self, broker: str, epoch: int) -> bool:
        """Return whether a broker has voted for this epoch or a later one."""
        return self._vote_record.epoch_of(broker) >= epoch

    def renumber(self, number: int) -> None:
        """Set the number of this broker, which has changed."""
        self._number = number

    @property
    def may_append(self) -> bool:
        """Whether this replica leads and stores all records before its epoch."""
        return self.led_epoch is not None and self.local_epochs.is_complete(self.led_epoch)

    @property
    def high_watermark(self) -> int:
        """The offset up to which readers can read from this replica, leader or follower."""
        return self._mark.offset

    @property
    def acknowledged_log_end(self) -> EpochEnd:
        """The last acknowledgement of this replica. A leader can pass it on to its followers: see `acknowledged`."""
        return self._acknowledged

    @property
    def is_joining(self) -> bool:
        """Whether this broker still copies the log to become a replica, and the others have a quorum without it."""
        others = self._alive.intersection(self.voters) - {self._broker}
        is_needed = self.latest.leader_epoch.leader == self._broker or 2 * len(others) <= len(self.voters)
        if self._broker not in self.replicas or is_needed:
            return False
        start = self.epoch_tree.starts.get(self.local_epochs.log_end().leader_epoch)
        return start is None or self._broker not in start.replicas

    def in_sync(self, max_lag: int = 0, within_s: float = 0.0) -> tuple[str, ...]:
        """Return the living replicas that are in sync, as far as the leader knows.

        Args:
            max_lag: How many offsets a replica can lag.
            within_s: How long ago a replica that lags more must have been caught up, in seconds.

        Returns:
            The replicas, including this one; none if this one does not lead.
        """
        if self.led_epoch is None:
            return ()
        end = self.local_epochs.end_of(self.led_epoch)
        return tuple(
            each
            for each in self.epoch_tree.starts[self.led_epoch].replicas
            if each == self._broker
            or (
                each in self._alive
                and (self._acked_by(each) >= end - max_lag or self._now - self._acks.caught_up_at(each) <= within_s)
            )
        )

    def heard_since(self, heard_since: Callable[[str], float]) -> float:
        """Return since when more than half of the replicas are known to hear this leader and to follow no other one.

        They follow no other leader until they have not heard this one for the time after which a broker counts as dead.

        Args:
            heard_since: Returns the start of the last round that a broker has answered; see `LeaseRounds`.

        Returns:
            The time; infinity if no other broker is needed, minus infinity if they are not known to hear it.
        """
        if self.led_epoch is None or (
            self._broker in self._alive - self._writable and self._has_enough(self._writable)
        ):
            return float("-inf")
        if self._settings.availability is Availability.BRANCH:
            return float("inf")
        times = sorted(
            (
                float("inf") if each == self._broker else heard_since(each)
                for each in self.voters
                if each == self._broker or (self._acked_by(each) >= 0 and not self._has_later_vote(each))
            ),
            reverse=True,
        )
        enough = len(self.voters) // 2
        return times[enough] if enough < len(times) else float("-inf")

    @property
    def may_drop(self) -> bool:
        """Whether this broker is no replica, and more than half of the replicas store everything that it could provide.

        To drop the local log, delete it and call `restore_local` without it. Logs with the availability "branch" are
        never dropped: no replica knows whether another one stores every epoch.
        """
        replicas = self.replicas
        acknowledged_count = (
            self._acks.acknowledged_count(self.voters) if self._acks.leader_epoch == self.latest.leader_epoch else 0
        )
        return (
            self._settings.availability is Availability.MAJORITY
            and self._broker not in self._vote_record.pending_replicas().union(replicas)
            and 2 * acknowledged_count > len(self.voters)
        )

    @property
    def availability(self) -> Availability:
        """What the sides of a partitioned network can do."""
        return self._settings.availability

    @property
    def may_serve(self) -> bool:
        """Whether no other replica can have begun to lead, as far as the heartbeats show."""
        is_replaced = self._broker in self._alive - self._writable and self._has_enough(self._writable)
        return not is_replaced and (self.is_quorum_active or self._settings.availability is Availability.BRANCH)

    @property
    def is_quorum_active(self) -> bool:
        """Whether more than half of the replicas are alive, as far as this broker knows."""
        return 2 * len(self._alive & set(self.voters)) > len(self.voters)

    # Events

    def restore(self, own: Iterable[ControlRecord], others: Iterable[tuple[str, ControlRecord]]) -> None:
        """Restore the control records that this broker has made, and those of others that it stores.

        Args:
            own: This broker's own, in their order.
            others: The others', with the address of the broker that made each.
        """
        for broker, record in others:
            self._record(broker, record)
        for record in own:
            self._record(self._broker, record)
            if isinstance(record, Vote):
                self._vote_record.add_own(
                    self._vote_record.find_vote_request(record.leader_epoch)
                    or VoteRequest(self._log, record.leader_epoch, ())
                )

    def restore_local(self, ends: dict[LeaderAndEpoch, int]) -> None:
        """Restore what this broker stores of each epoch: the offset after its last index record."""
        self.local_epochs.restore(ends)
        self._mark.reset()
        for leader_epoch in ends:
            self._largest_epoch = max(self._largest_epoch, leader_epoch.epoch)

    def resume(self) -> list[ReplicaAction]:
        """Lead again after a restart, if this replica stores the latest epoch and has voted for no later one."""
        start = self.latest
        if start.leader_epoch.leader != self._broker:
            return self._follow_epoch_start(start)
        if self._voted_epoch() > start.leader_epoch.epoch or not self.local_epochs.is_complete(start.leader_epoch):
            return []
        return [*self._begin_leading(start), *self._acknowledge()]

    def receive(self, broker: str, record: ControlRecord) -> list[ReplicaAction]:
        """Process a control record of another broker."""
        self._record(broker, record)
        if isinstance(record, VoteRequest):
            return self._consider(record)
        if isinstance(record, Vote):  # a request that was refused can be right: others vote for it
            vote_request = self._vote_record.find_vote_request(record.leader_epoch)
            return [*([] if vote_request is None else self._consider(vote_request)), *self._begin_if_elected()]
        return [*self._follow_epoch_start(record), *self._begin_if_elected(), *self._acknowledge()]

    def written(self, record: ControlRecord) -> list[ReplicaAction]:
        """Record that a control record of this broker is durable."""
        self._record(self._broker, record)
        if not isinstance(record, EpochStart):
            return self._begin_if_elected()
        if self._vote_record.own is None or self._vote_record.own.leader_epoch != record.leader_epoch:
            return []  # it voted for another epoch while this start was written
        self._wait_for_votes()  # time to read the records before the epoch
        return self._begin_leading(record)

    def stored(self, leader_epoch: LeaderAndEpoch, end_offset: int) -> list[ReplicaAction]:
        """Record that index records of an epoch, and the records that they name, are durable here.

        Args:
            leader_epoch: The leader epoch.
            end_offset: The offset after the last record.

        Returns:
            The actions.
        """
        self.local_epochs.add(leader_epoch, end_offset)
        self._largest_epoch = max(self._largest_epoch, leader_epoch.epoch)
        return self._acknowledge()

    def acknowledged(self, broker: str, leader_epoch: LeaderAndEpoch, end_offset: int) -> list[ReplicaAction]:
        """Process an acknowledgement of another replica, or of this one.

        Every replica can hear the acknowledgements of all: followers use them to advance their high watermark.
        """
        if leader_epoch.epoch < self._acks.leader_epoch.epoch or (
            self.led_epoch is not None and leader_epoch != self.led_epoch
        ):
            return []
        self._acks.add(broker, leader_epoch, end_offset)
        return self._move_high_watermark()

    def set_alive(
        self, brokers: Collection[str], now: float, unwritable: frozenset[str] = frozenset()
    ) -> list[ReplicaAction]:
        """Set the brokers that are alive, as far as this one knows. It is one of them.

        Args:
            brokers: The brokers.
            now: The time.
            unwritable: Those of them that cannot write: they can neither vote nor acknowledge.

        Returns:
            The actions.
        """
        if self._alive != frozenset(brokers):
            self._timer.shorten_wait(now, self._rank())
        self._alive = frozenset(brokers)
        self._writable = self._alive - unwritable
        return [*self.advance(now), *self._begin_if_elected(), *self._move_high_watermark()]

    @property
    def is_settled(self) -> bool:
        """Whether time alone changes nothing: `advance` need not be called before the next event."""
        if self._timer.is_running or self._ready.is_running or self._cut_off.is_running:
            return False
        if self.led_epoch is None:
            return True
        if self.latest.learners:
            return False
        end = self.local_epochs.end_of(self.led_epoch)
        return all(self._acked_by(each) >= end for each in self.replicas if each != self._broker)

    def idle(self, now: float) -> None:
        """Record that nothing has happened until a time, because this replica was settled."""
        self._now = max(self._now, now)
        if self.led_epoch is not None:
            self._acks.record_end(self.local_epochs.end_of(self.led_epoch), self._now)

    def set_preferences(self, preferred: tuple[str, ...], ineligible_leaders: frozenset[str]) -> bool:
        """Set the brokers that are preferred as leaders.

        Args:
            preferred: The preferred brokers, best first; the others follow in rendezvous order.
            ineligible_leaders: The brokers that lead only if no other replica can: they are drained or full.

        Returns:
            Whether anything has changed.
        """
        return self._order.set(preferred, ineligible_leaders)

    def advance(self, now: float) -> list[ReplicaAction]:
        """Request votes if the log has no leader, or resign if this replica leads and cannot get acknowledgements."""
        self._update_time(now)
        if self._is_cut_off(now):
            return self._resign()
        if not self._should_request_votes(now):
            self._withdraw_election()
            self._timer.stop()
            return self._request_votes_with(self.replicas) if self._are_learners_in_sync(now) else []
        if not self._timer.is_due(now, self._wait_before_election_s):
            return []
        if self._is_stuck():
            self._timer.stop()
            return self._resign()
        self._wait_for_votes()
        self._timer.record_request()
        is_transfer = self.leader in self._writable - {self._broker}
        return self._request_votes_with(self.replicas, self.latest.learners, is_transfer=is_transfer)

    def may_lead(self, broker: str) -> bool:
        """Return whether a replica is alive, can write, and is neither drained nor full."""
        return broker in self._writable and broker not in self._order.ineligible_leaders

    def transfer_leadership(self) -> list[ReplicaAction]:
        """Request votes against a living leader, if this replica is preferred and stores the latest epoch."""
        leader = self.leader
        if leader in {"", self._broker} or not self.local_epochs.is_complete(self.latest.leader_epoch):
            return []
        is_first = self._rank_living()[:1] == [self._broker]
        return self._request_votes_with(self.replicas, self.latest.learners, is_transfer=True) if is_first else []

    def change_replicas(self, replicas: Iterable[str]) -> list[ReplicaAction]:
        """Begin an epoch with other replicas, as the leader, which remains one of them.

        It begins when more than half of the former and of the new replicas have voted for it. If all former replicas
        stay, the added ones are learners until they are in sync: until then they would make a quorum harder to reach.
        """
        found, voters = tuple(replicas), self.voters
        learners = tuple(each for each in found if each not in voters) if set(voters) <= set(found) else ()
        return self._request_votes_with(found, learners) if self.may_append and self._broker in found else []

    def _begin_leading(self, start: EpochStart) -> list[ReplicaAction]:
        self.led_epoch = start.leader_epoch
        self._acks.begin(start.leader_epoch)
        return [Lead(start)]

    def _update_time(self, now: float) -> None:
        """Update the time and the caught-up times of the followers. Start all waits again if the clock was set back."""
        if now < self._now:
            self._timer.reset()
            for each in (self._ready, self._cut_off, self._learners_in_sync):
                each.end()
            self._acks.set_back(now)
        if self.led_epoch is not None:
            self._acks.record_end(self.local_epochs.end_of(self.led_epoch), min(self._now, now))
        self._now = now

    # Vote requests and votes

    def _wait_for_votes(self) -> None:
        """Give a new election time to get its votes."""
        self._timer.wait_for_votes(self._now, self._rank())

    def _wait_before_election_s(self) -> float:
        """Return how long others have to request votes before this replica does, in seconds."""
        order = self._rank_living()
        wait_s = order.index(self._broker) * self._settings.stagger_s
        latest = self.latest  # replicas that need not fetch anything take over sooner
        if self.is_joining and not self.local_epochs.is_complete(latest.leader_epoch):
            wait_s += JOINING_WAIT_S
        elif not self.local_epochs.reaches(latest.parent):
            wait_s += 2 * len(order) * self._settings.stagger_s
        elif not self.local_epochs.is_complete(latest.leader_epoch):
            wait_s += len(order) * self._settings.stagger_s
        return wait_s

    def _rank(self) -> int:
        """Return how many replicas are preferred to this one as leaders."""
        order = self._rank_living()
        return order.index(self._broker) if self._broker in order else len(order)

    def _withdraw_election(self) -> None:
        """Withdraw the election if a leader has appeared and this replica has not yet voted for itself."""
        vote_request = None if self._election is None else self._election.vote_request
        if (
            vote_request is not None
            and vote_request != self._vote_record.own
            and not vote_request.is_transfer
            and self.led_epoch is None
        ):
            self._election = None

    def _request_votes_with(
        self, replicas: tuple[str, ...], learners: tuple[str, ...] = (), *, is_transfer: bool = False
    ) -> list[ReplicaAction]:
        if self.may_append and self._late_for != self.led_epoch:
            self._late_log_ends = {}  # this epoch continues the right log, and is complete
        leader_epoch = LeaderAndEpoch(next_epoch(self._largest_epoch, self._number), self._broker)
        self._largest_epoch = leader_epoch.epoch
        self._learners_in_sync.end()
        vote_request = VoteRequest(self._log, leader_epoch, replicas, learners, is_transfer)
        self._election = Election(vote_request, self._settings.availability)
        return [WriteControl(vote_request)]

    def _record(self, broker: str, record: ControlRecord) -> None:
        self._largest_epoch = max(self._largest_epoch, record.leader_epoch.epoch)
        if isinstance(record, EpochStart):
            self.epoch_tree.add(record)
            self._known_replicas.update(record.replicas)
            self._ready.end()  # a preferred replica waits again, so that others can lead, too
        elif isinstance(record, VoteRequest):
            self._vote_record.record_request(record)
            self._known_replicas.update(record.replicas)
        elif isinstance(record, Vote):
            self._vote_record.record_vote(broker, record.leader_epoch.epoch)
            if self._election is not None and record.leader_epoch == self._election.leader_epoch:
                self._election.votes[broker] = record
            elif record.leader_epoch == self.led_epoch:
                if self._late_for != record.leader_epoch:
                    self._late_log_ends, self._late_for = {}, record.leader_epoch
                self._late_log_ends[broker] = record.log_end

    def _consider(self, vote_request: VoteRequest) -> list[ReplicaAction]:
        """Vote for the request of another replica, if its epoch is later than all votes of this replica."""
        is_asked = self._broker in vote_request.replicas or self._broker in self._known_replicas
        if (
            not is_asked
            or vote_request.leader_epoch.leader == self._broker
            or vote_request.leader_epoch.epoch <= self._voted_epoch()
        ):
            return []
        return [] if self._follows_another(vote_request) else self._vote_for(vote_request)

    def _follows_another(self, vote_request: VoteRequest) -> bool:
        """Return whether this replica follows a living leader that only the requesting replica does not hear.

        Otherwise each broker that comes back would stop logs that continue without it. For a transfer, the leader votes
        first, and its followers after it: otherwise it could still answer readers while the next one already leads.
        """
        leader = self.leader
        is_heard = leader in self._writable and leader != vote_request.leader_epoch.leader
        if self._settings.availability is Availability.BRANCH or not is_heard:
            return False
        if leader == self._broker:
            return (
                self.may_append
                and self._has_quorum_without(vote_request.leader_epoch.leader)
                and not vote_request.is_transfer
            )
        return self._broker not in self.voters or self.local_epochs.log_end().leader_epoch == self.latest.leader_epoch

    def _follow_epoch_start(self, start: EpochStart) -> list[ReplicaAction]:
        """Vote for an epoch that has begun, if its vote request was not processed: this broker was down."""
        voted_epoch = max(self._vote_record.own_epoch, self._first.epoch)
        if start.leader_epoch.epoch <= voted_epoch or self._broker not in self._known_replicas:
            return []
        return self._vote_for(VoteRequest(self._log, start.leader_epoch, start.replicas, start.learners))

    def _vote_for(self, vote_request: VoteRequest) -> list[ReplicaAction]:
        is_own = vote_request.leader_epoch.leader == self._broker
        if not is_own:
            self._late_log_ends = {}
        replica_sets, latest = self._possible_replica_sets(), self.latest.leader_epoch
        self._vote_record.add_own(vote_request)
        if vote_request.replicas:  # the election gets as much time as this replica's own
            self._wait_for_votes()
            if not is_own:
                self._timer.record_request()
        actions: list[ReplicaAction] = []
        if self.led_epoch is not None:
            actions.append(StepDown(self.led_epoch))
            self.led_epoch = None
        return [
            *actions,
            WriteControl(Vote(self._log, vote_request.leader_epoch, self.local_epochs.log_end(), replica_sets, latest)),
        ]

    def _possible_replica_sets(self) -> tuple[tuple[str, ...], ...]:
        """Return the voters of the latest known epoch, and of all later ones that can have begun."""
        return tuple(dict.fromkeys((self.voters, *self._vote_record.pending_voters(self.latest.leader_epoch.epoch))))

    def _voted_epoch(self) -> int:
        return max(
            self._vote_record.own_epoch,
            self._acknowledged.leader_epoch.epoch,
            self.local_epochs.log_end().leader_epoch.epoch,
        )

    def _begin_if_elected(self) -> list[ReplicaAction]:
        """Begin the requested epoch, if this replica is elected."""
        election = self._election
        if election is None or not election.has_quorum(self._writable):
            return []
        vote_request = election.vote_request
        if self._vote_record.own != vote_request:
            return self._vote_for_itself(vote_request)
        log_ends = election.log_ends(self._late_log_ends)
        if not election.has_own_vote or not election.knows_epoch_starts(
            self.epoch_tree, [*log_ends, EpochEnd(self.latest.leader_epoch, 0)]
        ):
            return []  # its own vote is being written, or an epoch start is on its way
        if not election.has_quorum_of_former_voters(self.epoch_tree):
            return []
        self._election = None
        parent = self._choose_parent(log_ends)
        return [
            WriteControl(
                EpochStart(self._log, vote_request.leader_epoch, parent, vote_request.replicas, vote_request.learners)
            )
        ]

    def _vote_for_itself(self, vote_request: VoteRequest) -> list[ReplicaAction]:
        """Vote for itself, as the last voter: until others have voted, this replica follows the former leader."""
        if vote_request.leader_epoch.epoch > self._voted_epoch():
            return self._vote_for(vote_request)
        self._election = None
        return []

    def _should_follow_others(self) -> bool:
        """Return whether replicas that were partitioned away have an epoch that should continue instead of this one.

        They voted for this leader only after its epoch had begun.
        """
        if self._settings.availability is Availability.MAJORITY or self._late_for != self.led_epoch:
            return False
        own = self.local_epochs.log_end()
        late = {
            each: log_end
            for each, log_end in self._late_log_ends.items()
            if self.epoch_tree.common_end(log_end, own) not in {None, log_end}
        }
        log_ends = [late.get(each, own) for each in self.voters if each in self._alive]
        return bool(late) and self._choose_parent(log_ends) != own

    def _choose_parent(self, log_ends: list[EpochEnd]) -> EpochEnd:
        """Return the log end that the new epoch continues."""
        if self._settings.availability is Availability.MAJORITY:
            return max(log_ends, key=lambda each: (each.leader_epoch.epoch, each.end_offset))

        def support(log_end: EpochEnd) -> int:
            return sum(self.epoch_tree.common_end(each, log_end) == each for each in log_ends)

        return max(log_ends, key=lambda each: (support(each), each.end_offset, each.leader_epoch))

    # Acknowledgements

    def _acked_by(self, broker: str) -> int:
        """Return the offset up to which a replica has acknowledged the led epoch; -1 if it has not.

        The first epoch begins without an index record, so it has nothing to acknowledge.
        """
        return self._acks.ends.get(broker, 0 if self.led_epoch == self._first else -1)

    def _acknowledge(self) -> list[ReplicaAction]:
        log_end = self.local_epochs.log_end()
        if (
            log_end.leader_epoch == NO_EPOCH
            or log_end.leader_epoch.epoch < self._vote_record.own_epoch
            or log_end == self._acknowledged
        ):
            return []
        if log_end.leader_epoch != self._acknowledged.leader_epoch:
            self._timer.record_new_epoch()
        self._acknowledged = log_end
        if log_end.leader_epoch.leader == self._broker:
            return self.acknowledged(self._broker, log_end.leader_epoch, log_end.end_offset)
        return [Acknowledge(log_end.leader_epoch, log_end.end_offset)]

    def repeat_acknowledgement(self) -> list[ReplicaAction]:
        """Acknowledge again, because an acknowledgement can be lost."""
        log_end = self._acknowledged
        self._acknowledged = EpochEnd(log_end.leader_epoch, -1)
        actions = self._acknowledge()
        self._acknowledged = max(log_end, self._acknowledged)
        return actions

    def _move_high_watermark(self) -> list[ReplicaAction]:
        has_moved = self._mark.move(self.local_epochs.log_end(), self._acknowledged, self._writable)
        return [AdvanceHighWatermark(self._mark.offset)] if has_moved else []

    # Whether to request votes

    def _should_request_votes(self, now: float) -> bool:
        is_led = self.may_append and not self._has_rival() and not self._is_superseded()
        is_led = is_led and not self._should_follow_others()
        if (
            self._broker not in self._writable.intersection(self.voters)
            or is_led
            or not self._has_enough(self._writable)
        ):
            return False
        leader = self.leader
        if leader in {"", self._broker} or leader not in self._writable:
            return True  # it has restarted, or misses records before its epoch: it begins another one
        return self._has_rival() or self._is_due_to_transfer(leader, now)

    def _has_enough(self, brokers: frozenset[str]) -> bool:
        """Return whether some brokers include enough voters to begin an epoch."""
        voters = self.voters
        count = len(brokers.intersection(voters))
        return count > 0 if self._settings.availability is Availability.BRANCH else 2 * count > len(voters)

    def _is_cut_off(self, now: float) -> bool:
        """Return whether others see this replica as leader, and it has not heard most of them for some time."""
        is_led = self.leader == self._broker and self._settings.availability is Availability.MAJORITY
        return self._cut_off.has_lasted(is_led and not self.is_quorum_active, now, self._settings.election_timeout_s)

    def _is_stuck(self) -> bool:
        """Return whether this leader still misses records before its epoch, and another replica could lead instead."""
        is_incomplete = self.leader == self._broker and not self.local_epochs.reaches(self.latest.parent)
        return is_incomplete and len(self._writable.intersection(self.voters)) > 1

    def _resign(self) -> list[ReplicaAction]:
        """Vote for an epoch that nobody requests, so that other replicas request votes when they hear of it."""
        leader_epoch = LeaderAndEpoch(next_epoch(self._largest_epoch, self._number), self._broker)
        return self._vote_for(VoteRequest(self._log, leader_epoch, ()))

    def _is_superseded(self) -> bool:
        """Return whether a replica of the led epoch has voted for a later one."""
        return any(map(self._has_later_vote, self.replicas))

    def _has_later_vote(self, broker: str) -> bool:
        own = NO_EPOCH if self._election is None else self._election.leader_epoch
        epoch = self._vote_record.epoch_of(broker)
        return self.led_epoch is not None and epoch > self.led_epoch.epoch and epoch != own.epoch

    def _has_quorum_without(self, candidate: str) -> bool:
        """Return whether more than half of the replicas are alive and still follow this leader, as far as it knows.

        A broker that comes back can have voted for a later epoch than the one it knew, and request votes before it
        knows the leader. This alone is no reason to follow it.
        """
        others = self._alive.intersection(self.voters) - {candidate}
        return 2 * sum(not self._has_later_vote(each) for each in others) > len(self.voters)

    def _are_learners_in_sync(self, now: float) -> bool:
        """Return whether all learners of the log that this replica leads have been in sync for some time."""
        learners = self.latest.learners if self.may_append and self.led_epoch == self.latest.leader_epoch else ()
        are_in_sync = bool(learners) and set(learners) <= set(self.in_sync(within_s=JOINED_S))
        return self._learners_in_sync.has_lasted(are_in_sync, now, JOINED_S)

    def _has_rival(self) -> bool:
        """Return whether another epoch has a living leader that does not follow the latest epoch yet."""
        if self._settings.availability is Availability.MAJORITY:
            return False
        latest = self.latest
        epoch = latest.leader_epoch.epoch
        return any(
            start.leader_epoch.leader in self._alive and self._vote_record.epoch_of(start.leader_epoch.leader) < epoch
            for start in self.epoch_tree.leaves()
            if start.leader_epoch != latest.leader_epoch
        )

    def _is_due_to_transfer(self, leader: str, now: float) -> bool:
        """Return whether this replica is preferred to the leader, and has been ready to take over for long enough."""
        is_ready = self._rank_living()[0] == self._broker != leader and self.local_epochs.is_complete(
            self.latest.leader_epoch
        )
        is_urgent = leader in self._order.ineligible_leaders and self._broker not in self._order.ineligible_leaders
        wait_s = self._settings.election_timeout_s if is_urgent else self._transfer_after_s
        return self._ready.has_lasted(is_ready, now, wait_s)

    def _rank_living(self) -> list[str]:
        """Return the living writable replicas, the most preferred one first."""
        return self._order.rank_writable(self.voters, self._writable)

    def rank_replicas(self) -> list[str]:
        """Return the replicas, the most preferred one first."""
        return self._order.rank(self.voters)
