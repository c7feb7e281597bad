"""Repeats of the scenarios that failed while the machine was too busy to run the suite.

Such a failure says nothing about the target. The suite's nodes send no beacons during a stall, so that the target may
rightly take them for gone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import trio

from dafka_conformance.clauses import Clauses
from dafka_conformance.model import Dialect, Outcome, Role, ScenarioResult

TICK_S = 0.25
STALL_S = 1.0
"""A timer of the suite that is later than this shows a stall. Nodes take a silent peer for gone after 4 s or more."""

REPEATS_MAX = 2
"""The number of repetitions of a scenario that fails during a stall of the machine."""

ScenarioKey: TypeAlias = tuple[str, Dialect]
"""The name of a scenario and the dialect that it was run in."""

_Violation: TypeAlias = tuple[Role, Dialect, str]
"""The role, the dialect and the violated clause."""


class StallMonitor:
    """Detects stalls of the suite's event loop. Its time limits do not count stalls."""

    def __init__(self) -> None:
        self._last_end = float("-inf")
        self._running_s = 0.0
        self._limits: dict[trio.CancelScope, float] = {}

    def has_stalled_since(self, begin: float) -> bool:
        """Return whether a stall ended after this time of trio's clock, or has not ended."""
        return self._last_end >= begin

    @contextmanager
    def limit(self, seconds: float) -> Iterator[None]:
        """Cancel the block after this time, to a tick. Time during which the machine was too busy does not count.

        Args:
            seconds: The time limit.

        Yields:
            Nothing.

        Raises:
            trio.TooSlowError: The block was cancelled.
        """
        with trio.CancelScope() as scope:
            self._limits[scope] = self._running_s + seconds
            try:
                yield
            finally:
                del self._limits[scope]
        if scope.cancelled_caught:
            raise trio.TooSlowError

    async def run(self) -> None:
        """Watch the event loop until cancelled."""
        while True:
            begin = trio.current_time()
            await trio.sleep(TICK_S)
            end = trio.current_time()
            if end - begin > TICK_S + STALL_S:
                self._last_end = end
            self._running_s += TICK_S
            for scope, limit in self._limits.items():
                if limit <= self._running_s:
                    scope.cancel()


class Repeats:
    """The doubtful results of a run, which are those of scenarios that failed during a stall.

    Attributes:
        stalls: Notices the stalls.

    Args:
        clauses: All clauses.
    """

    def __init__(self, clauses: Clauses) -> None:
        self.stalls = StallMonitor()
        self._clauses = clauses
        self._repeat: dict[ScenarioKey, Callable[[], Awaitable[ScenarioResult]]] = {}

    @property
    def doubtful(self) -> list[ScenarioKey]:
        """The scenarios whose results are doubtful, as far as they have not been repeated."""
        return list(self._repeat)

    def note(self, result: ScenarioResult, repeat: Callable[[], Awaitable[ScenarioResult]]) -> None:
        """Record the result of a scenario that has just ended.

        Args:
            result: The result.
            repeat: Runs the scenario again.
        """
        if result.outcome.is_wrong and self.stalls.has_stalled_since(trio.current_time() - result.seconds):
            self._repeat[result.scenario, result.dialect] = repeat

    async def run(self, results: dict[ScenarioKey, ScenarioResult], listener: Callable[[ScenarioResult], None]) -> None:
        """Repeat the doubtful scenarios one by one, and replace their results.

        Scenarios whose findings another scenario has shown without a stall, or in two attempts, are left out.

        Args:
            results: The results of all scenarios.
            listener: Called with each result of a repeated scenario.
        """
        known: set[_Violation] = set()
        for key, result in results.items():
            if key not in self._repeat:
                known |= self._violations(result)
        for key in self.doubtful:
            for _ in range(REPEATS_MAX):
                violated = self._violations(results[key])
                if violated and violated <= known:
                    break
                begin = trio.current_time()
                again = results[key] = await self._repeat[key]()
                listener(again)
                is_certain = not self.stalls.has_stalled_since(begin)
                known |= self._violations(again) if is_certain else self._violations(again) & violated
                if is_certain or again.outcome is Outcome.PASSED:
                    break
            del self._repeat[key]

    def _violations(self, result: ScenarioResult) -> set[_Violation]:
        """Return the violations that a result shows; one without a clause for an outcome that is no judgement."""
        found = {check.clause for check in result.checks if check.is_finding}
        violated = {clause for clause in found if self._clauses.get(clause).level.is_binding}
        if result.outcome in {Outcome.BROKEN, Outcome.ERROR}:
            violated.add("")
        return {(result.role, result.dialect, clause) for clause in violated}
