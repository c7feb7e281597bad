"""`dafka storage delete`."""

from __future__ import annotations

import click

from dafka.cli.storage.common import Meter, json_option, print_summary, run_metered, url_argument
from dafka.cli.terminal import UsageMistake, confirm, counted, yes_option
from dafka.errors import StorageError
from dafka.internal_topics import check_no_system_topic
from dafka.records import Partition
from dafka.storage import DeletesPartitions, PartitionInfo, Storage, open_storage
from dafka.storage.tools.partitions import select_partitions
from dafka.text import escape_unprintable


@click.command()
@url_argument
@click.argument("topic")
@click.argument("partition", required=False)
@click.option("--dry-run", is_flag=True, help="Only print what would be deleted.")
@yes_option
@json_option
def delete(url: str, topic: str, partition: str | None, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Delete a topic, or one partition of it, with all records.

    The store must be stopped. A store that runs beside others fetches again the records that they hold, and a running
    producer or one with a spool sends its records again. To delete a topic from a cluster, stop its producers and all
    stores, delete it from each storage, and then start the stores.
    """

    async def program(meter: Meter) -> int:
        check_no_system_topic(topic)
        async with open_storage(url, read_only=True) as opened:  # opening for writing would create a missing storage
            await _select(opened, topic, partition)
        async with open_storage(url) as opened:
            if not isinstance(opened, DeletesPartitions):
                raise UsageMistake(f"{url}: this storage cannot delete partitions")
            selected = await _select(opened, topic, partition)
            if not dry_run:
                _confirm(url, topic, selected, yes=yes)
                for each, info in selected.items():
                    await opened.delete_partitions([each])
                    meter(meter.done + info.count, None)
        _print_deleted(selected, as_json, is_dry_run=dry_run)
        return 0

    run_metered(program, "deleted")


async def _select(storage: Storage, topic: str, address: str | None) -> dict[Partition, PartitionInfo]:
    found = await select_partitions(storage, [topic])
    if address is None:
        return found
    wanted = Partition(topic, address)
    if wanted not in found:
        raise StorageError(f"topic {topic!r} has no partition {address!r}")
    return {wanted: found[wanted]}


def _confirm(url: str, topic: str, selected: dict[Partition, PartitionInfo], *, yes: bool) -> None:
    records = sum(info.count for info in selected.values())
    what = f"{counted(len(selected), 'partition')} of {escape_unprintable(topic)} with {counted(records, 'record')}"
    confirm(f"Delete {what} from {url}?", yes=yes, declined="nothing was deleted")


def _print_deleted(selected: dict[Partition, PartitionInfo], as_json: bool, *, is_dry_run: bool) -> None:
    records = sum(info.count for info in selected.values())
    verb = "would be deleted" if is_dry_run else "deleted"
    if not as_json:
        for partition, info in selected.items():
            click.echo(f"{escape_unprintable(str(partition))}: {counted(info.count, 'record')} {verb}")
    values = {
        "records": records,
        "dry_run": is_dry_run,
        "partitions": [
            {"topic": partition.topic, "partition": partition.address, "records": info.count}
            for partition, info in selected.items()
        ],
    }
    sentence = f"{counted(records, 'record')} of {counted(len(selected), 'partition')} {verb}"
    print_summary(sentence, values, as_json)
