"""A group of real processes, some of which are killed and frozen, and the judge of what they have handled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.groups.chaos import Chaos, Handling, Plan, judge, read_ledgers

PLANS = {
    "2 members": Plan(members=2, partitions=4, seconds=1.5, fault_s=0.4, lease_s=1.0, records_per_s=10.0),
    "6 members": Plan(members=6, partitions=60, seconds=60.0, lease_s=10.0),
}


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("plan", PLANS)
async def test_members_that_are_killed_and_frozen(plan: str, tmp_path: Path) -> None:
    chaos = Chaos(PLANS[plan], tmp_path)
    verdict = await chaos.run()
    assert verdict.problems == []
    assert verdict.handled
    assert chaos.killed or chaos.frozen


def handled(member: str, first: int, end: int, begun: float, ended: float | None = None) -> Handling:
    return Handling(member, first, end, begun, begun + 0.1 if ended is None else ended, begun + 0.2)


FIRST, LAST = handled("a/1", 0, 10, 1.0), handled("b/2", 10, 20, 5.0)
LATE = "a/1 began at 10 at 6.000, though 20 was saved"
JUDGED: list[tuple[list[Handling], str]] = [
    ([FIRST, LAST], ""),
    ([handled("a/1", 0, 8, 1.0), LAST], "8 to 9 were skipped"),
    ([handled("a/1", 0, 8, 1.0)], "8 of 20 records were handled"),
    ([FIRST, handled("b/2", 10, 20, 3.0), handled("a/1", 10, 15, 6.0)], LATE),
]


@pytest.mark.parametrize(("handlings", "expected"), JUDGED)
def test_what_is_not_as_promised_is_found(handlings: list[Handling], expected: str) -> None:
    problems = judge({"p": handlings}, {"p": 20}, {}).problems
    assert len(problems) == bool(expected)
    assert expected in "".join(problems)


def test_overlaps_count_but_for_the_time_of_a_freeze() -> None:
    both = [handled("a/1", 0, 10, 1.0, 9.0), handled("b/2", 0, 20, 3.0, 10.0)]
    verdict = judge({"p": both}, {"p": 20}, {})
    assert (verdict.overlap_s, verdict.repeated) == (6.0, 10)
    assert judge({"p": both}, {"p": 20}, {"1": [range(1100, 8500)]}).overlap_s == 0.5


def test_a_batch_ends_with_the_kill_of_its_member(tmp_path: Path) -> None:
    ledger = tmp_path / "m.ledger"
    lines = [["begin", "m/7", 1.0, "p", 0, 4], ["end", "m/7", 1.5, "p", 0, 4], ["saved", "m/7", 1.6, "p", 0, 4]]
    lines.append(["begin", "m/7", 2.0, "p", 4, 9])
    ledger.write_text("".join(json.dumps(line) + "\n" for line in lines))
    first, second = read_ledgers([ledger], {"7": 2.5})["p"]
    assert (first.ended, first.saved) == (1.5, 1.6)
    assert (second.ended, second.saved) == (2.5, None)
