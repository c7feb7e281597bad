"""The progress and the result of a run on the terminal or in a log.

If the output is not a terminal, there is no color and no progress bar, and lines are not wrapped.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator
from itertools import groupby
from types import TracebackType
from typing import Self

import attrs
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Column
from rich.text import Text

from dafka.text import escape_unprintable
from dafka_conformance.model import NO_SCENARIO, ClauseVerdict, Dialect, Outcome, Run, ScenarioResult, Verdict
from dafka_conformance.report.findings import (
    Failure,
    Finding,
    count_outcomes,
    dialects_of,
    duration,
    faults,
    group_failures,
    is_without_target,
    verdicts_in_scope,
)
from dafka_conformance.report.text_chart import FAULT_MARK, OMITTED_MARK, TIMES_MARK, text_chart

WIDTH_PLAIN = 120
"""The width of a chart in characters if the output is not a terminal."""

_EVENTS_MAX = 24
_WIDTH_MIN = 40
_DASH = "\N{EN DASH}"
_MARKS = {
    Verdict.CONFORMS: ("✓", "green"),
    Verdict.VIOLATES: ("✗", "bold red"),
    Verdict.NOT_TESTED: (_DASH, "dim"),
    Verdict.NOT_JUDGED: ("?", "yellow"),
    Verdict.DOES: ("●", "green"),
    Verdict.DOES_NOT: ("○", "yellow"),
}
_ASCII = str.maketrans(
    {"✓": "+", "✗": "x", _DASH: "-", "●": "*", "○": "o", "·": ".", "…": "~", TIMES_MARK: "x", "§": "s"}
    | dict.fromkeys("─╌━", "-")
    | dict.fromkeys("▶▷", ">")
)


def print_result(run: Run, console: Console) -> None:
    """Print the result of a run: the table of clauses, each violation with its exchange, and a summary line.

    The table is left out if no clause was tested.
    """
    out = _Printer(console)
    is_tested = any(verdict.verdict is not Verdict.NOT_TESTED for verdict in run.verdicts)
    is_broken = not is_tested and any(result.outcome.is_wrong for result in run.results)
    if not is_broken:
        _print_table(run, out)
    grouped = group_failures(run)
    for place, failure in enumerate(grouped):
        if not failure.was_judged or any(finding.is_violation for finding in failure.findings):
            _print_failure(failure, out, is_first=place == 0 and len(grouped) > 1)
    if not is_broken:
        _print_untested(run, out)
    _print_readings(run, out)
    out.line()
    out.line(summary(run), "bold green" if run.conforms else "bold red")


def summary(run: Run) -> str:
    """Return the run as one line, such as `38 clauses conform, 2 violated, 5 not tested; 120 scenarios in 74 s`."""
    counts = count_outcomes(run)
    conform = counts.clauses[Verdict.CONFORMS]
    parts = [
        f"{conform} {'clause conforms' if conform == 1 else 'clauses conform'}",
        f"{counts.clauses[Verdict.VIOLATES]} violated",
        f"{counts.clauses[Verdict.NOT_TESTED]} not tested",
    ]
    if counts.clauses[Verdict.NOT_JUDGED]:
        parts.append(f"{counts.clauses[Verdict.NOT_JUDGED]} not judged")
    done, not_done = counts.clauses[Verdict.DOES], counts.clauses[Verdict.DOES_NOT]
    if done + not_done:
        parts.append(f"{done} of {done + not_done} optional ones followed")
    total = len(run.results)
    unusual = [
        f"{counts.scenarios[outcome]} {outcome.value}"
        for outcome in (Outcome.BROKEN, Outcome.ERROR, Outcome.SKIPPED)
        if counts.scenarios[outcome]
    ]
    interrupted = "" if run.is_complete else "; the run was interrupted"
    scenarios = f"{total} scenario{'' if total == 1 else 's'}" + (f" ({', '.join(unusual)})" if unusual else "")
    return f"{', '.join(parts)}; {scenarios} in {duration(run.seconds)}{interrupted}"


class Progress:
    """A context manager that shows the progress of a run.

    On a terminal it is a bar with the passed, failed and running scenarios. Elsewhere it is a line for each scenario
    that did not pass.

    Args:
        console: The console to print to.
        total: The number of scenarios; each dialect counts.
    """

    def __init__(self, console: Console, total: int) -> None:
        self._out = _Printer(console)
        self._running: dict[tuple[str, Dialect], None] = {}
        self._passed = self._failed = 0
        self._task = TaskID(0)
        self._bar: Bar | None = None
        if console.is_terminal:
            self._bar = Bar(
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("[green]{task.fields[passed]} passed[/], [red]{task.fields[failed]} failed[/]"),
                TimeElapsedColumn(),
                _RunningColumn("{task.fields[running]}"),
                console=console,
                transient=True,
                expand=True,
            )
            self._task = self._bar.add_task("", total=total, passed=0, failed=0, running="")

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def started(self, name: str, dialect: Dialect) -> None:
        """Show that a scenario has started."""
        self._running[name, dialect] = None
        self._show()

    def finished(self, result: ScenarioResult) -> None:
        """Show that a scenario has ended or was skipped."""
        self._running.pop((result.scenario, result.dialect), None)
        is_wrong = result.outcome.is_wrong
        self._passed += result.outcome is Outcome.PASSED
        self._failed += is_wrong
        if self._bar is not None:
            self._bar.advance(self._task)
            self._show()
        elif is_wrong:
            self._print(result)

    def repeated(self, result: ScenarioResult) -> None:
        """Show the result of a scenario that failed while the machine was too busy and was repeated."""
        self._running.pop((result.scenario, result.dialect), None)
        if result.outcome is Outcome.PASSED:
            self._passed, self._failed = self._passed + 1, self._failed - 1
        if self._bar is not None:
            self._show()
        else:
            self._print(result, "repeated, since the machine was busy: ")

    def _print(self, result: ScenarioResult, before: str = "") -> None:
        found = next((check.message for check in result.checks if not check.holds), "") or result.reason
        words = [f"{result.scenario} ({result.dialect.value})", " ".join(found.split())]
        self._out.line(f"{before}{result.outcome.value}: {': '.join(filter(None, words))}")

    def _show(self) -> None:
        if self._bar is not None:
            running = ", ".join(f"{name} ({dialect.value})" for name, dialect in self._running)
            self._bar.update(self._task, passed=self._passed, failed=self._failed, running=escape_unprintable(running))


class _RunningColumn(TextColumn):
    """The names of the running scenarios, on the rest of the line, without markup."""

    def __init__(self, text_format: str) -> None:
        super().__init__(text_format, style="dim", markup=False)

    def get_table_column(self) -> Column:
        return Column(no_wrap=True, overflow="ellipsis", ratio=1)


@attrs.define
class _Printer:
    """Prints lines in characters that the output's encoding has."""

    console: Console

    @property
    def width(self) -> int:
        """The maximum width of a text."""
        return self.console.width if self.console.is_terminal else max(self.console.width, WIDTH_PLAIN)

    def text(self, text: str) -> str:
        """Return a text with the characters replaced that the output cannot show."""
        text = escape_unprintable(text)
        encoding = self.console.encoding
        if encoding.startswith("utf"):
            return text
        return text.translate(_ASCII).encode(encoding, "replace").decode(encoding)

    def line(self, text: str = "", style: str = "") -> None:
        """Print one line."""
        self.spans((text, style))

    def spans(self, *spans: tuple[str, str]) -> None:
        """Print one line of several styles."""
        line = Text.assemble(*((self.text(text), style) for text, style in spans))
        self.console.print(line, soft_wrap=True, highlight=False)

    def paragraph(self, first: str, text: str, style: str = "") -> None:
        """Print a text after a first word or mark, with a hanging indent. Wrap it on a terminal only."""
        indent = " " * (len(first) - len(first.lstrip()) + 2)
        start = first
        for line in text.splitlines() or [""]:
            if self.console.is_terminal:
                width = max(self.width, _WIDTH_MIN)
                lines = textwrap.wrap(line, width, initial_indent=start, subsequent_indent=indent) or [start]
            else:
                lines = [f"{start}{line}"]
            for wrapped in lines:
                self.line(wrapped, style)
            start = indent


