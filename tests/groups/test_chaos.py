"""A group of real processes, some of which are killed and frozen."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.groups.chaos import Plan, run

PLANS = {
    "2 members": Plan(members=2, partitions=4, seconds=1.5, fault_s=0.4, lease_s=1.0, records_per_s=10.0),
    "6 members": Plan(members=6, partitions=60, seconds=60.0, lease_s=10.0),
}


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("plan", PLANS)
async def test_members_that_are_killed_and_frozen(plan: str, tmp_path: Path) -> None:
    verdict, chaos = await run(PLANS[plan], tmp_path)
    assert verdict.problems == ()
    assert verdict.handled
    assert chaos.killed or chaos.frozen
