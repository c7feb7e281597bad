"""The table of transitions: the simulation sees every row, and no other transition."""

from __future__ import annotations

from collections import Counter

from dafka.broker.core.replication.divergence import MajorityRule
from dafka.broker.core.replication.effects import StepDown, WriteControl
from dafka.broker.core.replication.election import Election
from dafka.broker.core.replication.records import NO_EPOCH, NO_EPOCH_END, LeaderAndEpoch, Vote, VoteRequest
from dafka.broker.core.replication.settings import Availability
from dafka.broker.core.replication.states import Elected, Follower, Leader, Starting, State
from dafka.broker.core.replication.transitions import EVERY_STATE, Transition
from tests.broker.core.replication.running import run_seed

SEEDS = [
    (Availability.MAJORITY, 351),
    (Availability.MAJORITY, 333),
    (Availability.BRANCH, 321),
    (Availability.BRANCH, 324),
]
"""Seeds that together have every row. `python -m tests.broker.core.replication` counts the rows of many seeds."""

EPOCH = LeaderAndEpoch(1024, "b0")
VOTE = WriteControl(Vote("log", EPOCH, NO_EPOCH_END, (), NO_EPOCH))


def test_the_simulation_sees_every_row() -> None:
    seen: Counter[Transition] = Counter()
    for availability, seed in SEEDS:
        for (transition, _), count in run_seed(seed, availability).transitions.items():
            seen[transition] += count
    assert [each.name for each in Transition if not seen[each]] == []


def test_rows_name_states_that_exist() -> None:
    election = Election(VoteRequest("log", EPOCH, ("b0",)), MajorityRule())
    states: list[State] = [
        Follower(),
        Follower(election),
        Elected(election),
        Starting(EPOCH),
        Leader(EPOCH),
        Leader(EPOCH, election),
    ]
    assert [each.name for each in states] == list(EVERY_STATE)
    for transition in Transition:
        assert set(EVERY_STATE) >= {*transition.value.sources, *transition.value.targets}


def test_a_row_allows_only_its_own_states_and_effects() -> None:
    vote = Transition.VOTE.value
    assert vote.allows("Leader", "Follower", (StepDown(EPOCH), VOTE))
    assert vote.allows("Follower", "Follower + election", (VOTE,))
    assert not vote.allows("Leader", "Leader", (VOTE,))
    assert not vote.allows("Follower", "Follower", (WriteControl(VoteRequest("log", EPOCH, ())),))
    assert not Transition.LEAD.value.allows("Follower", "Leader", ())
    assert not Transition.COMMIT.value.allows("Leader", "Follower", ()), "the state stays as it is"
