"""The command `dafka-conformance`."""

from __future__ import annotations

import logging
import signal
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import click
import trio
from rich.console import Console

from dafka_conformance.catalogue import Catalogue, UnknownScenarioError
from dafka_conformance.clauses import UnknownClauseError
from dafka_conformance.grammar import GrammarError
from dafka_conformance.model import Dialect, Role, Run
from dafka_conformance.report import ReportError, check_report_path, write_report
from dafka_conformance.report.terminal import Progress, print_matrix
from dafka_conformance.runner import Watcher, run
from dafka_conformance.targets import Target, TargetError, open_target, shipped_targets

INTERRUPTED = 130


class Mistake(click.UsageError):
    """Something was asked for wrongly: one sentence, and exit status 2."""

    def show(self, file: object = None) -> None:
        click.echo(f"dafka-conformance: {self.message}", err=True)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
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
    help="Test this role only; repeat it for several.  [default: all that the target has]",
)
_dialect_option = click.option(
    "--dialect",
    "dialects",
    multiple=True,
    type=click.Choice([dialect.value for dialect in Dialect]),
    help="Speak this dialect only.  [default: all that the target can be told to send]",
)
_scenario_option = click.option(
    "--scenario", "patterns", multiple=True, metavar="GLOB", help="Play only scenarios whose names match; repeatable."
)
_grammar_option = click.option(
    "--grammar",
    "grammar_path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Derive everything from this ABNF file.  [default: the one that is shipped]",
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
    help="Write a report: .html, .json or .xml (JUnit); repeatable.",
)
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A variable of the target file.")
@click.option(
    "--patience",
    type=click.FloatRange(min=0.1, max=100),
    default=1.0,
    show_default=True,
    help="A factor for every time that the target is given.",
)
@click.option("--jobs", type=click.IntRange(1, 64), help="Targets that run at once.  [default: 6]")
@_grammar_option
def run_command(
    name: str,
    roles: tuple[str, ...],
    dialects: tuple[str, ...],
    patterns: tuple[str, ...],
    reports: tuple[str, ...],
    settings: tuple[str, ...],
    patience: float,
    jobs: int | None,
    grammar_path: Path | None,
) -> None:
    """Test TARGET: a shipped target's name, a target file, or package.module:factory.

    Exits with 0 where no clause that binds is violated and everything could be run, else with 1.
    """
    catalogue = _load(grammar_path)
    target = _open(name, settings)
    wanted = _dialects(dialects, target)
    chosen = [role for role in Role if not roles or role.title in roles]
    if not any(catalogue.select(chosen, dialect, patterns) for dialect in wanted):
        raise Mistake(f"no scenario matches {' '.join(patterns)}; dafka-conformance list shows them all")
    try:
        paths = [Path(report) for report in reports]
        for path in paths:
            check_report_path(path)
    except ReportError as error:
        raise Mistake(str(error)) from None
    console = Console(stderr=False)
    finished = _run(catalogue, target, chosen, wanted, patterns, patience, jobs, console)
    print_matrix(finished, console)
    for path in paths:
        write_report(finished, path)
        console.print(f"report: {path}", highlight=False, soft_wrap=True)
    sys.exit(0 if finished.conforms else 1)


def _run(
    catalogue: Catalogue,
    target: Target,
    roles: list[Role],
    dialects: list[Dialect],
    patterns: tuple[str, ...],
    patience: float,
    jobs: int | None,
    console: Console,
) -> Run:
    logging.getLogger("dafka").addHandler(logging.NullHandler())
    total = sum(len(catalogue.select(set(roles) & set(target.abilities), dialect, patterns)) for dialect in dialects)
    finished: list[Run] = []

    async def program(progress: Progress) -> None:
        async with _ended_by_signals():
            watcher = Watcher(progress.started, progress.finished)
            more = {} if jobs is None else {"stages_max": jobs}
            finished.append(
                await run(
                    catalogue,
                    target,
                    roles=roles,
                    dialects=dialects,
                    patterns=patterns,
                    patience=patience,
                    watcher=watcher,
                    **more,
                )
            )

    with Progress(console, total) as progress:
        try:
            trio.run(program, progress)
        except* KeyboardInterrupt:
            pass
    if not finished:
        click.echo("dafka-conformance: interrupted", err=True)
        sys.exit(INTERRUPTED)
    return finished[0]


