"""The command `dafka-conformance`.

Exit status: 0 where no clause that binds is violated, 1 where one is, or something could not be run, 2 where it was
asked for wrongly, and 128 and a signal's number where that ended it. Mistakes are one sentence on standard error.
"""

from __future__ import annotations

import logging
import math
import sys
import textwrap
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import click
from rich.console import Console

from dafka_conformance.catalogue import UnknownScenarioError
from dafka_conformance.choices import (
    check_patterns,
    check_selection,
    chosen_dialects,
    chosen_roles,
    load,
    no_scenario,
    open_chosen,
)
from dafka_conformance.clauses import UnknownClauseError
from dafka_conformance.frontend import EndedBySignalError, run_blocking, watched_clauses
from dafka_conformance.mistakes import Commands, Mistake, complain
from dafka_conformance.model import Clause, Dialect, Outcome, Role, Run
from dafka_conformance.report import ReportError, check_report_path, write_report
from dafka_conformance.report.terminal import Progress, print_matrix
from dafka_conformance.runner import STAGES_MAX, Watcher, run

WIDTH = 100
SIGNAL_STATUS = 128


def _finite(_context: click.Context, _parameter: click.Parameter, value: float) -> float:
    if math.isnan(value):
        raise click.BadParameter("it is no number")
    return value


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDTH})
@click.version_option(package_name="dafka")
def main() -> None:
    """Hold any implementation of Dafka against the protocol (ZeroMQ RFC 46).

    `dafka-conformance run dafka` tests this project's own command; docs/how-to/conformance.md says how to test yours.
    """


_role_option = click.option(
    "--role",
    "roles",
    multiple=True,
    type=click.Choice([role.title for role in Role]),
    help="Of this role only; repeat it for several.  [default: all]",
)
_dialect_option = click.option(
    "--dialect",
    "dialects",
    multiple=True,
    type=click.Choice([dialect.value for dialect in Dialect]),
    help="In this dialect only; repeat it for several.  [default: all]",
)
_scenario_option = click.option(
    "--scenario",
    "patterns",
    multiple=True,
    metavar="GLOB",
    help="Only scenarios whose names match, as in 'store.*'; repeat it for several.",
)
_grammar_option = click.option(
    "--grammar",
    "grammar_path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Derive formats and sentences from this ABNF file.  [default: the one that is shipped]",
)


@main.command("run")
@click.argument("name", metavar="TARGET")
@_role_option
@_dialect_option
@_scenario_option
@click.option(
    "--report",
    "reports",
    multiple=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write a report: .html, .json or .xml (JUnit); repeat it for several.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="A variable of the target file, or an argument of the factory; repeat it for several.",
)
@click.option(
    "--patience",
    type=click.FloatRange(min=0.1, max=100),
    callback=_finite,
    default=1.0,
    show_default=True,
    metavar="FACTOR",
    help="Multiplies every time that the target is given: more for a slow machine.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1, 64),
    default=STAGES_MAX,
    show_default=True,
    metavar="N",
    help="How many targets run at once.",
)
@_grammar_option
def run_command(
    name: str,
    roles: tuple[str, ...],
    dialects: tuple[str, ...],
    patterns: tuple[str, ...],
    reports: tuple[Path, ...],
    settings: tuple[str, ...],
    patience: float,
    jobs: int,
    grammar_path: Path | None,
) -> None:
    """Test TARGET: a shipped target's name, a target file, or package.module:factory.

    Shipped are dafka, embedded and libdafka. Every role and dialect that the target has is tested. Progress and result
    go to standard output: the clauses by verdict, and each violation with the exchange in which it was found.
    """
    catalogue = load(grammar_path)
    target = open_chosen(name, settings)
    wanted = chosen_dialects(dialects, target)
    chosen = chosen_roles(roles)
    total = check_selection(catalogue, target, chosen, wanted, patterns)
    try:
        for path in reports:
            check_report_path(path)
    except ReportError as error:
        raise Mistake(str(error)) from None
    console = Console()
    logging.getLogger("dafka").addHandler(logging.NullHandler())
    with Progress(console, total) as progress:
        play = partial(
            run,
            catalogue,
            target,
            roles=chosen,
            dialects=wanted,
            patterns=patterns,
            patience=patience,
            stages_max=jobs,
            watcher=Watcher(progress.started, progress.finished),
        )
        try:
            finished = run_blocking(play)
        except EndedBySignalError as error:
            complain(str(error))
            sys.exit(SIGNAL_STATUS + error.number)
    print_matrix(finished, console)
    is_written = _write_reports(finished, reports, console)
    if all(result.outcome is Outcome.SKIPPED for result in finished.results):
        complain("nothing was tested: every scenario was skipped")
        sys.exit(1)
    sys.exit(0 if finished.conforms and is_written else 1)


