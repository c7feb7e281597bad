"""`dafka storage move` and `dafka storage objects`, for storages with a cold tier."""

from __future__ import annotations

import json

import click

from dafka.cli.runner import run
from dafka.cli.storage.common import Meter, json_option, print_summary, run_metered, topics_option, url_argument
from dafka.cli.terminal import UsageMistake, counted
from dafka.storage import HasColdTier, Storage, open_storage


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
