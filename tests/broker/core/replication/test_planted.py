"""The simulation of replicas notices mistakes: each planted bug breaks a promise in a seed that is known to show it."""

from __future__ import annotations

import pytest

from dafka.broker.core.replication.settings import Availability
from tests.broker.core.replication.brokers import KeptLog
from tests.broker.core.replication.history import Violation
from tests.broker.core.replication.planted import CASES, Bug, is_noticed, lead_despite_votes
from tests.broker.core.replication.running import run_seed

HEALED_TWICE = 1
"""A seed in which a leader heals what another one has healed before it."""


@pytest.mark.parametrize(
    ("availability", "bug", "seed"),
    CASES,
    ids=[f"{bug.__name__}-{availability.value}" for availability, bug, _ in CASES],
)
def test_the_simulation_finds_a_planted_bug(availability: Availability, bug: Bug, seed: int) -> None:
    assert is_noticed(availability, bug, seed), (
        "find another seed with `python -m tests.broker.core.replication --planted`"
    )


@pytest.mark.long
def test_seeds_that_show_bugs_show_nothing_else() -> None:
    for availability, _, seed in CASES:
        run_seed(seed, availability)


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
    with pytest.raises(Violation, match="twice"):
        run_seed(HEALED_TWICE, Availability.BRANCH)
