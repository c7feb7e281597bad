"""The failures and totals of a run, which all reports share.

A finding that appears in both dialects is one finding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import attrs

from dafka_conformance.model import (
    NO_SCENARIO,
    Clause,
    ClauseVerdict,
    Dialect,
    Kind,
    Layer,
    Outcome,
    Role,
    Run,
    ScenarioResult,
    Verdict,
)

RANKS = (
    Verdict.VIOLATES,
    Verdict.DOES_NOT,
    Verdict.NOT_JUDGED,
    Verdict.CONFORMS,
    Verdict.DOES,
    Verdict.NOT_TESTED,
)
"""The verdicts from worst to best. A clause with different verdicts by dialect counts with the worst one."""


_SENTENCE = ".grammar."


@attrs.frozen
class Finding:
    """A clause that the target does not follow, or a scenario that could not be run.

    Attributes:
        clause_id: The clause's id; empty if the scenario itself failed.
        clause: The clause; None if the run does not know it.
        message: The description of the fault.
        dialects: The dialects that it was found in.
        because: The id of the violated clause that it is a consequence of; empty if it is none.
        reading: The reading that the target follows, for a clause with several; empty if it is none of them.
    """

    clause_id: str
    clause: Clause | None
    message: str
    dialects: tuple[Dialect, ...]
    because: str = ""
    reading: str = ""

    @property
    def readings_text(self) -> str:
        """The readings that the suite tests and that the target follows; empty for a clause without readings.

        Also empty for a consequence of another finding, which says nothing about readings.
        """
        return describe_readings(self.clause, self.reading) if self.clause is not None and not self.because else ""

    @property
    def is_violation(self) -> bool:
        """Whether the finding counts against the target. A consequence, or one about a SHOULD or MAY, does not."""
        return not self.because and (self.clause is None or self.clause.level.is_binding)


@attrs.frozen
class Failure:
    """A scenario that did not pass, in one or more dialects.

    Attributes:
        scenario: The scenario's name.
        title: The scenario's title.
        role: The target's role.
        results: Its results in the dialects that it failed in.
        findings: The findings, each once.
        similar: More scenarios with the same findings, which need no chart of their own.
    """

    scenario: str
    title: str
    role: Role
    results: tuple[ScenarioResult, ...]
    findings: tuple[Finding, ...]
    similar: tuple[str, ...] = ()

    @property
    def cause(self) -> str:
        """The id of the violated clause to look at first; empty if no clause is violated."""
        return self._first_violated.id if self._first_violated else ""

    @property
    def layer(self) -> Layer:
        """The layer of `cause`."""
        return self._first_violated.layer if self._first_violated else Layer.BEHAVIOR

    @property
    def _first_violated(self) -> Clause | None:
        violated = [finding.clause for finding in self.findings if finding.is_violation and finding.clause]
        return min(violated, key=lambda clause: clause.layer, default=None)

    @property
    def count(self) -> int:
        """The number of scenarios that failed in this way."""
        return 1 + len(self.similar)

    @property
    def was_judged(self) -> bool:
        """Whether it ran to a judgement in any dialect."""
        return any(result.outcome.was_judged for result in self.results)

    @property
    def charted(self) -> tuple[ScenarioResult, ...]:
        """The results whose traces are needed to show every finding: each adds a finding to those before it.

        A trace of notes alone, as of a node that ended at once, shows nothing.
        """
        shown: set[_Key] = set()
        chosen = []
        for result in self.results:
            found = set(_found(result))
            if not found <= shown and any(event.kind is not Kind.NOTE for event in result.trace):
                chosen.append(result)
                shown |= found
        return tuple(chosen)


@attrs.frozen
class Totals:
    """The number of clauses by verdict and of scenarios by outcome.

    A clause with different verdicts by dialect counts with the worst one.
    """

    clauses: Mapping[Verdict, int]
    scenarios: Mapping[Outcome, int]


def failures(run: Run) -> tuple[Failure, ...]:
    """Return the scenarios that did not pass, in the run's order. Unknown clauses count as binding."""
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
    """Return the failures with those of the same cause as one, in the order in which to look at them.

    A fault appears in every scenario that can show it, and hundreds of charts would add nothing to the first. Failures
    are ordered by layer, the lowest first, and then by the number of scenarios, the largest first.
    """
    first: dict[object, Failure] = {}
    for failure in failures(run):
        violated = frozenset(finding.clause_id for finding in failure.findings if finding.is_violation)
        is_sentence = _SENTENCE in failure.scenario and failure.was_judged
        key: object = failure.scenario
        if is_sentence:
            key = (failure.role, violated)
        elif failure.layer < Layer.BEHAVIOR:
            key = (failure.role, failure.cause)
        elif all(result.outcome is Outcome.BROKEN for result in failure.results):
            key = (failure.role, Outcome.BROKEN, *sorted({result.reason for result in failure.results}))
        merged = first.setdefault(key, failure)
        if merged is not failure:
            first[key] = attrs.evolve(merged, similar=(*merged.similar, failure.scenario))
    return tuple(sorted(first.values(), key=_order))


def _order(failure: Failure) -> tuple[bool, Layer, int]:
    return not failure.cause, failure.layer, -failure.count


