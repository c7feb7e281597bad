"""Scenarios: what brokers do, and what their logs are then.

When they change on purpose, `python -m tests.broker.core.replication.script` writes their outputs anew; read the diff.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broker.core.replication.script import SCENARIOS, Script
from tests.broker.core.scenarios import check, read_scenario


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.txt")), ids=lambda path: path.stem)
def test_brokers_do_what_the_scenario_says(path: Path) -> None:
    check(read_scenario(path), Script().run)