def _print_table(run: Run, out: _Printer) -> None:
    """Print one row per clause in scope. Rich's own tables would truncate long names on a narrow output."""
    dialects = dialects_of(run)
    rows: list[list[tuple[str, str]]] = [[(title, "bold") for title in ("clause", "level", *_values(dialects))]]
    for section, verdicts in groupby(verdicts_in_scope(run), key=lambda verdict: verdict.clause.section):
        rows.append([(section, "bold")])
        for clause, grouped in groupby(verdicts, key=lambda verdict: verdict.clause):
            by_dialect = {verdict.dialect: _cell(verdict) for verdict in grouped}
            cells = [by_dialect.get(dialect, ("", "")) for dialect in dialects]
            rows.append([(f"  {clause.id}", ""), (clause.level.value, ""), *cells])
    full = [row for row in rows if len(row) > 1]
    widths = [max(len(row[column][0]) for row in full) for column in range(len(dialects) + 2)]
    out.line(f"{run.target}: clauses by verdict", "bold")
    for row in rows:
        last = len(row) - 1
        out.spans(*((text if n == last else f"{text:<{widths[n]}}  ", style) for n, (text, style) in enumerate(row)))


def _cell(verdict: ClauseVerdict) -> tuple[str, str]:
    mark, style = _MARKS[verdict.verdict]
    return f"{mark} {verdict.verdict.value}", style


