"""Scenarios: what brokers do, and what their logs are then; what ordinary faults do to topics; what groups answer.

When they change on purpose, `python -m tests.broker.core.replication.script` (or `metadata`, or `groups`) writes their
outputs anew; read the diff.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broker.core.groups import script as groups
from tests.broker.core.metadata import script as metadata
from tests.broker.core.replication import script as replication
from tests.broker.core.scenarios import check, read_scenario


@pytest.mark.parametrize("path", sorted(replication.SCENARIOS.glob("*.txt")), ids=lambda path: path.stem)
def test_brokers_do_what_the_scenario_says(path: Path) -> None:
    check(read_scenario(path), replication.Script().run)


@pytest.mark.parametrize("path", sorted(metadata.SCENARIOS.glob("*.txt")), ids=lambda path: path.stem)
def test_topics_keep_what_was_promised(path: Path) -> None:
    check(read_scenario(path), metadata.Script().run)


@pytest.mark.parametrize("path", sorted(groups.SCENARIOS.glob("*.txt")), ids=lambda path: path.stem)
def test_members_of_groups_are_answered_as_the_scenario_says(path: Path) -> None:
    check(read_scenario(path), groups.Script().run)
