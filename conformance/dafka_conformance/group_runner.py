"""Runs groups of scenarios on targets, and returns the result of each scenario.

Scenarios that can share a target run one after the other on the same target, each with its own peers. After a failure
the next scenario gets a new target.
"""

from __future__ import annotations

import time
import traceback
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import attrs
import trio

from dafka_conformance.catalog import Catalog
from dafka_conformance.causes import attribute_causes
from dafka_conformance.clauses import Clauses
from dafka_conformance.model import Check, Dialect, Layer, Outcome, Role, ScenarioResult
from dafka_conformance.repeats import Repeats
from dafka_conformance.scenario import Scenario
from dafka_conformance.targets.base import Target, TargetError
from dafka_conformance.testbed.expectations import LacksError, UnmetError
from dafka_conformance.testbed.target_nodes import TestbedConfig
from dafka_conformance.testbed.testbed import Testbed, open_testbed

GROUP_SCENARIOS_MAX = 40
"""The maximum number of scenarios that share a target."""

SCENARIO_TIMEOUT_S = 120.0
"""The time limit of a whole scenario. Scenarios have their own limits; this one ends a scenario that hangs anyway."""

SPOILED_COUNT = 3
"""Scenarios of a role in a row that fail from the same cause until `fail_fast` skips the role's other scenarios."""

BROKEN_COUNT = 3
"""Scenarios of a role that cannot be run, while none can, until the role's other scenarios are skipped."""


@attrs.frozen
class ProgressListener:
    """Callbacks for the progress of a run.

    Attributes:
        started: Called with the name and dialect of each scenario that starts.
        finished: Called with the result of each scenario that ends or is skipped.
        repeated: Called with the result of a scenario that failed and was repeated, because the machine had stalled.
    """

    started: Callable[[str, Dialect], None] = lambda _name, _dialect: None
    finished: Callable[[ScenarioResult], None] = lambda _result: None
    repeated: Callable[[ScenarioResult], None] = lambda _result: None


@attrs.frozen
class ScenarioGroup:
    """Scenarios that run one after the other on one testbed, until one fails."""

    role: Role
    dialect: Dialect
    scenarios: tuple[Scenario, ...]

    @property
    def runs_alone(self) -> bool:
        """Whether nothing else may run at the same time."""
        return any(scenario.runs_alone for scenario in self.scenarios)


def group_scenarios(scenarios: Sequence[Scenario], dialect: Dialect) -> list[ScenarioGroup]:
    """Return the scenarios in groups: those that share a target together, each other one alone."""
    groups: list[ScenarioGroup] = []
    for role in Role:
        sharing = [scenario for scenario in scenarios if scenario.role is role and scenario.shares_target]
        groups += [
            ScenarioGroup(role, dialect, tuple(sharing[start : start + GROUP_SCENARIOS_MAX]))
            for start in range(0, len(sharing), GROUP_SCENARIOS_MAX)
        ]
    return groups + [ScenarioGroup(each.role, dialect, (each,)) for each in scenarios if not each.shares_target]


class Spoiled:
    """The roles whose scenarios all fail from one cause, so that running more of them adds nothing."""

    def __init__(self, clauses: Clauses, is_enabled: bool) -> None:
        self._clauses = clauses
        self._is_enabled = is_enabled
        self._in_a_row: dict[tuple[Role, Dialect], tuple[str, int]] = {}
        self._broken: Counter[tuple[Role, Dialect]] = Counter()
        self._runnable: set[tuple[Role, Dialect]] = set()

    def note(self, result: ScenarioResult) -> None:
        """Record the result of a scenario."""
        key = (result.role, result.dialect)
        if result.outcome is Outcome.BROKEN:
            self._broken[key] += 1
        else:
            self._runnable.add(key)
        of_result = [self._clauses.get(check.clause) for check in result.checks if check.is_finding]
        violated = [clause for clause in of_result if clause.level.is_binding and clause.layer < Layer.BEHAVIOR]
        cause = min(violated, key=lambda clause: clause.layer).id if violated else ""
        known, count = self._in_a_row.get(key, ("", 0))
        self._in_a_row[key] = (cause, count + 1 if cause == known else 1)

    def reason(self, role: Role, dialect: Dialect) -> str:
        """Return why to skip the other scenarios of a role; an empty string if there is no reason."""
        key = (role, dialect)
        if self._broken[key] >= BROKEN_COUNT and key not in self._runnable:
            return f"the {role.title} could not be run in {BROKEN_COUNT} scenarios"
        cause, count = self._in_a_row.get(key, ("", 0))
        if not self._is_enabled or not cause or count < SPOILED_COUNT:
            return ""
        return f"{SPOILED_COUNT} scenarios in a row violated {cause}"


