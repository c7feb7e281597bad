"""Runs scenarios against a target: several at once, in both dialects, and judges what came of them.

Scenarios that may share a target are played one after the other with the same one, each with nodes of its own, until
one fails: the next has a new target. Scenarios that load the machine are played alone.
"""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import attrs
import trio

from dafka_conformance.catalogue import Catalogue
from dafka_conformance.model import Check, Dialect, Outcome, Role, Run, ScenarioResult
from dafka_conformance.play.scenario import Scenario
from dafka_conformance.stage.findings import UnmetError
from dafka_conformance.stage.meeting import Setting
from dafka_conformance.stage.stage import Stage, open_stage
from dafka_conformance.targets.base import Target, TargetError
from dafka_conformance.verdicts import judge

STAGES_MAX = 6
"""Targets that run at once. They mostly wait; on two cores more of them only make each other late."""

SHARED_MAX = 40
"""Scenarios with one target."""

SCENARIO_TIMEOUT_S = 120.0
"""A scenario has its own time limits; this ends one that hangs in spite of them."""


@attrs.frozen
class Watcher:
    """What is told of a run while it lasts."""

    started: Callable[[str, Dialect], None] = lambda _name, _dialect: None
    finished: Callable[[ScenarioResult], None] = lambda _result: None


@attrs.frozen
class Group:
    """Scenarios that are played one after the other on one stage, as long as all goes well."""

    role: Role
    dialect: Dialect
    scenarios: tuple[Scenario, ...]

    @property
    def is_heavy(self) -> bool:
        """Must nothing else run meanwhile?"""
        return any(scenario.is_heavy for scenario in self.scenarios)


async def run(
    catalogue: Catalogue,
    target: Target,
    *,
    roles: Iterable[Role] = tuple(Role),
    dialects: Iterable[Dialect] | None = None,
    patterns: Sequence[str] = (),
    patience: float = 1.0,
    stages_max: int = STAGES_MAX,
    watcher: Watcher | None = None,
) -> Run:
    """Plays the scenarios that are asked for, and judges every clause.

    A role that the target lacks, and a scenario that needs what cannot be done with it, are skipped, and say so.
    """
    watcher = watcher or Watcher()
    started_at, begin = time.time(), time.monotonic()
    spoken = tuple(dialect for dialect in dialects or target.dialects if dialect in target.dialects)
    asked = set(roles)
    missing = {role: "it was not asked for" for role in Role if role not in asked}
    missing |= {role: f"{target.name} has no {role.title}" for role in asked if role not in target.abilities}
    results: list[ScenarioResult] = []

    def finish(result: ScenarioResult) -> None:
        results.append(result)
        watcher.finished(result)

    playable: list[Group] = []
    for dialect in spoken:
        chosen = catalogue.select(asked - missing.keys(), dialect, patterns)
        for scenario in chosen:
            lacking = scenario.needs - target.abilities[scenario.role]
            if lacking:
                what = " and to ".join(sorted(ability.value for ability in lacking))
                finish(_skipped(scenario, dialect, f"{target.name} gives no way to {what}"))
        ready = [scenario for scenario in chosen if scenario.needs <= target.abilities[scenario.role]]
        playable += group(ready, dialect)
    player = _Player(catalogue, target, patience, watcher, finish)
    limiter = trio.CapacityLimiter(stages_max)
    async with trio.open_nursery() as nursery:
        for each in [each for each in playable if not each.is_heavy]:
            nursery.start_soon(player.play_limited, each, limiter)
    for each in [each for each in playable if each.is_heavy]:
        await player.play_group(each)
    results.sort(key=lambda result: (result.scenario, result.dialect.value))
    verdicts = judge(catalogue.clauses, results, spoken, missing)
    return Run(target.name, started_at, time.monotonic() - begin, tuple(results), verdicts, missing)


