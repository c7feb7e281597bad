"""The HTML report of a run: one self-contained page without scripts or external files.

Everything from the target is escaped. Only failed scenarios have charts, and charts of long traces show the events
around the faults only, so that the page stays small.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from itertools import groupby

import attrs
import jinja2

from dafka.text import escape_unprintable
from dafka_conformance.model import (
    Clause,
    ClauseVerdict,
    Dialect,
    Outcome,
    Role,
    Run,
    ScenarioResult,
    Verdict,
)
from dafka_conformance.report.findings import (
    Failure,
    count_outcomes,
    dialects_of,
    duration,
    faults,
    group_failures,
    verdicts_in_scope,
)
from dafka_conformance.report.svg_chart import Diagram, draw_chart, truncate

EVENTS_MAX = 60
"""The maximum number of events in a chart if there are few charts."""

EVENTS_MIN = 8
"""The number of events in a chart if there are many charts."""

ROWS_MAX = 3200
"""The maximum number of events in all charts together, about a kilobyte each. Failures beyond it get no chart."""

LINKS_MAX = 40
"""The maximum number of scenario names next to a clause."""


@attrs.frozen
class _ClauseRow:
    """A clause in the table: its verdicts by dialect, and the scenarios that decided them."""

    clause: Clause
    verdicts: Mapping[Dialect, ClauseVerdict]
    scenarios: tuple[str, ...]

    @property
    def is_violated(self) -> bool:
        return any(verdict.verdict is Verdict.VIOLATES for verdict in self.verdicts.values())


@attrs.frozen
class _ScenarioRow:
    """A scenario in the list of all scenarios: its result in each dialect."""

    scenario: str
    title: str
    role: Role
    results: Mapping[Dialect, ScenarioResult]


@attrs.frozen
class _FailureBlock:
    """A failed scenario with its charts."""

    failure: Failure
    diagrams: tuple[tuple[Dialect, Diagram], ...]
    left_out: int


def to_html(run: Run) -> str:
    """Return the run as an HTML page, to be written in UTF-8."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("dafka_conformance", "report"),
        autoescape=True,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"truncate_text": truncate, "duration": duration}
    blocks = _blocks(group_failures(run))
    scenarios = _scenarios(run.results)
    return environment.get_template("report.html.jinja").render(
        run=run,
        headline=_headline(run),
        date=datetime.fromtimestamp(run.started_at, UTC),
        figures=count_outcomes(run),
        dialects=dialects_of(run),
        sections=_sections(verdicts_in_scope(run)),
        out_of_scope_count=len({verdict.clause.id for verdict in run.verdicts})
        - len({verdict.clause.id for verdict in verdicts_in_scope(run)}),
        blocks=blocks,
        scenarios=scenarios,
        links_max=LINKS_MAX,
        places={row.scenario: place for place, row in enumerate(scenarios)},
        failed={
            scenario: place
            for place, block in reversed(list(enumerate(blocks)))
            for scenario in (block.failure.scenario, *block.failure.similar)
        },
        outcomes=Outcome,
        verdicts=Verdict,
    )


def _shown(value: object) -> object:
    """Return a value for the page with unprintable characters escaped, because HTML does not allow some of them."""
    if type(value) is not str:  # text that is marked as safe is a subclass of str
        return value
    return value if value.isprintable() else "\n".join(escape_unprintable(line) for line in value.split("\n"))


def _headline(run: Run) -> str:
    counts = count_outcomes(run)
    violated = counts.clauses[Verdict.VIOLATES]
    if violated:
        return f"{violated} clause{'' if violated == 1 else 's'} violated"
    if not run.conforms:
        return "Some scenarios could not be run"
    return "No clause violated" if counts.clauses[Verdict.CONFORMS] else "Nothing was tested"


def _sections(verdicts: Iterable[ClauseVerdict]) -> list[tuple[str, list[_ClauseRow]]]:
    sections = []
    for section, of_section in groupby(verdicts, key=lambda verdict: verdict.clause.section):
        rows = []
        for clause, grouped in groupby(of_section, key=lambda verdict: verdict.clause):
            by_dialect = {verdict.dialect: verdict for verdict in grouped}
            names = {name for verdict in by_dialect.values() for name in verdict.scenarios}
            rows.append(_ClauseRow(clause, by_dialect, tuple(sorted(names))))
        sections.append((section, rows))
    return sections


def _scenarios(results: Iterable[ScenarioResult]) -> list[_ScenarioRow]:
    rows: dict[tuple[str, Role], dict[Dialect, ScenarioResult]] = {}
    for result in results:
        rows.setdefault((result.scenario, result.role), {})[result.dialect] = result
    return [
        _ScenarioRow(scenario, next(iter(by_dialect.values())).title, role, by_dialect)
        for (scenario, role), by_dialect in rows.items()
    ]


def _blocks(found: Iterable[Failure]) -> list[_FailureBlock]:
    charted = [(failure, failure.charted) for failure in found]
    count = sum(len(results) for _, results in charted)
    events_max = max(EVENTS_MIN, min(EVENTS_MAX, ROWS_MAX // max(count, 1)))
    left = ROWS_MAX // events_max
    blocks = []
    for failure, results in charted:
        drawn = results[:left]
        left -= len(drawn)
        diagrams = tuple((result.dialect, draw_chart(result, faults(result), events_max)) for result in drawn)
        blocks.append(_FailureBlock(failure, diagrams, len(results) - len(drawn)))
    return blocks