class GroupRunner:
    """Runs groups of scenarios on testbeds.

    Args:
        catalog: The scenarios and clauses.
        target: The implementation under test.
        patience: The factor for every time limit.
        repeats: The doubtful results.
        spoiled: The roles whose other scenarios are skipped.
        listener: Callbacks for progress.
        finish: Called with the result of each scenario that ends or is skipped.
    """

    def __init__(
        self,
        catalog: Catalog,
        target: Target,
        patience: float,
        repeats: Repeats,
        spoiled: Spoiled,
        listener: ProgressListener,
        finish: Callable[[ScenarioResult], None],
    ) -> None:
        self._catalog = catalog
        self._target = target
        self._patience = patience
        self._repeats = repeats
        self._spoiled = spoiled
        self._listener = listener
        self._report_finished = finish

    async def run_group_limited(self, each: ScenarioGroup, limiter: trio.CapacityLimiter) -> None:
        """Run a group once fewer than the maximum number of groups are running."""
        async with limiter:
            await self.run_group(each)

    async def run_group(self, each: ScenarioGroup) -> None:
        """Run the scenarios of a group one after the other, on as many targets as necessary."""
        waiting = deque(each.scenarios)
        while waiting:
            reason = self._spoiled.reason(each.role, each.dialect)
            if reason:
                self._finish(skipped(waiting.popleft(), each.dialect, reason))
            else:
                result = await self._run_on_one_target(waiting, each)
                (scenario,) = (other for other in each.scenarios if other.name == result.scenario)
                self._repeats.note(result, partial(self._run_alone, scenario, each))
                self._finish(result)

    def _finish(self, result: ScenarioResult) -> None:
        if result.outcome is not Outcome.SKIPPED:
            self._spoiled.note(result)
        self._report_finished(result)

    async def _run_alone(self, scenario: Scenario, group: ScenarioGroup) -> ScenarioResult:
        return await self._run_on_one_target(deque([scenario]), group)

    async def _run_on_one_target(self, waiting: deque[Scenario], group: ScenarioGroup) -> ScenarioResult:
        """Run waiting scenarios until one does not pass. Return the last result, which the caller has to finish."""
        scenario = waiting.popleft()
        result: ScenarioResult | None = None
        topic = scenario.topic or b"topic-%b" % uuid.uuid4().hex[:8].encode("ascii")
        config = TestbedConfig(
            self._target,
            group.role,
            group.dialect,
            self._catalog.grammar,
            topic,
            self._patience,
            is_usual_topic=scenario.topic is None,
        )
        try:
            async with open_testbed(config) as testbed:
                result = await self._run_scenario(scenario, testbed)
                while result.outcome is Outcome.PASSED and waiting:
                    self._finish(result)
                    scenario, result = waiting.popleft(), None
                    result = await self._run_scenario(scenario, testbed)
        except Exception as error:
            result = result or _unfinished(scenario, group.dialect, Outcome.ERROR)
            return attrs.evolve(result, outcome=Outcome.ERROR, reason=describe_error(error))
        return result

    async def _run_scenario(self, scenario: Scenario, testbed: Testbed) -> ScenarioResult:
        self._listener.started(scenario.name, testbed.dialect)
        testbed.begin_scenario()
        begin, outcome, reason = time.monotonic(), Outcome.PASSED, ""
        timeout_s = SCENARIO_TIMEOUT_S * max(self._patience, 1.0)
        try:
            with self._repeats.stalls.limit(timeout_s):
                if not scenario.starts_target and testbed.node is None:
                    await testbed.start(reset=scenario.reset)
                await scenario.run(testbed)
        except trio.TooSlowError:
            testbed.check_clause(scenario.clauses[0], False, f"the scenario did not end within {timeout_s:g} s")
        except Exception as error:
            outcome, reason = _outcome_of(error)
        checks = self._complete(scenario, testbed, outcome) if outcome is not Outcome.SKIPPED else []
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
        """Return the recorded checks, and a passed check for each other clause that was checked without a fault."""
        checks = [check for check in testbed.checks if check.clause in self._catalog.clauses]
        strange = [check for check in testbed.checks if check.clause not in self._catalog.clauses]
        assert not strange, f"{scenario.name} checks {strange[0].clause}, which is not a clause"
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
        has_ended = bool(testbed.exit_message())
        return [self._with_reading(check, has_ended) for check in attribute_causes(checks, known, scenario.clauses)]

    def _with_reading(self, check: Check, has_ended: bool) -> Check:
        """Return the check with the reading that the target follows, if the clause has several readings."""
        clause, reading = self._catalog.clauses.get(check.clause), check.reading
        if check.holds and not reading:
            reading = clause.holds
        elif check.is_finding and not reading and check.event is None and not has_ended:
            reading = clause.absent
        return attrs.evolve(check, reading=reading if reading in clause.readings else "")

    def _is_binding(self, clause: str) -> bool:
        return self._catalog.clauses.get(clause).level.is_binding


def skipped(scenario: Scenario, dialect: Dialect, reason: str) -> ScenarioResult:
    """Return the result of a scenario that was not run, or not to its end."""
    return _unfinished(scenario, dialect, Outcome.SKIPPED, reason)


def _unfinished(scenario: Scenario, dialect: Dialect, outcome: Outcome, reason: str = "") -> ScenarioResult:
    return ScenarioResult(
        scenario.name, scenario.title, scenario.role, dialect, scenario.clauses, outcome, reason=reason
    )


def _outcome_of(error: Exception) -> tuple[Outcome, str]:
    """Return the outcome of a scenario that an exception ended, and the reason for reports."""
    causes = list(_causes(error))
    if all(isinstance(cause, UnmetError) for cause in causes):
        return Outcome.FAILED, ""  # the failed check is recorded
    if all(isinstance(cause, LacksError) for cause in causes):
        return Outcome.SKIPPED, str(causes[0])
    broken = [cause for cause in causes if isinstance(cause, TargetError)]
    if broken and all(isinstance(cause, (UnmetError, TargetError)) for cause in causes):
        return Outcome.BROKEN, str(broken[0])
    return Outcome.ERROR, describe_error(error)


def describe_error(error: Exception) -> str:
    """Return one line on an exception of the suite's own: its type, text and place, for a bug report."""
    cause = next(_causes(error))
    place = traceback.extract_tb(cause.__traceback__)[-1:]
    where = "".join(f" ({Path(frame.filename).name}:{frame.lineno}, in {frame.name})" for frame in place)
    text = " ".join(str(cause).split())
    return f"{type(cause).__name__}{': ' if text else ''}{text}{where}"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Return the exceptions in a group, or the exception itself if it is none."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _causes(each)
    else:
        yield error
