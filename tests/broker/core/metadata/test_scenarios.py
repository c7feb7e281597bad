"""Scenarios: what ordinary faults do to topics.

When they change on purpose, `python -m tests.broker.core.metadata.script` writes their outputs anew; read the diff.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broker.core.metadata.script import SCENARIOS, Script
from tests.broker.core.scenarios import check, read_scenario


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.txt")), ids=lambda path: path.stem)
def test_topics_keep_what_was_promised(path: Path) -> None:
    check(read_scenario(path), Script().run)
