"""From what the scenarios found to what a run says of each clause.

A clause is judged by its checks alone, in each dialect by itself: one that fails decides, however many hold.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import attrs

from dafka_conformance.model import (
    Check,
    Clause,
    ClauseVerdict,
    Dialect,
    Outcome,
    Role,
    ScenarioResult,
    Verdict,
)


def judge_clauses(
    clauses: Iterable[Clause],
    results: Sequence[ScenarioResult],
    dialects: Sequence[Dialect],
    missing_roles: Mapping[Role, str],
) -> tuple[ClauseVerdict, ...]:
    """Every clause's verdict in every dialect, clause by clause in the order given.

    Arguments:
        clauses: all clauses, tested or not.
        results: what came of the scenarios, in all dialects.
        dialects: those that were run.
        missing_roles: the roles that the target lacks, and why.
    """
    evidence: dict[tuple[str, Dialect], _Evidence] = defaultdict(_Evidence)
    for result in results:
        for name in result.clauses:
            evidence[name, result.dialect].results.append(result)
        for check in result.checks:
            evidence[check.clause, result.dialect].checks.append((result.scenario, check))
    return tuple(
        _verdict(clause, dialect, evidence[clause.id, dialect], missing_roles)
        for clause in clauses
        for dialect in dialects
    )


@attrs.define
class _Evidence:
    """What bears on one clause in one dialect: the scenarios meant for it, and its checks with their scenarios."""

    results: list[ScenarioResult] = attrs.field(factory=list)
    checks: list[tuple[str, Check]] = attrs.field(factory=list)


def _verdict(clause: Clause, dialect: Dialect, evidence: _Evidence, missing_roles: Mapping[Role, str]) -> ClauseVerdict:
    if not evidence.checks:
        reason = _untested(clause, dialect, evidence.results, missing_roles)
        return ClauseVerdict(clause, dialect, Verdict.NOT_TESTED, reason=reason)
    failed = [scenario for scenario, check in evidence.checks if not check.holds]
    if clause.level.is_binding:
        verdict = Verdict.VIOLATES if failed else Verdict.CONFORMS
    else:
        verdict = Verdict.DOES_NOT if failed else Verdict.DOES
    return ClauseVerdict(
        clause,
        dialect,
        verdict,
        scenarios=tuple(sorted(set(failed or (scenario for scenario, _ in evidence.checks)))),
        reading=" and ".join(dict.fromkeys(check.reading for _, check in evidence.checks if check.reading)),
    )


def _untested(
    clause: Clause, dialect: Dialect, results: Sequence[ScenarioResult], missing_roles: Mapping[Role, str]
) -> str:
    """Why no check of a clause was made."""
    if dialect not in clause.dialects:
        return f"it does not apply to {dialect.value}"
    if clause.untestable:
        return clause.untestable
    if clause.roles and all(role in missing_roles for role in clause.roles):
        titles = [role.title for role in clause.roles]
        return f"no target for the role{'s' if len(titles) > 1 else ''} {' and '.join(titles)}"
    if any(result.outcome in {Outcome.FAILED, Outcome.BROKEN} for result in results):
        return "its scenarios failed before they came to it"
    skipped = dict.fromkeys(result.reason for result in results if result.outcome is Outcome.SKIPPED)
    if skipped:
        return "; ".join(reason or "its scenarios were skipped" for reason in skipped)
    return "no scenario of this run tests it"