def _write_reports(finished: Run, paths: Sequence[Path], console: Console) -> bool:
    is_written = True
    for path in paths:
        try:
            write_report(finished, path)
        except ReportError as error:
            complain(str(error))
            is_written = False
        else:
            console.print(f"report: {path}", highlight=False, markup=False, soft_wrap=True)
    return is_written


@main.command("list")
@_role_option
@_dialect_option
@_scenario_option
@click.option("--clauses", "is_of_clauses", is_flag=True, help="List the clauses instead: name, level, demand.")
@_grammar_option
def list_command(
    roles: tuple[str, ...],
    dialects: tuple[str, ...],
    patterns: tuple[str, ...],
    is_of_clauses: bool,
    grammar_path: Path | None,
) -> None:
    """List the scenarios, each with what it shows."""
    catalogue = load(grammar_path)
    chosen = chosen_roles(roles)
    spoken = {Dialect(dialect) for dialect in dialects} or set(Dialect)
    if is_of_clauses:
        if patterns:
            raise Mistake("--scenario chooses scenarios: expected it without --clauses")
        for clause in catalogue.clauses:
            if set(clause.roles) & set(chosen) and set(clause.dialects) & spoken:
                click.echo(f"{clause.id}  {clause.level.value}  {clause.text}")
        return
    check_patterns(catalogue, patterns)
    found = [each for each in catalogue.select(chosen, None, patterns) if spoken & set(each.dialects)]
    if not found:
        raise Mistake(no_scenario(chosen, sorted(spoken, key=list(Dialect).index), patterns))
    for scenario in found:
        click.echo(f"{scenario.name}  {scenario.title}")


@main.command("show")
@click.argument("name", metavar="SCENARIO")
@_grammar_option
def show_command(name: str, grammar_path: Path | None) -> None:
    """Show how SCENARIO is played, what it needs, and the clauses that it tests."""
    catalogue = load(grammar_path)
    try:
        scenario = catalogue.get(name)
    except UnknownScenarioError as error:
        raise Mistake(str(error)) from None
    click.echo(f"{scenario.name}\n{scenario.title}\n")
    for line in scenario.script:
        click.echo(f"    {line}".rstrip())
    if scenario.needs:
        click.echo(f"\nneeds a {scenario.role.title} of which one can")
        for ability in sorted(scenario.needs, key=lambda each: each.value):
            click.echo(f"    {ability.value}")
    if len(scenario.dialects) < len(Dialect):
        click.echo(f"\nin {' and '.join(dialect.value for dialect in scenario.dialects)} alone")
    click.echo("\ntests")
    for clause in scenario.clauses:
        click.echo(f"    {clause}: {catalogue.clauses.get(clause).text}")


@main.command("explain")
@click.argument("name", metavar="CLAUSE")
@_grammar_option
def explain_command(name: str, grammar_path: Path | None) -> None:
    """Explain CLAUSE: what it demands, of whom, where it is from, and which scenarios test it."""
    catalogue = load(grammar_path)
    try:
        clause = catalogue.clauses.get(name)
    except UnknownClauseError as error:
        raise Mistake(str(error)) from None
    roles = ", ".join(role.title for role in clause.roles)
    click.echo(f"{clause.id} ({clause.level.value}; RFC 46, {clause.section}; {roles})\n")
    click.echo(textwrap.fill(clause.text, WIDTH))
    for line in _remarks(clause):
        click.echo(textwrap.fill(line, WIDTH, subsequent_indent="    "))
    if clause.untestable:
        return
    scenarios = catalogue.testing(clause)
    is_watched = clause.id in watched_clauses(catalogue.grammar)
    if is_watched:
        click.echo("\nevery message that it concerns is held against it, in any scenario")
    if scenarios or not is_watched:
        click.echo("\ntested by" if scenarios else "\nno scenario tests it")
    for scenario in scenarios:
        click.echo(f"    {scenario.name}")


def _remarks(clause: Clause) -> Iterator[str]:
    for reading, text in clause.readings.items():
        holds = " (this reading holds)" if reading == clause.holds else ""
        yield f"reading {reading}{holds}: {text}"
    if clause.erratum:
        yield f"see docs/reference/errata.md, number {clause.erratum}"
    if len(clause.dialects) < len(Dialect):
        yield f"applies to {' and '.join(dialect.value for dialect in clause.dialects)} alone"
    if clause.untestable:
        yield f"not tested: {clause.untestable}"
