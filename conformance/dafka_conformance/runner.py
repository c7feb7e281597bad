"""Runs scenarios against a target: several at once, in both dialects, and judges what came of them.

Scenarios that may share a target are played one after the other with the same one, each with nodes of its own, until
one fails: the next has a new target. Scenarios that load the machine are played alone.
"""

from __future__ import annotations

import resource
import signal
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence

import attrs
import trio

from dafka_conformance.catalog import Catalog
from dafka_conformance.model import Check, Dialect, Outcome, Role, Run, ScenarioResult
from dafka_conformance.scenario import Scenario
from dafka_conformance.targets.base import Target, TargetError
from dafka_conformance.testbed.expectations import UnmetError
from dafka_conformance.testbed.target_nodes import TestbedConfig
from dafka_conformance.testbed.testbed import Testbed, open_testbed
from dafka_conformance.verdicts import judge_clauses

JOBS_MAX = 6
"""Targets that run at once. They mostly wait; on two cores more of them only make each other late."""

GROUP_SCENARIOS_MAX = 40
"""Scenarios with one target."""

SCENARIO_TIMEOUT_S = 120.0
"""A scenario has its own time limits; this ends one that hangs in spite of them."""


OPEN_FILES = 4096
"""More than a run with any number of targets at once needs."""


class EndedBySignalError(Exception):
    """A signal ended the run before its time; everything that it had started is gone.

    Attributes:
        number: the signal.
    """

    def __init__(self, number: int) -> None:
        self.number = signal.Signals(number)
        super().__init__(f"ended by {self.number.name}")


def run_blocking(start_run: Callable[[], Awaitable[Run]]) -> Run:
    """Plays a run to its end, in an event loop of its own; to be called in the main thread.

    Raises `EndedBySignalError` where SIGINT, SIGTERM or SIGHUP came meanwhile. One that whoever started this program
    ignores, as nohup does, is ignored here too.
    """
    _allow_open_files()
    finished: list[Run] = []
    caught: list[int] = []
    heeded = [each for each in (signal.SIGINT, signal.SIGHUP) if signal.getsignal(each) is not signal.SIG_IGN]

    async def main() -> None:
        scope = trio.CancelScope()

        async def heed() -> None:
            async for number in signals:  # further ones change nothing while targets are being ended
                caught.append(number)
                scope.cancel()

        with trio.open_signal_receiver(signal.SIGTERM, *heeded) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(heed)
                with scope:
                    finished.append(await start_run())
                nursery.cancel_scope.cancel()

    trio.run(main)
    if not finished:
        raise EndedBySignalError(caught[0])
    return finished[0]


