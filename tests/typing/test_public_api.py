"""Type checkers accept a program that uses the public names, and know all of its types."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("public_api.py")
ROOT = PROGRAM.parents[2]


def check(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_pyright_accepts_a_program_that_uses_the_library() -> None:
    pytest.importorskip("pyright")
    check(sys.executable, "-m", "pyright", "--pythonpath", sys.executable, str(PROGRAM))
