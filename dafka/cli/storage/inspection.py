"""`dafka topics`, `dafka storage info` and `dafka storage verify`: what a store on disk holds."""

from __future__ import annotations

import json
from typing import Any

import attrs
import click
from rich.filesize import decimal

from dafka.broker.stored_state import read_state
from dafka.cli.runner import run
from dafka.cli.storage.common import Meter, json_option, run_metered, topics_option, url_argument
from dafka.cli.terminal import print_json_lines, print_table
from dafka.records import Partition
from dafka.storage import Damage, HasColdTier, PartitionInfo, Storage, StorageStatistics, TierStatistics, open_storage
from dafka.storage.tools.partitions import select_partitions
from dafka.storage.tools.verify import Verification, verify_storage
from dafka.text import counted, escape_unprintable, format_time


@click.command()
@click.option("--storage", required=True, metavar="URL", help="The store, such as sqlite:dafka.db.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per partition.")
def topics(storage: str, as_json: bool) -> None:
    """List a store's topics and partitions, with their heads and sizes.

    The store may be running. `dafka status` shows the topics of a whole cluster.
    """

    async def program() -> int:
        async with open_storage(storage, read_only=True) as opened:
            partitions = [_describe(*each) for each in sorted((await opened.partitions()).items())]
        if as_json:
            print_json_lines(partitions)
        else:
            print_table(("topic", "partition"), ("earliest", "head", "records", "size"), map(_cells, partitions))
        return 0

    run(program)


def _describe(partition: Partition, info: PartitionInfo) -> dict[str, Any]:
    return {
        "topic": partition.topic,
        "partition": partition.address,
        "earliest": info.earliest_sequence,
        "head": info.end_sequence - 1,
        "records": info.count,
        "bytes": info.content_bytes,
    }


def _cells(described: dict[str, Any]) -> tuple[Any, ...]:
    """Return the cells of a table for a partition of `_describe`."""
    *first, content_bytes = described.values()
    return (*first, decimal(content_bytes))


@attrs.frozen
class _Contents:
    identity: str
    statistics: StorageStatistics
    partitions: dict[Partition, PartitionInfo]
    positions: list[tuple[str, Partition, int]]
    cold: TierStatistics | None = None
    orphans: frozenset[Partition] = frozenset()

    def lag(self, partition: Partition, position: int) -> int | None:
        """Return the number of records held at or after a position; None if the partition is unknown."""
        info = self.partitions.get(partition)
        return None if info is None else max(info.end_sequence - max(position, info.earliest_sequence), 0)


@click.command()
@url_argument
@topics_option
@json_option
def info(url: str, topics: tuple[str, ...], as_json: bool) -> None:
    """List partitions, their sizes and times, and the positions of consumers.

    The store may be running. Lag is the number of records that a consumer has not read yet. Partitions of a broker that
    belong to no topic are named at the end.
    """

    async def program() -> int:
        async with open_storage(url, read_only=True) as opened:
            contents = await _read_contents(opened, topics)
        if as_json:
            click.echo(json.dumps(_info_values(contents)))
        else:
            _print_info(contents)
        return 0

    run(program)


async def _read_contents(storage: Storage, topics: tuple[str, ...]) -> _Contents:
    partitions = await select_partitions(storage, topics)
    positions = [
        (name, partition, position)
        for name in await storage.position_names()
        if not name.startswith("$")  # such as where compaction goes on
        for partition, position in sorted((await storage.load_positions(name)).items())
        if not topics or partition.topic in topics
    ]
    cold = storage.tier_statistics() if isinstance(storage, HasColdTier) else None
    state = await read_state(storage)
    orphans = frozenset() if state is None else frozenset(filter(state.is_orphan, partitions))
    return _Contents(storage.identity, await storage.statistics(), partitions, positions, cold, orphans)


def _info_values(contents: _Contents) -> dict[str, Any]:
    return {
        "identity": contents.identity,
        "totals": attrs.asdict(contents.statistics),
        **({} if contents.cold is None else {"cold": _cold_values(contents.cold)}),
        "partitions": [
            {
                **_describe(partition, info),
                "first_stored_at": info.earliest_stored_at,
                "last_stored_at": info.latest_stored_at,
                "is_orphan": partition in contents.orphans,
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


def _cold_values(cold: TierStatistics) -> dict[str, Any]:
    return {
        "place": cold.place,
        "objects": cold.segments,
        "records": cold.records,
        "content_bytes": cold.content_bytes,
        "stored_bytes": cold.object_bytes,
    }


def _print_info(contents: _Contents) -> None:
    print_table(
        ("topic", "partition"),
        ("earliest", "head", "records", "size", "first stored", "last stored"),
        [
            (
                *_cells(_describe(partition, info)),
                *(
                    "-" if time is None else format_time(time)
                    for time in (info.earliest_stored_at, info.latest_stored_at)
                ),
            )
            for partition, info in contents.partitions.items()
        ],
    )
    if contents.positions:
        rows = []
        for name, partition, position in contents.positions:
            lag = contents.lag(partition, position)
            rows.append((name, partition.topic, partition.address, position, "-" if lag is None else lag))
        click.echo()
        print_table(("consumer", "topic", "partition"), ("next", "lag"), rows)
    totals = contents.statistics
    click.echo(
        f"\nstorage {contents.identity}: {counted(totals.partitions, 'partition')}, "
        f"{counted(totals.records, 'record')} of {decimal(totals.content_bytes)}, {decimal(totals.stored_bytes)} stored"
    )
    if contents.orphans:
        records = sum(contents.partitions[each].count for each in contents.orphans)
        click.echo(
            f"{counted(len(contents.orphans), 'partition')} with {counted(records, 'record')} of no topic that the "
            "broker knows: kept, and read by nobody"
        )
        for partition in sorted(contents.orphans):
            click.echo(f"  {escape_unprintable(str(partition))}")
    if contents.cold is not None:
        cold = contents.cold
        click.echo(
            f"cold tier {cold.place}: {counted(cold.records, 'record')} of {decimal(cold.content_bytes)} in "
            f"{counted(cold.segments, 'object')} of {decimal(cold.object_bytes)}"
        )


@click.command()
@url_argument
@json_option
def verify(url: str, as_json: bool) -> None:
    """Read every record, and report missing and damaged ones.

    The store may be running. Prints each damage and its location, one line for adjacent records, and exits with
    status 1 if there is any.
    """

    async def program(meter: Meter) -> int:
        async with open_storage(url, read_only=True) as opened:
            with meter:
                found = await verify_storage(opened, progress=meter)
        # A reader repairs nothing, so these damages are still present.
        damages = [*found.damages, *found.repairs]
        if as_json:
            click.echo(json.dumps(_verification_values(found, damages)))
        else:
            for damage in damages:
                click.echo(escape_unprintable(str(damage)))
            click.echo(
                f"{counted(found.records, 'record')} in {counted(found.partitions, 'partition')}: "
                + (counted(len(damages), "damage") if damages else "no damage")
            )
        return 1 if damages else 0

    run_metered(program, "verified")


def _verification_values(found: Verification, damages: list[Damage]) -> dict[str, Any]:
    return {
        "partitions": found.partitions,
        "records": found.records,
        "bytes": found.content_bytes,
        "damages": [
            {
                "topic": None if damage.partition is None else damage.partition.topic,
                "partition": None if damage.partition is None else damage.partition.address,
                "first": damage.first_sequence,
                "end": damage.end_sequence,
                "location": damage.location,
                "reason": damage.reason,
            }
            for damage in damages
        ],
    }
