"""The output of commands: tables on standard output; log lines, errors and progress on standard error."""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import sys
import threading
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

import click

from dafka.cli.advice import advise
from dafka.config import LogConfig
from dafka.operations.logs import SentenceFormatter, json_formatter
from dafka.protocol import TowersHeard, TowersSilent
from dafka.roles.events import NodeLog
from dafka.roles.logging_events import Failed, LogEvent
from dafka.text import escape_unprintable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

TIME_COLUMNS = 140
"""A terminal with fewer columns shows dates and times in two lines, to leave room for names."""

COMMAND_LOG = NodeLog(logging.getLogger("dafka.command"))
"""Log lines of the command itself, not of one of its nodes."""

_TIME_MARK = re.compile(r"(?<=\d)T(?=\d)")

_handlers: list[logging.Handler] = []
_formats: list[str] = []
_is_silence_logged = threading.Event()


class UsageMistake(click.ClickException):
    """The command was used wrongly. Prints one sentence; the exit status is 2."""

    exit_code = 2

    def format_message(self) -> str:
        """Return the sentence. What another process has said can be a part of it."""
        return escape_unprintable(self.message)


def confirm(question: str, *, yes: bool, declined: str) -> None:
    """Ask on the terminal before something is deleted for good, unless the option `--yes` was given.

    Raise `UsageMistake` if there is no terminal to ask on, or, with the sentence `declined`, if the answer is no.
    """
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageMistake("expected --yes, since standard input is not a terminal on which to ask")
    if not click.confirm(question, err=True):
        raise UsageMistake(declined)


yes_option = click.option("--yes", is_flag=True, help="Do not ask. Required if standard input is not a terminal.")


@functools.cache
def error_console() -> Console:
    """Return the console of standard error, which log lines and progress bars share, so that they do not mix."""
    from rich.console import Console  # noqa: PLC0415 (slow to load, and few commands need it)

    return Console(stderr=True)


def error_is_terminal() -> bool:
    """Return whether standard error is a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()


def make_progress_bar() -> Progress:
    """Return a progress bar on standard error with one task, which is refreshed only when it is updated."""
    from rich.progress import (  # noqa: PLC0415 (slow to load)
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    return Progress(*columns, console=error_console(), auto_refresh=False)


def report_error(sentence: object) -> None:
    """Print an error in the form of click's own errors; with JSON logs, as a log line."""
    _report(f"Error: {sentence}", Failed(str(sentence)), logging.ERROR)


def report(event: LogEvent) -> None:
    """Print a sentence that is not a log line; with JSON logs, as one."""
    _report(str(event), event, logging.WARNING)


def _report(sentence: str, event: LogEvent, level: int) -> None:
    if _formats[-1:] == ["json"]:
        COMMAND_LOG.write(event, level)
    else:
        click.echo(escape_unprintable(sentence), err=True)


def start_logging(config: LogConfig) -> None:
    """Log to standard error from now on, in place of an earlier configuration."""
    level = logging.getLevelNamesMapping()[config.level.upper()]
    handler: logging.Handler
    if config.format == "json":
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(json_formatter())
    elif error_is_terminal():
        from rich.logging import RichHandler  # noqa: PLC0415 (slow to load)

        handler = RichHandler(console=error_console(), show_path=False, rich_tracebacks=False)
        handler.setFormatter(SentenceFormatter("%(name)s: %(message)s", "%H:%M:%S"))
    else:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(SentenceFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.addFilter(_LevelFilter(level, _is_silence_logged))
    handler.addFilter(_add_advice)
    root = logging.getLogger()
    for former in _handlers:
        root.removeHandler(former)
    _handlers[:] = [handler]
    _formats[:] = [config.format]
    # The filter must see that a tower is heard, which is logged at the level "info".
    logging.basicConfig(level=min(level, logging.INFO), handlers=_handlers)


def log_silent_towers() -> None:
    """Log that no tower is heard also before one was heard, for commands that do not end for want of a tower."""
    _is_silence_logged.set()


class _LevelFilter(logging.Filter):
    """Drops lines below a level, and the silence of towers never heard before, which ends most commands with an error.

    The event is set once this silence is logged, too.
    """

    def __init__(self, level: int, is_silence_logged: threading.Event) -> None:
        super().__init__()
        self._level = level
        self._is_silence_logged = is_silence_logged
        is_silence_logged.clear()

    def filter(self, record: logging.LogRecord) -> bool:
        event = record.args[0] if isinstance(record.args, tuple) and record.args else None
        if isinstance(event, TowersHeard):
            self._is_silence_logged.set()
        if isinstance(event, TowersSilent) and not self._is_silence_logged.is_set():
            return False
        return record.levelno >= self._level


def _add_advice(record: logging.LogRecord) -> bool:
    """Add to the line of an event what the operator can do about it."""
    event = record.args[0] if isinstance(record.args, tuple) and len(record.args) == 1 else None
    advice = advise(event)
    if advice:
        record.msg, record.args = "%s; %s", (event, advice)
    return True


def output_has_colour() -> bool:
    """Return whether standard output shows colours: a terminal, unless NO_COLOR is set."""
    return sys.stdout is not None and sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def print_json_lines(objects: Iterable[object]) -> None:
    """Print one JSON object per line."""
    for each in objects:
        click.echo(json.dumps(each))


def print_table(
    names: tuple[str, ...], numbers: tuple[str, ...], rows: Iterable[tuple[object, ...]], colours: Sequence[str] = ()
) -> None:
    """Print a table: fitted to the width of a terminal, otherwise one line per row.

    Columns of text come first, then columns of numbers, aligned to the right. On a terminal, a row can have a colour.
    """
    cells = [tuple(escape_unprintable(str(cell)) for cell in row) for row in rows]
    if sys.stdout is None or not sys.stdout.isatty():
        click.echo(_align([names + numbers, *cells], len(names)))
        return
    from rich.console import Console  # noqa: PLC0415 (slow to load)
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    output = Console()
    table = Table(box=None, pad_edge=False, expand=False)
    for name in names:
        table.add_column(name, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    mark = "T\n" if output.width < TIME_COLUMNS else "T"
    for row, colour in zip_longest(cells, colours):
        figures = (_TIME_MARK.sub(mark, cell) for cell in row[len(names) :])
        table.add_row(*map(Text, (*row[: len(names)], *figures)), style=colour)
    output.print(table)


def _align(rows: list[tuple[str, ...]], name_count: int) -> str:
    """Return one line per row, with aligned columns. rich would take seconds for tens of thousands of rows."""
    columns = []
    for index, column in enumerate(zip(*rows, strict=True)):
        width = max(map(len, column))
        columns.append([cell.ljust(width) if index < name_count else cell.rjust(width) for cell in column])
    return "\n".join("  ".join(row).rstrip() for row in zip(*columns, strict=True))


def join_numbers(numbers: Iterable[int], separator: str = ",") -> str:
    """Return numbers in a row, such as those of brokers."""
    return separator.join(map(str, numbers))
