"""`dafka storage trim`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from dafka.cli.options import BYTES, DURATION
from dafka.cli.storage.common import Meter, json_option, print_summary, run_metered, topics_option, url_argument
from dafka.cli.terminal import UsageMistake, confirm, counted, yes_option
from dafka.internal_topics import check_no_system_topic, is_system_topic
from dafka.records import Partition
from dafka.storage import PartitionInfo, RetentionPolicy, Storage, open_storage
from dafka.storage.plugin_helpers import now_ms
from dafka.storage.tools.partitions import find_retained_sequence, select_partitions
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
@click.option("--dry-run", is_flag=True, help="Only print what would be dropped.")
@yes_option
@json_option
def trim(
    url: str,
    age: int | None,
    bytes_max: int | None,
    records_max: int | None,
    topics: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Drop the oldest records that exceed any of the limits.

    At least one limit is required. A file log drops only whole segments and may keep more than --dry-run says. System
    topics, in which brokers keep what they need, are not trimmed. The store must be stopped.
    """
    policy = RetentionPolicy(age_ms=age, bytes_max=bytes_max, records_max=records_max)
    if not policy:
        raise UsageMistake("expected a limit: --age, --bytes or --records")

    async def program(meter: Meter) -> int:
        async with open_storage(url, read_only=True) as opened:  # opening for writing would create a missing storage
            planned = await _plan(opened, policy, await _select(opened, topics))
        if dry_run:
            _print_dropped(planned, as_json, is_dry_run=True)
            return 0
        what = f"{counted(sum(planned.values()), 'record')} of {counted(len(planned), 'partition')}"
        confirm(f"Drop up to {what} from {url}?", yes=yes, declined="nothing was dropped")
        dropped: dict[Partition, int] = {}
        async with open_storage(url) as opened:
            before = await _select(opened, topics)
            for topic in sorted({partition.topic for partition in before}):
                for partition, earliest in (await opened.apply_retention(policy, topic)).items():
                    dropped[partition] = earliest - before[partition].earliest_sequence
                    meter(meter.done + dropped[partition], None)
        _print_dropped(dropped, as_json, is_dry_run=False)
        return 0

    run_metered(program, "dropped")


async def _select(storage: Storage, topics: Sequence[str]) -> dict[Partition, PartitionInfo]:
    """Return the partitions of topics, or of all that users may trim. Raises `ConfigError` for a system topic."""
    for topic in topics:
        check_no_system_topic(topic)
    found = await select_partitions(storage, topics)
    return {partition: info for partition, info in found.items() if not is_system_topic(partition.topic)}


async def _plan(
    storage: Storage, policy: RetentionPolicy, selected: Mapping[Partition, PartitionInfo]
) -> dict[Partition, int]:
    """Return how many records each partition would lose at most."""
    time_ms, planned = now_ms(), dict[Partition, int]()
    for partition, info in selected.items():
        first = await find_retained_sequence(storage, partition, info, policy, time_ms)
        if first > info.earliest_sequence:
            planned[partition] = first - info.earliest_sequence
    return planned


def _print_dropped(dropped: Mapping[Partition, int], as_json: bool, *, is_dry_run: bool) -> None:
    records = sum(dropped.values())
    verb = "would be dropped" if is_dry_run else "dropped"
    if not as_json:
        for partition, count in sorted(dropped.items()):
            click.echo(f"{escape_unprintable(str(partition))}: {counted(count, 'record')} {verb}")
    values = {
        "records": records,
        "dry_run": is_dry_run,
        "partitions": [
            {"topic": partition.topic, "partition": partition.address, "records": count}
            for partition, count in sorted(dropped.items())
        ],
    }
    sentence = f"{counted(records, 'record')} {verb} from {counted(len(dropped), 'partition')}"
    print_summary(sentence, values, as_json)
