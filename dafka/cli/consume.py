"""`dafka consume`: prints records to standard output, one per line."""

from __future__ import annotations

import math
import sys
from functools import partial
from typing import Any

import click
import trio

from dafka.cli.lines import StreamError, wait_reader_gone, write_bytes
from dafka.cli.options import DURATION, node_options, setting_option
from dafka.cli.record_lines import NULL, Formatter, make_formatter, parse_template
from dafka.cli.runner import Supervisor, require_tower, run
from dafka.cli.selection import SelectedRecords, Selection, selection_options
from dafka.cli.terminal import UsageMistake
from dafka.config import Config
from dafka.records import RecordBatch
from dafka.roles import Consumer, open_consumer
from dafka.roles.logging_events import Following

SAVE_S = 1.0
"""Seconds until what was written is saved, if the consumer has a name or a group. After a kill, it is printed again."""

FORMAT_BYTES = 2**22
"""The size of the records that are formatted at a time."""


@click.command()
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@selection_options
@setting_option(
    "consumer",
    "group",
    "Share the partitions with the other members of this group, and save positions in the cluster.",
    "NAME",
    default="none",
)
@setting_option("consumer", "offset_reset", "Begin at the next record, or at the earliest one.")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="Stop after this many records.")
@click.option(
    "--idle-exit", type=DURATION, metavar="DURATION", help="Stop when no record has come for this long, such as 5s."
)
@click.option(
    "--output",
    type=click.Choice(["value", "full", "json"]),
    help="Print the value alone; after topic, partition, sequence, timestamp, key and headers; or all as a JSON "
    "object.  [default: value]",
)
@click.option(
    "--format",
    "template",
    metavar="TEMPLATE",
    help=r"Print TEMPLATE for each record, as kcat does: %t topic, %p partition, %o sequence, %k key, %s value, "
    r"%h headers, %T timestamp in milliseconds, %K and %S lengths of key and value (-1: none), %%, \n, \t, \xNN.",
)
@click.option("--null-as", metavar="TEXT", help=f"Print TEXT for a value, or a key, that is null.  [default: {NULL}]")
@node_options
def consume(
    config: Config,
    topics: tuple[str, ...],
    count: int | None,
    idle_exit: int | None,
    output: str | None,
    template: str | None,
    null_as: str | None,
    **selected: Any,
) -> None:
    """Print the records of TOPICs, one per line.

    The records of each partition are printed in order, without gaps and without duplicates. The members of a group may
    print records again that were not saved when a partition went from one to another.
    """
    formatter = _choose_formatter(output, template, null_as)
    selection = Selection(**selected)
    config = selection.apply_to(config)
    supervisor = Supervisor(config, "consumer")

    async def program() -> int:
        if sys.stdout is None:
            raise StreamError("cannot write the output: standard output is closed")
        fd = sys.stdout.fileno()
        async with supervisor.open(), trio.open_nursery() as nursery:

            async def stop_without_reader() -> None:
                await wait_reader_gone(fd)
                nursery.cancel_scope.cancel()

            nursery.start_soon(stop_without_reader)
            async with open_consumer(topics, config) as consumer, require_tower(consumer, config):
                with supervisor.monitor.watching(consumer):
                    await supervisor.wait_unless_stopping(consumer.wait_settled)
                    records = await supervisor.wait_unless_stopping(partial(selection.begin, consumer))
                    consumer.events.log.write(Following(topics))
                    if records is not None:
                        printer = _Printer(
                            consumer, records, fd, formatter, is_saving=bool(config.consumer.name or consumer.group)
                        )
                        await printer.print_records(
                            supervisor,
                            math.inf if count is None else count,
                            math.inf if idle_exit is None else idle_exit / 1000,
                        )
            nursery.cancel_scope.cancel()
        return 0

    run(program, shutdown=supervisor.shutdown(is_graceful=True))


def _choose_formatter(output: str | None, template: str | None, null_as: str | None) -> Formatter:
    if template is not None:
        if output is not None:
            raise UsageMistake("--format: expected this or --output, not both")
        try:
            return parse_template(template, NULL if null_as is None else null_as)
        except ValueError as error:
            raise UsageMistake(f"--format: {error}") from None
    if output == "json" and null_as is not None:
        raise UsageMistake("--null-as: expected none with --output json, which has a null of its own")
    return make_formatter(output or "value", NULL if null_as is None else null_as)


class _Printer:
    """Writes records to a file descriptor. A consumer with a name or a group saves how far it has written."""

    def __init__(
        self, consumer: Consumer, records: SelectedRecords, fd: int, formatter: Formatter, *, is_saving: bool
    ) -> None:
        self._consumer = consumer
        self._records = records
        self._fd = fd
        self._formatter = formatter
        self._is_saving = is_saving
        self._save_due = math.inf

    async def print_records(self, supervisor: Supervisor, count: float, idle_exit_s: float) -> None:
        """Write `count` records; fewer if they end, none comes for `idle_exit_s`, or a signal stops it."""
        while count > 0:
            batch = await supervisor.wait_unless_stopping(partial(self._next_batch, count, idle_exit_s))
            if batch is None:
                break
            count -= len(batch)
            for part in batch.parts(FORMAT_BYTES):
                await write_bytes(self._fd, self._formatter(part))
                del part
            del batch  # it would be kept until the next one is there
            if self._is_saving:
                self._save_due = min(self._save_due, trio.current_time() + SAVE_S)
                await self._save_if_due()
        if self._is_saving:
            await self._save()

    async def _next_batch(self, count: float, idle_exit_s: float) -> RecordBatch | None:
        idle_due = trio.current_time() + idle_exit_s
        while trio.current_time() < idle_due:
            with trio.move_on_at(min(idle_due, self._save_due)):
                return await self._records.next_batch(None if count == math.inf else int(count))
            await self._save_if_due()
        return None

    async def _save_if_due(self) -> None:
        if trio.current_time() >= self._save_due:
            await self._save()

    async def _save(self) -> None:
        self._save_due = math.inf
        await self._consumer.save_positions()
