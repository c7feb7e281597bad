"""Every fault once, on a small cluster of real processes, with a fixed seed and a low rate."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dafka.events import StorageRecovered
from tests.chaos.cluster import Size
from tests.chaos.faults import FAILED, LOST
from tests.chaos.run import Run
from tests.chaos.schedule import FAULTS, Pace, plan

SEED = 48
"""With this seed, stores are not killed while they recover from a full disk, which would not be said then."""

PACE = Pace(calm_s=0.0, gap_s=(0.0, 0.0), duration_s=(0.3, 1.2), losses_every_s=0.0)

SIZE = Size(stores=3, producers=2, consumers=1, rate=1000, beacon_ms=250)


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc, and all of 127.0.0.0/8")
@pytest.mark.timeout(600)
async def test_every_fault_once_and_no_promise_broken(tmp_path: Path) -> None:
    run = Run(SIZE, plan(SEED, PACE), tmp_path, SEED, caught_up_s=60.0)
    problems = await run.run(0.0)
    assert problems == [], (tmp_path / "timeline.txt").read_text()
    assert run.result["faults"] == dict.fromkeys(sorted(FAULTS), 1)
    timeline = (tmp_path / "timeline.txt").read_text()
    assert LOST in timeline
    assert FAILED in timeline
    assert str(StorageRecovered()) in timeline
