"""`dafka storage copy`, `export` and `import` of JSON Lines, and `move` and `objects` for storages with a cold tier."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import aclosing, contextmanager, nullcontext
from typing import TextIO

import click
from rich.filesize import decimal

from dafka.cli.lines import StreamError, read_lines, write_bytes
from dafka.cli.runner import run
from dafka.cli.storage.common import Meter, json_option, print_summary, run_metered, topics_option, url_argument
from dafka.cli.terminal import UsageMistake
from dafka.storage import HasColdTier, Storage, open_storage
from dafka.storage.tools.copy import CopySummary, copy_storage
from dafka.storage.tools.json_lines import export_lines, import_lines
from dafka.storage.tools.partitions import select_partitions
from dafka.text import counted, escape_unprintable


@click.command()
@click.argument("source")
@click.argument("target")
@topics_option
@json_option
def copy(source: str, target: str, topics: tuple[str, ...], as_json: bool) -> None:
    """Copy the storage SOURCE into the storage TARGET.

    Records keep all of their parts and their times, and consumers their positions. The copy gets an address of its own,
    because it is a different store. The store of SOURCE may be running. Run an interrupted copy again to continue it.
    Partitions of which TARGET holds more than SOURCE are not changed.
    """

    async def program(meter: Meter) -> int:
        async with open_storage(source, read_only=True) as opened, open_storage(target) as copied:
            with meter:
                summary = await copy_storage(opened, copied, topics=topics, progress=meter)
        _print_copied(summary, as_json)
        return 0

    run_metered(program, "copied; run the command again to continue")


def _print_copied(summary: CopySummary, as_json: bool) -> None:
    sentence = (
        f"{counted(summary.records, 'record')} of {decimal(summary.content_bytes)} copied "
        f"into {counted(summary.partitions, 'partition')}, {summary.present:,} already present"
    )
    values = {
        "partitions": summary.partitions,
        "records": summary.records,
        "bytes": summary.content_bytes,
        "present": summary.present,
        "position_names": summary.position_names,
        "ahead": [{"topic": partition.topic, "partition": partition.address} for partition in summary.ahead],
    }
    if not as_json:
        for partition in summary.ahead:
            click.echo(
                f"{escape_unprintable(str(partition))}: the target holds more than the source and was not changed"
            )
    print_summary(sentence, values, as_json)


@click.command()
@url_argument
@topics_option
@click.option(
    "--output",
    type=click.Path(dir_okay=False, writable=True),
    metavar="FILE",
    help="Write to this file.  [default: standard output]",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print a summary as one JSON object; on standard error without --output."
)
def export(url: str, topics: tuple[str, ...], output: str | None, as_json: bool) -> None:
    """Write records as JSON Lines.

    Each line is an object with topic, partition, sequence, stored_at and timestamp (milliseconds since 1970, UTC), key,
    headers and value, or key_base64 and value_base64 if they are not UTF-8. The value of a tombstone is null. Lines are
    sorted by topic, partition and sequence. The store may be running.
    """
    closed = "cannot write the output: standard output is closed; use --output"

    async def program(meter: Meter) -> int:
        size = 0
        async with open_storage(url, read_only=True) as opened:
            await select_partitions(opened, topics)  # raises before the output file is truncated
            # On a terminal, the bar would be mixed with the lines.
            with (
                _opened(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, sys.stdout, closed) as fd,
                nullcontext() if os.isatty(fd) else meter,
            ):
                async with aclosing(export_lines(opened, topics, progress=meter)) as chunks:
                    async for chunk in chunks:
                        await write_bytes(fd, chunk)
                        size += len(chunk)
        if output is not None or as_json:
            sentence = f"{counted(meter.done, 'record')} written as {decimal(size)}"
            print_summary(sentence, {"records": meter.done, "bytes": size}, as_json, err=output is None)
        return 0

    run_metered(program, "written")


@click.command("import")
@url_argument
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False))
@json_option
def import_(url: str, file: str | None, as_json: bool) -> None:
    """Append records from JSON Lines, as export writes them.

    Reads FILE, or standard input. Records without stored_at are stored with the current time. Records that the storage
    already holds are skipped. A line that is invalid or would leave a gap ends the command with status 2; the records
    before it are kept.
    """

    async def program(meter: Meter) -> int:
        closed = "cannot read the input: standard input is closed; give a FILE"
        with _opened(file, os.O_RDONLY, sys.stdin, closed) as fd, meter:
            async with open_storage(url) as opened, aclosing(read_lines(fd)) as lines:
                summary = await import_lines(opened, lines, progress=meter)
        sentence = (
            f"{counted(summary.records, 'record')} of {decimal(summary.content_bytes)} imported, "
            f"{summary.skipped:,} already present"
        )
        values = {"records": summary.records, "bytes": summary.content_bytes, "skipped": summary.skipped}
        print_summary(sentence, values, as_json)
        return 0

    run_metered(program, "done; run the command again to continue")


def _require_tier(opened: Storage, url: str) -> HasColdTier:
    if not isinstance(opened, HasColdTier):
        raise UsageMistake(f"{url} has no cold tier: expected tiered:{url}?cold=URL, or a storage that was opened so")
    return opened


@click.command()
@url_argument
@json_option
def move(url: str, as_json: bool) -> None:
    """Move to the cold tier what is due now.

    A store does this by itself, once a minute. The store must be stopped.
    """

    async def program(meter: Meter) -> int:
        async with open_storage(url, read_only=True) as opened:  # opening for writing would create a missing storage
            _require_tier(opened, url)
        async with open_storage(url) as opened:
            tier = _require_tier(opened, url)
            await tier.move_due()
            found = tier.tier_statistics()
            meter(found.moved_records, None)
        if found.move_error:
            click.echo(f"some records stay where they are: {found.move_error}", err=True)
        sentence = f"{counted(found.moved_records, 'record')} moved to {found.place}"
        print_summary(sentence, {"records": found.moved_records, "bytes": found.moved_bytes}, as_json)
        return 1 if found.move_error else 0

    run_metered(program, "moved")


@click.command()
@url_argument
@topics_option
@json_option
def objects(url: str, topics: tuple[str, ...], as_json: bool) -> None:
    """List the Parquet objects of the cold tier, for Spark, DuckDB, Polars and other tools.

    Each record of the cold tier is in one of them. The store may be running.
    """

    async def program() -> int:
        async with open_storage(url, read_only=True) as opened:
            tier = _require_tier(opened, url)
            await opened.partitions()
            found = [name for topic in (topics or (None,)) for name in tier.object_urls(topic)]
        click.echo(json.dumps(found) if as_json else "\n".join(found))
        return 0

    run(program)


@contextmanager
def _opened(path: str | None, flags: int, standard_stream: TextIO | None, closed: str) -> Iterator[int]:
    """Open a file, or without one use a standard stream; `closed` is the error if there is none."""
    if path is None:
        if standard_stream is None:
            raise StreamError(closed)
        yield standard_stream.fileno()
        return
    try:
        fd = os.open(path, flags, 0o666)
    except OSError as error:
        verb = "write" if flags & os.O_WRONLY else "read"
        raise UsageMistake(f"cannot {verb} {path}: {error.strerror}") from None
    try:
        yield fd
    finally:
        os.close(fd)
