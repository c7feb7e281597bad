"""`dafka storage info`: what a storage holds."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
import click
from rich.filesize import decimal

from dafka.cli.runner import run
from dafka.cli.storage.common import counted, json_option, print_table, topics_option, url_argument
from dafka.records import Partition
from dafka.storage import PartitionInfo, Storage, StorageStatistics, open_storage
from dafka.storage.selection import select_partitions

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@attrs.frozen
class _Contents:
    identity: str
    statistics: StorageStatistics
    partitions: dict[Partition, PartitionInfo]
    positions: list[tuple[str, Partition, int]]

    def lag(self, partition: Partition, position: int) -> int | None:
        """How many records held are still to be read; None where nothing is known of the partition."""
        info = self.partitions.get(partition)
        return None if info is None else max(info.end_sequence - max(position, info.earliest_sequence), 0)


@click.command()
@url_argument
@topics_option
@json_option
def info(url: str, topics: tuple[str, ...], as_json: bool) -> None:
    """List partitions, their sizes and times, and consumers' positions.

    The store may be in use. Lag counts the records that a consumer has still to read.
    """

    async def program() -> int:
        async with open_storage(url, read_only=True) as opened:
            contents = await _read(opened, topics)
        if as_json:
            click.echo(json.dumps(_to_json(contents)))
        else:
            _print(contents)
        return 0

    run(program)


async def _read(storage: Storage, topics: tuple[str, ...]) -> _Contents:
    partitions = await select_partitions(storage, topics)
    positions = [
        (name, partition, position)
        for name in await storage.position_names()
        for partition, position in sorted((await storage.load_positions(name)).items())
        if not topics or partition.topic in topics
    ]
    return _Contents(storage.identity, await storage.statistics(), partitions, positions)


def _to_json(contents: _Contents) -> dict[str, Any]:
    return {
        "identity": contents.identity,
        "totals": attrs.asdict(contents.statistics),
        "partitions": [
            {
                "topic": partition.topic,
                "partition": partition.address,
                "earliest": info.earliest_sequence,
                "head": info.end_sequence - 1,
                "records": info.count,
                "bytes": info.content_bytes,
                "first_stored_at": info.earliest_stored_at,
                "last_stored_at": info.latest_stored_at,
            }
            for partition, info in contents.partitions.items()
        ],
        "positions": [
            {
                "name": name,
                "topic": partition.topic,
                "partition": partition.address,
                "next": position,
                "lag": contents.lag(partition, position),
            }
            for name, partition, position in contents.positions
        ],
    }


def _print(contents: _Contents) -> None:
    print_table(
        ("topic", "partition"),
        ("earliest", "head", "records", "size", "first stored", "last stored"),
        [
            (
                partition.topic,
                partition.address,
                str(info.earliest_sequence),
                str(info.end_sequence - 1),
                str(info.count),
                decimal(info.content_bytes),
                _format_time(info.earliest_stored_at),
                _format_time(info.latest_stored_at),
            )
            for partition, info in contents.partitions.items()
        ],
    )
    if contents.positions:
        rows = []
        for name, partition, position in contents.positions:
            lag = contents.lag(partition, position)
            rows.append((name, partition.topic, partition.address, str(position), "-" if lag is None else str(lag)))
        click.echo()
        print_table(("consumer", "topic", "partition"), ("next", "lag"), rows)
    totals = contents.statistics
    click.echo(
        f"\nstorage {contents.identity}: {counted(totals.partitions, 'partition')}, "
        f"{counted(totals.records, 'record')} of {decimal(totals.content_bytes)}, {decimal(totals.stored_bytes)} stored"
    )


def _format_time(time_ms: int | None) -> str:
    """In ISO 8601, UTC; as it is where no calendar reaches."""
    if time_ms is None:
        return "-"
    try:
        time = _EPOCH + timedelta(milliseconds=time_ms)
    except OverflowError:
        return str(time_ms)
    return time.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
