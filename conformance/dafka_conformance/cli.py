"""The command `dafka-conformance`.

Exit status:
    0: no binding clause is violated.
    1: a binding clause is violated, or a scenario could not be run to its end.
    2: the command line is wrong.
    128 + N: signal N ended the run. Its findings so far are printed and reported.

Errors are one sentence on standard error.
"""

from __future__ import annotations

import logging
import math
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

import click
from rich.console import Console

from dafka_conformance.catalog import UnknownScenarioError
from dafka_conformance.clauses import COMPANION_SECTIONS, UnknownClauseError
from dafka_conformance.group_runner import ProgressListener
from dafka_conformance.model import Clause, Dialect, Outcome, Role, Run
from dafka_conformance.report import ReportError, check_report_path, write_report
from dafka_conformance.report.terminal import Progress, print_result
from dafka_conformance.runner import JOBS_MAX, run, run_blocking
from dafka_conformance.selection import (
    SelectionError,
    check_patterns,
    count_scenarios,
    load_catalog,
    no_scenario_message,
    open_selected_target,
    select_dialects,
    select_roles,
)
from dafka_conformance.testbed.message_checks import universal_clauses

WIDTH = 100
SIGNAL_STATUS = 128


class UsageError(click.UsageError):
    """A wrong command line: one sentence on standard error, and exit status 2."""

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the sentence."""
        print_error(self.message)


class OrderedGroup(click.Group):
    """A command group that lists its commands in the order of definition, and reports usage errors as one sentence.

    Click's own help cuts a command's first sentence; this group lists it whole.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands' names in the order of definition."""
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each command with its whole first sentence."""
        rows = [(name, command.get_short_help_str(limit=1000)) for name, command in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Parse the command line. Raise `UsageError` if it is wrong."""
        with _usage_errors():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Raise `UsageError` if the command line is wrong."""
        with _usage_errors():
            return super().invoke(ctx)


@contextmanager
def _usage_errors() -> Iterator[None]:
    """Turn click's usage errors and selection errors into `UsageError`."""
    try:
        yield
    except SelectionError as error:
        raise UsageError(str(error)) from None
    except click.UsageError as error:
        is_help = type(error).__name__ == "NoArgsIsHelpError"  # click 8.2 raises it to print the help
        if isinstance(error, UsageError) or is_help:
            raise
        raise UsageError(" ".join(error.format_message().split())) from None


def print_error(sentence: str) -> None:
    """Print a sentence to standard error, after the command's name."""
    click.echo(f"dafka-conformance: {sentence}", err=True)


def _finite(_context: click.Context, _parameter: click.Parameter, value: float) -> float:
    if math.isnan(value):
        raise click.BadParameter("expected a number, not nan")
    return value


@click.group(cls=OrderedGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDTH})
@click.version_option(package_name="dafka-conformance")
def main() -> None:
    """Test an implementation of Dafka against the protocol (ZeroMQ RFC 46).

    `dafka-conformance run dafka` tests this project's own command. docs/how-to/conformance.md describes how to test
    another implementation.
    """


_role_option = click.option(
    "--role",
    "roles",
    multiple=True,
    type=click.Choice([role.title for role in Role]),
    help="Select this role only; repeatable.  [default: all]",
)
_dialect_option = click.option(
    "--dialect",
    "dialects",
    multiple=True,
    type=click.Choice([dialect.value for dialect in Dialect]),
    help="Select this dialect only; repeatable.  [default: all]",
)
_scenario_option = click.option(
    "--scenario",
    "patterns",
    multiple=True,
    metavar="GLOB",
    help="Select only scenarios whose names match, for example 'store.*'; repeatable.",
)
_grammar_option = click.option(
    "--grammar",
    "grammar_path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Use the grammar in this ABNF file.  [default: the shipped grammar]",
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
    help="Write a report: .html, .json or .xml (JUnit); repeatable.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set a variable of the target file, or an argument of the factory; repeatable.",
)
@click.option(
    "--patience",
    type=click.FloatRange(min=0.1, max=100),
    callback=_finite,
    default=1.0,
    show_default=True,
    metavar="FACTOR",
    help="Multiply every time limit of the target by this factor. Use more than 1 on a slow machine.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1, 64),
    default=JOBS_MAX,
    show_default=True,
    metavar="N",
    help="Run this many targets at once.",
)
@click.option(
    "--fail-fast",
    is_flag=True,
    help="Skip a role's other scenarios once three in a row failed from the same malformed or misaddressed message.",
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
    fail_fast: bool,
    grammar_path: Path | None,
) -> None:
    """Test TARGET: a shipped target's name, a target file, or package.module:factory.

    The shipped targets are dafka, embedded and libdafka. All roles and dialects of the target are tested. The command
    prints progress, a table of clauses by verdict, and each violation with the exchange of messages that shows it.
    """
    catalog = load_catalog(grammar_path)
    target = open_selected_target(name, settings)
    wanted = select_dialects(dialects, target)
    chosen = select_roles(roles)
    total = count_scenarios(catalog, target, chosen, wanted, patterns)
    try:
        for path in reports:
            check_report_path(path)
    except ReportError as error:
        raise UsageError(str(error)) from None
    console = Console()
    logging.getLogger("dafka").addHandler(logging.NullHandler())
    with Progress(console, total) as progress:
        start_run = partial(
            run,
            catalog,
            target,
            roles=chosen,
            dialects=wanted,
            patterns=patterns,
            patience=patience,
            jobs=jobs,
            fail_fast=fail_fast,
            listener=ProgressListener(progress.started, progress.finished, progress.repeated),
        )
        finished, ended_by = run_blocking(lambda scope: start_run(scope=scope))
    print_result(finished, console)
    is_written = _write_reports(finished, reports, console)
    if ended_by is not None:
        print_error(f"ended by {ended_by.name}; the results so far are above")
        sys.exit(SIGNAL_STATUS + ended_by)
    if all(result.outcome is Outcome.SKIPPED for result in finished.results):
        print_error("nothing was tested because every scenario was skipped")
        sys.exit(1)
    sys.exit(0 if finished.conforms and is_written else 1)


