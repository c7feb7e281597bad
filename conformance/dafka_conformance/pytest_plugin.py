"""A pytest plugin that runs the suite's scenarios as tests, in addition to a project's own tests.

Load it with `pytest -p dafka_conformance.pytest_plugin`, or with
`pytest_plugins = ["dafka_conformance.pytest_plugin"]` in the project's top-level `conftest.py`.

The plugin does nothing until it has a target, from the option `--dafka-target` or from the ini value `dafka_target`.
(Pytest ignores the ini value if the command line names tests.) Then each scenario is one test in each dialect, such as
`dafka-conformance::store.acknowledges[rfc46]`, with the marker `dafka_conformance`. Each test starts its own target.
A scenario that the target cannot run is skipped. A mistake in an option or in the target file is a usage error.

Importing this module imports pytest only. The suite is imported once there is a target.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from dafka_conformance.catalog import Catalog
    from dafka_conformance.model import Dialect, Role, ScenarioResult
    from dafka_conformance.scenario import Scenario
    from dafka_conformance.targets import Target

NAME = "dafka-conformance"
"""The name of the tests' collector in node ids."""

MARKER = "dafka_conformance"
"""The marker of every test that the plugin adds."""

_CHART_WIDTH = 110
_EVENTS_MAX = 40


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the plugin's options and its ini value."""
    group = parser.getgroup(NAME, "conformance to Dafka (ZeroMQ RFC 46)")
    group.addoption(
        "--dafka-target",
        metavar="TARGET",
        help="the implementation to test: a shipped target's name, a target file, or package.module:factory",
    )
    group.addoption(
        "--dafka-role",
        action="append",
        default=[],
        metavar="ROLE",
        help="test this role only (tower, store, producer or consumer); repeatable",
    )
    group.addoption(
        "--dafka-dialect",
        action="append",
        default=[],
        metavar="DIALECT",
        help="test this dialect only (rfc46 or libdafka); repeatable",
    )
    group.addoption(
        "--dafka-scenario",
        action="append",
        default=[],
        metavar="GLOB",
        help="run only scenarios whose names match, for example 'store.*'; repeatable",
    )
    group.addoption(
        "--dafka-set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="set a variable of the target file, or an argument of the factory; repeatable",
    )
    group.addoption(
        "--dafka-patience",
        type=float,
        default=1.0,
        metavar="FACTOR",
        help="multiply every time limit of the target by this factor (default: 1)",
    )
    parser.addini("dafka_target", "the default of --dafka-target; ignored if the command line names tests")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", f"{MARKER}: a scenario of the Dafka conformance suite")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Open the target, if there is one.

    Args:
        session: The test session.

    Raises:
        pytest.UsageError: An option or the target's description is wrong.
    """
    target = _target_name(session.config)
    if not target:
        return
    session.config.pluginmanager.register(_Suite(session.config, target), f"{NAME}-suite")


def _target_name(config: pytest.Config) -> str:
    """Return the target's name, or an empty string if there is no target."""
    option: str | None = config.getoption("dafka_target")
    if option is not None:
        return option
    has_arguments = config.args_source is pytest.Config.ArgsSource.ARGS
    return "" if has_arguments else str(config.getini("dafka_target"))


class _Suite:
    """The part of the plugin that is registered once there is a target: the target and the selected scenarios."""

    def __init__(self, config: pytest.Config, name: str) -> None:
        from dafka_conformance.model import Dialect, Role  # noqa: PLC0415 (see the module)
        from dafka_conformance.selection import (  # noqa: PLC0415
            SelectionError,
            check_patterns,
            load_catalog,
            open_selected_target,
            select_dialects,
            select_roles,
        )

        self.patience: float = config.getoption("dafka_patience")
        if not 0.1 <= self.patience <= 100:
            raise pytest.UsageError(f"--dafka-patience: expected a factor from 0.1 to 100, not {self.patience:g}")
        self._patterns: list[str] = config.getoption("dafka_scenario")
        try:
            self.target: Target = open_selected_target(name, config.getoption("dafka_set"), "--dafka-set")
            self.catalog: Catalog = load_catalog(None)
            self._roles: list[Role] = select_roles(_option_values(config, "role", [role.title for role in Role]))
            dialects = _option_values(config, "dialect", [dialect.value for dialect in Dialect])
            self._dialects: list[Dialect] = select_dialects(dialects, self.target)
            check_patterns(self.catalog, self._patterns)
        except SelectionError as error:
            raise pytest.UsageError(str(error)) from None

    @pytest.hookimpl(tryfirst=True)  # so that -k and -m apply to the scenarios too
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Add the scenarios to the project's own tests."""
        collector = ScenarioCollector.from_parent(session, name=NAME, nodeid=NAME, suite=self)
        items.extend(session.genitems(collector))

    def selected_scenarios(self) -> Iterator[tuple[Scenario, Dialect]]:
        """Yield each selected scenario in each selected dialect."""
        for dialect in self._dialects:
            for scenario in self.catalog.select(self._roles, dialect, self._patterns):
                yield scenario, dialect


