"""The three distributions have one version, which the changelog names, too, and one license."""

from __future__ import annotations

import tomllib
from pathlib import Path

import dafka

ROOT = Path(__file__).parents[2]


def test_all_distributions_have_one_version() -> None:
    found = {}
    for folder in (".", "conformance", "benchmarks"):
        project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text("utf-8"))["project"]
        found[project["name"]] = project["version"]
        assert (ROOT / folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
        needed = [each for each in project["dependencies"] if each.startswith("dafka")]
        assert needed == ([] if folder == "." else [f"dafka>={dafka.__version__}"])
    assert found == dict.fromkeys(("dafka", "dafka-conformance", "dafka-bench"), dafka.__version__)
    assert f"## {dafka.__version__}" in (ROOT / "CHANGELOG.md").read_text("utf-8")