@asynccontextmanager
async def _ended_by_signals() -> AsyncIterator[None]:
    """SIGTERM and SIGHUP cancel the block, so that no target is left running."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGHUP) as signals:
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                async for _ in signals:
                    nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            yield
            nursery.cancel_scope.cancel()


@main.command("list")
@_role_option
@_dialect_option
@_scenario_option
@_grammar_option
def list_command(
    roles: tuple[str, ...], dialects: tuple[str, ...], patterns: tuple[str, ...], grammar_path: Path | None
) -> None:
    """List the scenarios: name, and what each shows."""
    catalogue = _load(grammar_path)
    chosen = [role for role in Role if not roles or role.title in roles]
    spoken = {Dialect(dialect) for dialect in dialects} or set(Dialect)
    for scenario in catalogue.select(chosen, None, patterns):
        if spoken & set(scenario.dialects):
            click.echo(f"{scenario.name}  {scenario.title}")


@main.command("show")
@click.argument("name", metavar="SCENARIO")
@_grammar_option
def show_command(name: str, grammar_path: Path | None) -> None:
    """Show how SCENARIO is played, and what it tests."""
    catalogue = _load(grammar_path)
    try:
        scenario = catalogue.get(name)
    except UnknownScenarioError as error:
        raise Mistake(str(error)) from None
    click.echo(f"{scenario.name}\n{scenario.title}\n")
    for line in scenario.script:
        click.echo(f"    {line}")
    click.echo("\ntests:")
    for clause in scenario.clauses:
        click.echo(f"    {clause}: {catalogue.clauses.get(clause).text}")


@main.command("explain")
@click.argument("name", metavar="CLAUSE")
def explain_command(name: str) -> None:
    """Explain CLAUSE: what it demands, of whom, where it is from, and which scenarios test it."""
    catalogue = _load(None)
    try:
        clause = catalogue.clauses.get(name)
    except UnknownClauseError as error:
        raise Mistake(str(error)) from None
    roles = ", ".join(role.title for role in clause.roles)
    click.echo(f"{clause.id} ({clause.level.value}, RFC 46, {clause.section}; {roles})\n")
    click.echo(textwrap.fill(clause.text, 100))
    for reading, text in clause.readings.items():
        holds = " (this reading holds)" if reading == clause.holds else ""
        click.echo(textwrap.fill(f"reading {reading}{holds}: {text}", 100, subsequent_indent="    "))
    if clause.erratum:
        click.echo(f"see docs/errata.md, {clause.erratum}")
    if clause.untestable:
        click.echo(textwrap.fill(f"not tested: {clause.untestable}", 100))
        return
    scenarios = catalogue.testing(clause)
    click.echo("\ntested by every scenario in which it can be seen" if not scenarios else "\ntested by:")
    for scenario in scenarios:
        click.echo(f"    {scenario.name}")


def _load(grammar_path: Path | None) -> Catalogue:
    try:
        return Catalogue.load(grammar_path)
    except GrammarError as error:
        raise Mistake(str(error)) from None


def _open(name: str, settings: tuple[str, ...]) -> Target:
    variables = {}
    for setting in settings:
        key, is_set, value = setting.partition("=")
        if not key or not is_set:
            raise Mistake(f"--set takes NAME=VALUE, not {setting}")
        variables[key] = value
    try:
        return open_target(name, variables)
    except TargetError as error:
        raise Mistake(
            f"{error} (shipped targets: {', '.join(shipped_targets())})" if "/" not in name else str(error)
        ) from None


def _dialects(names: tuple[str, ...], target: Target) -> list[Dialect]:
    wanted = [Dialect(name) for name in names] or list(target.dialects)
    for dialect in wanted:
        if dialect not in target.dialects:
            can = " and ".join(each.value for each in target.dialects)
            raise Mistake(f"{target.name} cannot be told to send {dialect.value}, only {can}")
    return wanted
