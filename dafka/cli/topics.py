"""`dafka topics`: what a store on disk holds."""

from __future__ import annotations

import json

import click
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from dafka.cli.runner import run
from dafka.records import Partition
from dafka.storage import PartitionInfo, open_storage
from dafka.text import escape_unprintable

LINE_WIDTH = 10_000
"""Where no terminal sets one: wide enough for one line a partition."""


@click.command()
@click.option("--storage", required=True, metavar="URL", help="The store, as in sqlite:dafka.db.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a partition.")
def topics(storage: str, as_json: bool) -> None:
    """List a store's topics and partitions, their heads and sizes. The store may be in use."""

    async def program() -> int:
        async with open_storage(storage, read_only=True) as opened:
            partitions = sorted((await opened.partitions()).items())
        if as_json:
            for partition, info in partitions:
                click.echo(json.dumps(_to_json(partition, info)))
        else:
            console = Console()
            if not console.is_terminal:
                console.width = LINE_WIDTH
            console.print(_to_table(partitions))
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


def _to_table(partitions: list[tuple[Partition, PartitionInfo]]) -> Table:
    table = Table(box=None, pad_edge=False, expand=False)
    for name in ("topic", "partition"):
        table.add_column(name, overflow="fold")
    for name in ("earliest", "head", "records", "size"):
        table.add_column(name, justify="right", no_wrap=True)
    for partition, info in partitions:
        counts = (info.earliest_sequence, info.end_sequence - 1, info.count)
        names = (Text(escape_unprintable(name)) for name in (partition.topic, partition.address))
        table.add_row(*names, *map(str, counts), decimal(info.content_bytes))
    return table
