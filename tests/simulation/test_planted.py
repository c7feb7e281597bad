"""The simulation finds every planted bug, at the seed that is recorded for it and that is good without the bug."""

from __future__ import annotations

import pytest

from tests.simulation import planted, run_seed
from tests.simulation.test_simulation import SEEDS


@pytest.mark.parametrize("bug", planted.PLANTED, ids=lambda bug: bug.name)
def test_planted_bug_is_found(bug: planted.Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.apply(monkeypatch)
    assert run_seed(bug.seed).promise == bug.promise


def test_every_bug_is_planted_and_was_found_within_the_seeds_allowed() -> None:
    bugs = [value for name, value in vars(planted).items() if callable(value) and planted.is_bug(name, value)]
    assert [bug.apply for bug in planted.PLANTED] == bugs
    assert max(bug.seed for bug in planted.PLANTED) < planted.SEEDS_MAX
    assert {bug.seed for bug in planted.PLANTED} <= {*SEEDS}