def _allow_open_files() -> None:
    """Every socket is a file or two, and some systems begin with as few as 256."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@attrs.frozen
class ProgressListener:
    """What is told of a run while it lasts."""

    started: Callable[[str, Dialect], None] = lambda _name, _dialect: None
    finished: Callable[[ScenarioResult], None] = lambda _result: None


@attrs.frozen
class ScenarioGroup:
    """Scenarios that are played one after the other on one stage, as long as all goes well."""

    role: Role
    dialect: Dialect
    scenarios: tuple[Scenario, ...]

    @property
    def runs_alone(self) -> bool:
        """Must nothing else run meanwhile?"""
        return any(scenario.runs_alone for scenario in self.scenarios)


async def run(
    catalog: Catalog,
    target: Target,
    *,
    roles: Iterable[Role] = tuple(Role),
    dialects: Iterable[Dialect] | None = None,
    patterns: Sequence[str] = (),
    patience: float = 1.0,
    jobs: int = JOBS_MAX,
    listener: ProgressListener | None = None,
) -> Run:
    """Plays the scenarios that are asked for, and judges every clause.

    A role that the target lacks, and a scenario that needs what cannot be done with it, are skipped, and say so.
    """
    listener = listener or ProgressListener()
    started_at, begin = time.time(), time.monotonic()
    spoken = tuple(dialect for dialect in dialects or target.dialects if dialect in target.dialects)
    asked = set(roles)
    missing = {role: "it was not asked for" for role in Role if role not in asked}
    missing |= {role: f"{target.name} has no {role.title}" for role in asked if role not in target.abilities}
    results: list[ScenarioResult] = []

    def finish(result: ScenarioResult) -> None:
        results.append(result)
        listener.finished(result)

    groups: list[ScenarioGroup] = []
    for dialect in spoken:
        chosen = catalog.select(asked - missing.keys(), dialect, patterns)
        for scenario in chosen:
            lacking = scenario.needs - target.abilities[scenario.role]
            if lacking:
                what = " and to ".join(sorted(ability.value for ability in lacking))
                finish(_skipped(scenario, dialect, f"{target.name} gives no way to {what}"))
        ready = [scenario for scenario in chosen if scenario.needs <= target.abilities[scenario.role]]
        groups += group_scenarios(ready, dialect)
    group_runner = _GroupRunner(catalog, target, patience, listener, finish)
    limiter = trio.CapacityLimiter(jobs)
    async with trio.open_nursery() as nursery:
        for each in [each for each in groups if not each.runs_alone]:
            nursery.start_soon(group_runner.run_group_limited, each, limiter)
    for each in [each for each in groups if each.runs_alone]:
        await group_runner.run_group(each)
    results.sort(key=lambda result: (result.scenario, result.dialect.value))
    verdicts = judge_clauses(catalog.clauses, results, spoken, missing)
    return Run(target.name, started_at, time.monotonic() - begin, tuple(results), verdicts, missing)


def group_scenarios(scenarios: Sequence[Scenario], dialect: Dialect) -> list[ScenarioGroup]:
    """Scenarios that share go together, the others alone."""
    groups: list[ScenarioGroup] = []
    for role in Role:
        sharing = [scenario for scenario in scenarios if scenario.role is role and scenario.shares_target]
        groups += [
            ScenarioGroup(role, dialect, tuple(sharing[start : start + GROUP_SCENARIOS_MAX]))
            for start in range(0, len(sharing), GROUP_SCENARIOS_MAX)
        ]
    return groups + [ScenarioGroup(each.role, dialect, (each,)) for each in scenarios if not each.shares_target]


class _GroupRunner:
    """Plays groups on stages."""

    def __init__(
        self,
        catalog: Catalog,
        target: Target,
        patience: float,
        listener: ProgressListener,
        finish: Callable[[ScenarioResult], None],
    ) -> None:
        self._catalog = catalog
        self._target = target
        self._patience = patience
        self._listener = listener
        self._finish = finish

    async def run_group_limited(self, each: ScenarioGroup, limiter: trio.CapacityLimiter) -> None:
        async with limiter:
            await self.run_group(each)

    async def run_group(self, each: ScenarioGroup) -> None:
        waiting = deque(each.scenarios)
        while waiting:
            topic = waiting[0].topic or b"topic-%b" % uuid.uuid4().hex[:8].encode("ascii")
            config = TestbedConfig(self._target, each.role, each.dialect, self._catalog.grammar, topic, self._patience)
            async with open_testbed(config) as testbed:
                while waiting:
                    result = await self._run_scenario(waiting.popleft(), testbed)
                    self._finish(result)
                    if result.outcome is not Outcome.PASSED:
                        break

    async def _run_scenario(self, scenario: Scenario, testbed: Testbed) -> ScenarioResult:
        self._listener.started(scenario.name, testbed.dialect)
        testbed.begin_scenario()
        begin, outcome, reason = time.monotonic(), Outcome.PASSED, ""
        try:
            with trio.fail_after(SCENARIO_TIMEOUT_S * self._patience):
                if not scenario.starts_target and testbed.node is None:
                    await testbed.start(reset=scenario.reset)
                await scenario.run(testbed)
        except UnmetError:
            outcome = Outcome.FAILED
        except TargetError as error:
            outcome, reason = Outcome.BROKEN, str(error)
        except trio.TooSlowError:
            testbed.check_clause(
                scenario.clauses[0], False, f"the scenario did not end within {SCENARIO_TIMEOUT_S:g} s"
            )
        checks = self._complete(scenario, testbed, outcome)
        if outcome is Outcome.PASSED and any(not check.holds and self._is_binding(check.clause) for check in checks):
            outcome = Outcome.FAILED
        return ScenarioResult(
            scenario.name,
            scenario.title,
            scenario.role,
            testbed.dialect,
            scenario.clauses,
            outcome,
            tuple(checks),
            tuple(testbed.trace.events),
            time.monotonic() - begin,
            reason,
        )

    def _complete(self, scenario: Scenario, testbed: Testbed, outcome: Outcome) -> list[Check]:
        """The checks that were made, and what holds because nothing was found wrong with it."""
        checks = [check for check in testbed.checks if check.clause in self._catalog.clauses]
        strange = [check for check in testbed.checks if check.clause not in self._catalog.clauses]
        assert not strange, f"{scenario.name} checks {strange[0].clause}, which is no clause"
        named = {check.clause for check in checks}
        silent = testbed.message_checks.checked_clauses() | (
            set(scenario.clauses) if outcome is Outcome.PASSED else set()
        )
        known = self._catalog.clauses
        checks += [
            Check(clause, True)
            for clause in sorted(silent - named)
            if clause in known and testbed.dialect in known.get(clause).dialects
        ]
        return [self._with_reading(check) for check in checks]

    def _with_reading(self, check: Check) -> Check:
        """What conforms to a clause with several readings follows the one that holds."""
        if check.holds and not check.reading:
            return attrs.evolve(check, reading=self._catalog.clauses.get(check.clause).holds)
        return check

    def _is_binding(self, clause: str) -> bool:
        return self._catalog.clauses.get(clause).level.is_binding


def _skipped(scenario: Scenario, dialect: Dialect, reason: str) -> ScenarioResult:
    return ScenarioResult(
        scenario.name, scenario.title, scenario.role, dialect, scenario.clauses, Outcome.SKIPPED, reason=reason
    )
