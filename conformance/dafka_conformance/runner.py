"""Runs scenarios against a target, several at once and in each dialect, and judges the clauses by the results.

Scenarios that load the machine run alone. What failed while the machine was too busy to run the suite is repeated at
the end, alone.
"""

from __future__ import annotations

import resource
import signal
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence

import trio

from dafka_conformance.catalog import Catalog
from dafka_conformance.causes import attribute_missing
from dafka_conformance.group_runner import (
    GroupRunner,
    ProgressListener,
    ScenarioGroup,
    Spoiled,
    group_scenarios,
    skipped,
)
from dafka_conformance.model import Dialect, Role, Run, ScenarioResult
from dafka_conformance.repeats import Repeats, ScenarioKey
from dafka_conformance.targets.base import Target
from dafka_conformance.verdicts import judge_clauses

JOBS_MAX = 6
"""The default number of targets that run at once. They mostly wait; on two cores, more would delay each other."""

OPEN_FILES = 4096
"""The limit on open files that a run sets: enough for any number of targets at once."""

INTERRUPTED = "the run was interrupted"
"""The reason why a scenario was skipped that an interrupted run did not finish, or did not repeat after a stall."""


def run_blocking(start_run: Callable[[trio.CancelScope], Awaitable[Run]]) -> tuple[Run, signal.Signals | None]:
    """Run a run to its end in a new event loop. Call this in the main thread.

    SIGINT, SIGTERM and SIGHUP interrupt the run, which then stops everything that it has started. SIGINT and SIGHUP
    stay ignored if this process started with them ignored, as under nohup.

    Args:
        start_run: Starts the run, which ends early if the scope that it is given is cancelled.

    Returns:
        The run, and the signal that interrupted it; None if it was not interrupted.
    """
    _allow_open_files()
    finished: list[Run] = []
    caught: list[int] = []
    heeded = [each for each in (signal.SIGINT, signal.SIGHUP) if signal.getsignal(each) is not signal.SIG_IGN]

    async def main() -> None:
        scope = trio.CancelScope()

        async def heed() -> None:
            async for number in signals:  # more signals have no effect while targets are being stopped
                caught.append(number)
                scope.cancel()

        with trio.open_signal_receiver(signal.SIGTERM, *heeded) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(heed)
                finished.append(await start_run(scope))
                nursery.cancel_scope.cancel()

    trio.run(main)
    return finished[0], signal.Signals(caught[0]) if caught else None


def _allow_open_files() -> None:
    """Raise the limit on open files. Each socket needs one or two, and some systems start with a limit of 256."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def run(
    catalog: Catalog,
    target: Target,
    *,
    roles: Iterable[Role] = tuple(Role),
    dialects: Iterable[Dialect] | None = None,
    patterns: Sequence[str] = (),
    patience: float = 1.0,
    jobs: int = JOBS_MAX,
    fail_fast: bool = False,
    listener: ProgressListener | None = None,
    scope: trio.CancelScope | None = None,
) -> Run:
    """Run the selected scenarios and judge every clause.

    A role that the target does not have is left out. A scenario that needs an ability that the target does not have is
    skipped, and so are the scenarios of a role whose first ones all could not be run. All are in the result with the
    reason. An exception in a scenario never ends the run: it is the scenario's result.

    Args:
        catalog: The scenarios and clauses.
        target: The implementation under test.
        roles: The roles to test.
        dialects: The dialects to test; all of the target's by default.
        patterns: Glob patterns for scenario names; at least one must match. Empty for all.
        patience: The factor for every time limit.
        jobs: The number of targets that run at once.
        fail_fast: Skip the other scenarios of a role in a dialect once three in a row failed from the same cause, if it
            is below the layer of behavior.
        listener: Callbacks for progress.
        scope: Cancelling it interrupts the run, which then returns its findings so far.

    Returns:
        The results of the scenarios and the verdicts on the clauses.
    """
    listener = listener or ProgressListener()
    scope = scope or trio.CancelScope()
    started_at, begin = time.time(), time.monotonic()
    spoken = tuple(dialect for dialect in dialects or target.dialects if dialect in target.dialects)
    asked = set(roles)
    missing = {role: "not selected" for role in Role if role not in asked}
    missing |= {role: f"{target.name} has no {role.title}" for role in asked if role not in target.abilities}
    results: dict[ScenarioKey, ScenarioResult] = {}

    def finish(result: ScenarioResult) -> None:
        results[result.scenario, result.dialect] = result
        listener.finished(result)

    groups: list[ScenarioGroup] = []
    for dialect in spoken:
        chosen = catalog.select(asked - missing.keys(), dialect, patterns)
        for scenario in chosen:
            lacking = scenario.needs - target.abilities[scenario.role]
            if lacking:
                what = " and to ".join(sorted(ability.value for ability in lacking))
                finish(skipped(scenario, dialect, f"{target.name} has no way to {what}"))
        ready = [scenario for scenario in chosen if scenario.needs <= target.abilities[scenario.role]]
        groups += group_scenarios(ready, dialect)
    repeats, spoiled = Repeats(catalog.clauses), Spoiled(catalog.clauses, fail_fast)
    group_runner = GroupRunner(catalog, target, patience, repeats, spoiled, listener, finish)
    limiter = trio.CapacityLimiter(jobs)
    with scope:
        async with target.prepared(), trio.open_nursery() as background:
            background.start_soon(repeats.stalls.run)
            async with trio.open_nursery() as nursery:
                for each in [each for each in groups if not each.runs_alone]:
                    nursery.start_soon(group_runner.run_group_limited, each, limiter)
            for each in [each for each in groups if each.runs_alone]:
                await group_runner.run_group(each)
            await repeats.run(results, listener.repeated)
            background.cancel_scope.cancel()
    for key in repeats.doubtful:  # the run was interrupted
        del results[key]
    unfinished = [
        skipped(each, group.dialect, INTERRUPTED)
        for group in groups
        for each in group.scenarios
        if (each.name, group.dialect) not in results
    ]
    ordered = sorted([*results.values(), *unfinished], key=lambda result: (result.scenario, result.dialect.value))
    judged = attribute_missing(ordered, catalog.clauses)
    verdicts = judge_clauses(catalog.clauses, judged, spoken, missing)
    is_complete = not unfinished
    return Run(target.name, started_at, time.monotonic() - begin, tuple(judged), verdicts, missing, is_complete)
