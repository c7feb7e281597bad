"""Planted bugs: one mistake each, which the simulation must notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import attrs
import pytest

from dafka.broker.core.log.entries import BatchEntry, MarkerEntry
from dafka.broker.core.log.log import Log
from dafka.broker.core.log.producer_batches import TransactionRuns
from dafka.broker.core.positions import FIRST_OFFSET, AtOffset, Offset
from dafka.broker.core.replication.divergence import MajorityRule
from dafka.broker.core.replication.effects import (
    Acknowledge,
    AdvanceHighWatermark,
    ReplicaAction,
    StepDown,
    WriteControl,
)
from dafka.broker.core.replication.election import Election
from dafka.broker.core.replication.election_triggers import ElectionTriggers
from dafka.broker.core.replication.elections import Elections
from dafka.broker.core.replication.epoch_tree import EpochTree, LocalEpochs
from dafka.broker.core.replication.high_watermark import HighWatermark
from dafka.broker.core.replication.leader_lease import LeaseRounds
from dafka.broker.core.replication.records import (
    NO_EPOCH_END,
    ControlRecord,
    EpochEnd,
    LeaderAndEpoch,
    Vote,
    VoteRequest,
)
from dafka.broker.core.replication.replica import Replica
from dafka.broker.core.replication.settings import Availability
from dafka.broker.core.replication.transitions import Transition
from tests.broker.core.replication.brokers import KeptLog
from tests.broker.core.replication.running import run_seed

Bug: TypeAlias = Callable[[pytest.MonkeyPatch], None]
"""Changes the product in one place."""


def acknowledge_despite_votes(patch: pytest.MonkeyPatch) -> None:
    """Acknowledge records of an epoch after a vote for a later one."""
    acknowledge = Replica._acknowledge

    def acknowledge_all(self: Replica) -> list[ReplicaAction]:
        local = self.local_epochs
        log_end = max(
            (EpochEnd(each, end) for each, end in local._ends.items() if local.is_complete(each)), default=NO_EPOCH_END
        )
        if log_end.leader_epoch.leader in {"", self._broker}:
            return acknowledge(self)
        return [Acknowledge(log_end.leader_epoch, log_end.end_offset)]

    patch.setattr(Replica, "_acknowledge", acknowledge_all)


def hide_log_ends(patch: pytest.MonkeyPatch) -> None:
    """Vote without naming the end of the log."""
    vote_for = Elections._vote_for

    def vote_without_end(self: Elections, *args: Any) -> list[ReplicaAction]:
        return [
            WriteControl(attrs.evolve(each.record, log_end=NO_EPOCH_END))
            if isinstance(each, WriteControl) and isinstance(each.record, Vote)
            else each
            for each in vote_for(self, *args)
        ]

    patch.setattr(Elections, "_vote_for", vote_without_end)


def count_half(patch: pytest.MonkeyPatch) -> None:
    """Begin an epoch with the votes of fewer than half of the replicas."""
    patch.setattr(
        Election, "has_quorum", lambda self, _writable: len(self.votes) + 1 >= len(self.vote_request.replicas) // 2
    )
    patch.setattr(Election, "has_quorum_of_former_voters", lambda _self, _tree: True)


def continue_the_shortest(patch: pytest.MonkeyPatch) -> None:
    """Continue the shortest log."""

    def choose_shortest(_self: MajorityRule, log_ends: list[EpochEnd], _tree: EpochTree) -> EpochEnd:
        return min(log_ends, key=lambda each: (each.leader_epoch.epoch, each.end_offset))

    patch.setattr(MajorityRule, "choose_parent", choose_shortest)


def continue_own_log(patch: pytest.MonkeyPatch) -> None:
    """Continue the log of the candidate."""

    def own_log_end(self: Election, _late: object) -> list[EpochEnd]:
        return [vote.log_end for broker, vote in self.votes.items() if broker == self.leader_epoch.leader]

    patch.setattr(Election, "log_ends", own_log_end)


def forget_votes(patch: pytest.MonkeyPatch) -> None:
    """Forget at a restart what this broker has voted for."""
    restore = Elections.restore

    def restore_others(self: Elections, own: list[ControlRecord], others: Any) -> None:
        restore(self, [each for each in own if not isinstance(each, Vote)], others)

    patch.setattr(Elections, "restore", restore_others)


def forget_local_log(patch: pytest.MonkeyPatch) -> None:
    """Forget at a restart what is stored of other leaders' epochs."""
    restore = Replica.restore_local

    def restore_own(self: Replica, ends: dict[LeaderAndEpoch, Offset]) -> None:
        restore(self, {each: end for each, end in ends.items() if each.leader == self._broker})

    patch.setattr(Replica, "restore_local", restore_own)


