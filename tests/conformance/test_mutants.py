"""Each broken node is detected by its scenario, as a violation of the right clause.

`test_own_roles` shows that correct nodes pass the same scenarios.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from typing import TypeAlias

import pytest

from tests.conformance import run_mutant
from tests.conformance.mutants import MUTANTS

CONCURRENT_MUTANTS = 8
TIMEOUT_S = 280
"""A mutant in a process of its own may take this long on a busy machine; it is tried twice."""

SHORT_EVERY = 8
"""`make test` runs one in this many mutants, none of them a process; `make test-long` runs the others."""

SHORT = {name for name, mutant in MUTANTS.items() if mutant.target is None}
SHORT &= {*[*MUTANTS][1::SHORT_EVERY]}

Outcomes: TypeAlias = dict[str, Future[run_mutant.Outcome]]


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> Iterator[Outcomes]:
    """Run the mutants of the selected tests, several at a time, in forks of a process that has loaded the modules."""
    asked = [item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([run_mutant.__name__])
    with ProcessPoolExecutor(CONCURRENT_MUTANTS, context) as pool:
        yield {name: pool.submit(run_mutant.run_mutant, name) for name in asked if name in MUTANTS}
        pool.shutdown(cancel_futures=True)


@pytest.mark.timeout(TIMEOUT_S + 20)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in SHORT else pytest.mark.long) for name in MUTANTS],
)
def test_mutant_is_found(name: str, outcomes: Outcomes) -> None:
    mutant = MUTANTS[name]
    outcome, findings = outcomes[name].result(TIMEOUT_S)
    is_binding = run_mutant.CATALOG.clauses.get(mutant.clause).level.is_binding
    assert outcome == "failed" or not is_binding, "the mutant was not found"
    assert mutant.is_found(findings), findings


def test_every_role_has_mutants_with_existing_scenarios() -> None:
    scenarios = run_mutant.CATALOG.scenarios
    assert {mutant.scenario for mutant in MUTANTS.values()} <= scenarios.keys()
    for role in ("store", "consumer", "producer", "tower"):
        assert sum(name.startswith(role) for name in MUTANTS) >= 5
