"""Simulated clusters keep their promises under faults, and a seed determines everything."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterable

import pytest
from click.testing import CliRunner

from tests.simulation import Plan, make_plan, planted, run_plan, run_seed, shrink
from tests.simulation.__main__ import main

FOUND_BEFORE = (10940, 4987, 2061, 2414, 3350, 1766, 3277, 2969532218)
"""Seeds that once showed a bug of the product or of the simulation."""

SEEDS = sorted({*range(20), *(bug.seed for bug in planted.PLANTED), *FOUND_BEFORE})
"""The seeds of `make test`: they include those that show the planted bugs."""

PART = 100


def history(plan: Plan) -> list[str]:
    lines: list[str] = []
    outcome = run_plan(plan, lambda now, text: lines.append(f"{now} {text}"))
    return [*lines, outcome.promise, outcome.detail]


def expect_good(seeds: Iterable[int]) -> None:
    failed = {seed: outcome.promise for seed in seeds if not (outcome := run_seed(seed)).is_good}
    assert failed == {}, f"python -m tests.simulation --seed {next(iter(failed))}"


@pytest.mark.parametrize("part", range(4))
def test_every_promise_is_kept(part: int) -> None:
    expect_good(SEEDS[part::4])


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 2000, PART))
def test_every_promise_is_kept_with_many_seeds(first: int) -> None:
    expect_good(range(first, first + PART))


@pytest.mark.long
@pytest.mark.parametrize("part", range(4))
def test_every_promise_is_kept_with_random_seeds(part: int, capsys: pytest.CaptureFixture[str]) -> None:
    first = random.SystemRandom().randrange(2**32)
    with capsys.disabled():
        print(f"\nseeds {first} to {first + PART - 1}")
    expect_good(range(first, first + PART))


def test_a_seed_determines_everything_in_every_process() -> None:
    program = (
        "import hashlib\n"
        "from tests.simulation.test_simulation import history, make_plan\n"
        "print([hashlib.sha256(repr(history(make_plan(seed))).encode()).hexdigest() for seed in range(2)])"
    )
    histories = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(histories) == 1


def test_a_failing_seed_is_shrunk_and_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    bug = next(each for each in planted.PLANTED if each.apply is planted.second_fetch_of_a_node_is_dropped)
    bug.apply(monkeypatch)
    whole = run_seed(bug.seed)
    least = shrink(whole)
    assert least.promise == whole.promise == bug.promise
    assert len(least.plan.steps) + len(least.plan.members) < len(whole.plan.steps) + len(whole.plan.members)
    assert history(least.plan) == history(least.plan)
    assert history(least.plan)[-2:] == [least.promise, least.detail]


def test_command_runs_seeds() -> None:
    result = CliRunner().invoke(main, ["--seeds", "3", "--first", "100"])
    assert result.exit_code == 0
    assert result.output.startswith("seeds 100 to 102: 0 failed; 3 clusters, ")


def test_command_prints_the_seed_and_the_history_of_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    bug = next(each for each in planted.PLANTED if each.apply is planted.ack_one_too_far)
    bug.apply(monkeypatch)
    result = CliRunner().invoke(main, ["--first", str(bug.seed), "--seeds", "5"])
    assert result.exit_code == 1
    assert f"again: python -m tests.simulation --seed {bug.seed}" in result.output
    assert "publish P1 (1)" in result.output
    assert "ACK before durable: S" in result.output


def test_plans_have_every_fault() -> None:
    kinds = {step.kind for seed in range(300) for step in make_plan(seed).steps}
    assert {"crash", "stop", "die", "pause", "cut", "stall", "cut link", "stall link", "reset", "loss"} <= kinds
    assert {"repeat", "slow network", "tower down", "disk full", "disk slow", "clock jump"} <= kinds