def group(scenarios: Sequence[Scenario], dialect: Dialect) -> list[Group]:
    """Scenarios that share go together, the others alone."""
    groups: list[Group] = []
    for role in Role:
        sharing = [scenario for scenario in scenarios if scenario.role is role and scenario.shares]
        groups += [
            Group(role, dialect, tuple(sharing[start : start + SHARED_MAX]))
            for start in range(0, len(sharing), SHARED_MAX)
        ]
    return groups + [Group(each.role, dialect, (each,)) for each in scenarios if not each.shares]


class _Player:
    """Plays groups on stages."""

    def __init__(
        self,
        catalogue: Catalogue,
        target: Target,
        patience: float,
        watcher: Watcher,
        finish: Callable[[ScenarioResult], None],
    ) -> None:
        self._catalogue = catalogue
        self._target = target
        self._patience = patience
        self._watcher = watcher
        self._finish = finish

    async def play_limited(self, each: Group, limiter: trio.CapacityLimiter) -> None:
        async with limiter:
            await self.play_group(each)

    async def play_group(self, each: Group) -> None:
        waiting = deque(each.scenarios)
        while waiting:
            topic = waiting[0].topic or b"topic-%b" % uuid.uuid4().hex[:8].encode("ascii")
            setting = Setting(self._target, each.role, each.dialect, self._catalogue.grammar, topic, self._patience)
            async with open_stage(setting) as stage:
                while waiting:
                    result = await self._play(waiting.popleft(), stage)
                    self._finish(result)
                    if result.outcome is not Outcome.PASSED:
                        break

    async def _play(self, scenario: Scenario, stage: Stage) -> ScenarioResult:
        self._watcher.started(scenario.name, stage.dialect)
        stage.begin()
        begin, outcome, reason = time.monotonic(), Outcome.PASSED, ""
        try:
            with trio.fail_after(SCENARIO_TIMEOUT_S * self._patience):
                if not scenario.starts and stage.node is None:
                    await stage.start(reset=scenario.reset)
                await scenario.play(stage)
        except UnmetError:
            outcome = Outcome.FAILED
        except TargetError as error:
            outcome, reason = Outcome.BROKEN, str(error)
        except trio.TooSlowError:
            stage.check(scenario.clauses[0], False, f"the scenario did not end within {SCENARIO_TIMEOUT_S:g} s")
        checks = self._complete(scenario, stage, outcome)
        if outcome is Outcome.PASSED and any(not check.holds and self._is_binding(check.clause) for check in checks):
            outcome = Outcome.FAILED
        return ScenarioResult(
            scenario.name,
            scenario.title,
            scenario.role,
            stage.dialect,
            scenario.clauses,
            outcome,
            tuple(checks),
            tuple(stage.trace.events),
            time.monotonic() - begin,
            reason,
        )

    def _complete(self, scenario: Scenario, stage: Stage, outcome: Outcome) -> list[Check]:
        """The checks that were made, and what holds because nothing was found wrong with it."""
        checks = [check for check in stage.checks if check.clause in self._catalogue.clauses]
        strange = [check for check in stage.checks if check.clause not in self._catalogue.clauses]
        assert not strange, f"{scenario.name} checks {strange[0].clause}, which is no clause"
        named = {check.clause for check in checks}
        silent = stage.watch.conforming() | (set(scenario.clauses) if outcome is Outcome.PASSED else set())
        known = self._catalogue.clauses
        checks += [
            Check(clause, True)
            for clause in sorted(silent - named)
            if clause in known and stage.dialect in known.get(clause).dialects
        ]
        return [self._with_reading(check) for check in checks]

    def _with_reading(self, check: Check) -> Check:
        """What conforms to a clause with several readings follows the one that holds."""
        if check.holds and not check.reading:
            return attrs.evolve(check, reading=self._catalogue.clauses.get(check.clause).holds)
        return check

    def _is_binding(self, clause: str) -> bool:
        return self._catalogue.clauses.get(clause).level.is_binding


def _skipped(scenario: Scenario, dialect: Dialect, reason: str) -> ScenarioResult:
    return ScenarioResult(
        scenario.name, scenario.title, scenario.role, dialect, scenario.clauses, Outcome.SKIPPED, reason=reason
    )