def _option_values(config: pytest.Config, option: str, known: list[str]) -> list[str]:
    """Return the values of a repeatable option without duplicates. Raise `UsageError` for an unknown value."""
    values: list[str] = config.getoption(f"dafka_{option}")
    for value in values:
        if value not in known:
            raise pytest.UsageError(f"--dafka-{option}: expected {' or '.join(known)}, not {value!r}")
    return list(dict.fromkeys(values))


class ScenarioCollector(pytest.Collector):
    """The parent of all scenario tests in pytest's collection tree."""

    def __init__(self, *, suite: _Suite, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._suite = suite

    def collect(self) -> Iterator[ScenarioItem]:
        """Yield one test for each scenario in each dialect."""
        for scenario, dialect in self._suite.selected_scenarios():
            yield ScenarioItem.from_parent(
                self,
                name=f"{scenario.name}[{dialect.value}]",
                suite=self._suite,
                scenario=scenario,
                dialect=dialect,
            )


class ScenarioItem(pytest.Item):
    """A test: one scenario in one dialect."""

    obj: object = None  # some plugins, such as pytest-trio, read the function of every test

    def __init__(self, *, suite: _Suite, scenario: Scenario, dialect: Dialect, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._suite = suite
        self._scenario = scenario
        self._dialect = dialect
        self.add_marker(MARKER)

    def runtest(self) -> None:
        """Run the scenario.

        Raises:
            ScenarioFailed: The target violates a clause, or could not be run.
        """
        from dafka_conformance.model import Outcome  # noqa: PLC0415 (see the module)
        from dafka_conformance.report.findings import is_failure  # noqa: PLC0415

        suite, scenario = self._suite, self._scenario
        if scenario.role not in suite.target.abilities:
            pytest.skip(f"{suite.target.name} has no {scenario.role.title}")
        result = self._run_scenario()
        if result.outcome is Outcome.SKIPPED:
            pytest.skip(result.reason)
        if is_failure(result, {clause.id: clause for clause in suite.catalog.clauses}):
            raise ScenarioFailed(result)

    def _run_scenario(self) -> ScenarioResult:
        import signal  # noqa: PLC0415 (see the module)

        from dafka_conformance.runner import run, run_blocking  # noqa: PLC0415

        suite, scenario = self._suite, self._scenario
        start_run = partial(
            run,
            suite.catalog,
            suite.target,
            roles=[scenario.role],
            dialects=[self._dialect],
            patterns=[glob.escape(scenario.name)],
            patience=suite.patience,
        )
        finished, ended_by = run_blocking(lambda scope: start_run(scope=scope))
        if ended_by is not None:
            if ended_by is not signal.SIGINT:
                os.kill(os.getpid(), ended_by)  # the run's handler is gone: the signal now has its usual effect
            raise KeyboardInterrupt
        return finished.results[0]

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the findings and the exchange. The traceback would show the suite's code only."""
        if isinstance(excinfo.value, ScenarioFailed):
            return "\n".join(_format_failure(excinfo.value.result, self._suite.catalog))
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[str, None, str]:
        """Return the heading of a failure report."""
        return NAME, None, f"{self._scenario.name} in {self._dialect.value}"


class ScenarioFailed(Exception):  # noqa: N818 (a result)
    """A scenario failed, or could not be run.

    Attributes:
        result: The scenario's result.

    Args:
        result: The scenario's result.
    """

    def __init__(self, result: ScenarioResult) -> None:
        self.result = result
        found = [check.message for check in result.checks if check.is_finding]
        super().__init__("; ".join(dict.fromkeys(found)) or result.reason or "the scenario failed")


def _format_failure(result: ScenarioResult, catalog: Catalog) -> Iterator[str]:
    from dafka.text import escape_unprintable  # noqa: PLC0415 (see the module)
    from dafka_conformance.model import Outcome  # noqa: PLC0415
    from dafka_conformance.report.findings import faults  # noqa: PLC0415
    from dafka_conformance.report.text_chart import text_chart  # noqa: PLC0415 (see the module)

    yield result.title
    if result.reason:
        what = "the suite itself failed" if result.outcome is Outcome.ERROR else "the scenario could not be run"
        yield f"{what}: {escape_unprintable(result.reason)}"
    for check in result.checks:
        if not check.holds:
            clause = catalog.clauses.get(check.clause)
            yield f"{clause.id} ({clause.level.value}, {clause.section}): {clause.text}"
            because = f" (not judged: it follows from {check.because})" if check.because else ""
            yield f"    {escape_unprintable(check.message)}{because}"
    if result.trace:
        yield ""
        yield from text_chart(result.trace, faults(result), width=_CHART_WIDTH, events_max=_EVENTS_MAX)
