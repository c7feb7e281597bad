"""`dafka storage trim`."""

from __future__ import annotations

import click

from dafka.cli.options import BYTES, DURATION
from dafka.cli.storage.common import Meter, json_option, print_summary, run_metered, topics_option, url_argument
from dafka.cli.terminal import UsageMistake, counted
from dafka.records import Partition
from dafka.storage import RetentionPolicy, open_storage
from dafka.storage.tools.partitions import select_partitions
from dafka.text import escape_unprintable


@click.command()
@url_argument
@click.option("--age", type=DURATION, metavar="DURATION", help="Drop records older than this, such as 15m, 12h or 7d.")
@click.option(
    "--bytes",
    "bytes_max",
    type=BYTES,
    metavar="SIZE",
    help="Keep at most this much content per partition, such as 512KiB or 1GB.",
)
@click.option(
    "--records",
    "records_max",
    type=click.IntRange(min=0),
    metavar="N",
    help="Keep at most this many records per partition.",
)
@topics_option
@json_option
def trim(
    url: str,
    age: int | None,
    bytes_max: int | None,
    records_max: int | None,
    topics: tuple[str, ...],
    as_json: bool,
) -> None:
    """Drop the oldest records that exceed any of the limits.

    At least one limit is required. A file log drops only whole segments and may keep more. The store must be stopped.
    """
    policy = RetentionPolicy(age_ms=age, bytes_max=bytes_max, records_max=records_max)
    if not policy:
        raise UsageMistake("expected a limit: --age, --bytes or --records")

    async def program(meter: Meter) -> int:
        async with open_storage(url, read_only=True):  # opening for writing would create a missing storage
            pass
        dropped: dict[Partition, int] = {}
        async with open_storage(url) as opened:
            before = await select_partitions(opened, topics)
            wanted: list[str | None] = [*sorted(set(topics))] or [None]
            for topic in wanted:
                for partition, earliest in (await opened.apply_retention(policy, topic)).items():
                    dropped[partition] = earliest - before[partition].earliest_sequence
                    meter(meter.done + dropped[partition], None)
        _print_dropped(dropped, as_json)
        return 0

    run_metered(program, "dropped")


def _print_dropped(dropped: dict[Partition, int], as_json: bool) -> None:
    records = sum(dropped.values())
    if not as_json:
        for partition, count in sorted(dropped.items()):
            click.echo(f"{escape_unprintable(str(partition))}: {counted(count, 'record')} dropped")
    values = {
        "records": records,
        "partitions": [
            {"topic": partition.topic, "partition": partition.address, "records": count}
            for partition, count in sorted(dropped.items())
        ],
    }
    sentence = f"{counted(records, 'record')} dropped from {counted(len(dropped), 'partition')}"
    print_summary(sentence, values, as_json)
