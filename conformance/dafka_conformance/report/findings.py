"""What the reports tell of a run beside its verdicts: its failures, one a scenario, and its figures.

A finding that both dialects share is one finding. What every report needs is worked out here, so that all say the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from dafka_conformance.model import Clause, Dialect, Outcome, Role, Run, ScenarioResult, Verdict

RANKS = (Verdict.VIOLATES, Verdict.DOES_NOT, Verdict.CONFORMS, Verdict.DOES, Verdict.NOT_TESTED)
"""Which verdict of several dialects counts for a clause: the first of these that is among them."""


_SENTENCE = ".grammar."


@attrs.frozen
class Finding:
    """A clause that a target was found not to follow, or that a scenario could not be played.

    Attributes:
        clause_id: the clause's name; empty where the scenario itself went wrong.
        clause: the clause, where the run knows it.
        message: what was found.
        dialects: where it was found.
    """

    clause_id: str
    clause: Clause | None
    message: str
    dialects: tuple[Dialect, ...]

    @property
    def is_violation(self) -> bool:
        """Does it count against the target? A SHOULD or MAY that is not followed does not."""
        return self.clause is None or self.clause.level.is_binding


@attrs.frozen
class Failure:
    """A scenario that failed or broke, in one dialect or in several.

    Attributes:
        scenario: its name.
        title: what it shows.
        role: the target's role.
        results: what came of it in each dialect in which it went wrong.
        findings: what was found, each once.
        alike: further scenarios in which the same was found, that need no chart of their own.
    """

    scenario: str
    title: str
    role: Role
    results: tuple[ScenarioResult, ...]
    findings: tuple[Finding, ...]
    alike: tuple[str, ...] = ()

    @property
    def is_broken(self) -> bool:
        """Could it not be played in any dialect?"""
        return all(result.outcome is Outcome.BROKEN for result in self.results)

    @property
    def charted(self) -> tuple[ScenarioResult, ...]:
        """The results whose traces are needed to see each finding happen: those that add one to the ones before."""
        shown: set[tuple[str, str]] = set()
        chosen = []
        for result in self.results:
            found = set(_found(result))
            if result.trace and not found <= shown:
                chosen.append(result)
                shown |= found
        return tuple(chosen)


@attrs.frozen
class Totals:
    """How many clauses and scenarios came out how. A clause that differs by dialect counts as the worse of the two."""

    clauses: Mapping[Verdict, int]
    scenarios: Mapping[Outcome, int]


def failures(run: Run) -> tuple[Failure, ...]:
    """The scenarios that went wrong, in the run's order. Raises nothing; unknown clauses count as binding."""
    clauses = {verdict.clause.id: verdict.clause for verdict in run.verdicts}
    grouped: dict[tuple[str, Role], list[ScenarioResult]] = {}
    for result in run.results:
        if is_failure(result, clauses):
            grouped.setdefault((result.scenario, result.role), []).append(result)
    return tuple(
        Failure(scenario, results[0].title, role, tuple(results), _findings(results, clauses))
        for (scenario, role), results in grouped.items()
    )


def group_failures(run: Run) -> tuple[Failure, ...]:
    """The failures, with those of the grammar's sentences that violate the same clauses told as one.

    A fault shows in every sentence in which it can: hundreds of charts would tell no more than the first.
    """
    first: dict[object, Failure] = {}
    for failure in failures(run):
        violated = frozenset(finding.clause_id for finding in failure.findings if finding.is_violation)
        is_sentence = _SENTENCE in failure.scenario and not failure.is_broken
        key = (failure.role, violated) if is_sentence else failure.scenario
        told = first.setdefault(key, failure)
        if told is not failure:
            first[key] = attrs.evolve(told, alike=(*told.alike, failure.scenario))
    return tuple(first.values())


def is_failure(result: ScenarioResult, clauses: Mapping[str, Clause]) -> bool:
    """Did a scenario fail, break, or find a violation?"""
    if result.outcome in {Outcome.FAILED, Outcome.BROKEN}:
        return True
    failed = (clauses.get(check.clause) for check in result.checks if not check.holds)
    return any(clause is None or clause.level.is_binding for clause in failed)


def faults(result: ScenarioResult) -> dict[int, str]:
    """The events of a trace that are wrong, by their place, and what is wrong with each."""
    texts: dict[int, list[str]] = {}
    for check in result.checks:
        if not check.holds and check.event is not None and 0 <= check.event < len(result.trace):
            texts.setdefault(check.event, []).append(check.message or f"{check.clause} does not hold")
    for index, event in enumerate(result.trace):
        if event.fault:
            texts.setdefault(index, [event.fault])
    return {index: "; ".join(dict.fromkeys(texts[index])) for index in sorted(texts)}


def figures(run: Run) -> Totals:
    """The run in numbers."""
    by_clause: dict[str, set[Verdict]] = {}
    for verdict in run.verdicts:
        by_clause.setdefault(verdict.clause.id, set()).add(verdict.verdict)
    worst = [next(rank for rank in RANKS if rank in verdicts) for verdicts in by_clause.values()]
    outcomes = [result.outcome for result in run.results]
    return Totals(
        clauses={verdict: worst.count(verdict) for verdict in Verdict},
        scenarios={outcome: outcomes.count(outcome) for outcome in Outcome},
    )


def dialects_of(run: Run) -> tuple[Dialect, ...]:
    """The dialects that a run says anything of, in the order of their definition."""
    spoken = {verdict.dialect for verdict in run.verdicts} | {result.dialect for result in run.results}
    return tuple(dialect for dialect in Dialect if dialect in spoken)


def duration(seconds: float) -> str:
    """A length of time for reading, as in `0.02 s`, `7.4 s`, `74 s` or `12 min 4 s`."""
    if seconds < 1:
        return f"{seconds:.2f} s"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if round(seconds) < 120:
        return f"{seconds:.0f} s"
    return f"{round(seconds) // 60} min {round(seconds) % 60} s"


def _found(result: ScenarioResult) -> Iterable[tuple[str, str]]:
    """The clauses and messages that a scenario found, once it went wrong."""
    found = [(check.clause, check.message) for check in result.checks if not check.holds]
    if result.outcome is Outcome.BROKEN:
        found.append(("", f"the scenario could not be played: {result.reason or 'no reason was given'}"))
    elif not found:
        found.append(("", result.reason or "the scenario failed"))
    return dict.fromkeys(found)


def _findings(results: Iterable[ScenarioResult], clauses: Mapping[str, Clause]) -> tuple[Finding, ...]:
    dialects: dict[tuple[str, str], list[Dialect]] = {}
    for result in results:
        for key in _found(result):
            dialects.setdefault(key, []).append(result.dialect)
    return tuple(
        Finding(clause_id, clauses.get(clause_id), message, tuple(dict.fromkeys(spoken)))
        for (clause_id, message), spoken in dialects.items()
    )
