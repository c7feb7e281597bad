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
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

import click
from rich.console import Console

from dafka_conformance.catalogue import Catalogue, UnknownScenarioError
from dafka_conformance.clauses import UnknownClauseError
from dafka_conformance.frontend import EndedBySignalError, parse_settings, run_blocking, watched_clauses
from dafka_conformance.grammar import Grammar, GrammarError
from dafka_conformance.model import Clause, Dialect, Outcome, Role, Run
from dafka_conformance.report import ReportError, check_report_path, write_report
from dafka_conformance.report.terminal import Progress, print_matrix
from dafka_conformance.runner import STAGES_MAX, Watcher, run
from dafka_conformance.targets import Target, TargetError, open_target

WIDTH = 100
SIGNAL_STATUS = 128


class Mistake(click.UsageError):
    """Something was asked for wrongly: one sentence, and exit status 2."""

    def show(self, file: IO[Any] | None = None) -> None:
        """Says so on standard error."""
        _complain(self.message)


class _Commands(click.Group):
    """Says click's own usage errors in a sentence too, and lists the commands in the order in which one needs them.

    Each is listed with its whole first sentence.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, command.get_short_help_str(limit=1000)) for name, command in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _mistakes():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with _mistakes():
            return super().invoke(ctx)


@contextmanager
def _mistakes() -> Iterator[None]:
    try:
        yield
    except click.UsageError as error:
        is_help = type(error).__name__ == "NoArgsIsHelpError"  # click 8.2 has it, and prints the help
        if isinstance(error, Mistake) or is_help:
            raise
        raise Mistake(" ".join(error.format_message().split())) from None


def _complain(sentence: str) -> None:
    click.echo(f"dafka-conformance: {sentence}", err=True)


def _finite(_context: click.Context, _parameter: click.Parameter, value: float) -> float:
    if math.isnan(value):
        raise click.BadParameter("it is no number")
    return value


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDTH})
@click.version_option(package_name="dafka")
def main() -> None:
    """Hold any implementation of Dafka against the protocol (ZeroMQ RFC 46).

    `dafka-conformance run dafka` tests this project's own command; docs/conformance.md says how to test yours.
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
    catalogue = _load(grammar_path)
    target = _open(name, settings)
    wanted = _dialects(dialects, target)
    chosen = _roles(roles)
    total = _check_selection(catalogue, target, chosen, wanted, patterns)
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
            _complain(str(error))
            sys.exit(SIGNAL_STATUS + error.number)
    print_matrix(finished, console)
    is_written = _write_reports(finished, reports, console)
    if all(result.outcome is Outcome.SKIPPED for result in finished.results):
        _complain("nothing was tested: every scenario was skipped")
        sys.exit(1)
    sys.exit(0 if finished.conforms and is_written else 1)


def _write_reports(finished: Run, paths: Sequence[Path], console: Console) -> bool:
    is_written = True
    for path in paths:
        try:
            write_report(finished, path)
        except ReportError as error:
            _complain(str(error))
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
    catalogue = _load(grammar_path)
    chosen = _roles(roles)
    spoken = {Dialect(dialect) for dialect in dialects} or set(Dialect)
    if is_of_clauses:
        if patterns:
            raise Mistake("--scenario chooses scenarios: expected it without --clauses")
        for clause in catalogue.clauses:
            if set(clause.roles) & set(chosen) and set(clause.dialects) & spoken:
                click.echo(f"{clause.id}  {clause.level.value}  {clause.text}")
        return
    _check_patterns(catalogue, patterns)
    found = [each for each in catalogue.select(chosen, None, patterns) if spoken & set(each.dialects)]
    if not found:
        raise Mistake(_no_scenario(chosen, sorted(spoken, key=list(Dialect).index), patterns))
    for scenario in found:
        click.echo(f"{scenario.name}  {scenario.title}")


@main.command("show")
@click.argument("name", metavar="SCENARIO")
@_grammar_option
def show_command(name: str, grammar_path: Path | None) -> None:
    """Show how SCENARIO is played, what it needs, and the clauses that it tests."""
    catalogue = _load(grammar_path)
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
    catalogue = _load(grammar_path)
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
        yield f"see docs/errata.md, number {clause.erratum}"
    if len(clause.dialects) < len(Dialect):
        yield f"applies to {' and '.join(dialect.value for dialect in clause.dialects)} alone"
    if clause.untestable:
        yield f"not tested: {clause.untestable}"


def _load(grammar_path: Path | None) -> Catalogue:
    try:
        catalogue = Catalogue.load(grammar_path)
        if grammar_path is not None:
            _check_messages(catalogue.grammar, grammar_path)
    except GrammarError as error:
        raise Mistake(str(error)) from None
    return catalogue


def _check_messages(grammar: Grammar, path: Path) -> None:
    """Raises `GrammarError` where the scenarios could not say a message, since its rule lacks or adds a field."""
    for name, form in Grammar.load().formats.by_name.items():
        if name not in grammar.formats.by_name:
            raise GrammarError(f"{path} has no message rule {name}, which scenarios speak of")
        if set(grammar.formats.by_name[name].field_names) != set(form.field_names):
            fields = ", ".join(form.field_names) or "no fields"
            raise GrammarError(f"{path}: scenarios give {name} other fields than its rule has: expected {fields}")


def _open(name: str, settings: Sequence[str]) -> Target:
    try:
        return open_target(name, parse_settings(settings, "--set"))
    except TargetError as error:
        raise Mistake(str(error)) from None


def _roles(titles: Sequence[str]) -> list[Role]:
    return [role for role in Role if not titles or role.title in titles]


def _dialects(names: Sequence[str], target: Target) -> list[Dialect]:
    wanted = [Dialect(name) for name in dict.fromkeys(names)] or list(target.dialects)
    for dialect in wanted:
        if dialect not in target.dialects:
            can = " and ".join(each.value for each in target.dialects)
            raise Mistake(f"{target.name} cannot be told to send {dialect.value}, only {can}")
    return wanted


def _check_selection(
    catalogue: Catalogue, target: Target, roles: list[Role], dialects: list[Dialect], patterns: Sequence[str]
) -> int:
    """How many scenarios will be played or skipped, each dialect counted. Raises `Mistake` where there is none."""
    _check_patterns(catalogue, patterns)
    there = [role for role in roles if role in target.abilities]
    if not there:
        asked = " and no ".join(role.title for role in roles)
        has = " and ".join(f"a {role.title}" for role in Role if role in target.abilities) or "none"
        raise Mistake(f"{target.name} has no {asked}: it has {has}")
    total = sum(len(catalogue.select(there, dialect, patterns)) for dialect in dialects)
    if not total:
        raise Mistake(_no_scenario(there, dialects, patterns))
    return total


def _check_patterns(catalogue: Catalogue, patterns: Sequence[str]) -> None:
    for pattern in patterns:
        if not catalogue.select(patterns=[pattern]):
            raise Mistake(f"no scenario matches {pattern!r}; dafka-conformance list shows them all")


def _no_scenario(roles: Sequence[Role], dialects: Sequence[Dialect], patterns: Sequence[str]) -> str:
    matches = f" matches {' or '.join(map(repr, patterns))}" if patterns else ""
    of = " or ".join(role.title for role in roles)
    spoken = " or ".join(dialect.value for dialect in dialects)
    return f"no scenario of a {of} in {spoken}{matches or ' is there'}; dafka-conformance list shows them all"
