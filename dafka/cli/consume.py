"""`dafka consume`: records to standard output, as lines."""

from __future__ import annotations

import math
import sys
from functools import partial

import click
import trio

from dafka.cli.lines import StreamError, format_batch, wait_reader_gone, write_bytes
from dafka.cli.options import DURATION, node_options, setting_option
from dafka.cli.runner import run, tower_required
from dafka.cli.supervision import Supervision
from dafka.config import Config
from dafka.records import RecordBatch
from dafka.roles import Consumer, open_consumer
from dafka.roles.log_events import Following

SAVE_S = 1.0
"""How often a consumer with a name saves its positions; killed, it prints what came since once more."""


@click.command()
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option("--from-beginning", is_flag=True, help="The same as --offset-reset earliest.")
@setting_option("consumer", "offset_reset", "", "Where to begin: at the next record, or at the earliest.")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="Stop after this many records.")
@click.option("--idle-exit", type=DURATION, metavar="DURATION", help="Stop when no record came for this long: 5s.")
@click.option(
    "--output",
    type=click.Choice(["content", "full", "json"]),
    default="content",
    show_default=True,
    help="The content as it is; or topic, partition, sequence and content; or a JSON object.",
)
@node_options
def consume(
    config: Config,
    topics: tuple[str, ...],
    from_beginning: bool,
    count: int | None,
    idle_exit: int | None,
    output: str,
) -> None:
    """Print the records of TOPICs, one a line.

    Each partition's records come in order, none twice and none left out.
    """
    if from_beginning:
        config = config.with_consumer(offset_reset="earliest")
    idle_exit_s = math.inf if idle_exit is None else idle_exit / 1000
    supervision = Supervision(config, "consumer")

    async def program() -> int:
        if sys.stdout is None:
            raise StreamError("cannot write the output: standard output is closed")
        fd = sys.stdout.fileno()
        async with supervision.open(), trio.open_nursery() as nursery:

            async def end_with_reader() -> None:
                await wait_reader_gone(fd)
                nursery.cancel_scope.cancel()

            nursery.start_soon(end_with_reader)
            async with open_consumer(topics, config) as consumer, tower_required(consumer.events, config, consumer):
                with supervision.monitor.watching(consumer):
                    await supervision.unless_stopping(consumer.wait_settled)
                    consumer.events.log.write(Following(topics))
                    printing = _Printing(consumer, fd, output, is_saving=bool(config.consumer.name))
                    await printing.run(supervision, math.inf if count is None else count, idle_exit_s)
            nursery.cancel_scope.cancel()
        return 0

    run(program, ending=supervision.ending(is_graceful=True))


class _Printing:
    """Writes records, and where the consumer has a name, saves how far it is: never beyond what has been written."""

    def __init__(self, consumer: Consumer, fd: int, output: str, *, is_saving: bool) -> None:
        self._consumer = consumer
        self._fd = fd
        self._output = output
        self._is_saving = is_saving
        self._save_due = trio.current_time() + SAVE_S

    async def run(self, supervision: Supervision, count: float, idle_exit_s: float) -> None:
        """Until there have been so many records, or none for long, or the command is told to end."""
        while count > 0:
            batch = await supervision.unless_stopping(partial(self._next, count, idle_exit_s))
            if batch is None:
                break
            await write_bytes(self._fd, format_batch(batch, self._output))
            count -= len(batch)
            if self._is_saving and trio.current_time() >= self._save_due:
                await self._save()
        if self._is_saving:
            await self._save()

    async def _next(self, count: float, idle_exit_s: float) -> RecordBatch | None:
        with trio.move_on_after(idle_exit_s):
            return await self._consumer.next_batch(None if count == math.inf else int(count))
        return None

    async def _save(self) -> None:
        await self._consumer.save_positions()
        self._save_due = trio.current_time() + SAVE_S
