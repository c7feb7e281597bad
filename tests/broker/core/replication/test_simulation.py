"""Brokers that replicate a log, simulated: thousands of splits and crashes, and what must hold in all of them."""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest

from dafka.broker.core.replication.divergence import MajorityRule
from dafka.broker.core.replication.effects import StepDown, WriteControl
from dafka.broker.core.replication.election import Election
from dafka.broker.core.replication.elections import Elections
from dafka.broker.core.replication.records import NO_EPOCH, NO_EPOCH_END, LeaderAndEpoch, Vote, VoteRequest
from dafka.broker.core.replication.settings import Availability
from dafka.broker.core.replication.states import Elected, Follower, Leader, Starting
from dafka.broker.core.replication.transitions import EVERY_STATE, Transition
from tests.broker.core.replication.brokers import KeptLog
from tests.broker.core.replication.history import Violation
from tests.broker.core.replication.planted import BUGS, is_noticed, lead_despite_votes
from tests.broker.core.replication.running import run_seed
from tests.broker.core.replication.world import World

MAJORITY, BRANCH = Availability.MAJORITY, Availability.BRANCH
FIXED_SEEDS = [
    *((MAJORITY, seed) for seed in (*range(6), 30230, 102174)),
    *((BRANCH, seed) for seed in (*range(4), 2001009)),
]
"""Seeds with every kind of world: with leases, transactions, balancing, and logs on some of the brokers.

In 30230, the disk of a leader is full that does not hear one of the others. In 102174, the leader does not hear the
preferred replica, whose requests others relay. In 2001009, one side of a split removes the leader of the other side.
"""

SEEDS_OF_ALL_ROWS = [(BRANCH, 27), (MAJORITY, 67)]
"""Together they have every row. `python -m tests.broker.core.replication` counts the rows of many seeds."""

DRAWN_SEEDS = 100


@pytest.mark.parametrize(("availability", "seed"), FIXED_SEEDS)
def test_nothing_that_was_promised_is_broken(availability: Availability, seed: int) -> None:
    assert run_seed(seed, availability).acknowledged()


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("availability", Availability)
def test_nothing_that_was_promised_is_broken_with_many_seeds(availability: Availability) -> None:
    drawn = int(os.environ.get("DAFKA_REPLICATION_SEED", random.randrange(10**9)))
    planted = [each.seed for each in BUGS.values() if each.availability is availability]
    for seed in (*planted, *range(1000, 3000), *range(drawn, drawn + DRAWN_SEEDS)):
        try:
            run_seed(seed, availability)
        except AssertionError as error:
            raise AssertionError(f"DAFKA_REPLICATION_SEED={seed}: {error}") from error


# Planted bugs


@pytest.mark.parametrize("name", BUGS)
def test_the_simulation_finds_a_planted_bug(name: str) -> None:
    is_found = is_noticed(BUGS[name], BUGS[name].seed)
    assert is_found, "find another seed with `python -m tests.broker.core.replication --planted`"


def test_the_simulation_finds_a_transition_that_the_table_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Elections, "_consider", lead_despite_votes(Elections._consider))
    with pytest.raises(Violation, match="is not in the table"):
        run_seed(0, MAJORITY)


def test_the_simulation_finds_records_that_are_healed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that counts what it has healed itself does not see what a leader before it has healed."""

    def find_healed(self: KeptLog) -> set[str]:
        chain = self.replica.epoch_tree.chain(self.replica.local_epochs.log_end()) or ()
        epochs = {each.leader_epoch for each in chain}
        kept = {each: self.branches[each][1] for each in epochs if each in self.branches}
        numbers = {each.epoch for each in epochs}
        own = kept.pop(self.led, []) if self.led is not None else []
        return {*own, *(each for ids in kept.values() for each in ids if int(each.split(":")[0]) in numbers)}

    monkeypatch.setattr(KeptLog, "find_healed", find_healed)
    with pytest.raises(Violation, match="twice"):
        run_seed(1, BRANCH)


# The table of transitions


def test_the_simulation_sees_every_row() -> None:
    seen: Counter[Transition] = Counter()
    for availability, seed in SEEDS_OF_ALL_ROWS:
        for (transition, _), count in run_seed(seed, availability).transitions.items():
            seen[transition] += count
    # A recovery gives up records that a quorum has: no rule of the simulation would hold.
    assert [each for each in Transition if not seen[each]] == [Transition.RECOVER]


def test_a_row_allows_only_its_own_states_and_effects() -> None:
    epoch = LeaderAndEpoch(1024, "b0")
    election = Election(VoteRequest("log", epoch, ("b0",)), MajorityRule())
    followers = Follower(), Follower(election)
    leaders = Elected(election), Starting(epoch), Leader(epoch), Leader(epoch, election)
    assert [each.name for each in (*followers, *leaders)] == list(EVERY_STATE)
    for transition in Transition:
        assert set(EVERY_STATE) >= {*transition.value.sources, *transition.value.targets}
    vote, request = Vote("log", epoch, NO_EPOCH_END, (), NO_EPOCH), VoteRequest("log", epoch, ())
    row = Transition.VOTE.value
    assert row.allows("Leader", "Follower", (StepDown(epoch), WriteControl(vote)))
    assert row.allows("Follower", "Follower + election", (WriteControl(vote),))
    assert not row.allows("Leader", "Leader", (WriteControl(vote),))
    assert not row.allows("Follower", "Follower", (WriteControl(request),))
    assert not Transition.LEAD.value.allows("Follower", "Leader", ())
    assert not Transition.COMMIT.value.allows("Leader", "Follower", ()), "the state stays as it is"


# Its size


def count_messages(count: int) -> float:
    """Return how many messages the busiest broker sends for each other one, while a leader dies and is replaced."""
    world = World(0, MAJORITY, count, 6)
    world.place_on(3)
    for broker in world.brokers.values():
        broker.start()
    world.run_until(2.0)
    dead = next(each for each in world.brokers.values() if each.logs["log/0"].led is not None)
    dead.crash()
    world.run_until(5.0)
    (leader,) = {each.logs["log/0"].replica.leader for each in world.brokers.values() if each.is_up}
    assert leader != dead.name
    return max(world.messages.values()) / (count - 1)


def test_messages_of_each_broker_grow_at_most_linearly_with_the_number_of_brokers() -> None:
    assert count_messages(20) <= 1.1 * count_messages(10)
