"""Options, tables, progress and exit status of the storage commands."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Any, NoReturn

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from dafka.cli.runner import run
from dafka.cli.terminal import console, report_error
from dafka.errors import StorageCorruptError
from dafka.groups import single_exception
from dafka.operations.lines import printable
from dafka.storage.tools.copy import RecordsDifferError

REFRESH_S = 0.1
"""How often the progress bar is updated."""

WIDE = 140
"""On a terminal with fewer columns, the date and the time are on two lines, to leave room for names."""

_TIME_MARK = re.compile(r"(?<=\d)T(?=\d)")

url_argument = click.argument("url")
topics_option = click.option(
    "--topic", "topics", multiple=True, metavar="TOPIC", help="Only this topic; may be repeated.  [default: all topics]"
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


class Meter:
    """Counts records. Within its block it shows a bar and a rate, if standard error is a terminal."""

    def __init__(self) -> None:
        self.done = 0
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._started_at = self._shown_at = 0.0

    def __call__(self, done: int, total: int | None) -> None:
        """Update the count; a `ProgressCallback`."""
        self.done = done
        now = time.perf_counter()
        if self._bar is not None and (now - self._shown_at >= REFRESH_S or done == total):
            self._shown_at = now
            rate = done / max(now - self._started_at, REFRESH_S)
            text = f"{done:,} records, {rate:,.0f}/s"
            self._bar.update(self._task, completed=done, total=total, description=text, refresh=True)

    def __enter__(self) -> Meter:
        self._started_at = time.perf_counter()
        if console.is_terminal:
            columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
            self._bar = Progress(*columns, console=console, auto_refresh=False)
            self._task = self._bar.add_task("", total=None)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def run_metered(program: Callable[[Meter], Awaitable[int]], done: str) -> NoReturn:
    """Run a program as `run` does, and exit with status 1 if records are damaged or differ, or after an interrupt.

    Args:
        program: The program; returns the exit status.
        done: What was done with the records counted before an interrupt, such as `copied`.
    """
    meter = Meter()

    async def until_damage() -> int:
        try:
            with single_exception():
                return await program(meter)
        except (StorageCorruptError, RecordsDifferError) as error:
            report_error(error)
            return 1

    def interrupted() -> int:
        click.echo(f"interrupted: {meter.done:,} records {done}", err=True)
        return 1

    run(until_damage, interrupted=interrupted)


def print_summary(sentence: str, values: dict[str, Any], as_json: bool, *, err: bool = False) -> None:
    """Print a summary, as a sentence or as JSON."""
    click.echo(json.dumps(values) if as_json else sentence, err=err)


def print_table(names: tuple[str, ...], numbers: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    """Print a table: columns of names, then right-aligned columns of numbers. On a terminal, long names are wrapped."""
    cells = [tuple(map(printable, row)) for row in rows]
    output = Console()
    if not output.is_terminal:
        click.echo(_align([names + numbers, *cells], len(names)))
        return
    table = Table(box=None, pad_edge=False, expand=False)
    for name in names:
        table.add_column(name, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    mark = "T\n" if output.width < WIDE else "T"
    for row in cells:
        figures = (_TIME_MARK.sub(mark, cell) for cell in row[len(names) :])
        table.add_row(*map(Text, (*row[: len(names)], *figures)))
    output.print(table)


def _align(rows: list[tuple[str, ...]], name_count: int) -> str:
    """Format one line per row. Rich would take many seconds for tens of thousands of rows."""
    columns = []
    for index, column in enumerate(zip(*rows, strict=True)):
        width = max(map(len, column))
        columns.append([cell.ljust(width) if index < name_count else cell.rjust(width) for cell in column])
    return "\n".join("  ".join(row).rstrip() for row in zip(*columns, strict=True))


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: `1 record`, `1,000 records`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
