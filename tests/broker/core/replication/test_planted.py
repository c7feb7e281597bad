"""The simulation of replicas notices mistakes: each planted bug breaks a promise in one of 2,000 seeds."""

from __future__ import annotations

import pytest

from dafka.broker.core.replication.settings import Availability
from tests.broker.core.replication.brokers import KeptLog
from tests.broker.core.replication.history import Violation
from tests.broker.core.replication.planted import PLANTED, PLANTED_IN_LEASES, PLANTED_IN_LOGS, Bug, lead_despite_votes
from tests.broker.core.replication.running import run_seed
from tests.broker.core.replication.world import LEASES_EVERY, TRANSACTIONS_EVERY

SEEDS = 2000

NOTICED = (Violation, AssertionError)
"""A bug breaks a promise, or something that the simulated log takes for granted."""


CASES = [
    *((availability, bug, first, 1) for availability, bug, first in PLANTED),
    *((Availability.MAJORITY, bug, first, TRANSACTIONS_EVERY) for bug, first in PLANTED_IN_LOGS),
    *((Availability.MAJORITY, bug, first, LEASES_EVERY) for bug, first in PLANTED_IN_LEASES),
]


@pytest.mark.parametrize(
    ("availability", "bug", "first", "step"),
    CASES,
    ids=[f"{bug.__name__}-{availability.value}" for availability, bug, _, _ in CASES],
)
def test_the_simulation_finds_a_planted_bug(
    availability: Availability, bug: Bug, first: int, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_seed(first, availability)
    bug(monkeypatch)
    monkeypatch.setattr(KeptLog, "check_transition", lambda *_: None)  # a bug must break a promise, too
    for seed in range(first, first + SEEDS, step):
        try:
            run_seed(seed, availability)
        except NOTICED:
            return
    raise AssertionError(f"{bug.__name__} shows in none of the seeds from {first} on")


def test_the_simulation_finds_a_transition_that_the_table_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    lead_despite_votes(monkeypatch)
    with pytest.raises(Violation, match="is not in the table"):
        run_seed(0, Availability.MAJORITY)


def test_the_simulation_finds_records_that_are_healed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that counts what it has healed itself does not see what a leader before it has healed."""

    def find_healed(self: KeptLog) -> set[str]:
        chain = self.replica.epoch_tree.chain(self.replica.local_epochs.log_end()) or ()
        healed = [
            self.branches[tip.leader_epoch]
            for tip in chain
            if tip.leader_epoch == self.led and tip.leader_epoch in self.branches
        ]
        own = {each.leader_epoch for each in chain}
        kept = [self.branches[branch] for branch in own if branch in self.branches and branch != self.led]
        counted = {each for start, ids in kept for each in ids if int(each.split(":")[0]) in {e.epoch for e in own}}
        return counted.union(*(ids for _, ids in healed))

    monkeypatch.setattr(KeptLog, "find_healed", find_healed)
    for seed in range(100):
        try:
            run_seed(seed, Availability.BRANCH)
        except Violation as violation:
            if "twice" in str(violation):
                return
    raise AssertionError("no record is healed twice in any of the seeds")
