"""A pytest plugin: the suite's scenarios as tests, beside a project's own.

It does nothing until it is told of a target, by `--dafka-target` or by `dafka_target` in the configuration file (which
counts only where pytest was not told which tests to run). Then there is a test for each scenario and dialect,
`dafka-conformance::store.acknowledges[rfc46]`, marked `dafka_conformance`. Each is played by itself, with a target of
its own. What the target cannot do is skipped; a mistake in an option or in the target's description is a usage error.

Loading it imports nothing but pytest; the suite itself is imported when there is a target.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from dafka_conformance.catalogue import Catalogue
    from dafka_conformance.model import Dialect, Role, ScenarioResult
    from dafka_conformance.play.scenario import Scenario
    from dafka_conformance.targets import Target

NAME = "dafka-conformance"
MARKER = "dafka_conformance"
_WIDTH = 110
_EVENTS_MAX = 40


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options."""
    group = parser.getgroup(NAME, "conformance to Dafka (ZeroMQ RFC 46)")
    group.addoption(
        "--dafka-target",
        metavar="TARGET",
        help="test this: a shipped target's name, a target file, or package.module:factory",
    )
    group.addoption(
        "--dafka-role",
        action="append",
        default=[],
        metavar="ROLE",
        help="this role only (tower, store, ...); repeatable",
    )
    group.addoption(
        "--dafka-dialect", action="append", default=[], metavar="DIALECT", help="rfc46 or libdafka only; repeatable"
    )
    group.addoption(
        "--dafka-scenario",
        action="append",
        default=[],
        metavar="GLOB",
        help="scenarios whose names match, as in 'store.*'; repeatable",
    )
    group.addoption(
        "--dafka-set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a variable of the target file, or an argument of the factory; repeatable",
    )
    group.addoption(
        "--dafka-patience",
        type=float,
        default=1.0,
        metavar="FACTOR",
        help="multiplies every time that the target is given (default: 1)",
    )
    parser.addini("dafka_target", "what --dafka-target is where it is not given, and no tests are named")


def pytest_configure(config: pytest.Config) -> None:
    """Makes the marker known."""
    config.addinivalue_line("markers", f"{MARKER}: a scenario of the Dafka conformance suite")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Opens the target. Raises `UsageError` where an option or the target is not as it should be."""
    target = _target_name(session.config)
    if not target:
        return
    from dafka.errors import MissingExtraError  # noqa: PLC0415 (see the module)
    from dafka.extras import require_extra  # noqa: PLC0415

    try:
        with require_extra("conformance", "the conformance suite"):
            suite = _Suite(session.config, target)
    except MissingExtraError as error:
        raise pytest.UsageError(str(error)) from None
    session.config.pluginmanager.register(suite, f"{NAME}-suite")


def _target_name(config: pytest.Config) -> str:
    named: str | None = config.getoption("dafka_target")
    if named is not None:
        return named
    has_arguments = config.args_source is pytest.Config.ArgsSource.ARGS
    return "" if has_arguments else str(config.getini("dafka_target"))


class _Suite:
    """The scenarios to be played, and with what; the part of the plugin that is there only with a target."""

    def __init__(self, config: pytest.Config, name: str) -> None:
        from dafka_conformance.catalogue import Catalogue  # noqa: PLC0415 (see the module)
        from dafka_conformance.frontend import parse_settings  # noqa: PLC0415
        from dafka_conformance.model import Dialect, Role  # noqa: PLC0415
        from dafka_conformance.targets import TargetError, open_target  # noqa: PLC0415

        self.patience: float = config.getoption("dafka_patience")
        if not 0.1 <= self.patience <= 100:
            raise pytest.UsageError(f"--dafka-patience takes a factor from 0.1 to 100, not {self.patience:g}")
        try:
            self.target: Target = open_target(name, parse_settings(config.getoption("dafka_set"), "--dafka-set"))
        except TargetError as error:
            raise pytest.UsageError(str(error)) from None
        self.catalogue: Catalogue = Catalogue.load()
        titles = _chosen(config, "role", [role.title for role in Role])
        self._roles: list[Role] = [role for role in Role if not titles or role.title in titles]
        names = _chosen(config, "dialect", [dialect.value for dialect in Dialect])
        self._dialects: list[Dialect] = [Dialect(name) for name in names] or list(self.target.dialects)
        for dialect in self._dialects:
            if dialect not in self.target.dialects:
                can = " and ".join(each.value for each in self.target.dialects)
                raise pytest.UsageError(f"{self.target.name} cannot be told to send {dialect.value}, only {can}")
        self._patterns: list[str] = config.getoption("dafka_scenario")
        for pattern in self._patterns:
            if not self.catalogue.select(patterns=[pattern]):
                raise pytest.UsageError(
                    f"--dafka-scenario: none matches {pattern!r}; dafka-conformance list shows them all"
                )

    @pytest.hookimpl(tryfirst=True)  # so that -k and -m choose among the scenarios too
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Adds the scenarios to the project's own tests."""
        collector = ScenarioCollector.from_parent(session, name=NAME, nodeid=NAME, suite=self)
        items.extend(session.genitems(collector))

    def selected(self) -> Iterator[tuple[Scenario, Dialect]]:
        """What is to be played."""
        for dialect in self._dialects:
            for scenario in self.catalogue.select(self._roles, dialect, self._patterns):
                yield scenario, dialect


