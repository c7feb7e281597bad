"""Verdicts: concludes from the results of the scenarios whether each clause holds.

Each clause is judged in each dialect by its checks only. One failed check decides, however many pass.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import attrs

from dafka_conformance.model import (
    NO_SCENARIO,
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
    """Return the verdict on every clause in every dialect, in the order of the clauses.

    Args:
        clauses: All clauses, tested or not.
        results: The results of the scenarios, in all dialects.
        dialects: The dialects of the run.
        missing_roles: The roles that were not tested, and why.

    Returns:
        The verdicts.
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
    """The scenarios that test one clause in one dialect, and its checks with the scenarios that made them."""

    results: list[ScenarioResult] = attrs.field(factory=list)
    checks: list[tuple[str, Check]] = attrs.field(factory=list)


def _verdict(clause: Clause, dialect: Dialect, evidence: _Evidence, missing_roles: Mapping[Role, str]) -> ClauseVerdict:
    if not evidence.checks:
        reason = _untested(clause, dialect, evidence.results, missing_roles)
        return ClauseVerdict(clause, dialect, Verdict.NOT_TESTED, reason=reason)
    failed = [scenario for scenario, check in evidence.checks if check.is_finding]
    consequences = {scenario: check.because for scenario, check in evidence.checks if check.because}
    if consequences and not failed:
        reason = f"because of {' and '.join(dict.fromkeys(consequences.values()))}"
        return ClauseVerdict(clause, dialect, Verdict.NOT_JUDGED, tuple(sorted(consequences)), reason=reason)
    if clause.level.is_binding:
        verdict = Verdict.VIOLATES if failed else Verdict.CONFORMS
    else:
        verdict = Verdict.DOES_NOT if failed else Verdict.DOES
    return ClauseVerdict(
        clause,
        dialect,
        verdict,
        scenarios=tuple(sorted(set(failed or (scenario for scenario, _ in evidence.checks)))),
        reading=" and ".join(dict.fromkeys(_readings(evidence, bool(failed)))),
    )


def _readings(evidence: _Evidence, has_failed: bool) -> Iterable[str]:
    """Return the readings that the target follows. A target that violates the clause anywhere does not follow it."""
    checks = [check for _, check in evidence.checks if check.is_finding or not (has_failed or check.because)]
    return [check.reading for check in checks if check.reading]


def _untested(
    clause: Clause, dialect: Dialect, results: Sequence[ScenarioResult], missing_roles: Mapping[Role, str]
) -> str:
    """Return why a clause was not checked."""
    if dialect not in clause.dialects:
        return f"does not apply to {dialect.value}"
    if clause.untestable:
        return clause.untestable
    if clause.roles and all(role in missing_roles for role in clause.roles):
        titles = [role.title for role in clause.roles]
        return f"no target for the role{'s' if len(titles) > 1 else ''} {' and '.join(titles)}"
    errors = [result.scenario for result in results if result.outcome is Outcome.ERROR]
    if errors or any(result.outcome.is_wrong for result in results):
        return f"the suite itself failed in {', '.join(errors)}" if errors else "its scenarios failed before its checks"
    skipped = dict.fromkeys(result.reason for result in results if result.outcome is Outcome.SKIPPED)
    if skipped:
        return "; ".join(reason or "its scenarios were skipped" for reason in skipped)
    return NO_SCENARIO