def is_failure(result: ScenarioResult, clauses: Mapping[str, Clause]) -> bool:
    """Return whether a scenario did not pass, or found a violation."""
    if result.outcome.is_wrong:
        return True
    failed = (clauses.get(check.clause) for check in result.checks if check.is_finding)
    return any(clause is None or clause.level.is_binding for clause in failed)


def faults(result: ScenarioResult) -> dict[int, str]:
    """Describe the fault of each faulty event of a trace, by the event's index."""
    texts: dict[int, list[str]] = {}
    for check in result.checks:
        if not check.holds and check.event is not None and 0 <= check.event < len(result.trace):
            texts.setdefault(check.event, []).append(check.message or f"{check.clause} does not hold")
    for index, event in enumerate(result.trace):
        if event.fault:
            texts.setdefault(index, [event.fault])
    return {index: "; ".join(dict.fromkeys(texts[index])) for index in sorted(texts)}


def count_outcomes(run: Run) -> Totals:
    """Return the totals of a run."""
    by_clause: dict[str, set[Verdict]] = {}
    for verdict in run.verdicts:
        by_clause.setdefault(verdict.clause.id, set()).add(verdict.verdict)
    worst = [next(rank for rank in RANKS if rank in verdicts) for verdicts in by_clause.values()]
    outcomes = [result.outcome for result in run.results]
    return Totals(
        clauses={verdict: worst.count(verdict) for verdict in Verdict},
        scenarios={outcome: outcomes.count(outcome) for outcome in Outcome},
    )


def verdicts_in_scope(run: Run) -> tuple[ClauseVerdict, ...]:
    """Return the verdicts on the clauses that the selected scenarios and roles could test, in the run's order.

    Otherwise, a run of one scenario would list a hundred unrelated clauses.
    """
    in_scope = {verdict.clause.id for verdict in run.verdicts if not _is_out_of_scope(verdict, run)}
    return tuple(verdict for verdict in run.verdicts if verdict.clause.id in in_scope)


def _is_out_of_scope(verdict: ClauseVerdict, run: Run) -> bool:
    if verdict.verdict is not Verdict.NOT_TESTED:
        return False
    is_foreign = verdict.dialect not in verdict.clause.dialects
    return is_foreign or verdict.reason == NO_SCENARIO or is_without_target(verdict, run.missing_roles)


def is_without_target(verdict: ClauseVerdict, missing_roles: Mapping[Role, str]) -> bool:
    """Return whether a clause was not tested because all its roles were not."""
    clause = verdict.clause
    return not clause.untestable and bool(clause.roles) and all(role in missing_roles for role in clause.roles)


def dialects_of(run: Run) -> tuple[Dialect, ...]:
    """Return the dialects of a run, in the order of their definition."""
    spoken = {verdict.dialect for verdict in run.verdicts} | {result.dialect for result in run.results}
    return tuple(dialect for dialect in Dialect if dialect in spoken)


def duration(seconds: float) -> str:
    """Return a duration as text, such as `0.02 s`, `7.4 s`, `74 s` or `12 min 4 s`."""
    if seconds < 1:
        return f"{seconds:.2f} s"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if round(seconds) < 120:
        return f"{seconds:.0f} s"
    return f"{round(seconds) // 60} min {round(seconds) % 60} s"


def describe_readings(clause: Clause, reading: str) -> str:
    """Return which reading of a clause the suite tests and which one the target follows, as one sentence.

    Args:
        clause: The clause.
        reading: The reading that the target follows; empty if it is none of them.

    Returns:
        The sentence; empty for a clause without readings.
    """
    if not clause.readings:
        return ""
    erratum = f" (erratum {clause.erratum})" if clause.erratum else ""
    tests = f"the suite tests the reading {_quote(clause, clause.holds)}{erratum}"
    if reading in {"", clause.holds}:
        return tests
    return f"{tests}; the target follows the reading {_quote(clause, reading)}"


def _quote(clause: Clause, reading: str) -> str:
    return f"{reading}, \N{LEFT DOUBLE QUOTATION MARK}{clause.readings[reading]}\N{RIGHT DOUBLE QUOTATION MARK}"


_Key: TypeAlias = tuple[str, str, str, str]
"""The clause, message, cause and reading of a finding."""


def _found(result: ScenarioResult) -> Iterable[_Key]:
    """Return the keys of a failed scenario's findings, without duplicates."""
    found = [(check.clause, check.message, check.because, check.reading) for check in result.checks if not check.holds]
    if result.outcome is Outcome.BROKEN:
        found.append(("", f"the scenario could not be run: {result.reason or 'no reason was given'}", "", ""))
    elif result.outcome is Outcome.ERROR:
        found.append(("", f"the suite itself failed, which says nothing about the target: {result.reason}", "", ""))
    elif not found:
        found.append(("", result.reason or "the scenario failed", "", ""))
    return dict.fromkeys(found)


def _findings(results: Iterable[ScenarioResult], clauses: Mapping[str, Clause]) -> tuple[Finding, ...]:
    dialects: dict[_Key, list[Dialect]] = {}
    for result in results:
        for key in _found(result):
            dialects.setdefault(key, []).append(result.dialect)
    return tuple(
        Finding(clause_id, clauses.get(clause_id), message, tuple(dict.fromkeys(spoken)), because, reading)
        for (clause_id, message, because, reading), spoken in dialects.items()
    )
