"""This project's own roles, held against everything."""

from __future__ import annotations

import pytest

from dafka_conformance.catalogue import Catalogue
from dafka_conformance.model import Dialect, Outcome, Run, Verdict
from dafka_conformance.runner import run
from dafka_conformance.targets import open_target


def found_wrong(finished: Run) -> list[str]:
    binding = {verdict.clause.id for verdict in finished.verdicts if verdict.clause.level.is_binding}
    return [
        f"{result.scenario} ({result.dialect.value}): {check.clause}: {check.message}"
        for result in finished.results
        for check in result.checks
        if not check.holds and check.clause in binding
    ] + [f"{result.scenario}: {result.reason}" for result in finished.results if result.outcome is Outcome.BROKEN]


@pytest.mark.timeout(400)
async def test_our_roles_conform_in_both_dialects_and_nothing_is_left_untested() -> None:
    finished = await run(Catalogue.load(), open_target("embedded", {}))
    assert found_wrong(finished) == []
    assert finished.conforms
    untested = {
        (verdict.clause.id, verdict.dialect.value)
        for verdict in finished.verdicts
        if verdict.verdict is Verdict.NOT_TESTED
        and not verdict.clause.untestable
        and verdict.dialect in verdict.clause.dialects
    }
    assert untested == set()


@pytest.mark.parametrize("dialect", Dialect)
async def test_our_command_conforms_where_it_differs_from_the_library(dialect: Dialect) -> None:
    """Processes: how they are told where the tower is, how records go in and come out, and that they survive a kill."""
    patterns = ["*.beacons", "store.durable*", "*.grammar.publish.*", "tower.*welcome*"]
    finished = await run(Catalogue.load(), open_target("dafka", {}), dialects=[dialect], patterns=patterns)
    assert found_wrong(finished) == []
    assert finished.conforms
    assert len({result.role for result in finished.results}) == 4
