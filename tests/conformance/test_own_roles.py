"""The whole suite against this project's own roles. `make conformance` runs it against the command."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dafka_conformance.catalog import Catalog
from dafka_conformance.model import Dialect
from dafka_conformance.runner import run
from tests.conformance.sample_targets import LineTarget

TIMEOUT_S = 900
SAMPLE_EVERY = 10
"""`make test` runs one in this many scenarios; `make test-long` runs all of them, in both dialects."""

LARGE = ("consumer.batch-bombs",)
"""Scenarios that take seconds of processor time, beside those that load the machine and run alone."""

PATIENCE = 3.0
"""The factor for all time limits, so that a busy machine does not fail a test."""

JOBS = 12
"""Targets that run at once: they mostly wait."""


@pytest.fixture(scope="module")
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, tuple[Any, Path]]]:
    """Start the whole suite against the embedded roles, in all selected dialects at once."""
    asked = [item.callspec.params.get("dialect") for item in request.session.items if hasattr(item, "callspec")]
    folder = tmp_path_factory.mktemp("reports")
    started = {}
    for dialect in (each.value for each in Dialect if each in asked):
        report = folder / f"{dialect}.json"
        command = ["run", "embedded", "--dialect", dialect, "--patience", f"{PATIENCE}", "--report", str(report)]
        started[dialect] = (
            subprocess.Popen(
                [sys.executable, "-m", "dafka_conformance", *command],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            ),
            report,
        )
    yield started
    for process, _ in started.values():
        process.kill()
        process.communicate()


@pytest.mark.long
@pytest.mark.timeout(TIMEOUT_S + 20)
@pytest.mark.parametrize("dialect", Dialect, ids=lambda dialect: dialect.value)
def test_embedded_roles_conform_and_every_clause_is_tested(
    dialect: Dialect, running: dict[str, tuple[subprocess.Popen[str], Path]]
) -> None:
    process, path = running[dialect.value]
    output, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, output
    report = json.loads(path.read_text("utf-8"))
    assert {scenario["outcome"] for scenario in report["scenarios"]} == {"passed"}
    clauses = Catalog.load().clauses
    untested = {
        clause["id"]
        for clause in report["clauses"]
        for spoken, verdict in clause["verdicts"].items()
        if verdict["verdict"] == "not tested"
        and not clauses.get(clause["id"]).untestable
        and Dialect(spoken) in clauses.get(clause["id"]).dialects
    }
    assert untested == set()


@pytest.mark.timeout(TIMEOUT_S)
async def test_embedded_roles_conform_in_a_sample() -> None:
    """Also the values of all scenarios of record batches, which hold numbers of any byte, fit the lines of a target."""
    catalog = Catalog.load()
    quick = [name for name, scenario in catalog.scenarios.items() if not scenario.runs_alone and name not in LARGE]
    names = [*quick[::SAMPLE_EVERY], *(name for name in quick if name.startswith(("consumer.batch", "consumer.envel")))]
    options: dict[str, Any] = {"dialects": [Dialect.RFC46], "patience": PATIENCE, "jobs": JOBS}
    finished = await run(catalog, LineTarget(), patterns=names, **options)
    wrong = [
        f"{result.scenario}: {result.reason}{check.clause}: {check.message}"
        for result in finished.results
        for check in result.checks
        if not check.holds
    ]
    assert (wrong, finished.conforms) == ([], True)
    assert len({result.role for result in finished.results}) == 4