def lead_despite_votes(patch: pytest.MonkeyPatch) -> None:
    """Continue to lead after a vote for another leader."""
    consider = Elections._consider

    def consider_and_lead(self: Elections, vote_request: VoteRequest) -> list[ReplicaAction]:
        state = self.state
        actions: list[ReplicaAction] = [each for each in consider(self, vote_request) if not isinstance(each, StepDown)]
        if state.led_epoch is not None:
            self.state = state
        return actions

    patch.setattr(Elections, "_consider", consider_and_lead)


def commit_the_fastest(patch: pytest.MonkeyPatch) -> None:
    """Commit what the fastest replica has acknowledged."""

    def move_high_watermark(self: Replica) -> list[ReplicaAction]:
        acks = self._peers.progress.ends
        found = max(acks.values(), default=FIRST_OFFSET)
        if self.led_epoch is None or self._broker not in acks or found <= self.high_watermark:
            return []
        self._mark.offset = found
        return [AdvanceHighWatermark(found)]

    patch.setattr(Replica, "_move_high_watermark", move_high_watermark)


def commit_own_log(patch: pytest.MonkeyPatch) -> None:
    """Commit what is durable at the leader."""

    def move_high_watermark(self: Replica) -> list[ReplicaAction]:
        found = self._peers.progress.ends.get(self._broker, FIRST_OFFSET)
        if self.led_epoch is None or found <= self.high_watermark:
            return []
        self._mark.offset = found
        return [AdvanceHighWatermark(found)]

    patch.setattr(Replica, "_move_high_watermark", move_high_watermark)


def acknowledge_with_gaps(patch: pytest.MonkeyPatch) -> None:
    """Acknowledge an epoch although records before it are not stored."""

    def is_complete(self: LocalEpochs, epoch: LeaderAndEpoch) -> bool:
        return epoch in self._ends and self._epoch_tree.chain(EpochEnd(epoch, self._ends[epoch])) is not None

    patch.setattr(LocalEpochs, "is_complete", is_complete)


def vote_backwards(patch: pytest.MonkeyPatch) -> None:
    """Vote for epochs earlier than the last vote, whoever leads."""
    patch.setattr(Elections, "_voted_epoch", lambda _self: -1)
    patch.setattr(Elections, "_follows_another", lambda _self, _vote_request: False)


def vote_only_once(patch: pytest.MonkeyPatch) -> None:
    """Vote for at most one request."""
    consider = Elections._consider
    patch.setattr(
        Elections,
        "_consider",
        lambda self, vote_request: [] if self.votes.own is not None else consider(self, vote_request),
    )


def ask_new_replicas_only(patch: pytest.MonkeyPatch) -> None:
    """Begin an epoch with the votes of its own replicas alone, when replicas change."""
    patch.setattr(Election, "has_quorum_of_former_voters", lambda _self, _tree: True)


def share_epochs(patch: pytest.MonkeyPatch) -> None:
    """Use the epochs that others use, too."""
    next_epoch = Elections._next_epoch

    def next_shared_epoch(self: Elections) -> LeaderAndEpoch:
        self.renumber(0)
        return next_epoch(self)

    patch.setattr(Elections, "_next_epoch", next_shared_epoch)


def count_old_acknowledgements(patch: pytest.MonkeyPatch) -> None:
    """Count acknowledgements of other epochs."""
    acknowledged = Replica.acknowledged

    def acknowledged_any(self: Replica, broker: str, epoch: LeaderAndEpoch, end_offset: Offset) -> list[ReplicaAction]:
        return acknowledged(self, broker, self.led_epoch or epoch, end_offset)

    patch.setattr(Replica, "acknowledged", acknowledged_any)


def keep_old_votes(patch: pytest.MonkeyPatch) -> None:
    """Count votes for an earlier request for the next one."""
    record = Elections._record

    def record_any(self: Elections, broker: str, control: ControlRecord) -> None:
        record(self, broker, control)
        if isinstance(control, Vote) and self.state.election is not None:
            self.state.election.votes[broker] = control

    patch.setattr(Elections, "_record", record_any)


def append_too_early(patch: pytest.MonkeyPatch) -> None:
    """Append before the records before the epoch are stored."""
    patch.setattr(Elections, "is_complete", property(lambda self: self.state.led_epoch is not None))