def _chosen(config: pytest.Config, what: str, known: list[str]) -> list[str]:
    """The values of an option, each once. Raises `UsageError` for one that is not known."""
    values: list[str] = config.getoption(f"dafka_{what}")
    for value in values:
        if value not in known:
            raise pytest.UsageError(f"--dafka-{what}: there is no {what} {value!r}: expected {', '.join(known)}")
    return list(dict.fromkeys(values))


class ScenarioCollector(pytest.Collector):
    """Where the scenarios hang in pytest's tree."""

    def __init__(self, *, suite: _Suite, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._suite = suite

    def collect(self) -> Iterator[ScenarioItem]:
        """A test for each scenario and dialect."""
        for scenario, dialect in self._suite.selected():
            yield ScenarioItem.from_parent(
                self,
                name=f"{scenario.name}[{dialect.value}]",
                suite=self._suite,
                scenario=scenario,
                dialect=dialect,
            )


class ScenarioItem(pytest.Item):
    """A scenario in a dialect."""

    obj: object = None  # other plugins (pytest-trio is one) expect a test to have a function

    def __init__(self, *, suite: _Suite, scenario: Scenario, dialect: Dialect, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._suite = suite
        self._scenario = scenario
        self._dialect = dialect
        self.add_marker(MARKER)

    def runtest(self) -> None:
        """Plays it. Raises `ScenarioFailed` with what was found."""
        from dafka_conformance.model import Outcome  # noqa: PLC0415 (see the module)
        from dafka_conformance.report.findings import went_wrong  # noqa: PLC0415

        suite, scenario = self._suite, self._scenario
        if scenario.role not in suite.target.abilities:
            pytest.skip(f"{suite.target.name} has no {scenario.role.title}")
        result = self._play()
        if result.outcome is Outcome.SKIPPED:
            pytest.skip(result.reason)
        if went_wrong(result, {clause.id: clause for clause in suite.catalogue.clauses}):
            raise ScenarioFailed(result)

    def _play(self) -> ScenarioResult:
        import signal  # noqa: PLC0415 (see the module)

        from dafka_conformance.frontend import EndedBySignalError, run_blocking  # noqa: PLC0415
        from dafka_conformance.runner import run  # noqa: PLC0415

        suite, scenario = self._suite, self._scenario
        play = partial(
            run,
            suite.catalogue,
            suite.target,
            roles=[scenario.role],
            dialects=[self._dialect],
            patterns=[glob.escape(scenario.name)],
            patience=suite.patience,
        )
        try:
            finished = run_blocking(play)
        except EndedBySignalError as error:
            if error.number is signal.SIGINT:
                raise KeyboardInterrupt from None
            os.kill(os.getpid(), error.number)  # which now does what it would have done before
            raise KeyboardInterrupt from None
        return finished.results[0]

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """What was found, and the exchange; the traceback would be the suite's own."""
        if isinstance(excinfo.value, ScenarioFailed):
            return "\n".join(_report(excinfo.value.result, self._suite.catalogue))
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[str, None, str]:
        """What the failure's heading says."""
        return NAME, None, f"{self._scenario.name} in {self._dialect.value}"


class ScenarioFailed(Exception):  # noqa: N818 (a result)
    """A scenario failed, or could not be played.

    Attributes:
        result: what came of it.
    """

    def __init__(self, result: ScenarioResult) -> None:
        self.result = result
        found = [check.message for check in result.checks if not check.holds]
        super().__init__("; ".join(dict.fromkeys(found)) or result.reason or "the scenario failed")


def _report(result: ScenarioResult, catalogue: Catalogue) -> Iterator[str]:
    from dafka_conformance.report.chart import chart  # noqa: PLC0415 (see the module)
    from dafka_conformance.report.findings import faults, printable  # noqa: PLC0415

    yield result.title
    if result.reason:
        yield f"the scenario could not be played: {printable(result.reason)}"
    for check in result.checks:
        if not check.holds:
            clause = catalogue.clauses.get(check.clause)
            yield f"{clause.id} ({clause.level.value}, {clause.section}): {clause.text}"
            yield f"    {printable(check.message)}"
    if result.trace:
        yield ""
        yield from chart(result.trace, faults(result), width=_WIDTH, events_max=_EVENTS_MAX)