def _print_failure(failure: Failure, out: _Printer, *, is_first: bool) -> None:
    dialects = _names(result.dialect for result in failure.results)
    out.line()
    if is_first and failure.cause:
        out.line(f"fix this first: {failure.cause}", "bold")
    out.spans(
        (f"{FAULT_MARK} {failure.scenario}", "bold red"),
        (f"  {failure.role.title}, {dialects}", "dim"),
    )
    if failure.title:
        out.paragraph("  ", failure.title)
    for finding in failure.findings:
        if finding.is_violation:
            _print_finding(finding, failure, out)
    consequences = dict.fromkeys(finding.clause_id for finding in failure.findings if finding.because)
    if consequences:
        out.paragraph("  not judged because of it: ", ", ".join(consequences), "dim")
    for result in failure.charted:
        out.line(f"  the exchange in {result.dialect.value}:", "dim")
        _print_chart(text_chart(result.trace, faults(result), width=out.width - 2, events_max=_EVENTS_MAX), out)
    if failure.similar:
        out.paragraph(f"  the same in {len(failure.similar)} more: ", ", ".join(failure.similar), "dim")


def _print_finding(finding: Finding, failure: Failure, out: _Printer) -> None:
    if finding.clause is not None:
        clause = finding.clause
        out.paragraph(f"  {clause.id} ", f"({clause.level.value}, {clause.section}): {clause.text}")
    elif finding.clause_id:
        out.line(f"  {finding.clause_id}")
    only = "" if len(finding.dialects) == len(failure.results) else f" ({_names(finding.dialects)})"
    out.paragraph("    ", f"{finding.message or 'does not hold'}{only}", "red")
    if finding.readings_text:
        out.paragraph("    ", finding.readings_text)


def _print_chart(lines: Iterable[str], out: _Printer) -> None:
    fault_indent: float = math.inf
    for line in lines:
        text = line.lstrip()
        indent = len(line) - len(text)
        if text.startswith(FAULT_MARK):
            fault_indent = indent
            style = "red"
        elif indent > fault_indent > 0:  # another line of the fault
            style = "red"
        else:
            style = "dim" if text.startswith(OMITTED_MARK) else ""
        out.line(f"  {line}", style)


def _print_untested(run: Run, out: _Printer) -> None:
    """Print the untested clauses: first by missing role, then by the other reasons."""
    untested = [verdict for verdict in run.verdicts if verdict.verdict is Verdict.NOT_TESTED]
    groups: dict[str, dict[str, None]] = {}
    for verdict in untested:
        clause = verdict.clause
        if clause.untestable:
            reason = "cannot be tested from outside"
        elif is_without_target(verdict, run.missing_roles):
            continue
        else:
            dialect = "" if _is_everywhere(verdict, untested, run) else f" ({verdict.dialect.value})"
            reason = f"{verdict.reason}{dialect}"
        groups.setdefault(reason, {})[clause.id] = None
    if not groups and not run.missing_roles:
        return
    out.line()
    out.line("not tested", "bold")
    for role, why in run.missing_roles.items():
        left = dict.fromkeys(
            verdict.clause.id
            for verdict in untested
            if role in verdict.clause.roles and is_without_target(verdict, run.missing_roles)
        )
        leaves = f"; untested clauses: {', '.join(left)}" if left else ""
        out.paragraph(f"  role {role.title}: ", f"{why or 'no target for it'}{leaves}")
    for reason, names in groups.items():
        shown = f"{len(names)} clauses" if reason.startswith(NO_SCENARIO) and len(names) > 1 else ", ".join(names)
        out.paragraph("  ", f"{reason}: {shown}")


def _is_everywhere(verdict: ClauseVerdict, untested: Iterable[ClauseVerdict], run: Run) -> bool:
    """Return whether a clause is untested for the same reason in every dialect."""
    alike = [other for other in untested if other.clause.id == verdict.clause.id and other.reason == verdict.reason]
    return len(alike) == len(dialects_of(run))


def _print_readings(run: Run, out: _Printer) -> None:
    readings: dict[tuple[str, str], list[ClauseVerdict]] = {}
    for verdict in run.verdicts:
        if verdict.reading:
            readings.setdefault((verdict.clause.id, verdict.reading), []).append(verdict)
    if not readings:
        return
    out.line()
    out.line("readings that the target follows, for clauses that the RFC leaves open", "bold")
    for (name, reading), verdicts in readings.items():
        out.paragraph(f"  {name}: ", "".join(_reading(reading, verdicts, run)))


def _reading(reading: str, verdicts: list[ClauseVerdict], run: Run) -> Iterator[str]:
    clause = verdicts[0].clause
    yield reading
    if len(verdicts) < len(dialects_of(run)):
        yield f" ({_names(verdict.dialect for verdict in verdicts)})"
    if reading in clause.readings:
        yield f", {clause.readings[reading]}"
    if clause.holds and reading != clause.holds:
        yield f"; the suite tests {clause.holds}"
        if clause.erratum:
            yield f" (erratum {clause.erratum})"


def _names(dialects: Iterable[Dialect]) -> str:
    return ", ".join(dict.fromkeys(_values(dialects)))


def _values(dialects: Iterable[Dialect]) -> Iterator[str]:
    return (dialect.value for dialect in dialects)
