"""Causes and consequences: which findings of a scenario follow from another one.

A node whose RECORDs are malformed cannot be seen to publish, so a scenario that waits for a RECORD fails as well. Only
the malformed RECORD says something about the node. Each clause therefore has a layer, and a finding is a consequence of
an earlier finding of the same scenario in a lower layer. A clause is not judged by consequences.

Within a scenario, only a message that the target sent is a cause. What is missing may itself be the consequence of
something unseen. Over a whole run, a message that is missing everywhere is a cause as well.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import attrs

from dafka_conformance.clauses import Clauses
from dafka_conformance.model import DELIVERY, Check, Clause, Dialect, Layer, Role, ScenarioResult


def attribute_causes(checks: Sequence[Check], clauses: Clauses, tested: Collection[str] = ()) -> list[Check]:
    """Return the checks of a scenario, each consequence with its cause.

    Args:
        checks: The checks in the order in which they were made.
        clauses: All clauses. A finding about a clause that is not binding is no cause.
        tested: The ids of the clauses that the scenario tests.

    Returns:
        The checks, in the same order.
    """
    attributed: list[Check] = []
    cause: Clause | None = None
    for check in checks:
        if check.holds:
            attributed.append(check)
            continue
        clause = clauses.get(check.clause)
        if cause is not None and cause.layer < clause.layer:
            attributed.append(attrs.evolve(check, because=cause.id))
            continue
        attributed.append(check)
        if check.event is not None and clause.level.is_binding and (cause is None or clause.layer < cause.layer):
            cause = clause
    return _merge_seen_twice(attributed, clauses, tested)


def _merge_seen_twice(checks: list[Check], clauses: Clauses, tested: Collection[str]) -> list[Check]:
    """Return the checks, in which only one clause of behavior is violated by one message.

    That is one that the scenario tests, or else the first.
    """
    blamed: dict[int, str] = {}
    seen = [
        check
        for check in checks
        if check.is_finding and not check.missing and clauses.get(check.clause).layer is Layer.BEHAVIOR
    ]
    for check in sorted(seen, key=lambda check: check.clause not in tested):
        if check.event is not None:
            blamed.setdefault(check.event, check.clause)
    return [
        attrs.evolve(check, because=blamed[check.event])
        if check in seen and check.event is not None and blamed[check.event] != check.clause
        else check
        for check in checks
    ]


_DEMANDS: Mapping[str, frozenset[str]] = {
    "RECORD": frozenset({"record.command"}),
    "HEAD": frozenset({"head.interval"}),
    "ACK": frozenset({"ack.sent"}),
    "FETCH": frozenset({"fetch.sent", "fetch.repeated", "fetch.pages"}),
    "DIRECT-RECORD": frozenset({"direct-record.sent", "record.kept-until-ack"}),
    "DIRECT-HEAD": frozenset({"direct-head.producer", "direct-head.store"}),
    DELIVERY: frozenset({"delivery.complete", "fetch.sent", "fetch.repeated", "fetch.pages"}),
}
"""The clauses that demand each message: what scenarios about other clauses miss may be missing because of these."""

_CAUSE_FACTOR = 2
"""How many times more scenarios must miss a message because of a cause than because of its consequence."""


def attribute_missing(results: Sequence[ScenarioResult]) -> list[ScenarioResult]:
    """Return the results of a run, in which findings about a missing message name the clause that demands it.

    A store that answers no FETCH fails every scenario that looks at its records in the end, whatever the scenario is
    about. If far more scenarios miss the message because of a clause that demands it, that clause is the cause.

    Args:
        results: The results of all scenarios.

    Returns:
        The results, in the same order.
    """
    scenarios: dict[tuple[Role, Dialect, str], set[str]] = {}
    for result in results:
        for check in result.checks:
            if check.is_finding and check.missing:
                scenarios.setdefault((result.role, result.dialect, check.clause), set()).add(result.scenario)

    def attributed(check: Check, result: ScenarioResult) -> Check:
        if not check.is_finding or not check.missing:
            return check
        counts = {
            clause: len(scenarios.get((result.role, result.dialect, clause), ()))
            for clause in (check.clause, *sorted(_DEMANDS.get(check.missing, ())))
        }
        cause = max(counts, key=lambda clause: counts[clause])
        if counts[cause] < _CAUSE_FACTOR * counts[check.clause]:
            return check
        return attrs.evolve(check, because=cause, reading="")

    return [attrs.evolve(each, checks=tuple(attributed(check, each) for check in each.checks)) for each in results]
