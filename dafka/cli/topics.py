"""`dafka topics`: the topics and partitions that a store on disk holds."""

from __future__ import annotations

import json

import click
from rich.filesize import decimal

from dafka.cli.runner import run
from dafka.cli.terminal import print_table
from dafka.records import Partition
from dafka.storage import PartitionInfo, open_storage


@click.command()
@click.option("--storage", required=True, metavar="URL", help="The store, such as sqlite:dafka.db.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per partition.")
def topics(storage: str, as_json: bool) -> None:
    """List a store's topics and partitions, with their heads and sizes.

    The store may be running. `dafka status` shows the topics of a whole cluster.
    """

    async def program() -> int:
        async with open_storage(storage, read_only=True) as opened:
            partitions = sorted((await opened.partitions()).items())
        if as_json:
            for partition, info in partitions:
                click.echo(json.dumps(_to_json(partition, info)))
        else:
            names, numbers = ("topic", "partition"), ("earliest", "head", "records", "size")
            print_table(names, numbers, [_to_row(partition, info) for partition, info in partitions])
        return 0

    run(program)


def _to_json(partition: Partition, info: PartitionInfo) -> dict[str, str | int]:
    return {
        "topic": partition.topic,
        "partition": partition.address,
        "earliest": info.earliest_sequence,
        "head": info.end_sequence - 1,
        "records": info.count,
        "bytes": info.content_bytes,
    }


def _to_row(partition: Partition, info: PartitionInfo) -> tuple[str, ...]:
    counts = (info.earliest_sequence, info.end_sequence - 1, info.count)
    return (partition.topic, partition.address, *map(str, counts), decimal(info.content_bytes))
