"""The simulation of replicas notices mistakes: each planted bug breaks a promise in one of 2,000 seeds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dafka.broker.core.replication.replica import Replica
from dafka.broker.core.replication.settings import Availability
from tests.broker.core.replication.brokers import KeptLog
from tests.broker.core.replication.history import Violation
from tests.broker.core.replication.planted import PLANTED, PLANTED_IN_LEASES, PLANTED_IN_LOGS
from tests.broker.core.replication.running import run_seed
from tests.broker.core.replication.world import LEASES_EVERY, TRANSACTIONS_EVERY

SEEDS = 2000

NOTICED = (Violation, AssertionError)
"""A bug breaks a promise, or something that the simulated log takes for granted."""


@pytest.mark.parametrize(
    ("availability", "bug", "first"),
    [
        pytest.param(
            availability,
            bug,
            first,
            id=f"{bug.__name__}-{availability.value}",
        )
        for availability, bug, first in PLANTED
    ],
)
def test_the_simulation_finds_a_planted_bug(availability: Availability, bug: type[Replica], first: int) -> None:
    run_seed(first, availability)
    for seed in range(first, first + SEEDS):
        try:
            run_seed(seed, availability, bug)
        except NOTICED:
            return
    raise AssertionError(f"{bug.__name__} shows in none of the seeds from {first} on")


PLANTED_BY_PATCHES = [
    *((bug, first, TRANSACTIONS_EVERY) for bug, first in PLANTED_IN_LOGS),
    *((bug, first, LEASES_EVERY) for bug, first in PLANTED_IN_LEASES),
]


@pytest.mark.parametrize(
    ("bug", "first", "step"), PLANTED_BY_PATCHES, ids=[bug.__name__ for bug, _, _ in PLANTED_BY_PATCHES]
)
def test_the_simulation_finds_a_bug_planted_into_transactions_or_leases(
    bug: Callable[[pytest.MonkeyPatch], None], first: int, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_seed(first, Availability.MAJORITY)
    bug(monkeypatch)
    for seed in range(first, first + SEEDS, step):
        try:
            run_seed(seed, Availability.MAJORITY)
        except NOTICED:
            return
    raise AssertionError(f"{bug.__name__} shows in none of the seeds from {first} on")


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
