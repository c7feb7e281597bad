"""The hardships that the tests must bear are real."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.hardships import CLOCK, busy_loop
from tests.power.recording import obstacle

READ_CLOCKS = "import json, time; print(json.dumps([time.time(), time.monotonic()]))"
SECONDS_BETWEEN_JUMPS = 7
ACCURACY_S = 60.0


@pytest.mark.skipif(obstacle() != "", reason=obstacle())
def test_the_wall_clock_of_a_command_jumps_and_its_monotonic_clock_does_not(tmp_path: Path) -> None:
    tmp_path.joinpath("now").touch()
    wall_before = tmp_path.joinpath("now").stat().st_mtime  # the clock of these tests may jump, too
    before = time.monotonic()
    command = [sys.executable, "-m", "tests.hardships", "--jumping-clock", "--", sys.executable, "-c", READ_CLOCKS]
    wall, monotonic = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout)
    assert before < monotonic < time.monotonic()
    jumps = jumps_s()
    assert abs(wall - wall_before - jumps[int(monotonic) // SECONDS_BETWEEN_JUMPS % len(jumps)]) < ACCURACY_S


def jumps_s() -> list[int]:
    (products,) = re.findall(r"JUMPS_S\[\] = \{(.*)\}", CLOCK.read_text())
    return [math.prod(map(int, product.split("*"))) for product in products.split(",")]


def test_a_busy_loop_ends_with_its_block() -> None:
    with busy_loop() as process:
        assert process.poll() is None
    assert process.poll() is not None
