"""Runs the scenario of a mutant; `python -m tests.conformance.run_mutant NAME` prints the result.

A mutation changes the whole process, which therefore runs one mutant at a time, and undoes each.
"""

from __future__ import annotations

import logging
import sys
from functools import partial
from typing import TypeAlias

import pytest
import trio

import dafka.storage.sqlite  # noqa: F401 (imported once for all mutants, which are forks of one process)
from dafka_conformance.catalog import Catalog
from dafka_conformance.runner import run
from dafka_conformance.targets import open_target
from tests.conformance.mutants import MUTANTS, Finding

CATALOG = Catalog.load()

PATIENCES = (0.5, 3.0, 10.0)
"""The factors for time limits of the attempts. Most mutants are detected by a missing message, so the
first one halves the time of the tests. On a busy machine, more than that message may be missing."""

PROCESS_PATIENCES = (3.0, 10.0)
"""The factors for mutants that are processes, which start slowly on a busy machine."""

Outcome: TypeAlias = tuple[str, list[Finding]]
"""The outcome of the scenario, and every finding."""


def run_mutant(name: str) -> Outcome:
    """Apply a mutation to this process, and run its scenario, with more patience if that does not find the mutant."""
    mutant = MUTANTS[name]
    logging.getLogger("dafka").addHandler(logging.NullHandler())
    target = mutant.target() if mutant.target else open_target("embedded", {})
    start_run = partial(run, dialects=[mutant.dialect], patterns=[mutant.scenario])
    with pytest.MonkeyPatch.context() as patch:
        mutant.apply(patch)
        for patience in PROCESS_PATIENCES if mutant.target else PATIENCES:
            (result,) = trio.run(partial(start_run, patience=patience), CATALOG, target).results
            findings = [(check.clause, check.message) for check in result.checks if check.is_finding]
            if mutant.is_found(findings):
                break
    return result.outcome.value, findings


if __name__ == "__main__":
    print(*run_mutant(sys.argv[1]), sep="\n")
