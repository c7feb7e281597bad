"""The state machine of one replica of one log: who leads it, how far it reaches, and what is acknowledged.

Leaders and replicas exchange only durable control records (`VoteRequest`, `Vote`, `EpochStart`), index records and
acknowledgements of index records. Any of them may come late, in any order between brokers; each broker's control
records come in the order in which it made them.

Why nothing that more than half of the replicas have acknowledged is lost (`Availability.MAJORITY`): an epoch begins
with the votes of more than half of the replicas. A replica acknowledges a record only while it has voted for no later
epoch. So each set of votes has one whose log includes the record, and the new epoch continues the longest log of the
latest epoch among the votes. Where replicas have changed, more than half of each set is asked that may have
acknowledged what no vote includes. `docs/explanation/replication-safety.md` has the whole argument.
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
"""For how many seconds a learner holds the log until it counts for majorities. Balancing may let it count
sooner, together with the removal of another one."""

JOINING_WAIT_S = 3.0
"""How much later a replica claims that is still copying a log which it has never had, in seconds."""


class Replica:
    """One replica of one log.

    To start, also for the first time, call `restore` with all control records that this broker holds, `restore_held`
    with what it holds of each branch, then `resume`.

    Args:
        log: The name of the log.
        broker: The address of this broker.
        number: The number of this broker, which no other one has.
        replicas: The replicas of the first branch, which needs no control record. The first one leads it.
        settings: How the log is replicated.
        first_epoch: The leader epoch of the first branch.

    Attributes:
        table: The branch table.
        branches: The branches that this replica holds.
        led_epoch: The branch that this replica leads; None if it leads none.
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
        self.table = EpochTree([EpochStart(log, self._first, NO_EPOCH_END, found)])
        self.led_epoch: LeaderAndEpoch | None = None
        self._log = log
        self._broker = broker
        self._number = number
        self._settings = settings
        self._move_after_s = settings.preferred_leader_after_s * (1 + weigh_node(log, broker)[0] / 256)
        self._alive: frozenset[str] = frozenset()
        self._writable = self._alive
        self._order = LeaderPreference(log)
        self.branches = LocalEpochs(self.table, self._first)
        self._acknowledged = NO_EPOCH_END
        self._vote_record = VoteRecord()
        self._largest_epoch = first_epoch
        self._election: Election | None = None
        self._late_log_ends: dict[str, EpochEnd] = {}
        self._late_for = NO_EPOCH
        self._acks = FollowerProgress()
        self._mark = HighWatermark(broker, self.table, self._acks, settings.availability)
        self._known_replicas = set(found)
        self._now = float("-inf")
        self._timer = ElectionTimer(settings)
        self._ready, self._cut_off, self._joined = Debounce(), Debounce(), Debounce()

    # What is known

    @property
    def latest(self) -> EpochStart:
        """The row of the latest branch."""
        assert self.table.latest is not None
        return self.table.latest

    @property
    def replicas(self) -> tuple[str, ...]:
        """The replicas, as far as this replica knows."""
        return self.latest.replicas

    @property
    def voters(self) -> tuple[str, ...]:
        """The replicas that count for majorities, as far as this replica knows: all but those that copy the log."""
        return self.latest.voters

    @property
    def leader(self) -> str:
        """The leader, as far as this replica knows; empty if there is none."""
        branch = self.latest.branch
        return "" if self._vote_record.epoch_of(branch.leader) > branch.epoch else branch.leader

    def has_promised(self, broker: str, epoch: int) -> bool:
        """Return whether a broker has promised to follow a branch of this epoch or of a later one."""
        return self._vote_record.epoch_of(broker) >= epoch

    def renumber(self, number: int) -> None:
        """Note the number of this broker, which has changed."""
        self._number = number

    @property
    def may_append(self) -> bool:
        """Whether this replica leads and holds all records before its branch."""
        return self.led_epoch is not None and self.branches.is_complete(self.led_epoch)

    @property
    def high_watermark(self) -> int:
        """How far readers may read from this replica, be it the leader or not."""
        return self._mark.offset

    @property
    def acknowledged_tip(self) -> EpochEnd:
        """What this replica has acknowledged last. A leader's followers may hear of it: see `acknowledged`."""
        return self._acknowledged

    @property
    def is_joining(self) -> bool:
        """Whether this broker copies the log to become a replica, and the others can do without it meanwhile."""
        others = self._alive.intersection(self.voters) - {self._broker}
        is_needed = self.latest.branch.leader == self._broker or 2 * len(others) <= len(self.voters)
        if self._broker not in self.replicas or is_needed:
            return False
        row = self.table.rows.get(self.branches.tip().branch)
        return row is None or self._broker not in row.replicas

    def in_sync(self, max_lag: int = 0, within_s: float = 0.0) -> tuple[str, ...]:
        """Return the living replicas that hold the log, as far as the leader knows.

        Args:
            max_lag: How many offsets a replica may lack.
            within_s: How long ago a replica that lacks more may have held everything, in seconds.

        Returns:
            The replicas, with this one; none if this one does not lead.
        """
        if self.led_epoch is None:
            return ()
        end = self.branches.end_of(self.led_epoch)
        return tuple(
            each
            for each in self.table.rows[self.led_epoch].replicas
            if each == self._broker
            or (
                each in self._alive
                and (self._acked_by(each) >= end - max_lag or self._now - self._acks.caught_up_at(each) <= within_s)
            )
        )

    def heard_since(self, heard_since: Callable[[str], float]) -> float:
        """Return since when more than half of the replicas are known to hear this leader, and to follow no other one.

        They follow no other leader until they have not heard this one for the time that makes a broker count as dead.

        Args:
            heard_since: Returns when a broker was last asked that is known to have answered; see `Rounds`.

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
                if each == self._broker or (self._acked_by(each) >= 0 and not self._has_deserted(each))
            ),
            reverse=True,
        )
        enough = len(self.voters) // 2
        return times[enough] if enough < len(times) else float("-inf")

    @property
    def may_drop(self) -> bool:
        """Whether this broker is no replica, and more than half of the replicas hold all that it could be asked for.

        To drop what it holds of the log, delete it and call `restore_held` without it. Logs with the availability
        "branch" are kept: no replica knows whether another one holds every branch.
        """
        replicas = self.replicas
        holding = self._acks.holding(self.voters) if self._acks.branch == self.latest.branch else 0
        return (
            self._settings.availability is Availability.MAJORITY
            and self._broker not in self._vote_record.asked_replicas().union(replicas)
            and 2 * holding > len(self.voters)
        )

    @property
    def availability(self) -> Availability:
        """What the sides of a split may do."""
        return self._settings.availability

    @property
    def may_serve(self) -> bool:
        """Whether no other replica can have begun to lead, as far as the signs of life tell."""
        is_replaced = self._broker in self._alive - self._writable and self._has_enough(self._writable)
        return not is_replaced and (self.is_quorum_active or self._settings.availability is Availability.BRANCH)

    @property
    def is_quorum_active(self) -> bool:
        """Whether more than half of the replicas are alive, as far as this broker knows."""
        return 2 * len(self._alive & set(self.voters)) > len(self.voters)

    # What happens

    def restore(self, own: Iterable[ControlRecord], others: Iterable[tuple[str, ControlRecord]]) -> None:
        """Take over the control records that this broker has made, and those of others that it holds.

        Args:
            own: This broker's own, in their order.
            others: The others', with the address of the broker that made each.
        """
        for broker, record in others:
            self._note(broker, record)
        for record in own:
            self._note(self._broker, record)
            if isinstance(record, Vote):
                self._vote_record.add_own(
                    self._vote_record.find_vote_request(record.branch) or VoteRequest(self._log, record.branch, ())
                )

    def restore_held(self, held: dict[LeaderAndEpoch, int]) -> None:
        """Take over what this broker holds of each branch: the offset after its last index record."""
        self.branches.restore(held)
        self._mark.reset()
        for branch in held:
            self._largest_epoch = max(self._largest_epoch, branch.epoch)

    def resume(self) -> list[ReplicaAction]:
        """Lead again after a restart, if no later branch was promised and this replica holds the latest one."""
        row = self.latest
        if row.branch.leader != self._broker:
            return self._follow_row(row)
        if self._promised_epoch() > row.branch.epoch or not self.branches.is_complete(row.branch):
            return []
        return [*self._begin_leading(row), *self._acknowledge()]

    def receive(self, broker: str, record: ControlRecord) -> list[ReplicaAction]:
        """Take in a control record of another broker."""
        self._note(broker, record)
        if isinstance(record, VoteRequest):
            return self._consider(record)
        if isinstance(record, Vote):  # a claim that was refused may be right: others follow it
            vote_request = self._vote_record.find_vote_request(record.branch)
            return [*([] if vote_request is None else self._consider(vote_request)), *self._begin_if_promised()]
        return [*self._follow_row(record), *self._begin_if_promised(), *self._acknowledge()]

    def written(self, record: ControlRecord) -> list[ReplicaAction]:
        """Note that a control record of this broker is durable."""
        self._note(self._broker, record)
        if not isinstance(record, EpochStart):
            return self._begin_if_promised()
        if self._vote_record.own is None or self._vote_record.own.branch != record.branch:
            return []  # another claim came while the row was written
        self._wait_for_promises()  # time to read what is before the branch
        return self._begin_leading(record)

    def stored(self, branch: LeaderAndEpoch, end_offset: int) -> list[ReplicaAction]:
        """Note that index records of a branch, and the records that they name, are durable here.

        Args:
            branch: The branch.
            end_offset: The offset after the last record.

        Returns:
            The actions.
        """
        self.branches.add(branch, end_offset)
        self._largest_epoch = max(self._largest_epoch, branch.epoch)
        return self._acknowledge()

    def acknowledged(self, broker: str, branch: LeaderAndEpoch, end_offset: int) -> list[ReplicaAction]:
        """Take in an acknowledgement of another replica, or this one's own.

        Every replica may hear the acknowledgements of all: those that do not lead find out how far readers may read.
        """
        if branch.epoch < self._acks.branch.epoch or (self.led_epoch is not None and branch != self.led_epoch):
            return []
        self._acks.add(broker, branch, end_offset)
        return self._move_high_watermark()

    def set_alive(
        self, brokers: Collection[str], now: float, unwritable: frozenset[str] = frozenset()
    ) -> list[ReplicaAction]:
        """Note which brokers are alive, as far as this one knows. It is among them.

        Args:
            brokers: The brokers.
            now: The time.
            unwritable: Those of them whose storages take no records: they can neither promise nor acknowledge.

        Returns:
            The actions.
        """
        if self._alive != frozenset(brokers):
            self._timer.shorten_wait(now, self._place())
        self._alive = frozenset(brokers)
        self._writable = self._alive - unwritable
        return [*self.advance(now), *self._begin_if_promised(), *self._move_high_watermark()]

    @property
    def is_settled(self) -> bool:
        """Whether time alone changes nothing: `advance` need not be called until something else has happened."""
        if self._timer.is_running or self._ready.is_running or self._cut_off.is_running:
            return False
        if self.led_epoch is None:
            return True
        if self.latest.learners:
            return False
        end = self.branches.end_of(self.led_epoch)
        return all(self._acked_by(each) >= end for each in self.replicas if each != self._broker)

    def idle(self, now: float) -> None:
        """Note that nothing has happened until a time, because this replica was settled."""
        self._now = max(self._now, now)
        if self.led_epoch is not None:
            self._acks.note_end(self.branches.end_of(self.led_epoch), self._now)

    def set_preferences(self, preferred: tuple[str, ...], ineligible_leaders: frozenset[str]) -> bool:
        """Note which brokers are meant to lead.

        Args:
            preferred: Those that are preferred, the first one most; then the log's rendezvous order counts.
            ineligible_leaders: Those that lead only if no other replica can: they are drained or full.

        Returns:
            Whether they are others than before.
        """
        return self._order.set(preferred, ineligible_leaders)

    def advance(self, now: float) -> list[ReplicaAction]:
        """VoteRequest the log if nobody leads it, or resign if this replica leads and cannot get acknowledgements."""
        self._note_time(now)
        if self._is_cut_off(now):
            return self._resign()
        if not self._should_claim(now):
            self._withdraw_claim()
            self._timer.stop()
            return self._request_votes_with(self.replicas) if self._have_joined(now) else []
        if not self._timer.is_due(now, self._wait_before_claim_s):
            return []
        if self._is_stuck():
            self._timer.stop()
            return self._resign()
        self._wait_for_promises()
        self._timer.note_claim()
        is_transfer = self.leader in self._writable - {self._broker}
        return self._request_votes_with(self.replicas, self.latest.learners, is_transfer=is_transfer)

    def may_lead(self, broker: str) -> bool:
        """Return whether a replica is alive, can write, and is neither drained nor full."""
        return broker in self._writable and broker not in self._order.ineligible_leaders

    def transfer_leadership(self) -> list[ReplicaAction]:
        """VoteRequest the log from another leader, if this replica is preferred and holds the latest branch."""
        leader = self.leader
        if leader in {"", self._broker} or not self.branches.is_complete(self.latest.branch):
            return []
        is_first = self._rank_living()[:1] == [self._broker]
        return self._request_votes_with(self.replicas, self.latest.learners, is_transfer=True) if is_first else []

    def change_replicas(self, replicas: Iterable[str]) -> list[ReplicaAction]:
        """Begin a branch with other replicas, as the leader, which remains one of them.

        It begins when more than half of the former and of the new replicas have promised to follow it. Brokers that are
        added, while all others stay, count for majorities when they hold the log: until then it would bear less than
        before.
        """
        found, voters = tuple(replicas), self.voters
        learners = tuple(each for each in found if each not in voters) if set(voters) <= set(found) else ()
        return self._request_votes_with(found, learners) if self.may_append and self._broker in found else []

    def _begin_leading(self, row: EpochStart) -> list[ReplicaAction]:
        self.led_epoch = row.branch
        self._acks.begin(row.branch)
        return [Lead(row)]

    def _note_time(self, now: float) -> None:
        """Note who holds what the leader held when time was noted before; begin waits again if time jumps back."""
        if now < self._now:
            self._timer.reset()
            for each in (self._ready, self._cut_off, self._joined):
                each.end()
            self._acks.set_back(now)
        if self.led_epoch is not None:
            self._acks.note_end(self.branches.end_of(self.led_epoch), min(self._now, now))
        self._now = now

    # Claims and promises

    def _wait_for_promises(self) -> None:
        """Leave time to a claim that is being made."""
        self._timer.wait_for_promises(self._now, self._place())

    def _wait_before_claim_s(self) -> float:
        """Return how long others have to claim before this replica does, in seconds."""
        order = self._rank_living()
        wait_s = order.index(self._broker) * self._settings.stagger_s
        latest = self.latest  # those that need not fetch anything take over sooner
        if self.is_joining and not self.branches.is_complete(latest.branch):
            wait_s += JOINING_WAIT_S
        elif not self.branches.reaches(latest.parent):
            wait_s += 2 * len(order) * self._settings.stagger_s
        elif not self.branches.is_complete(latest.branch):
            wait_s += len(order) * self._settings.stagger_s
        return wait_s

    def _place(self) -> int:
        """Return how many replicas are preferred to this one as leaders."""
        order = self._rank_living()
        return order.index(self._broker) if self._broker in order else len(order)

    def _withdraw_claim(self) -> None:
        """Give up a claim that nobody leads the log, unless this replica has promised to follow it: somebody does."""
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
            self._late_log_ends = {}  # this branch continues what should go on, and is complete
        branch = LeaderAndEpoch(next_epoch(self._largest_epoch, self._number), self._broker)
        self._largest_epoch = branch.epoch
        self._joined.end()
        vote_request = VoteRequest(self._log, branch, replicas, learners, is_transfer)
        self._election = Election(vote_request, self._settings.availability)
        return [WriteControl(vote_request)]

    def _note(self, broker: str, record: ControlRecord) -> None:
        self._largest_epoch = max(self._largest_epoch, record.branch.epoch)
        if isinstance(record, EpochStart):
            self.table.add(record)
            self._known_replicas.update(record.replicas)
            self._ready.end()  # a preferred replica waits anew, lest it never lets others lead
        elif isinstance(record, VoteRequest):
            self._vote_record.note_claim(record)
            self._known_replicas.update(record.replicas)
        elif isinstance(record, Vote):
            self._vote_record.note_promise(broker, record.branch.epoch)
            if self._election is not None and record.branch == self._election.branch:
                self._election.votes[broker] = record
            elif record.branch == self.led_epoch:
                if self._late_for != record.branch:
                    self._late_log_ends, self._late_for = {}, record.branch
                self._late_log_ends[broker] = record.tip

    def _consider(self, vote_request: VoteRequest) -> list[ReplicaAction]:
        """Vote to follow the branch of another's claim, if it is later than all that this replica has promised."""
        is_asked = self._broker in vote_request.replicas or self._broker in self._known_replicas
        if (
            not is_asked
            or vote_request.branch.leader == self._broker
            or vote_request.branch.epoch <= self._promised_epoch()
        ):
            return []
        return [] if self._follows_another(vote_request) else self._vote_for(vote_request)

    def _follows_another(self, vote_request: VoteRequest) -> bool:
        """Return whether this replica follows a living leader, which only the one that claims the log does not hear.

        Otherwise each broker that comes back would stop logs which go on without it. Before a log moves, its leader is
        asked: those that hear it promise after it, lest it goes on answering readers beside the next one.
        """
        leader = self.leader
        is_heard = leader in self._writable and leader != vote_request.branch.leader
        if self._settings.availability is Availability.BRANCH or not is_heard:
            return False
        if leader == self._broker:
            return (
                self.may_append
                and self._is_followed_beside(vote_request.branch.leader)
                and not vote_request.is_transfer
            )
        return self._broker not in self.voters or self.branches.tip().branch == self.latest.branch

    def _follow_row(self, row: EpochStart) -> list[ReplicaAction]:
        """Vote to follow a branch that has begun, if its claim was not considered: this broker was down."""
        promised_epoch = max(self._vote_record.own_epoch, self._first.epoch)
        if row.branch.epoch <= promised_epoch or self._broker not in self._known_replicas:
            return []
        return self._vote_for(VoteRequest(self._log, row.branch, row.replicas, row.learners))

    def _vote_for(self, vote_request: VoteRequest) -> list[ReplicaAction]:
        is_own = vote_request.branch.leader == self._broker
        if not is_own:
            self._late_log_ends = {}
        replica_sets, latest = self._possible_replica_sets(), self.latest.branch
        self._vote_record.add_own(vote_request)
        if vote_request.replicas:  # the claim gets as much time as one of this replica's
            self._wait_for_promises()
            if not is_own:
                self._timer.note_claim()
        actions: list[ReplicaAction] = []
        if self.led_epoch is not None:
            actions.append(StepDown(self.led_epoch))
            self.led_epoch = None
        return [*actions, WriteControl(Vote(self._log, vote_request.branch, self.branches.tip(), replica_sets, latest))]

    def _possible_replica_sets(self) -> tuple[tuple[str, ...], ...]:
        """Return the voters of the latest branch that is known, and of all later ones that may have begun."""
        return tuple(dict.fromkeys((self.voters, *self._vote_record.asked_voters(self.latest.branch.epoch))))

    def _promised_epoch(self) -> int:
        return max(self._vote_record.own_epoch, self._acknowledged.branch.epoch, self.branches.tip().branch.epoch)

    def _begin_if_promised(self) -> list[ReplicaAction]:
        """Begin the branch that this replica has claimed, if enough replicas have promised to follow it."""
        election = self._election
        if election is None or not election.has_quorum(self._writable):
            return []
        vote_request = election.vote_request
        if self._vote_record.own != vote_request:
            return self._promise_own(vote_request)
        tips = election.tips(self._late_log_ends)
        if not election.has_own_vote or not election.knows_rows(self.table, [*tips, EpochEnd(self.latest.branch, 0)]):
            return []  # its own promise is being written, or a row is on its way
        if not election.has_quorum_of_former_voters(self.table):
            return []
        self._election = None
        parent = self._choose_parent(tips)
        return [
            WriteControl(
                EpochStart(self._log, vote_request.branch, parent, vote_request.replicas, vote_request.learners)
            )
        ]

    def _promise_own(self, vote_request: VoteRequest) -> list[ReplicaAction]:
        """Vote to follow the own claim, as the last one: until others do, this replica follows who led before."""
        if vote_request.branch.epoch > self._promised_epoch():
            return self._vote_for(vote_request)
        self._election = None
        return []

    def _should_follow_others(self) -> bool:
        """Return whether replicas that have come from another side of a split have a branch that should go on instead.

        They have promised to follow this leader only after its branch had begun.
        """
        if self._settings.availability is Availability.MAJORITY or self._late_for != self.led_epoch:
            return False
        own = self.branches.tip()
        late = {each: tip for each, tip in self._late_log_ends.items() if self.table.fork(tip, own) not in {None, tip}}
        tips = [late.get(each, own) for each in self.voters if each in self._alive]
        return bool(late) and self._choose_parent(tips) != own

    def _choose_parent(self, tips: list[EpochEnd]) -> EpochEnd:
        """Return the tip that the new branch continues."""
        if self._settings.availability is Availability.MAJORITY:
            return max(tips, key=lambda each: (each.branch.epoch, each.end_offset))

        def support(tip: EpochEnd) -> int:
            return sum(self.table.fork(each, tip) == each for each in tips)

        return max(tips, key=lambda each: (support(each), each.end_offset, each.branch))

    # FollowerProgress

    def _acked_by(self, broker: str) -> int:
        """Return up to which offset a replica has the branch that this one leads; -1 if it has not said so.

        The first branch begins without an index record, so there is nothing of it to acknowledge.
        """
        return self._acks.ends.get(broker, 0 if self.led_epoch == self._first else -1)

    def _acknowledge(self) -> list[ReplicaAction]:
        tip = self.branches.tip()
        if tip.branch == NO_EPOCH or tip.branch.epoch < self._vote_record.own_epoch or tip == self._acknowledged:
            return []
        if tip.branch != self._acknowledged.branch:
            self._timer.note_branch()
        self._acknowledged = tip
        if tip.branch.leader == self._broker:
            return self.acknowledged(self._broker, tip.branch, tip.end_offset)
        return [Acknowledge(tip.branch, tip.end_offset)]

    def repeat_acknowledgement(self) -> list[ReplicaAction]:
        """Acknowledge again, if an acknowledgement may be lost."""
        tip = self._acknowledged
        self._acknowledged = EpochEnd(tip.branch, -1)
        actions = self._acknowledge()
        self._acknowledged = max(tip, self._acknowledged)
        return actions

    def _move_high_watermark(self) -> list[ReplicaAction]:
        has_moved = self._mark.move(self.branches.tip(), self._acknowledged, self._writable)
        return [AdvanceHighWatermark(self._mark.offset)] if has_moved else []

    # Whether to claim

    def _should_claim(self, now: float) -> bool:
        is_led = self.may_append and not self._has_rival() and not self._is_deserted()
        is_led = is_led and not self._should_follow_others()
        if (
            self._broker not in self._writable.intersection(self.voters)
            or is_led
            or not self._has_enough(self._writable)
        ):
            return False
        leader = self.leader
        if leader in {"", self._broker} or leader not in self._writable:
            return True  # a leader that has restarted, or that lacks records before its branch, begins another one
        return self._has_rival() or self._is_due_to_move(leader, now)

    def _has_enough(self, brokers: frozenset[str]) -> bool:
        """Return whether enough replicas are among some brokers to begin a branch."""
        voters = self.voters
        count = len(brokers.intersection(voters))
        return count > 0 if self._settings.availability is Availability.BRANCH else 2 * count > len(voters)

    def _is_cut_off(self, now: float) -> bool:
        """Return whether this replica is the leader for others, and has not heard of most of them for some time."""
        is_led = self.leader == self._broker and self._settings.availability is Availability.MAJORITY
        return self._cut_off.has_lasted(is_led and not self.is_quorum_active, now, self._settings.election_timeout_s)

    def _is_stuck(self) -> bool:
        """Return whether this replica still lacks what is before its branch, and another one could lead instead."""
        is_behind = self.leader == self._broker and not self.branches.reaches(self.latest.parent)
        return is_behind and len(self._writable.intersection(self.voters)) > 1

    def _resign(self) -> list[ReplicaAction]:
        """Vote to follow a branch that nobody claims, so that others who hear of this replica claim the log."""
        branch = LeaderAndEpoch(next_epoch(self._largest_epoch, self._number), self._broker)
        return self._vote_for(VoteRequest(self._log, branch, ()))

    def _is_deserted(self) -> bool:
        """Return whether a replica of the branch that this one leads has promised to follow a later one."""
        return any(map(self._has_deserted, self.replicas))

    def _has_deserted(self, broker: str) -> bool:
        own = NO_EPOCH if self._election is None else self._election.branch
        epoch = self._vote_record.epoch_of(broker)
        return self.led_epoch is not None and epoch > self.led_epoch.epoch and epoch != own.epoch

    def _is_followed_beside(self, claimer: str) -> bool:
        """Return whether more than half of the replicas are alive and go on following this leader, as far as it knows.

        A broker that comes back may have promised a later branch than the one it knew, and claim the log before it
        knows who leads. It alone is no reason to follow it.
        """
        others = self._alive.intersection(self.voters) - {claimer}
        return 2 * sum(not self._has_deserted(each) for each in others) > len(self.voters)

    def _have_joined(self, now: float) -> bool:
        """Return whether all learners hold the log that this one leads, and have done so for some time."""
        learners = self.latest.learners if self.may_append and self.led_epoch == self.latest.branch else ()
        are_in_sync = bool(learners) and set(learners) <= set(self.in_sync(within_s=JOINED_S))
        return self._joined.has_lasted(are_in_sync, now, JOINED_S)

    def _has_rival(self) -> bool:
        """Return whether another branch is led by a living broker that does not follow the latest one yet."""
        if self._settings.availability is Availability.MAJORITY:
            return False
        latest = self.latest
        epoch = latest.branch.epoch
        return any(
            row.branch.leader in self._alive and self._vote_record.epoch_of(row.branch.leader) < epoch
            for row in self.table.heads()
            if row.branch != latest.branch
        )

    def _is_due_to_move(self, leader: str, now: float) -> bool:
        """Return whether this replica is preferred to the leader, and has been ready to take over for long enough."""
        is_ready = self._rank_living()[0] == self._broker != leader and self.branches.is_complete(self.latest.branch)
        is_urgent = leader in self._order.ineligible_leaders and self._broker not in self._order.ineligible_leaders
        wait_s = self._settings.election_timeout_s if is_urgent else self._move_after_s
        return self._ready.has_lasted(is_ready, now, wait_s)

    def _rank_living(self) -> list[str]:
        """Return the living replicas that can write in the order in which they are preferred as leaders."""
        return self._order.rank_writable(self.voters, self._writable)

    def rank_replicas(self) -> list[str]:
        """Return the replicas in the order in which they are preferred as leaders."""
        return self._order.rank(self.voters)