def never_resign(patch: pytest.MonkeyPatch) -> None:
    """Continue to lead without hearing others."""
    patch.setattr(ElectionTriggers, "is_cut_off", lambda _self, _now: False)


def never_request_again(patch: pytest.MonkeyPatch) -> None:
    """Request votes once."""
    advance = Elections.advance
    patch.setattr(Elections, "advance", lambda self, now: [] if self.state.election is not None else advance(self, now))


def forget_former_replicas(patch: pytest.MonkeyPatch) -> None:
    """Do not ask the replicas of earlier epochs, which can have what no replica of the latest one has."""

    def latest_replicas(_self: Election, tree: EpochTree) -> set[tuple[str, ...]]:
        assert tree.latest is not None
        return {tree.latest.replicas}

    patch.setattr(Election, "former_replica_sets", latest_replicas)


def read_beyond_the_end(patch: pytest.MonkeyPatch) -> None:
    """Commit what others have acknowledged although it is not stored here."""
    move = HighWatermark.move

    def move_beyond(self: HighWatermark, log_end: EpochEnd, *args: Any) -> bool:
        end_offset = max([log_end.end_offset, *self._acks.ends.values()])
        return move(self, EpochEnd(log_end.leader_epoch, end_offset), *args)

    patch.setattr(HighWatermark, "move", move_beyond)


def ignore_epoch_starts(patch: pytest.MonkeyPatch) -> None:
    """Miss the epochs that began while the broker was down, or that it has refused to vote for.

    Short waits between requests bring this out.
    """
    init, receive = Elections.__init__, Elections.receive

    def init_with_short_waits(self: Elections, log: str, broker: str, number: int, settings: Any, *args: Any) -> None:
        init(self, log, broker, number, attrs.evolve(settings, election_timeout_s=0.5), *args)

    def receive_only_requests(self: Elections, broker: str, record: ControlRecord) -> list[ReplicaAction]:
        if isinstance(record, VoteRequest):
            return receive(self, broker, record)
        self._record(broker, record)
        return self._count_votes()

    patch.setattr(Elections, "__init__", init_with_short_waits)
    patch.setattr(Elections, "receive", receive_only_requests)
    patch.setattr(Elections, "_follow_epoch_start", lambda _self, _start: [])


def resume_despite_votes(patch: pytest.MonkeyPatch) -> None:
    """Lead again after a restart although the broker has voted for another leader."""

    def resume(self: Elections) -> list[ReplicaAction]:
        start = self.peers.latest
        is_own = start.leader_epoch.leader == self._broker and self._local_epochs.is_complete(start.leader_epoch)
        return self._lead(Transition.RESUME, start) if is_own else []

    patch.setattr(Elections, "resume", resume)


def count_the_dead(patch: pytest.MonkeyPatch) -> None:
    """Wait for the acknowledgements of replicas that are dead."""

    def slowest_end(self: HighWatermark, voters: tuple[str, ...], *_: object) -> int:
        return min((self._acks.ends.get(each, -1) for each in voters), default=-1)

    patch.setattr(HighWatermark, "acknowledged_end", slowest_end)


def wait_for_nobody(patch: pytest.MonkeyPatch) -> None:
    """Begin an epoch with the candidate's own vote alone, although others are alive."""
    patch.setattr(Election, "has_quorum", lambda _self, _writable: True)
    patch.setattr(Election, "has_quorum_of_former_voters", lambda _self, _tree: True)


def stay_with_full_leaders(patch: pytest.MonkeyPatch) -> None:
    """Treat a leader whose disk is full like one that can write."""
    set_alive = Elections.set_alive
    patch.setattr(
        Elections, "set_alive", lambda self, alive, now, _unwritable: set_alive(self, alive, now, frozenset())
    )


def count_learners(patch: pytest.MonkeyPatch) -> None:
    """Commit what learners have acknowledged, which others do not ask for their votes."""
    acknowledged_end = HighWatermark.acknowledged_end

    def learners_end(
        self: HighWatermark, voters: tuple[str, ...], acknowledged: EpochEnd, writable: frozenset[str]
    ) -> int:
        learners = () if self._epoch_tree.latest is None else self._epoch_tree.latest.learners
        counted = (self._broker, *learners) if learners else voters
        return acknowledged_end(self, counted, acknowledged, writable)

    patch.setattr(HighWatermark, "acknowledged_end", learners_end)


