"""Planted bugs: one mistake each, which the simulation must notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from dafka.broker.core.log.entries import MarkerEntry
from dafka.broker.core.log.log import Log
from dafka.broker.core.positions import FIRST_OFFSET, AtOffset, Offset
from dafka.broker.core.replication.effects import (
    Acknowledge,
    AdvanceHighWatermark,
    ReplicaAction,
    StepDown,
)
from dafka.broker.core.replication.election import Election
from dafka.broker.core.replication.elections import Elections
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


def commit_own_log(patch: pytest.MonkeyPatch) -> None:
    """Commit what is durable at the leader."""

    def move_high_watermark(self: Replica) -> list[ReplicaAction]:
        found = self._peers.progress.ends.get(self._broker, FIRST_OFFSET)
        if self.led_epoch is None or found <= self.high_watermark:
            return []
        self._mark.offset = found
        return [AdvanceHighWatermark(found)]

    patch.setattr(Replica, "_move_high_watermark", move_high_watermark)


def vote_backwards(patch: pytest.MonkeyPatch) -> None:
    """Vote for epochs earlier than the last vote, whoever leads."""
    patch.setattr(Elections, "_voted_epoch", lambda _self: -1)
    patch.setattr(Elections, "_follows_another", lambda _self, _vote_request: False)


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


def never_request_again(patch: pytest.MonkeyPatch) -> None:
    """Request votes once."""
    advance = Elections.advance
    patch.setattr(Elections, "advance", lambda self, now: [] if self.state.election is not None else advance(self, now))


def read_beyond_the_end(patch: pytest.MonkeyPatch) -> None:
    """Commit what others have acknowledged although it is not stored here."""
    move = HighWatermark.move

    def move_beyond(self: HighWatermark, log_end: EpochEnd, *args: Any) -> bool:
        end_offset = max([log_end.end_offset, *self._acks.ends.values()])
        return move(self, EpochEnd(log_end.leader_epoch, end_offset), *args)

    patch.setattr(HighWatermark, "move", move_beyond)


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


def forget_first_records_of_other_leaders(patch: pytest.MonkeyPatch) -> None:
    """Take every first record of a transaction that another leader has appended for none."""
    find = Log._first_offset

    def forget(self: Log, marker: MarkerEntry, own: str) -> Offset | None:
        return None if isinstance(marker.first_position, AtOffset) else find(self, marker, own)

    patch.setattr(Log, "_first_offset", forget)


def count_answers_before_their_promises(patch: pytest.MonkeyPatch) -> None:
    """Count answers to rounds although promises are not known that were made before them."""
    answered = LeaseRounds.answered
    patch.setattr(LeaseRounds, "answered", lambda self, broker, answer, _known: answered(self, broker, answer, 2**60))


def hold_leases_too_long(patch: pytest.MonkeyPatch) -> None:
    """Hold leases longer than it takes others to elect a leader."""
    heard_since = LeaseRounds.heard_since
    patch.setattr(LeaseRounds, "heard_since", lambda self, broker: heard_since(self, broker) + 1)


CASES: list[tuple[Availability, Bug, int]] = [
    (Availability.MAJORITY, acknowledge_despite_votes, 0),
    (Availability.MAJORITY, continue_own_log, 15),
    (Availability.MAJORITY, forget_votes, 59),
    (Availability.MAJORITY, lead_despite_votes, 0),
    (Availability.MAJORITY, commit_own_log, 0),
    (Availability.MAJORITY, vote_backwards, 700),
    (Availability.MAJORITY, ask_new_replicas_only, 35),
    (Availability.MAJORITY, never_request_again, 114),
    (Availability.MAJORITY, read_beyond_the_end, 0),
    (Availability.MAJORITY, stay_with_full_leaders, 0),
    (Availability.MAJORITY, count_learners, 35),
    (Availability.MAJORITY, forget_first_records_of_other_leaders, 4),
    (Availability.MAJORITY, count_answers_before_their_promises, 418),
    (Availability.MAJORITY, hold_leases_too_long, 46),
    (Availability.BRANCH, stay_with_full_leaders, 0),
    (Availability.BRANCH, share_epochs, 1),
]
"""Each bug, under which policy it shows, and a seed that shows it."""


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
