"""The files to mutate, and the tests of their rooms."""

from __future__ import annotations

import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import attrs

from tests.rooms import find_tests

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


OF_DEFINITIONS = "tests/test_promised_numbers.py"
"""This module looks at the numbers of all rooms that peers, operators or files rely on."""


@attrs.frozen
class Room:
    """Files of dafka/ that have the same tests. Their score is counted by itself.

    Attributes:
        name: its name on the score's page: the path of its tests without `tests/`.
        files: its files.
        test_modules: the modules of its tests.
    """

    name: str
    files: tuple[str, ...]
    test_modules: tuple[str, ...]


def read_rooms(root: Path = ROOT) -> tuple[Room, ...]:
    """Return all rooms: every file of dafka/ is in one."""
    files: dict[tuple[str, ...], list[str]] = {}
    for path in sorted(root.glob("dafka/**/*.py")):
        file = path.relative_to(root).as_posix()
        files.setdefault(tuple(find_tests(file, root)), []).append(file)
    return tuple(
        Room(_name(tests), tuple(files[tests]), tuple(dict.fromkeys([*_modules(root, tests), OF_DEFINITIONS])))
        for tests in sorted(files)
    )


def _name(tests: tuple[str, ...]) -> str:
    return "dafka" if tests[0].endswith(".py") and len(tests) > 1 else tests[0].removeprefix("tests/")


def _modules(root: Path, tests: tuple[str, ...]) -> Iterator[str]:
    for each in tests:
        path = root / each
        for found in sorted(path.rglob("test_*.py")) if path.is_dir() else [path]:
            yield found.relative_to(root).as_posix()


def tuning_names() -> frozenset[str]:
    """Return the names of the numbers that are not mutated."""
    return frozenset(_table()["tuning"]["names"])


def is_example(file: str, operator: str) -> bool:
    """Return whether what an operator changes in a file is an example, for which another would do."""
    examples = _table()["examples"]
    return operator in examples["operators"] and file.startswith(tuple(examples["folders"]))


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads((HERE / "scope.toml").read_text(encoding="utf-8"))


def git(*arguments: str, root: Path = ROOT) -> str:
    """Return the output of a git command."""
    return subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True).stdout


def lines_changed_since(base: str, root: Path = ROOT) -> dict[str, set[int]]:
    """Return the lines of each file that differ from those of a commit, or were not there."""
    changed: dict[str, set[int]] = {}
    lines: set[int] = set()
    for line in git("diff", "--unified=0", "--no-color", base, "--", "*.py", root=root).splitlines():
        if line.startswith("+++ "):
            lines = changed.setdefault(line.removeprefix("+++ b/"), set())
        elif line.startswith("@@"):
            first, _, count = line.split("+")[1].split()[0].partition(",")
            lines.update(range(int(first), int(first) + int(count or 1)))
    return changed
