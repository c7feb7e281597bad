"""A process that is killed while it moves records loses none, and has none twice."""

from __future__ import annotations

import sys
from pathlib import Path
from subprocess import STDOUT

import pytest
import trio

HOT = {"sqlite": "sqlite:{}/store.db?synchronous=OFF", "filelog": "filelog:{}/log?fsync=never"}
LIMITS = "local_retention_bytes=500&cold_segment_bytes=4000&cold_interval_ms=3600000"


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("hot", "moments"),
    [
        ("filelog", 2),
        pytest.param("filelog", 20, marks=pytest.mark.long),
        pytest.param("sqlite", 20, marks=pytest.mark.long),
    ],
)
async def test_killed_at_any_moment_nothing_is_lost_or_there_twice(hot: str, moments: int, tmp_path: Path) -> None:
    url = f"tiered:{HOT[hot].format(tmp_path)}&cold=file://{tmp_path}/bucket&{LIMITS}"
    command = [sys.executable, "-m", "tests.storage.cold.kill_loop", url, str(moments)]
    ended = await trio.run_process(command, check=False, capture_stdout=True, stderr=STDOUT)
    output = ended.stdout.decode(errors="replace")
    assert " processes killed, acknowledged" in output, output
    assert ended.returncode == 0
