"""`dafka produce`: the lines of a file or of standard input, as records."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import click
import trio
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from dafka.cli.lines import read_lines
from dafka.cli.options import node_options, usage_errors
from dafka.cli.runner import run, tower_required
from dafka.config import Config
from dafka.errors import UnacknowledgedError
from dafka.roles import Producer, open_producer


@click.command()
@click.argument("topic")
@click.option("--file", "path", metavar="PATH", help="Read lines from here.  [default: standard input]")
@click.option("--min-stores", type=click.IntRange(min=0), help="Stores that must ACK each record.  [default: 1]")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="How long to wait for outstanding ACKs.  [default: 30]",
)
@node_options
def produce(config: Config, topic: str, path: str | None, min_stores: int | None, timeout: float | None) -> None:
    """Publish each line as a record of TOPIC.

    Exits with 0 once every record is acknowledged by the stores asked for; otherwise says how many are not, and
    exits with 1.
    """
    with usage_errors():
        timeout_ms = None if timeout is None else round(timeout * 1000)
        config = config.override("producer", min_stores=min_stores, close_timeout_ms=timeout_ms)
    try:
        fd = sys.stdin.fileno() if path is None else os.open(path, os.O_RDONLY)
    except OSError as error:
        raise click.UsageError(f"cannot read {path}: {error.strerror}") from None
    run(lambda: _produce(topic, config, fd), interrupted_status=1)


async def _produce(topic: str, config: Config, fd: int) -> int:
    try:
        async with open_producer(topic, config) as producer:
            try:
                async with tower_required(producer.events, config), _show_progress(producer, fd):
                    async for lines in read_lines(fd):
                        await _send(producer, lines, config)
                    await producer.finish()
            except trio.Cancelled:
                _report_interruption(producer)
                raise
    except UnacknowledgedError as error:
        click.echo(f"Error: {error}", err=True)
        return 1
    return 0


async def _send(producer: Producer, lines: list[bytes], config: Config) -> None:
    """Raises `UnacknowledgedError` where no ACK makes room for the timeout."""
    with trio.move_on_after(config.producer.close_timeout_ms / 1000) as scope:
        await producer.send_many(lines)
    if scope.cancelled_caught:
        await producer.finish()


def _report_interruption(producer: Producer) -> None:
    statistics = producer.statistics()
    click.echo(
        f"interrupted: {statistics.records} records published, {statistics.unacknowledged} of them not acknowledged",
        err=True,
    )


@asynccontextmanager
async def _show_progress(producer: Producer, fd: int) -> AsyncIterator[None]:
    """On a terminal: how far into the input, and what is stored."""
    if not sys.stderr.isatty():
        yield
        return
    status = os.fstat(fd)
    total = status.st_size if stat.S_ISREG(status.st_mode) else None
    columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False) as progress:
        task = progress.add_task("", total=total)

        def show() -> None:
            counts = producer.statistics()
            description = f"{counts.records:,} published, {counts.records - counts.unacknowledged:,} stored"
            # A line's end is not part of its record.
            progress.update(task, completed=counts.bytes + counts.records, description=description, refresh=True)

        async def keep_showing() -> None:
            while True:
                show()
                await trio.sleep(0.1)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_showing)
            try:
                yield
            finally:
                nursery.cancel_scope.cancel()
        show()
