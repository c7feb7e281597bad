"""The command that attacks a role."""

from __future__ import annotations

from click.testing import CliRunner

from tests.adversarial.__main__ import main
from tests.adversarial.attacks import NODE_ATTACKS, TOWER_ATTACKS
from tests.adversarial.runner import Outcome, Phase, describe


def make_outcome(memory: int = 100, latency: float = 0.004, *, is_up: bool = True) -> Outcome:
    idle, attacked = Phase([0.001, 0.002, 0.004], 100 * 2**20), Phase([latency] * 3, memory * 2**20)
    return Outcome("store", "mixed", 10, 1, 1.0, idle, attacked, {"frames": 3}, is_up, is_served=is_up)


def test_attacks_are_listed() -> None:
    for target, attacks in (("store", NODE_ATTACKS), ("tower", TOWER_ATTACKS)):
        listed = CliRunner().invoke(main, ["--target", target, "--list"])
        assert listed.output.split() == [*attacks, "subscriptions", "mixed"]


def test_an_unknown_attack_is_refused_with_one_sentence() -> None:
    result = CliRunner().invoke(main, ["--target", "store", "--attack", "nonsense"])
    assert result.exit_code == 2
    assert "nonsense" in result.output


def test_exceeded_bounds_are_reported() -> None:
    assert make_outcome().broken() == []
    assert make_outcome(memory=250).broken() == ["memory grew 2.5 times"]
    assert make_outcome(latency=0.02).broken() == ["the median latency grew 10.0 times"]
    assert make_outcome(is_up=False).broken() == ["the target ended", "honest traffic stopped"]
    assert "BROKEN: memory grew 2.5 times" in describe(make_outcome(memory=250))
