"""Modules of tests run in worker processes, and every result is reported."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.rooms import ROOT, find_tests, main
from tests.waiting import poll_until

CONFTEST = """
from tests.workers import Workers

def unit_of(nodeid):
    return "together" if "shared" in nodeid else nodeid.partition("::")[0]

def pytest_configure(config):
    config.pluginmanager.register(Workers(2, unit_of, ["together"]))
"""

MODULES = {
    "test_good.py": """
import pytest

@pytest.mark.parametrize("number", range(100))
def test_each(number, tmp_path):
    assert not list(tmp_path.iterdir())

def test_skipped():
    pytest.skip("for a reason")
""",
    "test_dies.py": """
import os, signal, subprocess

def test_before():
    with open("left", "w") as file:
        print(subprocess.Popen(["sleep", "600"]).pid, file=file)

def test_dies():
    os.kill(os.getpid(), signal.SIGKILL)

def test_after():
    pass
""",
    "test_fails.py": """
def test_fails():
    print("what it printed")
    assert 1 == 2
""",
    "test_shared_1.py": """
import os

def test_one():
    os.environ["SHARED"] = "1"
""",
    "test_shared_2.py": """
import os

def test_two():
    assert os.environ["SHARED"] == "1"
""",
    "test_zzz_apart.py": """
import os

def test_apart():
    assert "SHARED" not in os.environ
""",
}


def run(folder: Path, *arguments: str) -> str:
    (folder / "conftest.py").write_text(CONFTEST)
    for name, text in MODULES.items():
        (folder / name).write_text(text)
    settings = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
    command = [sys.executable, "-m", "pytest", "-rs", "-c", os.devnull, "--rootdir=.", "--color=no", *arguments]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, **settings}, capture_output=True, text=True, check=False
    ).stdout


def test_every_result_is_reported(tmp_path: Path) -> None:
    printed = run(tmp_path, "--durations=2")
    assert "2 failed, 105 passed, 1 skipped" in printed
    assert re.search(r"most of \d+ s of processor time =*\n +\S+ s, +\S+ to +\S+ s: test_", printed)
    assert "for a reason" in printed
    assert "what it printed" in printed
    assert "the process of this test ended with signal SIGKILL" in printed
    with suppress(psutil.NoSuchProcess):
        left = psutil.Process(int((tmp_path / "left").read_text()))
        poll_until(lambda: left.status() == psutil.STATUS_ZOMBIE)


def test_the_first_failure_can_end_the_run(tmp_path: Path) -> None:
    printed = run(tmp_path, "-x")
    assert "1 failed" in printed
    assert "stopping after 1 failures" in printed


# Every folder of dafka/ has tests, which `make test-room` finds


FOLDERS = sorted({path.parent.relative_to(ROOT / "dafka").as_posix() for path in ROOT.glob("dafka/*/**/*.py")})


def test_every_folder_has_tests_of_its_own() -> None:
    for room in FOLDERS:
        found = find_tests(room)
        assert found != find_tests("records.py")
        assert all((ROOT / each).is_file() or list((ROOT / each).rglob("test_*.py")) for each in found)


def test_the_nearest_folder_is_chosen() -> None:
    assert find_tests("dafka/broker/core/positions.py") == ["tests/broker/core"]
    assert find_tests("wire/batch.py") == find_tests("dafka/wire/") == ["tests/wire"]
    assert "tests/test_records.py" in find_tests("records.py")


@pytest.mark.parametrize("room", ["", "nowhere"])
def test_an_unknown_room_is_refused(room: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([room]) == 2
    assert "such as broker/core" in (complaint := capsys.readouterr().err) or "ROOM=broker/core" in complaint
