"""`dafka consume`: records to standard output, as lines."""

from __future__ import annotations

import math
import sys

import click
import trio

from dafka.cli.lines import StreamError, format_batch, wait_reader_gone, write_bytes
from dafka.cli.options import node_options, seconds, usage_mistakes
from dafka.cli.runner import run, tower_required
from dafka.config import Config
from dafka.protocol import Following
from dafka.roles import Consumer, open_consumer


@click.command()
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option("--from-beginning", is_flag=True, help="Begin with the earliest record, not the next one.")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="Stop after this many records.")
@click.option("--idle-exit", type=seconds, metavar="SECONDS", help="Stop when none came for this long.")
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
    idle_exit: float | None,
    output: str,
) -> None:
    """Print the records of TOPICs, one a line.

    Each partition's records come in order, none twice and none left out.
    """
    with usage_mistakes():
        config = config.override("consumer", offset_reset="earliest" if from_beginning else None)

    async def program() -> int:
        if sys.stdout is None:
            raise StreamError("cannot write the output: standard output is closed")
        fd = sys.stdout.fileno()
        async with trio.open_nursery() as nursery:

            async def end_with_reader() -> None:
                await wait_reader_gone(fd)
                nursery.cancel_scope.cancel()

            nursery.start_soon(end_with_reader)
            async with open_consumer(topics, config) as consumer, tower_required(consumer.events, config, consumer):
                await consumer.wait_settled()
                consumer.events.log.write(Following(topics))
                await _print(consumer, fd, count, idle_exit, output)
            nursery.cancel_scope.cancel()
        return 0

    run(program)


async def _print(consumer: Consumer, fd: int, count: int | None, idle_exit: float | None, output: str) -> None:
    while count is None or count > 0:
        with trio.move_on_after(math.inf if idle_exit is None else idle_exit) as scope:
            batch = await consumer.next_batch()
        if scope.cancelled_caught:
            return
        if count is not None:
            batch = batch.between(batch.first_sequence, batch.first_sequence + count)
            count -= len(batch)
        await write_bytes(fd, format_batch(batch, output))
