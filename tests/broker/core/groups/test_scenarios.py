"""Scenarios: what the members of groups ask for, and the answers.

When they change on purpose, `python -m tests.broker.core.groups.script` writes their outputs anew; read the diff.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broker.core.groups.script import SCENARIOS, Script
from tests.broker.core.scenarios import check, read_scenario


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.txt")), ids=lambda path: path.stem)
def test_members_of_groups_are_answered_as_the_scenario_says(path: Path) -> None:
    check(read_scenario(path), Script().run)