PLANTED: list[tuple[Availability, Bug, int]] = [
    (Availability.MAJORITY, acknowledge_despite_votes, 0),
    (Availability.MAJORITY, hide_log_ends, 0),
    (Availability.MAJORITY, count_half, 0),
    (Availability.MAJORITY, continue_the_shortest, 0),
    (Availability.MAJORITY, continue_own_log, 15),
    (Availability.MAJORITY, forget_votes, 59),
    (Availability.MAJORITY, forget_local_log, 0),
    (Availability.MAJORITY, lead_despite_votes, 0),
    (Availability.MAJORITY, commit_the_fastest, 0),
    (Availability.MAJORITY, commit_own_log, 0),
    (Availability.MAJORITY, acknowledge_with_gaps, 0),
    (Availability.MAJORITY, vote_backwards, 700),
    (Availability.MAJORITY, vote_only_once, 3),
    (Availability.MAJORITY, ask_new_replicas_only, 35),
    (Availability.MAJORITY, count_old_acknowledgements, 18),
    (Availability.MAJORITY, keep_old_votes, 3),
    (Availability.MAJORITY, append_too_early, 3),
    (Availability.MAJORITY, never_resign, 112),
    (Availability.MAJORITY, never_request_again, 114),
    (Availability.MAJORITY, wait_for_nobody, 0),
    (Availability.MAJORITY, forget_former_replicas, 1620),
    (Availability.MAJORITY, read_beyond_the_end, 0),
    (Availability.MAJORITY, resume_despite_votes, 45),
    (Availability.MAJORITY, count_the_dead, 0),
    (Availability.MAJORITY, ignore_epoch_starts, 3),
    (Availability.MAJORITY, stay_with_full_leaders, 0),
    (Availability.MAJORITY, count_learners, 35),
    (Availability.BRANCH, stay_with_full_leaders, 0),
    (Availability.BRANCH, share_epochs, 1),
    (Availability.BRANCH, vote_only_once, 15),
]
"""Each bug of replicas, under which policy it shows, and a seed that shows it."""


def forget_first_records_of_other_leaders(patch: pytest.MonkeyPatch) -> None:
    """Take every first record of a transaction that another leader has appended for none."""
    find = Log._first_offset

    def forget(self: Log, marker: MarkerEntry, own: str) -> Offset | None:
        return None if isinstance(marker.first_position, AtOffset) else find(self, marker, own)

    patch.setattr(Log, "_first_offset", forget)


def keep_transactions_of_other_branches_out(patch: pytest.MonkeyPatch) -> None:
    """Take records that another leader has appended for records of no transaction."""
    add = TransactionRuns.add

    def add_own(self: TransactionRuns, offset: Offset, entry: BatchEntry) -> None:
        if not isinstance(entry.position, AtOffset):
            add(self, offset, entry)

    patch.setattr(TransactionRuns, "add", add_own)


PLANTED_IN_LOGS: list[tuple[Bug, int]] = [
    (forget_first_records_of_other_leaders, 4),
    (keep_transactions_of_other_branches_out, 4),
]
"""Each bug in what logs know of transactions, and a seed that shows it."""


def count_answers_before_their_promises(patch: pytest.MonkeyPatch) -> None:
    """Count answers to rounds although promises are not known that were made before them."""
    answered = LeaseRounds.answered
    patch.setattr(LeaseRounds, "answered", lambda self, broker, answer, _known: answered(self, broker, answer, 2**60))


def hold_leases_too_long(patch: pytest.MonkeyPatch) -> None:
    """Hold leases longer than it takes others to elect a leader."""
    heard_since = LeaseRounds.heard_since
    patch.setattr(LeaseRounds, "heard_since", lambda self, broker: heard_since(self, broker) + 1)


PLANTED_IN_LEASES: list[tuple[Bug, int]] = [
    (count_answers_before_their_promises, 418),
    (hold_leases_too_long, 46),
]
"""Each bug in leases, and a seed that shows it."""

CASES = [
    *PLANTED,
    *((Availability.MAJORITY, bug, seed) for bug, seed in (*PLANTED_IN_LOGS, *PLANTED_IN_LEASES)),
]
"""All bugs."""


def is_noticed(availability: Availability, bug: Bug, seed: int) -> bool:
    """Return whether a seed shows a bug: it breaks a promise, or something that the simulated log takes for granted."""
    with pytest.MonkeyPatch.context() as patch:
        bug(patch)
        patch.setattr(KeptLog, "check_transition", lambda *_: None)  # a bug must break a promise, too
        try:
            run_seed(seed, availability)
        except AssertionError:
            return True
        return False
