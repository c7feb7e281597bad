"""A node with one fault violates one clause in all scenarios, and what follows from it is not judged."""

from __future__ import annotations

import pytest

from dafka_conformance.model import Dialect, Outcome, Verdict
from dafka_conformance.runner import run
from dafka_conformance.targets import open_target
from tests.conformance.run_mutant import CATALOG
from tests.conformance.wire_faults import WIRE_FAULTS, WireFault

PATIENCE = 0.5
EVERY = 5
"""One in this many scenarios of the role is run."""


def scenarios_for(fault: WireFault) -> list[str]:
    """Return a sample of the scenarios of the role, and the first one that tests the clause."""
    of_role = [each for each in CATALOG.scenarios.values() if each.role is fault.role and not each.runs_alone]
    sample = [each.name for each in of_role if ".grammar." not in each.name][::EVERY]
    sentences = [each.name for each in of_role if ".grammar." in each.name][:: EVERY * EVERY]
    testing = [each.name for each in of_role if fault.clause in each.clauses]
    return [*sample, *sentences, *testing[:1]]


@pytest.mark.long
@pytest.mark.parametrize("name", WIRE_FAULTS)
async def test_one_fault_violates_one_clause(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = WIRE_FAULTS[name]
    fault.apply(monkeypatch)
    finished = await run(
        CATALOG,
        open_target("embedded", {}),
        roles=[fault.role],
        dialects=[Dialect.RFC46],
        patterns=scenarios_for(fault),
        patience=PATIENCE,
    )
    assert {result.outcome for result in finished.results} <= {Outcome.PASSED, Outcome.FAILED}
    violated = {
        verdict.clause.id: verdict.reading for verdict in finished.verdicts if verdict.verdict is Verdict.VIOLATES
    }
    assert violated == {fault.clause: fault.reading}, [
        f"{result.scenario}: {check.clause}: {check.message}"
        for result in finished.results
        for check in result.checks
        if check.is_finding and check.clause != fault.clause
    ]
