"""The files to mutate, and the tests that are near them; read from `scope.toml`."""

from __future__ import annotations

import subprocess
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import attrs

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@attrs.frozen
class Package:
    """One part of the code whose score is counted by itself.

    Attributes:
        name: its name on the score's page.
        files: its files.
        test_modules: the modules whose tests are near it.
    """

    name: str
    files: tuple[str, ...]
    test_modules: tuple[str, ...]


def read_packages(root: Path = ROOT) -> tuple[Package, ...]:
    """Return all packages."""
    return tuple(
        Package(name, _expand(root, entry["files"], "*.py"), _expand(root, entry["tests"], "test_*.py"))
        for name, entry in _table().items()
        if "files" in entry
    )


def tuning_names() -> frozenset[str]:
    """Return the names of the numbers that are not mutated."""
    return frozenset(_table()["tuning"]["names"])


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads((HERE / "scope.toml").read_text(encoding="utf-8"))


def _expand(root: Path, patterns: list[str], within_folders: str) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for pattern in patterns:
        paths = sorted(root.glob(pattern))
        assert paths, f"{pattern} in scope.toml matches nothing"
        for path in paths:
            inside = sorted(path.rglob(within_folders)) if path.is_dir() else [path]
            found.update((each.relative_to(root).as_posix(), None) for each in inside)
    return tuple(found)


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
