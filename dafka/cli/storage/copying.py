"""`dafka storage copy`: one storage into another."""

from __future__ import annotations

import click
from rich.filesize import decimal

from dafka.cli.storage.common import (
    Meter,
    counted,
    json_option,
    print_summary,
    printable,
    run_metered,
    topics_option,
)
from dafka.storage import open_storage
from dafka.storage.copying import CopySummary, copy_storage


@click.command()
@click.argument("source")
@click.argument("target")
@topics_option
@json_option
def copy(source: str, target: str, topics: tuple[str, ...], as_json: bool) -> None:
    """Copy the storage SOURCE into the storage TARGET.

    Records keep the times at which they were stored, and consumers their positions. The copy has an address of its
    own, for it is another store. SOURCE may be in use, and TARGET may hold a first part already: a copy that was
    interrupted goes on where it ended. Partitions of which TARGET holds more than SOURCE are left as they are.
    """

    async def program(meter: Meter) -> int:
        async with open_storage(source, read_only=True) as opened, open_storage(target) as copied:
            with meter:
                summary = await copy_storage(opened, copied, topics=topics, progress=meter)
        _print(summary, as_json)
        return 0

    run_metered(program, "copied; run it again to go on")


def _print(summary: CopySummary, as_json: bool) -> None:
    sentence = (
        f"{counted(summary.records, 'record')} of {decimal(summary.content_bytes)} copied "
        f"into {counted(summary.partitions, 'partition')}, {summary.present:,} were there already"
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
            click.echo(f"{printable(str(partition))}: the target holds more than the source, and was left as it is")
    print_summary(sentence, values, as_json)
