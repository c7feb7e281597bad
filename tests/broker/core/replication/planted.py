"""Planted bugs: replicas with one mistake each, which the simulation must notice."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable
from collections.abc import Set as AbstractSet
from typing import Any

import attrs
import pytest

from dafka.broker.core.log.entries import BatchEntry, MarkerEntry, names_offset
from dafka.broker.core.log.log import Log
from dafka.broker.core.log.producer_batches import TransactionRuns
from dafka.broker.core.replication.effects import (
    Acknowledge,
    AdvanceHighWatermark,
    ReplicaAction,
    StepDown,
    WriteControl,
)
from dafka.broker.core.replication.election import Election
from dafka.broker.core.replication.epoch_tree import EpochTree
from dafka.broker.core.replication.high_watermark import HighWatermark
from dafka.broker.core.replication.leader_lease import LeaseRounds
from dafka.broker.core.replication.local_epochs import LocalEpochs
from dafka.broker.core.replication.records import (
    NO_EPOCH_END,
    ControlRecord,
    EpochEnd,
    LeaderAndEpoch,
    Vote,
    VoteRequest,
)
from dafka.broker.core.replication.replica import Replica
from dafka.broker.core.replication.settings import Availability, ReplicaSettings


class AcknowledgesDespitePromise(Replica):
    """Acknowledges records of a branch although it has promised to follow a later one."""

    def _acknowledge(self) -> list[ReplicaAction]:
        held = self.local_epochs
        log_end = max(
            (EpochEnd(each, end) for each, end in held._ends.items() if held.is_complete(each)), default=NO_EPOCH_END
        )
        if log_end.leader_epoch.leader in {"", self._broker}:
            return super()._acknowledge()
        return [Acknowledge(log_end.leader_epoch, log_end.end_offset)]


class HidesItsTip(Replica):
    """Promises without saying what it holds."""

    def _vote_for(self, vote_request: VoteRequest) -> list[ReplicaAction]:
        actions = super()._vote_for(vote_request)
        return [
            WriteControl(attrs.evolve(each.record, log_end=NO_EPOCH_END))
            if isinstance(each, WriteControl) and isinstance(each.record, Vote)
            else each
            for each in actions
        ]


class _Candidate(Replica):
    """Counts the promises to follow its claims as `Kind` does."""

    Kind: type[Election]

    def _request_votes_with(self, *args: Any, **kwargs: Any) -> list[ReplicaAction]:
        actions = super()._request_votes_with(*args, **kwargs)
        assert self._election is not None
        self._election = self.Kind(self._election.vote_request, self.availability)
        return actions


class CountsHalf(_Candidate):
    """Begins a branch with the promises of fewer than half of the replicas."""

    class Kind(Election):
        def has_quorum(self, writable: Collection[str]) -> bool:
            return len(self.votes) + 1 >= len(self.vote_request.replicas) // 2

        def has_quorum_of_former_voters(self, table: EpochTree) -> bool:
            return True


class ContinuesTheShortest(Replica):
    """Continues the shortest tip."""

    def _choose_parent(self, log_ends: list[EpochEnd]) -> EpochEnd:
        return min(log_ends, key=lambda each: (each.leader_epoch.epoch, each.end_offset))


class ContinuesItsOwn(Replica):
    """Continues what it holds itself."""

    def _choose_parent(self, log_ends: list[EpochEnd]) -> EpochEnd:
        return self.local_epochs.log_end()


class ForgetsPromises(Replica):
    """Forgets at a restart what it has promised."""

    def restore(self, own: Any, others: Any) -> None:
        super().restore([each for each in own if not isinstance(each, Vote)], others)
        self._vote_record.own = None


class ForgetsWhatItHolds(Replica):
    """Forgets at a restart what it holds of other leaders' branches."""

    def restore_local(self, held: dict[LeaderAndEpoch, int]) -> None:
        super().restore_local({each: end for each, end in held.items() if each.leader == self._broker})


class LeadsDespitePromise(Replica):
    """Does not step down when it promises to follow another leader."""

    def _consider(self, vote_request: VoteRequest) -> list[ReplicaAction]:
        led_epoch = self.led_epoch
        actions: list[ReplicaAction] = [
            each for each in super()._consider(vote_request) if not isinstance(each, StepDown)
        ]
        self.led_epoch = led_epoch
        return actions


class CommitsTheFastest(Replica):
    """Lets readers read what the fastest replica has acknowledged."""

    def _move_high_watermark(self) -> list[ReplicaAction]:
        found = max(self._acks.ends.values(), default=0)
        if self.led_epoch is None or self._broker not in self._acks.ends or found <= self.high_watermark:
            return []
        self._mark.offset = found
        return [AdvanceHighWatermark(found)]


class CommitsItsOwn(Replica):
    """Lets readers read what is durable at the leader."""

    def _move_high_watermark(self) -> list[ReplicaAction]:
        found = self._acks.ends.get(self._broker, 0)
        if self.led_epoch is None or found <= self.high_watermark:
            return []
        self._mark.offset = found
        return [AdvanceHighWatermark(found)]


