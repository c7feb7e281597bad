"""Options, tables, progress and exit status of the storage commands."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

import click

from dafka.cli.runner import run
from dafka.cli.terminal import error_is_terminal, make_progress_bar, report_error
from dafka.errors import StorageCorruptError
from dafka.exceptions import unwrap_group
from dafka.storage.tools.copy import RecordsDifferError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

REFRESH_S = 0.1
"""How often the progress bar is updated."""

url_argument = click.argument("url")
topics_option = click.option(
    "--topic", "topics", multiple=True, metavar="TOPIC", help="Only this topic; repeat it for several.  [default: all]"
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


class Meter:
    """Counts records. Within its block it shows a bar and a rate, if standard error is a terminal."""

    def __init__(self) -> None:
        self.done = 0
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._started_at = self._shown_at = 0.0

    def __call__(self, done: int, total: int | None) -> None:
        """Update the count; a `ProgressCallback`."""
        self.done = done
        now = time.perf_counter()
        if self._bar is not None and self._task is not None and (now - self._shown_at >= REFRESH_S or done == total):
            self._shown_at = now
            rate = done / max(now - self._started_at, REFRESH_S)
            text = f"{done:,} records, {rate:,.0f}/s"
            self._bar.update(self._task, completed=done, total=total, description=text, refresh=True)

    def __enter__(self) -> Meter:
        self._started_at = time.perf_counter()
        if error_is_terminal():
            self._bar = make_progress_bar()
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
    """Run a program as `run` does, and exit with status 1 if records are damaged or differ.

    `done` is the participle that describes the records counted before an interrupt, such as `copied`.
    """
    meter = Meter()

    async def until_damage() -> int:
        try:
            with unwrap_group():
                return await program(meter)
        except (StorageCorruptError, RecordsDifferError) as error:
            report_error(error)
            return 1

    def interrupted() -> None:
        click.echo(f"interrupted: {meter.done:,} records {done}", err=True)

    run(until_damage, interrupted=interrupted)


def print_summary(sentence: str, values: dict[str, Any], as_json: bool, *, err: bool = False) -> None:
    """Print a summary, as a sentence or as JSON."""
    click.echo(json.dumps(values) if as_json else sentence, err=err)
