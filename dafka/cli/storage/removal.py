"""`dafka storage trim` and `dafka storage delete`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from dafka.broker.stored_state import read_state
from dafka.cli.options import BYTES, DURATION
from dafka.cli.storage.common import Meter, json_option, print_summary, run_metered, topics_option, url_argument
from dafka.cli.terminal import UsageMistake, confirm, yes_option
from dafka.errors import StorageError
from dafka.internal_topics import check_no_system_topic, is_system_topic
from dafka.records import Partition
from dafka.storage import DeletesPartitions, PartitionInfo, RetentionPolicy, Storage, open_storage
from dafka.storage.plugin_helpers import now_ms
from dafka.storage.tools.partitions import find_retained_sequence, select_partitions
from dafka.text import counted, escape_unprintable


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
    sentence = "{records} {verb} from {partitions}"

    async def program(meter: Meter) -> int:
        async with open_storage(url, read_only=True) as opened:  # opening for writing would create a missing storage
            planned = await _plan(opened, policy, await _select_user_topics(opened, topics))
        if dry_run:
            _print_removed(planned, sentence, "would be dropped", as_json, is_dry_run=True)
            return 0
        what = f"{counted(sum(planned.values()), 'record')} of {counted(len(planned), 'partition')}"
        confirm(f"Drop up to {what} from {url}?", yes=yes, declined="nothing was dropped")
        dropped: dict[Partition, int] = {}
        async with open_storage(url) as opened:
            before = await _select_user_topics(opened, topics)
            for topic in sorted({partition.topic for partition in before}):
                for partition, earliest in (await opened.apply_retention(policy, topic)).items():
                    dropped[partition] = earliest - before[partition].earliest_sequence
                    meter(meter.done + dropped[partition], None)
        _print_removed(dropped, sentence, "dropped", as_json, is_dry_run=False)
        return 0

    run_metered(program, "dropped")


async def _select_user_topics(storage: Storage, topics: Sequence[str]) -> dict[Partition, PartitionInfo]:
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


@click.command()
@url_argument
@click.argument("topic", required=False)
@click.argument("partition", required=False)
@click.option("--orphans", is_flag=True, help="Delete the partitions of a broker that belong to no topic.")
@click.option("--dry-run", is_flag=True, help="Only print what would be deleted.")
@yes_option
@json_option
def delete(
    url: str, topic: str | None, partition: str | None, orphans: bool, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Delete a topic, or one partition of it, with all records.

    The store must be stopped. A store that runs beside others fetches again the records that they hold, and a running
    producer or one with a spool sends its records again. To delete a topic from a cluster, stop its producers and all
    stores, delete it from each storage, and then start the stores.
    """
    if orphans is (topic is not None):
        raise UsageMistake("expected either a TOPIC or --orphans")
    what = "orphans" if topic is None else escape_unprintable(topic)

    async def program(meter: Meter) -> int:
        if topic is not None:
            check_no_system_topic(topic)
        async with open_storage(url, read_only=True) as opened:  # opening for writing would create a missing storage
            await _count_records(opened, topic, partition)
        async with open_storage(url) as opened:
            if not isinstance(opened, DeletesPartitions):
                raise UsageMistake(f"{url}: this storage cannot delete partitions")
            counts = await _count_records(opened, topic, partition)
            if not dry_run and counts:
                _confirm_deletion(url, what, counts, yes=yes)
                for each, count in counts.items():
                    await opened.delete_partitions([each])
                    meter(meter.done + count, None)
        verb = "would be deleted" if dry_run else "deleted"
        _print_removed(counts, "{records} of {partitions} {verb}", verb, as_json, is_dry_run=dry_run)
        return 0

    run_metered(program, "deleted")


async def _count_records(storage: Storage, topic: str | None, address: str | None) -> dict[Partition, int]:
    """Return the number of records in each partition of a topic, or in the one with an address; None for orphans."""
    if topic is None:
        state = await read_state(storage)
        partitions = (await storage.partitions()).items()
        return {} if state is None else {each: info.count for each, info in partitions if state.is_orphan(each)}
    found = await select_partitions(storage, [topic])
    if address is not None and Partition(topic, address) not in found:
        raise StorageError(f"topic {topic!r} has no partition {address!r}")
    return {each: info.count for each, info in found.items() if address in {None, each.address}}


def _confirm_deletion(url: str, whose: str, counts: Mapping[Partition, int], *, yes: bool) -> None:
    records = counted(sum(counts.values()), "record")
    what = f"{counted(len(counts), 'partition')} of {whose} with {records}"
    confirm(f"Delete {what} from {url}?", yes=yes, declined="nothing was deleted")


def _print_removed(
    removed: Mapping[Partition, int], sentence: str, verb: str, as_json: bool, *, is_dry_run: bool
) -> None:
    """Print how many records each partition loses, and a sentence about all of them."""
    records = sum(removed.values())
    if not as_json:
        for partition, count in sorted(removed.items()):
            click.echo(f"{escape_unprintable(str(partition))}: {counted(count, 'record')} {verb}")
    values = {
        "records": records,
        "dry_run": is_dry_run,
        "partitions": [
            {"topic": partition.topic, "partition": partition.address, "records": count}
            for partition, count in sorted(removed.items())
        ],
    }
    shown = {"records": counted(records, "record"), "partitions": counted(len(removed), "partition"), "verb": verb}
    print_summary(sentence.format(**shown), values, as_json)