class _Gapped(LocalEpochs):
    """Takes a branch for complete although records before it are not held."""

    def is_complete(self, branch: LeaderAndEpoch) -> bool:
        return branch in self._ends and self._epoch_tree.chain(EpochEnd(branch, self._ends[branch])) is not None


class AcknowledgesWithGaps(Replica):
    """Acknowledges a branch although it lacks records before it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.local_epochs = _Gapped(self.epoch_tree, self._first)


class PromisesBackwards(Replica):
    """Promises to follow a claim that is older than what it has promised, whoever leads."""

    def _voted_epoch(self) -> int:
        return -1

    def _follows_another(self, vote_request: VoteRequest) -> bool:
        return False


class PromisesOnlyOnce(Replica):
    """Promises at most one claim."""

    def _consider(self, vote_request: VoteRequest) -> list[ReplicaAction]:
        return [] if self._vote_record.own is not None else super()._consider(vote_request)


class AsksTheNewReplicas(_Candidate):
    """Begins a branch with the promises of its own replicas alone, when replicas change."""

    class Kind(Election):
        def has_quorum_of_former_voters(self, table: EpochTree) -> bool:
            return True


class SharesEpochs(Replica):
    """Chooses the epochs that others choose, too."""

    def advance(self, now: float) -> list[ReplicaAction]:
        self._number = 0
        return super().advance(now)


class CountsOldAcknowledgements(Replica):
    """Counts acknowledgements of other branches."""

    def acknowledged(self, broker: str, branch: LeaderAndEpoch, end_offset: int) -> list[ReplicaAction]:
        return super().acknowledged(broker, self.led_epoch or branch, end_offset)


class KeepsOldPromises(Replica):
    """Counts promises of an earlier claim for the next one."""

    def _record(self, broker: str, record: ControlRecord) -> None:
        super()._record(broker, record)
        if isinstance(record, Vote) and self._election is not None:
            self._election.votes[broker] = record


class AppendsTooEarly(Replica):
    """Appends before it holds the records before its branch."""

    @property
    def may_append(self) -> bool:
        return self.led_epoch is not None


class NeverResigns(Replica):
    """Goes on leading although it hears of nobody."""

    def _is_cut_off(self, now: float) -> bool:
        return False


class NeverClaimsAgain(Replica):
    """Claims once."""

    def advance(self, now: float) -> list[ReplicaAction]:
        return [] if self._election is not None else super().advance(now)


class ForgetsFormerReplicas(_Candidate):
    """Does not ask the replicas of earlier branches, which may hold what no replica of the latest one does."""

    class Kind(Election):
        def former_replica_sets(self, table: EpochTree) -> set[tuple[str, ...]]:
            assert table.latest is not None
            return {table.latest.replicas}


class LetsReadersReadBeyondItsEnd(Replica):
    """Lets readers read what others have acknowledged, without holding it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        acks = self._acks

        class Beyond(LocalEpochs):
            def log_end(self) -> EpochEnd:
                log_end = super().log_end()
                if sys._getframe(1).f_code.co_name == "_move_high_watermark":
                    return EpochEnd(log_end.leader_epoch, max([log_end.end_offset, *acks.ends.values()]))
                return log_end

        self.local_epochs = Beyond(self.epoch_tree, self._first)


class IgnoresRows(Replica):
    """Misses the branches that began while the broker was down, or that it has refused to follow.

    Short waits between claims bring this out.
    """

    def __init__(self, log: str, broker: str, number: int, replicas: Iterable[str], settings: ReplicaSettings) -> None:
        super().__init__(log, broker, number, replicas, attrs.evolve(settings, election_timeout_s=0.5))

    def resume(self) -> list[ReplicaAction]:
        return super().resume() if self.latest.leader_epoch.leader == self._broker else []

    def receive(self, broker: str, record: ControlRecord) -> list[ReplicaAction]:
        if isinstance(record, VoteRequest):
            return super().receive(broker, record)
        self._record(broker, record)
        return [*self._begin_if_elected(), *self._acknowledge()]


class ResumesDespitePromise(Replica):
    """Leads again after a restart although it has promised to follow another leader."""

    def resume(self) -> list[ReplicaAction]:
        if self.latest.leader_epoch.leader == self._broker and self.local_epochs.is_complete(self.latest.leader_epoch):
            return self._begin_leading(self.latest)
        return []


class _Marking(Replica):
    """Moves its high watermark as `Mark` does."""

    Mark: type[HighWatermark]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._mark = self.Mark(self._broker, self.epoch_tree, self._acks, self.availability)


class CountsTheDead(_Marking):
    """Waits for the acknowledgements of replicas that are dead."""

    class Mark(HighWatermark):
        def acknowledged_end(
            self, replicas: tuple[str, ...], acknowledged: EpochEnd, writable: AbstractSet[str]
        ) -> int:
            return min((self._acks.ends.get(each, -1) for each in replicas), default=-1)


class WaitsForNobody(_Candidate):
    """Begins a branch with its own promise alone, although others are alive."""

    class Kind(Election):
        def has_quorum(self, writable: Collection[str]) -> bool:
            return True

        def has_quorum_of_former_voters(self, table: EpochTree) -> bool:
            return True


