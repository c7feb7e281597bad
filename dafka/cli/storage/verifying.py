"""`dafka storage verify`: is everything there, and readable?"""

from __future__ import annotations

import json
from typing import Any

import click

from dafka.cli.storage.common import Meter, counted, json_option, printable, run_metered, url_argument
from dafka.storage import Damage, open_storage
from dafka.storage.verifying import Verification
from dafka.storage.verifying import verify as verify_storage


@click.command()
@url_argument
@json_option
def verify(url: str, as_json: bool) -> None:
    """Read every record, and see that none is missing or damaged.

    The store may be in use. Prints each damage and where it stands, and exits with 1 where there is any; damage that
    runs over many records is one line.
    """

    async def program(meter: Meter) -> int:
        async with open_storage(url, read_only=True) as opened:
            with meter:
                found = await verify_storage(opened, progress=meter)
        # Whatever opening for reading found has not been mended.
        damages = [*found.damages, *found.repairs]
        if as_json:
            click.echo(json.dumps(_to_json(found, damages)))
        else:
            for damage in damages:
                click.echo(printable(str(damage)))
            click.echo(
                f"{counted(found.records, 'record')} in {counted(found.partitions, 'partition')}: "
                + (counted(len(damages), "damage") if damages else "all there, and as written")
            )
        return 1 if damages else 0

    run_metered(program, "verified")


def _to_json(found: Verification, damages: list[Damage]) -> dict[str, Any]:
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
                "place": damage.place,
                "reason": damage.reason,
            }
            for damage in damages
        ],
    }
