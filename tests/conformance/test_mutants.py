"""The suite finds faults: each broken node is found out by the scenario that is meant for it, and by the right clause."""

from __future__ import annotations

import consumer_mutants
import producer_mutants
import pytest
import store_mutants
import tower_mutants
from mutants import Mutant

from dafka_conformance.catalogue import Catalogue
from dafka_conformance.model import Outcome, ScenarioResult
from dafka_conformance.runner import run
from dafka_conformance.targets import open_target

MUTANTS = [
    *store_mutants.MUTANTS,
    *consumer_mutants.MUTANTS,
    *producer_mutants.MUTANTS,
    *tower_mutants.MUTANTS,
]


@pytest.fixture(scope="session")
def catalogue() -> Catalogue:
    return Catalogue.load()


async def play(catalogue: Catalogue, mutant: Mutant) -> ScenarioResult:
    finished = await run(
        catalogue, open_target("embedded", {}), dialects=[mutant.dialect], patterns=[mutant.scenario], patience=0.5
    )
    (result,) = finished.results
    return result


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
async def test_mutant_is_found(mutant: Mutant, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.apply(monkeypatch)
    result = await play(catalogue, mutant)
    findings = [(check.clause, check.message) for check in result.checks if not check.holds]
    assert result.outcome is Outcome.FAILED, "the mutant was not found"
    assert any(clause == mutant.clause and mutant.message in message for clause, message in findings), findings


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
async def test_healthy_node_passes_what_finds_the_mutant(mutant: Mutant, catalogue: Catalogue) -> None:
    result = await play(catalogue, mutant)
    assert result.outcome is Outcome.PASSED, [check for check in result.checks if not check.holds]


def test_there_are_enough_and_each_is_another() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(names) >= 40
    assert len(set(names)) == len(names)
