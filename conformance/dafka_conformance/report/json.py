"""The JSON report of a run.

The schema is stable: within one `format`, keys are added but never changed or removed. The keys of the object:

- `format`: 1.
- `target`, `started_at` (seconds since the epoch), `seconds`, `conforms`, `is_complete` (false for an interrupted run).
- `summary`: `clauses`, the number of clauses by verdict (a clause with different verdicts by dialect counts with the
  worse one), and `scenarios`, the number of scenarios by outcome (each dialect counts).
- `missing_roles`: why a role was not tested, by the role's name.
- `clauses`: for each `id`, `section`, `level`, `layer`, `binding`, `text`, `roles`, `untestable`, `readings`, `holds`,
  `erratum` (null for none) and `verdicts`: by dialect, `verdict`, `scenarios`, `reading`, `reason`.
- `scenarios`: for each and each dialect `scenario`, `title`, `role`, `dialect`, `clauses`, `outcome`, `seconds`,
  `reason`, `checks` (`clause`, `holds`, `message`, `event`, `reading`, `because`, the violated clause that it is a
  consequence of, and `missing`, the name of the message that did not arrive), `trace` and `trace_omitted`, the number
  of events left out at the end of the trace of a failure.
- A `trace` is null for a scenario without a failure, and for failures beyond the size of a report. Otherwise it is a
  list of events: `at` (seconds), `sender`, `receiver`, `kind`, `label`, `fields` (pairs of name and value, in order),
  `frames` (hexadecimal, long ones truncated), `count`, `fault`, `fault_field`. A check's `event` is an index in the
  whole trace, from 0.

Roles, dialects, levels, kinds, verdicts and outcomes are the same words as in the other reports.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

import attrs

from dafka_conformance.model import Clause, ClauseVerdict, Role, Run, ScenarioResult
from dafka_conformance.report.findings import count_outcomes, is_failure

FORMAT = 1

EVENTS_MAX = 50_000
"""The maximum number of events in a report. An event takes some hundred bytes."""

TRACE_EVENTS_MAX = 2_000
"""The maximum number of events of one scenario in a report."""


def to_json(run: Run) -> str:
    """Return the run as JSON in ASCII."""
    counts = count_outcomes(run)
    clauses = {verdict.clause.id: verdict.clause for verdict in run.verdicts}
    return json.dumps(
        {
            "format": FORMAT,
            "target": run.target,
            "started_at": run.started_at,
            "seconds": run.seconds,
            "conforms": run.conforms,
            "is_complete": run.is_complete,
            "summary": {
                "clauses": {verdict.value: count for verdict, count in counts.clauses.items()},
                "scenarios": {outcome.value: count for outcome, count in counts.scenarios.items()},
            },
            "missing_roles": {role.title: why for role, why in run.missing_roles.items()},
            "clauses": [
                _clause(clause, list(verdicts))
                for clause, verdicts in groupby(run.verdicts, key=lambda verdict: verdict.clause)
            ],
            "scenarios": list(_scenarios(run.results, clauses)),
        },
        indent=1,
    )


def _clause(clause: Clause, verdicts: list[ClauseVerdict]) -> dict[str, Any]:
    return {
        "id": clause.id,
        "section": clause.section,
        "level": clause.level.value,
        "layer": clause.layer.name.lower(),
        "binding": clause.level.is_binding,
        "text": clause.text,
        "roles": [role.title for role in clause.roles],
        "untestable": clause.untestable,
        "readings": dict(clause.readings),
        "holds": clause.holds,
        "erratum": clause.erratum or None,
        "verdicts": {
            verdict.dialect.value: {
                "verdict": verdict.verdict.value,
                "scenarios": list(verdict.scenarios),
                "reading": verdict.reading,
                "reason": verdict.reason,
            }
            for verdict in verdicts
        },
    }


def _scenarios(results: Iterable[ScenarioResult], clauses: Mapping[str, Clause]) -> Iterator[dict[str, Any]]:
    left = EVENTS_MAX
    for result in results:
        total = len(result.trace) if is_failure(result, clauses) else 0
        count = min(total, TRACE_EVENTS_MAX, left)
        left -= count
        members = attrs.asdict(attrs.evolve(result, trace=result.trace[:count]), value_serializer=_plain)
        if not count:
            members["trace"] = None
        yield members | {"trace_omitted": total - count}


def _plain(instance: type | None, attribute: Any, value: Any) -> Any:
    """Return an enumeration's member as the word that reports use for it."""
    if isinstance(value, Role):
        return value.title
    return getattr(value, "value", value)
