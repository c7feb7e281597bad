"""`dafka produce`: publishes messages, or the lines of a file or of standard input, as records."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import click
import trio

from dafka.cli.lines import read_lines
from dafka.cli.options import node_options, parsed_type, setting_option
from dafka.cli.record_lines import LineFormat, parse_header, parse_separator, parse_timestamp
from dafka.cli.runner import Supervisor, require_tower, run
from dafka.cli.terminal import UsageMistake, error_is_terminal, make_progress_bar, report
from dafka.config import Config
from dafka.errors import DiscoveryError, LocalError, StorageError, StorageSequenceError, UnacknowledgedError
from dafka.records import Header, ProducerRecord
from dafka.roles import Producer, open_producer
from dafka.roles.logging_events import Interrupted


class InputLeftError(LocalError):
    """The rest of the input was not published: no store acknowledged the part before it, or the spool failed."""


@click.command()
@click.argument("topic")
@click.argument("messages", nargs=-1, metavar="[MESSAGE]...")
@click.option("--file", "path", type=click.Path(), metavar="PATH", help="The file to read.  [default: standard input]")
@click.option(
    "--key-separator",
    metavar="TEXT",
    type=parsed_type(parse_separator),
    help=r"The key comes before the first TEXT of each line, the value after it. A line without TEXT is a value "
    r"without a key. \t, \r, \\ and \xNN stand for one byte.",
)
@click.option(
    "--header",
    "headers",
    metavar="NAME=VALUE",
    type=parsed_type(parse_header),
    multiple=True,
    help="A header of each record; NAME alone has a null value. Repeat it for several headers, whose order is kept.",
)
@click.option(
    "--timestamp",
    metavar="TIME",
    type=parsed_type(parse_timestamp),
    help="When the records were made: milliseconds since 1970, or a time in ISO 8601 (UTC if it names no offset).  "
    "[default: when each is published]",
)
@click.option(
    "--null-as", metavar="TEXT", help="A value that is TEXT is null, a tombstone; a key that is TEXT is none."
)
@setting_option("producer", "min_stores", "How many stores must acknowledge each record.")
@setting_option(
    "producer",
    "spool",
    "Keep records that are not acknowledged here, and continue the same partition with each run. A file, or a storage "
    "URL.",
    "PATH",
    default="none",
)
@setting_option("producer", "compression", "Compress batches of records: none, gzip, snappy, lz4 or zstd.")
@setting_option("producer", "close_timeout_ms", "Give up when no ACK came for this long, such as 30s.")
@node_options
def produce(
    config: Config,
    topic: str,
    messages: tuple[str, ...],
    path: str | None,
    key_separator: bytes | None,
    headers: tuple[Header, ...],
    timestamp: int | None,
    null_as: str | None,
) -> None:
    """Publish each line, or each MESSAGE, as a record of TOPIC.

    Exits with 0 when the required number of stores has acknowledged every record. Otherwise prints how many records are
    not acknowledged, and exits with 1. With --spool, the next run publishes those again first.
    """
    spool = config.producer.spool
    if spool and ":" not in spool:  # a path, not a URL
        config = config.with_producer(spool=f"sqlite:{spool}")
    line_format = LineFormat(key_separator, headers, timestamp, None if null_as is None else os.fsencode(null_as))
    if messages and path is not None:
        raise UsageMistake("--file: expected this or messages, not both")
    fd = None if messages else _open_input(path)
    opened: list[Producer] = []
    supervisor = Supervisor(config, "producer")
    is_read = False

    async def program() -> int:
        nonlocal is_read
        async with supervisor.open(), open_producer(topic, config) as producer:
            opened.append(producer)
            with supervisor.monitor.watching(producer):
                lines = _give_lines(messages) if fd is None else read_lines(fd)
                async with _show_progress(producer, fd):
                    is_read = await _publish(producer, lines, line_format, config, supervisor)
        return interrupted() if supervisor.is_stopping else 0

    def interrupted() -> int:
        for producer in opened:
            counts = producer.statistics()
            report(Interrupted(counts.records, counts.unacknowledged))
        is_all_stored = not any(producer.statistics().unacknowledged for producer in opened)
        # The rest of a file was not published. A pipe or a terminal has no such rest.
        is_left = not is_read and (fd is None or stat.S_ISREG(os.fstat(fd).st_mode))
        return 0 if is_all_stored and not is_left else 1

    run(program, interrupted=interrupted, shutdown=supervisor.shutdown(is_graceful=True))


def _open_input(path: str | None) -> int:
    if path is None:
        if sys.stdin is None:
            raise UsageMistake("cannot read the input: standard input is closed")
        return sys.stdin.fileno()
    try:
        if Path(path).is_dir():
            raise UsageMistake(f"cannot read {path}: it is a folder")
        return os.open(path, os.O_RDONLY)
    except (OSError, ValueError) as error:
        raise UsageMistake(f"cannot read {path}: {getattr(error, 'strerror', error)}") from None


async def _give_lines(messages: tuple[str, ...]) -> AsyncGenerator[list[bytes], None]:
    yield [os.fsencode(message) for message in messages]


async def _publish(
    producer: Producer,
    lines_read: AsyncGenerator[list[bytes], None],
    line_format: LineFormat,
    config: Config,
    supervisor: Supervisor,
) -> bool:
    """Publish the input until it ends or a signal stops the command, wait for ACKs, and return whether all was read."""
    is_all_sent = is_read = False
    try:
        async with require_tower(producer, config):
            async with aclosing(lines_read) as batches:
                while lines := await supervisor.wait_unless_stopping(partial(anext, batches, None)):
                    await _send(producer, line_format.to_records(lines), config)
            is_all_sent, is_read = True, not supervisor.is_stopping
            await producer.wait_acknowledged()
    except DiscoveryError as error:
        if producer.statistics().unacknowledged:
            raise DiscoveryError(f"{_outstanding(producer, config)}: {error}") from None
        raise
    except StorageSequenceError:
        raise
    except StorageError as error:
        with suppress(UnacknowledgedError):
            await producer.wait_acknowledged()
        outstanding = producer.statistics().unacknowledged
        raise InputLeftError(
            f"the spool failed: {error}; {outstanding:,} published records are not acknowledged, and the rest of the "
            "input was not published"
        ) from None
    except UnacknowledgedError as error:
        if not is_all_sent:
            raise InputLeftError(f"{error}, and the rest of the input was not published") from None
        raise
    return is_read


async def _send(producer: Producer, records: Sequence[bytes | None] | Sequence[ProducerRecord], config: Config) -> None:
    """Publish records; raise `UnacknowledgedError` if for `close_timeout_ms` no ACK makes room for more of them."""
    while records:
        published = producer.statistics().records
        with trio.move_on_after(config.producer.close_timeout_ms / 1000) as scope:
            await producer.send_many(records)
        if not scope.cancelled_caught:
            return
        records = records[producer.statistics().records - published :]
        if producer.statistics().records == published:
            raise _outstanding(producer, config)


def _outstanding(producer: Producer, config: Config) -> UnacknowledgedError:
    counts = producer.statistics()
    first_sequence = counts.next_sequence - counts.unacknowledged
    return UnacknowledgedError(counts.unacknowledged, first_sequence, config.producer.min_stores)


@asynccontextmanager
async def _show_progress(producer: Producer, fd: int | None) -> AsyncIterator[None]:
    """Show on a terminal how much of the input is read, and how many records are published and stored.

    A bar would overwrite the lines that are typed at a terminal.
    """
    if fd is None or not error_is_terminal() or os.isatty(fd):
        yield
        return
    status = os.fstat(fd)
    total = status.st_size if stat.S_ISREG(status.st_mode) else None
    with make_progress_bar() as progress:
        task = progress.add_task("", total=total)

        def show() -> None:
            counts = producer.statistics()
            description = f"{counts.records:,} published, {counts.records - counts.unacknowledged:,} stored"
            done = 0 if total is None else os.lseek(fd, 0, os.SEEK_CUR)
            progress.update(task, completed=done, description=description, refresh=True)

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
