"""Causes and consequences: finds the findings of a scenario that follow from another one.

A node whose RECORDs are malformed cannot be seen to publish, so a scenario that waits for a RECORD fails as well. Only
the malformed RECORD says something about the node. Each clause therefore has a layer, and a finding is a consequence of
an earlier finding of the same scenario in a lower layer. A clause is not judged by consequences.

Several findings about one message are judged by the lowest layer, too. Within a scenario, only a message that the
target sent is a cause. What is missing may itself be the consequence of something unseen. Over a whole run, a message
that is missing everywhere is a cause as well, and so is a fault of this message in most scenarios.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

import attrs

from dafka_conformance.clauses import Clauses
from dafka_conformance.model import DELIVERY, Check, Clause, Dialect, Kind, Layer, Role, ScenarioResult


def attribute_causes(checks: Sequence[Check], clauses: Clauses, tested: Collection[str] = ()) -> list[Check]:
    """Return the checks of a scenario, each consequence with its cause.

    Args:
        checks: The checks in the order in which they were made.
        clauses: All clauses. A finding about a clause that is not binding is no cause.
        tested: The ids of the clauses that the scenario tests.

    Returns:
        The checks, in the same order.
    """
    of_message: dict[int, Clause] = {}
    for check in checks:
        if _is_cause(check, clauses) and check.event is not None:
            of_message[check.event] = _lower(clauses.get(check.clause), of_message.get(check.event))
    attributed: list[Check] = []
    earlier: Clause | None = None
    for check in checks:
        if check.holds:
            attributed.append(check)
            continue
        clause = clauses.get(check.clause)
        about_message = of_message.get(check.event) if check.event is not None and not check.missing else None
        cause = _lower(about_message, earlier) if about_message else earlier
        if cause is not None and cause.layer < clause.layer:
            attributed.append(attrs.evolve(check, because=cause.id))
            continue
        attributed.append(check)
        if _is_cause(check, clauses):
            earlier = _lower(clause, earlier)
    return _merge_seen_twice(attributed, clauses, tested)


def _is_cause(check: Check, clauses: Clauses) -> bool:
    """Return whether a finding can explain others: a message that the target sent violates a binding clause."""
    is_seen = check.event is not None and not check.missing
    return is_seen and check.is_finding and clauses.get(check.clause).level.is_binding


def _lower(clause: Clause, other: Clause | None) -> Clause:
    """Return the clause of the lower layer; the second one if both have the same."""
    return clause if other is None or clause.layer < other.layer else other


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
"""The clauses that demand each message. Scenarios about other clauses may miss the message because of them."""

_Finding: TypeAlias = tuple[Role, Dialect, str]
"""The role, the dialect and the clause of a finding."""

_ANY_MESSAGE = "any message"
"""Used instead of a message's name for a fault of form that is not in one message's rule, such as a wrong signature."""

_CAUSE_FACTOR = 2
"""How many times more scenarios must miss a message because of a cause than because of its consequence."""


def attribute_missing(results: Sequence[ScenarioResult], clauses: Clauses) -> list[ScenarioResult]:
    """Return the results of a run, in which findings about a missing message name the clause to look at first.

    A store that answers no FETCH fails every scenario that finally reads its records, whatever the scenario tests. If
    far more scenarios miss the message because of a clause that demands it, that clause is the cause. So is a clause
    that this message violates in far more scenarios, since a wrongly addressed message does not arrive. A node that has
    the wrong signature, version or byte order in all messages does not understand those of others, either.

    Args:
        results: The results of all scenarios.
        clauses: All clauses.

    Returns:
        The results, in the same order.
    """
    scenarios: dict[_Finding, set[str]] = defaultdict(set)
    faults: dict[tuple[Role, Dialect, str], set[str]] = defaultdict(set)
    for result in results:
        for check in result.checks:
            fault_of = _faulty_message(check, result, clauses)
            if check.is_finding and (check.missing or fault_of):
                scenarios[result.role, result.dialect, check.clause].add(result.scenario)
            if fault_of:
                faults[result.role, result.dialect, fault_of].add(check.clause)

    def attributed(check: Check, result: ScenarioResult) -> Check:
        if not check.is_finding or not check.missing:
            return check
        of_message = {
            clause
            for message in (check.missing, _ANY_MESSAGE)
            for clause in faults.get((result.role, result.dialect, message), set())
        }
        counts = {
            clause: len(scenarios.get((result.role, result.dialect, clause), ()))
            for clause in (check.clause, *sorted(of_message), *sorted(_DEMANDS.get(check.missing, ())))
        }
        cause = max(counts, key=lambda clause: counts[clause])
        if counts[cause] < _CAUSE_FACTOR * counts[check.clause]:
            return check
        return attrs.evolve(check, because=cause, reading="")

    return [attrs.evolve(each, checks=tuple(attributed(check, each) for check in each.checks)) for each in results]


def _faulty_message(check: Check, result: ScenarioResult, clauses: Clauses) -> str:
    """Return the message whose form, addresses or number a finding is about; empty if it is about none."""
    clause = clauses.get(check.clause)
    if not _is_cause(check, clauses) or check.event is None or clause.layer is Layer.BEHAVIOR:
        return ""
    event = result.trace[check.event]
    if event.kind is not Kind.MESSAGE:
        return ""
    is_in_all = clause.layer is Layer.FORM and clause.id != f"grammar.{event.label}"
    return _ANY_MESSAGE if is_in_all else event.label
