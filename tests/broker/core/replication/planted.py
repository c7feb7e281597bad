"""Planted bugs: one mistake each, which the simulation must notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from dafka.broker.core.log.log import Log
from dafka.broker.core.positions import FIRST_OFFSET, AtOffset
from dafka.broker.core.replication.effects import Acknowledge, AdvanceHighWatermark, ReplicaAction, StepDown
from dafka.broker.core.replication.election import Election
from dafka.broker.core.replication.elections import Elections
from dafka.broker.core.replication.epoch_tree import LocalEpochs
from dafka.broker.core.replication.high_watermark import HighWatermark
from dafka.broker.core.replication.leader_lease import LeaseRounds
from dafka.broker.core.replication.records import NO_EPOCH_END, EpochEnd, LeaderAndEpoch, Vote, VoteRequest
from dafka.broker.core.replication.replica import Replica
from dafka.broker.core.replication.settings import Availability
from dafka.broker.core.replication.transitions import Transition
from tests.broker.core.replication.brokers import KeptLog
from tests.broker.core.replication.running import run_seed

MAJORITY, BRANCH = Availability.MAJORITY, Availability.BRANCH


class Bug(NamedTuple):
    """A method that does something else: what `change` returns for the right one."""

    availability: Availability
    seed: int  # shows it
    owner: type
    method: str
    change: Callable[[Any], Any]


def acknowledge_despite_votes(acknowledge: Callable[[Replica], list[ReplicaAction]]) -> Callable[..., Any]:
    def acknowledge_all(self: Replica) -> list[ReplicaAction]:
        local = self.local_epochs
        ends = (EpochEnd(each, end) for each, end in local._ends.items() if local.is_complete(each))
        end = max(ends, default=NO_EPOCH_END)
        return acknowledge(self) if end.leader_epoch.leader in {"", self._broker} else [Acknowledge(*end)]

    return acknowledge_all


def lead_despite_votes(
    consider: Callable[[Elections, VoteRequest], list[ReplicaAction]],
) -> Callable[[Elections, VoteRequest], list[ReplicaAction]]:
    def consider_and_lead(self: Elections, vote_request: VoteRequest) -> list[ReplicaAction]:
        state = self.state
        actions: list[ReplicaAction] = [each for each in consider(self, vote_request) if not isinstance(each, StepDown)]
        self.state = self.state if state.led_epoch is None else state
        return actions

    return consider_and_lead


def commit_own_log(_: object) -> Callable[[Replica], list[ReplicaAction]]:
    def move_high_watermark(self: Replica) -> list[ReplicaAction]:
        found = self._peers.progress.ends.get(self._broker, FIRST_OFFSET)
        if self.led_epoch is None or found <= self.high_watermark:
            return []
        self._mark.offset = found
        return [AdvanceHighWatermark(found)]

    return move_high_watermark


def share_epochs(next_epoch: Callable[[Elections], Any]) -> Callable[[Elections], Any]:
    def next_shared_epoch(self: Elections) -> Any:
        self.renumber(0)
        return next_epoch(self)

    return next_shared_epoch


def count_learners(acknowledged_end: Callable[..., int]) -> Callable[..., int]:
    def learners_end(self: HighWatermark, voters: tuple[str, ...], *arguments: Any) -> int:
        learners = () if self._epoch_tree.latest is None else self._epoch_tree.latest.learners
        return acknowledged_end(self, (self._broker, *learners) if learners else voters, *arguments)

    return learners_end


def read_beyond_the_end(move: Callable[..., bool]) -> Callable[..., bool]:
    def move_beyond(self: HighWatermark, log_end: EpochEnd, *arguments: Any) -> bool:
        end_offset = max([log_end.end_offset, *self._acks.ends.values()])
        return move(self, EpochEnd(log_end.leader_epoch, end_offset), *arguments)

    return move_beyond


def stay_with_full_leaders(set_alive: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, alive, now, _unwritable: set_alive(self, alive, now, frozenset())


def count_older_acknowledgements(acknowledged: Callable[..., Any]) -> Callable[..., Any]:
    def acknowledged_in_any(self: Replica, broker: str, leader_epoch: LeaderAndEpoch, *arguments: Any) -> Any:
        return acknowledged(self, broker, self.elections.state.led_epoch or leader_epoch, *arguments)

    return acknowledged_in_any


def resume_despite_votes(_: object) -> Callable[[Elections], list[ReplicaAction]]:
    def resume(self: Elections) -> list[ReplicaAction]:
        start = self.peers.latest
        if start.leader_epoch.leader != self._broker:
            return self._follow_epoch_start(start)
        return self._lead(Transition.RESUME, start) if self._local_epochs.is_complete(start.leader_epoch) else []

    return resume


BUGS: dict[str, Bug] = {
    "a replica acknowledges records of an epoch after a vote for a later one": Bug(
        MAJORITY, 0, Replica, "_acknowledge", acknowledge_despite_votes
    ),
    "an epoch continues the log of the candidate": Bug(
        MAJORITY, 2, Election, "log_ends",
        lambda _: lambda self, _late: [self.votes[each].log_end for each in self.votes if each == self.leader_epoch[1]],
    ),
    "a broker forgets at a restart what it has voted for": Bug(
        MAJORITY, 27, Elections, "restore",
        lambda restore: lambda self, own, others: restore(self, [e for e in own if not isinstance(e, Vote)], others),
    ),
    "a leader leads after a vote for another one": Bug(MAJORITY, 0, Elections, "_consider", lead_despite_votes),
    "a leader commits what is durable where it is": Bug(
        MAJORITY, 0, Replica, "_move_high_watermark", commit_own_log
    ),
    "changed replicas elect a leader without the former ones": Bug(
        MAJORITY, 67, Election, "has_quorum_of_former_voters", lambda _: lambda _self, _tree: True
    ),
    "a candidate requests votes once": Bug(
        MAJORITY, 10, Elections, "advance",
        lambda advance: lambda self, now: [] if self.state.election is not None else advance(self, now),
    ),
    "what others have acknowledged is committed where it is not stored": Bug(
        MAJORITY, 0, HighWatermark, "move", read_beyond_the_end
    ),
    "a leader with a full disk is not replaced": Bug(MAJORITY, 0, Elections, "set_alive", stay_with_full_leaders),
    "what learners have acknowledged is committed": Bug(
        MAJORITY, 67, HighWatermark, "acknowledged_end", count_learners
    ),
    "a leader counts acknowledgements of former epochs": Bug(
        MAJORITY, 1, Replica, "acknowledged", count_older_acknowledgements
    ),
    "a leader appends before it has everything before its epoch": Bug(
        MAJORITY, 0, Elections, "is_complete", lambda _: property(lambda self: self.state.led_epoch is not None)
    ),
    "a broker leads again after a restart although it has voted for another one": Bug(
        MAJORITY, 27, Elections, "resume", resume_despite_votes
    ),
    "an epoch counts as complete without the epochs before it": Bug(
        MAJORITY, 0, LocalEpochs, "is_complete", lambda _: lambda self, leader_epoch: leader_epoch in self._ends
    ),
    "the first record of a transaction is forgotten if another leader has appended it": Bug(
        MAJORITY, 4, Log, "_first_offset",
        lambda find: lambda self, marker, own: (
            None if isinstance(marker.first_position, AtOffset) else find(self, marker, own)
        ),
    ),
    "answers to rounds count although promises made before are unknown": Bug(
        MAJORITY, 146, LeaseRounds, "answered",
        lambda answered: lambda self, broker, answer, _known: answered(self, broker, answer, 2**60),
    ),
    "leases last longer than it takes others to elect a leader": Bug(
        MAJORITY, 46, LeaseRounds, "heard_since", lambda heard_since: lambda self, broker: heard_since(self, broker) + 1
    ),
    "a leader with a full disk is not replaced on either side": Bug(
        BRANCH, 0, Elections, "set_alive", stay_with_full_leaders
    ),
    "brokers use the epochs of others": Bug(BRANCH, 1, Elections, "_next_epoch", share_epochs),
}  # fmt: skip


def is_noticed(bug: Bug, seed: int) -> bool:
    """Return whether a seed shows a bug: it breaks a promise, or something that the simulated log takes for granted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bug.owner, bug.method, bug.change(getattr(bug.owner, bug.method)))
        patch.setattr(KeptLog, "check_transition", lambda *_: None)  # a bug must break a promise, too
        try:
            run_seed(seed, bug.availability)
        except AssertionError:
            return True
        return False
