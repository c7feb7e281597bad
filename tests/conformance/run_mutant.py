"""Runs the scenario of a mutant; `python -m tests.conformance.run_mutant NAME` prints the result.

A mutation changes the whole process, so each mutant runs in its own process, and several can run at once.
"""

from __future__ import annotations

import logging
import sys
from functools import partial
from typing import TypeAlias

import pytest
import trio

from dafka_conformance.catalog import Catalog
from dafka_conformance.runner import run
from dafka_conformance.targets import open_target
from tests.conformance import consumer_mutants, producer_mutants, store_mutants, tower_mutants
from tests.conformance.mutants import Mutant

MUTANTS: dict[str, Mutant] = {
    mutant.name: mutant
    for module in (store_mutants, consumer_mutants, producer_mutants, tower_mutants)
    for mutant in module.MUTANTS
}

CATALOG = Catalog.load()

PATIENCE = 0.5
"""The factor for time limits. Most mutants are detected by a missing message, so this halves the time of the tests."""

PROCESS_PATIENCE = 3.0
"""The factor for mutants that are processes, which start slowly on a busy machine."""

Outcome: TypeAlias = tuple[str, list[tuple[str, str]]]
"""The outcome of the scenario, and the clause and message of every finding."""


def run_mutant(name: str) -> Outcome:
    """Apply a mutation to this process, and run its scenario."""
    mutant = MUTANTS[name]
    logging.getLogger("dafka").addHandler(logging.NullHandler())
    target = mutant.target() if mutant.target else open_target("embedded", {})
    with pytest.MonkeyPatch.context() as patch:
        mutant.apply(patch)
        patience = PROCESS_PATIENCE if mutant.target else PATIENCE
        start_run = partial(run, dialects=[mutant.dialect], patterns=[mutant.scenario], patience=patience)
        (result,) = trio.run(start_run, CATALOG, target).results
    return result.outcome.value, [(check.clause, check.message) for check in result.checks if check.is_finding]


if __name__ == "__main__":
    print(*run_mutant(sys.argv[1]), sep="\n")