class StaysWithFullLeaders(Replica):
    """Takes a leader whose disk is full for one that leads."""

    def set_alive(
        self, brokers: Collection[str], now: float, unwritable: frozenset[str] = frozenset()
    ) -> list[ReplicaAction]:
        return super().set_alive(brokers, now)


class CountsJoiningReplicas(_Marking):
    """Lets readers read what replicas have acknowledged that still join, and that others do not ask."""

    class Mark(HighWatermark):
        def acknowledged_end(
            self, replicas: tuple[str, ...], acknowledged: EpochEnd, writable: AbstractSet[str]
        ) -> int:
            learners = () if self._epoch_tree.latest is None else self._epoch_tree.latest.learners
            return super().acknowledged_end((self._broker, *learners) if learners else replicas, acknowledged, writable)


PLANTED: list[tuple[Availability, type[Replica], int]] = [
    (Availability.MAJORITY, AcknowledgesDespitePromise, 0),
    (Availability.MAJORITY, HidesItsTip, 0),
    (Availability.MAJORITY, CountsHalf, 0),
    (Availability.MAJORITY, ContinuesTheShortest, 0),
    (Availability.MAJORITY, ContinuesItsOwn, 15),
    (Availability.MAJORITY, ForgetsPromises, 59),
    (Availability.MAJORITY, ForgetsWhatItHolds, 0),
    (Availability.MAJORITY, LeadsDespitePromise, 0),
    (Availability.MAJORITY, CommitsTheFastest, 0),
    (Availability.MAJORITY, CommitsItsOwn, 0),
    (Availability.MAJORITY, AcknowledgesWithGaps, 0),
    (Availability.MAJORITY, PromisesBackwards, 700),
    (Availability.MAJORITY, PromisesOnlyOnce, 3),
    (Availability.MAJORITY, AsksTheNewReplicas, 35),
    (Availability.MAJORITY, CountsOldAcknowledgements, 18),
    (Availability.MAJORITY, KeepsOldPromises, 2),
    (Availability.MAJORITY, AppendsTooEarly, 3),
    (Availability.MAJORITY, NeverResigns, 94),
    (Availability.MAJORITY, NeverClaimsAgain, 114),
    (Availability.MAJORITY, WaitsForNobody, 0),
    (Availability.MAJORITY, ForgetsFormerReplicas, 1620),
    (Availability.MAJORITY, LetsReadersReadBeyondItsEnd, 0),
    (Availability.MAJORITY, ResumesDespitePromise, 45),
    (Availability.MAJORITY, CountsTheDead, 0),
    (Availability.MAJORITY, IgnoresRows, 2),
    (Availability.MAJORITY, StaysWithFullLeaders, 0),
    (Availability.MAJORITY, CountsJoiningReplicas, 35),
    (Availability.BRANCH, StaysWithFullLeaders, 0),
    (Availability.BRANCH, SharesEpochs, 1),
    (Availability.BRANCH, PromisesOnlyOnce, 15),
]
"""Each bug, under which policy it shows, and a seed from which on it was found."""


def forget_first_records_of_other_leaders(patch: pytest.MonkeyPatch) -> None:
    """Take every first record of a transaction that another leader has appended for none."""
    find = Log._first_offset

    def forget(self: Log, marker: MarkerEntry, own: str) -> int | None:
        is_other = marker.first_sequence is not None and names_offset(marker.first_sequence)
        return None if is_other else find(self, marker, own)

    patch.setattr(Log, "_first_offset", forget)


def keep_transactions_of_other_branches_out(patch: pytest.MonkeyPatch) -> None:
    """Take records that another leader has appended for records of no transaction."""
    add = TransactionRuns.add

    def add_own(self: TransactionRuns, offset: int, entry: BatchEntry) -> None:
        if not names_offset(entry.sequence):
            add(self, offset, entry)

    patch.setattr(TransactionRuns, "add", add_own)


PLANTED_IN_LOGS: list[tuple[Callable[[pytest.MonkeyPatch], None], int]] = [
    (forget_first_records_of_other_leaders, 4),
    (keep_transactions_of_other_branches_out, 4),
]
"""Each bug in what logs know of transactions, and a seed with transactions from which on it was found."""


def count_answers_before_their_promises(patch: pytest.MonkeyPatch) -> None:
    """Count answers to rounds although promises are not known that were made before them."""
    answered = LeaseRounds.answered
    patch.setattr(LeaseRounds, "answered", lambda self, broker, answer, _known: answered(self, broker, answer, 2**60))


def hold_leases_too_long(patch: pytest.MonkeyPatch) -> None:
    """Hold leases longer than it takes others to elect a leader."""
    heard_since = LeaseRounds.heard_since
    patch.setattr(LeaseRounds, "heard_since", lambda self, broker: heard_since(self, broker) + 1)


PLANTED_IN_LEASES: list[tuple[Callable[[pytest.MonkeyPatch], None], int]] = [
    (count_answers_before_their_promises, 2),
    (hold_leases_too_long, 2),
]
"""Each bug in leases, and a seed with leases from which on it was found."""
