"""A group of real processes, some of which are killed and frozen."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.groups.chaos import Plan, run


async def check(plan: Plan, folder: Path) -> None:
    verdict, members = await run(plan, folder)
    assert verdict.problems == ()
    assert verdict.handled
    assert members.kills + members.freezes


async def test_members_that_are_killed_and_frozen(tmp_path: Path) -> None:
    await check(Plan(members=2, partitions=4, seconds=1.5, fault_s=0.4, lease_s=1.0, records_per_s=10.0), tmp_path)


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_many_members_that_are_killed_and_frozen(tmp_path: Path) -> None:
    await check(Plan(members=6, partitions=60, seconds=60.0, lease_s=10.0), tmp_path)