def _write_reports(finished: Run, paths: Sequence[Path], console: Console) -> bool:
    is_written = True
    for path in paths:
        try:
            write_report(finished, path)
        except ReportError as error:
            print_error(str(error))
            is_written = False
        else:
            console.print(f"report: {path}", highlight=False, markup=False, soft_wrap=True)
    return is_written


@main.command("list")
@_role_option
@_dialect_option
@_scenario_option
@click.option("--clauses", "is_of_clauses", is_flag=True, help="List the clauses instead: id, level and requirement.")
@_grammar_option
def list_command(
    roles: tuple[str, ...],
    dialects: tuple[str, ...],
    patterns: tuple[str, ...],
    is_of_clauses: bool,
    grammar_path: Path | None,
) -> None:
    """List the scenarios, each with its title."""
    catalog = load_catalog(grammar_path)
    chosen = select_roles(roles)
    spoken = {Dialect(dialect) for dialect in dialects} or set(Dialect)
    if is_of_clauses:
        if patterns:
            raise UsageError("--scenario cannot be used with --clauses: remove one of them")
        for clause in catalog.clauses:
            if set(clause.roles) & set(chosen) and set(clause.dialects) & spoken:
                click.echo(f"{clause.id}  {clause.level.value}  {clause.text}")
        return
    check_patterns(catalog, patterns)
    found = [each for each in catalog.select(chosen, None, patterns) if spoken & set(each.dialects)]
    if not found:
        raise UsageError(no_scenario_message(chosen, sorted(spoken, key=list(Dialect).index), patterns))
    for scenario in found:
        click.echo(f"{scenario.name}  {scenario.title}")


@main.command("show")
@click.argument("name", metavar="SCENARIO")
@_grammar_option
def show_command(name: str, grammar_path: Path | None) -> None:
    """Show the steps of SCENARIO, what it needs, and the clauses that it tests."""
    catalog = load_catalog(grammar_path)
    try:
        scenario = catalog.get(name)
    except UnknownScenarioError as error:
        raise UsageError(str(error)) from None
    click.echo(f"{scenario.name}\n{scenario.title}\n")
    for line in scenario.script:
        click.echo(f"    {line}".rstrip())
    if scenario.needs:
        click.echo(f"\nneeds a {scenario.role.title} and a way to")
        for ability in sorted(scenario.needs, key=lambda each: each.value):
            click.echo(f"    {ability.value}")
    if len(scenario.dialects) < len(Dialect):
        click.echo(f"\nin {' and '.join(dialect.value for dialect in scenario.dialects)} only")
    click.echo("\ntests")
    for clause in scenario.clauses:
        click.echo(f"    {clause}: {catalog.clauses.get(clause).text}")


@main.command("explain")
@click.argument("name", metavar="CLAUSE")
@_grammar_option
def explain_command(name: str, grammar_path: Path | None) -> None:
    """Explain CLAUSE: its requirement, roles and source, and the scenarios that test it."""
    catalog = load_catalog(grammar_path)
    try:
        clause = catalog.clauses.get(name)
    except UnknownClauseError as error:
        raise UsageError(str(error)) from None
    roles = ", ".join(role.title for role in clause.roles)
    source = clause.section if clause.section in COMPANION_SECTIONS else f"RFC 46, {clause.section}"
    click.echo(f"{clause.id} ({clause.level.value}; {source}; {roles})\n")
    click.echo(textwrap.fill(clause.text, WIDTH))
    for line in _remarks(clause):
        click.echo(textwrap.fill(line, WIDTH, subsequent_indent="    "))
    if clause.untestable:
        return
    scenarios = catalog.scenarios_testing(clause)
    is_universal = clause.id in universal_clauses(catalog.grammar)
    if is_universal:
        click.echo("\nchecked in every scenario, for every message that it concerns")
    if scenarios or not is_universal:
        click.echo("\ntested by" if scenarios else "\nno scenario tests it")
    for scenario in scenarios:
        click.echo(f"    {scenario.name}")


def _remarks(clause: Clause) -> Iterator[str]:
    for reading, text in clause.readings.items():
        holds = " (the suite tests this reading)" if reading == clause.holds else ""
        yield f"reading {reading}{holds}: {text}"
    if clause.erratum:
        yield f"see docs/reference/errata.md, number {clause.erratum}"
    if len(clause.dialects) < len(Dialect):
        yield f"applies to {' and '.join(dialect.value for dialect in clause.dialects)} only"
    if clause.untestable:
        yield f"not tested: {clause.untestable}"
