"""The suite finds faults: each broken node is found by the scenario that is meant for it, and by the right clause.

That healthy nodes pass the same scenarios, `test_ours` shows.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

import play_mutant
import pytest

from dafka_conformance.catalogue import Catalogue

PLAYED_AT_ONCE = 6
TIMEOUT_S = 100

Outcomes: TypeAlias = dict[str, Future[subprocess.CompletedProcess[str]]]


def play(name: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, play_mutant.__file__, name]
    folder = Path(play_mutant.__file__).parent
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> Iterator[Outcomes]:
    """The mutants of the tests that are to run, played a few at a time."""
    asked = [item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")]
    with ThreadPoolExecutor(PLAYED_AT_ONCE) as pool:
        yield {name: pool.submit(play, name) for name in asked if name in play_mutant.MUTANTS}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("name", play_mutant.MUTANTS)
def test_mutant_is_found(name: str, outcomes: Outcomes) -> None:
    mutant = play_mutant.MUTANTS[name]
    played = outcomes[name].result()
    assert played.returncode == 0, played.stderr
    outcome = json.loads(played.stdout.splitlines()[-1])
    assert outcome["outcome"] == "failed", "the mutant was not found"
    found = any(clause == mutant.clause and mutant.message in message for clause, message in outcome["findings"])
    assert found, outcome["findings"]


def test_there_are_many_of_every_role_and_their_scenarios_are_named_rightly() -> None:
    scenarios = Catalogue.load().scenarios
    assert {mutant.scenario for mutant in play_mutant.MUTANTS.values()} <= scenarios.keys()
    for role in ("store", "consumer", "producer", "tower"):
        assert sum(name.startswith(role) for name in play_mutant.MUTANTS) >= 5
