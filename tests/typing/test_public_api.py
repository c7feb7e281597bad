"""Type checkers know every public name, and Pyright accepts the programs that the pages show."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import dafka
from tests.test_page_examples import PAGES, programs

MAY_BE_NULL = "# pyright: reportOptionalMemberAccess=false, reportOptionalSubscript=false\n"
"""The programs know that their records have values."""


def test_type_checkers_know_every_public_name() -> None:
    """They see only what the module imports for them; any other name would have any type."""
    block = next(each for each in ast.parse(Path(dafka.__file__).read_text("utf-8")).body if isinstance(each, ast.If))
    known = {alias.name for each in block.body if isinstance(each, ast.ImportFrom) for alias in each.names}
    assert known == set(dafka.__all__) - {"__version__"}


def test_programs_that_use_the_library_have_the_right_types(tmp_path: Path) -> None:
    pytest.importorskip("pyright")
    for page in PAGES:
        for number, program in enumerate(programs(page)):
            (tmp_path / f"{Path(page).stem.replace('-', '_')}_{number}.py").write_text(MAY_BE_NULL + program)
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
