from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = "tests.roles.disk_full"

UNSHARE = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]


@pytest.fixture(scope="module")
def mounting() -> None:
    """Skip if this user may not mount file systems, even in a namespace of its own."""
    try:
        result = subprocess.run(
            [*UNSHARE, "mount", "-t", "tmpfs", "none", "/mnt"], check=False, capture_output=True, text=True
        )
    except FileNotFoundError:
        pytest.skip("there is no command unshare, with which to mount a small disk")
    if result.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {result.stderr.strip()}")


@pytest.mark.usefixtures("mounting")
@pytest.mark.parametrize("scheme", ["sqlite", "filelog"])
def test_store_reports_a_full_disk_and_goes_on_when_there_is_room(scheme: str, tmp_path: Path) -> None:
    command = [*UNSHARE, sys.executable, "-m", PROGRAM, scheme, str(tmp_path)]
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stdout + result.stderr
    full, room = result.stdout.splitlines()
    assert full.startswith("full after"), full
    assert room.startswith("room again"), room
