"""A minute of chaos, with a fixed seed; what it draws; and how it counts pauses."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests.broker.cluster.chaos import parse
from tests.broker.cluster.faults import FAULTS, PROCESS_FAULTS, Applied, plan, ring
from tests.broker.cluster.histories import Log
from tests.broker.cluster.network import deafen, find_obstacle, isolate, mute, split
from tests.broker.cluster.pauses import Pause, by_fault, find_pauses
from tests.broker.cluster.replicas import Held, Holding, compare
from tests.broker.cluster.run import Run, Size

SEED = 1

LENGTH_S = 60.0


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.timeout(900)
async def test_a_minute_of_chaos_breaks_no_promise(tmp_path: Path) -> None:
    can_split = not find_obstacle()
    size = Size(brokers=5, logs=12, rate=2000, is_split=can_split)
    faults = plan(SEED, LENGTH_S, FAULTS if can_split else PROCESS_FAULTS, gap_s=(3.0, 6.0), duration_s=(1.0, 5.0))
    run = Run(size, faults, tmp_path)
    problems = await run.run(LENGTH_S)
    assert problems == [], "\n".join((*problems, (tmp_path / "timeline.txt").read_text()))
    assert len(run.result["faults"]) == len(faults)


def test_a_seed_determines_the_faults() -> None:
    assert plan(7, 600.0) == plan(7, 600.0)
    assert plan(7, 600.0) != plan(8, 600.0)


def test_every_kind_is_drawn_before_one_comes_again() -> None:
    kinds = [each.kind for each in plan(3, 3600.0)]
    for first in range(0, len(kinds) - len(FAULTS), len(FAULTS)):
        assert set(kinds[first : first + len(FAULTS)]) == set(FAULTS)


def test_faults_do_not_overlap_and_end_before_the_run() -> None:
    faults = plan(5, 900.0)
    for one, other in pairwise(faults):
        assert other.at_s > one.at_s + one.duration_s
    assert faults[-1].at_s < 900.0


def test_only_some_kinds_are_drawn() -> None:
    assert {each.kind for each in plan(1, 600.0, ["kill", "slow"])} == {"kill", "slow"}
    with pytest.raises(SystemExit):
        parse(["--only", "thirst"])


def test_shapes_of_splits() -> None:
    assert split("ab", "c") == {("a", "c"), ("b", "c"), ("c", "a"), ("c", "b")}
    assert isolate("a", "abc") == {("a", "b"), ("a", "c"), ("b", "a"), ("c", "a")}
    assert deafen("a", "abc") == {("b", "a"), ("c", "a")}
    assert mute("a", "abc") == {("a", "b"), ("a", "c")}
    assert ring("abcd") == {("a", "c"), ("c", "a"), ("b", "d"), ("d", "b")}
    assert ring("abc") == set()


def test_pauses_are_counted_to_the_fault_that_was_there() -> None:
    log = Log()
    for number, (sent, acknowledged) in enumerate([(1.0, 1.1), (20.0, 22.5), (22.0, 22.6), (90.0, 91.0)]):
        log.add(["send", sent, 1, 3, number * 10, 10])
        log.add(["ok", acknowledged, 1, 3, number * 10, 10, number * 10])
    pauses = list(find_pauses(3, log))
    assert pauses == [Pause(20.0, 22.5, 3), Pause(22.0, 22.6, 3), Pause(90.0, 91.0, 3)]
    killed = Applied("kill", "broker-1 killed", 20.1, 25.0)
    assert by_fault(pauses, [Applied("slow", "", 2.0, 4.0), killed]) == [(None, pauses[2]), (killed, pauses[0])]


def test_replicas_that_differ_are_found() -> None:
    def holding(**changed: Held) -> Holding:
        return {(0, "A/T/0"): Held(0, 10, "x"), **{(1, f"{name}/T/1"): held for name, held in changed.items()}}

    replicas = {0: ["b0", "b1"]}
    assert compare({"b0": holding(), "b1": holding()}, replicas) == []
    assert compare({"b0": holding(), "b1": holding(A=Held(0, 3))}, replicas) == []
    replicas[1] = ["b0", "b1"]
    assert "none of b0, b1" in compare({"b0": holding(), "b1": holding()}, replicas)[0]
    assert compare({"b0": holding(A=Held(0, 3)), "b1": holding(A=Held(0, 3))}, replicas) == []
    assert len(compare({"b0": holding(A=Held(0, 3)), "b1": holding()}, replicas)) == 1
    assert len(compare({"b0": holding(A=Held(0, 3, "x")), "b1": holding(A=Held(0, 3, "z"))}, replicas)) == 1
    assert len(compare({"b0": holding(A=Held(0, 3)), "b1": holding(A=Held(0, 4))}, replicas)) == 1
