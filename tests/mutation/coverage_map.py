"""Which tests run which lines, measured with coverage.py, one test module in one process.

The measurements are kept in `.mutants/map/`. One is used as long as its test module is the same, for the files of the
package that are the same.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.mutation.forked import Outcome, run_forked, run_pytest
from tests.mutation.mutants import digest
from tests.mutation.scope import ROOT

FOLDER = ROOT / ".mutants"
TEST = "MUTANTS_TEST"
"""The variable that names the running test. `tests/cli/forks.py` reads it; its package is that of the copy."""

_LIMIT_S = 900.0

_SHARED = "shared"
"""The context of a fixture that several tests of a module share."""


@attrs.frozen
class ModuleMap:
    """The lines that one test module runs.

    Attributes:
        durations: the seconds of each test that passes.
        digests: the digest of each file that was run, and of the test module.
        lines: by file and line, the indexes of the tests in `durations`. Lines that are run by importing are not here.
    """

    durations: dict[str, float]
    digests: dict[str, str]
    lines: dict[str, dict[int, list[int]]]

    def tests_of(self, file: str, first: int, last: int) -> set[str]:
        names = list(self.durations)
        by_line = self.lines.get(file, {})
        return {names[index] for line in range(first, last + 1) for index in by_line.get(line, ())}

    def tests_of_file(self, file: str) -> set[str]:
        names = list(self.durations)
        return {names[index] for indexes in self.lines.get(file, {}).values() for index in indexes}


def load_map(module: str, root: Path, files: set[str]) -> ModuleMap | None:
    """Return the record of a test module, or None if its tests or one of the files have changed since."""
    path = _path(module)
    if not path.is_file():
        return None
    stored = json.loads(path.read_text(encoding="utf-8"))
    lines = {file: {int(line): tests for line, tests in each.items()} for file, each in stored["lines"].items()}
    found = ModuleMap(stored["durations"], stored["digests"], lines)
    current = {file: _digest(root / file) for file in found.digests if file == module or file in files}
    return found if all(found.digests[file] == value for file, value in current.items()) else None


def measure_module(module: str, top: Path) -> bool:
    """Run a test module under coverage and keep the measurement; return whether all its tests passed.

    Args:
        module: the path of the test module.
        top: the copy of the repository, which is the working directory.
    """
    data = top.parent / "coverage"
    data.mkdir(exist_ok=True)
    for old in data.iterdir():
        old.unlink()
    (data / "rc").write_text(
        f"[run]\nparallel = true\ndata_file = {data}/data\nsource = {top}/dafka\ncontext = ${{{TEST}-}}\n"
        "concurrency = thread\nsigterm = false\ndisable_warnings = no-data-collected, module-not-measured\n"
    )
    target = _path(module)
    target.parent.mkdir(parents=True, exist_ok=True)
    outcome = run_forked(
        lambda: _measure(module, top, data), FOLDER / "map" / f"{target.stem}.log", _LIMIT_S, cpu_s=_LIMIT_S
    )
    return outcome is Outcome.PASSED


def _path(module: str) -> Path:
    return FOLDER / "map" / f"{module.removesuffix('.py').replace('/', '.')}.json"


def _digest(path: Path) -> str:
    return digest(path.read_text(encoding="utf-8")) if path.is_file() else ""


class _Recorder:
    """A pytest plugin that tells coverage.py which test is running."""

    def __init__(self, coverage: Any) -> None:
        self.durations: dict[str, float] = {}
        self._coverage = coverage
        self._failed: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._switch(item.nodeid)
        try:
            return (yield)
        finally:
            self._switch("")

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
        if fixturedef.scope == "function":
            return (yield)
        test = os.environ[TEST]
        self._switch(_SHARED)
        try:
            return (yield)
        finally:
            self._switch(test)

    def _switch(self, context: str) -> None:
        os.environ[TEST] = context
        self._coverage.switch_context(context)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.durations[report.nodeid] = self.durations.get(report.nodeid, 0.0) + report.duration
        if report.failed or report.skipped:
            self._failed.add(report.nodeid)

    def passed(self) -> dict[str, float]:
        return {name: round(each, 4) for name, each in self.durations.items() if name not in self._failed}


def _measure(module: str, top: Path, data: Path) -> int:
    from coverage import Coverage, CoverageData

    os.environ[TEST] = ""
    os.environ["COVERAGE_PROCESS_START"] = str(data / "rc")
    coverage = Coverage(config_file=str(data / "rc"))
    recorder = _Recorder(coverage)
    coverage.start()
    status = run_pytest([module, f"--basetemp={top.parent}/measure-tmp"], [recorder])
    coverage.stop()
    coverage.save()
    combined = CoverageData(basename=str(data / "combined"))
    for path in data.glob("data.*"):
        part = CoverageData(basename=str(path))
        part.read()
        combined.update(part)
    durations = recorder.passed()
    index = {name: number for number, name in enumerate(durations)}
    lines: dict[str, dict[int, list[int]]] = {}
    for absolute in combined.measured_files():
        file = Path(absolute).relative_to(top).as_posix()
        contexts = combined.contexts_by_lineno(absolute)
        lines[file] = {
            line: sorted(index.values() if _SHARED in names else (index[name] for name in names if name in index))
            for line, names in contexts.items()
        }
    if status == pytest.ExitCode.INTERRUPTED:  # it cannot be collected, and is measured again
        return status
    digests = {file: _digest(top / file) for file in (*lines, module)}
    _path(module).write_text(json.dumps({"durations": durations, "digests": digests, "lines": lines}))
    return status
