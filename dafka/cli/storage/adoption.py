"""`dafka storage adopt`."""

from __future__ import annotations

import click

from dafka.broker.adoption import adopt as adopt_topic
from dafka.broker.adoption import find_unnamed
from dafka.cli.storage.common import Meter, run_metered, url_argument
from dafka.cli.terminal import UsageMistake, print_table
from dafka.storage import open_storage
from dafka.text import counted


@click.command()
@url_argument
@click.argument("topic_id", required=False, metavar="[ID]")
@click.option("--as", "name", metavar="NAME", help="The topic that gets the records. It can be a new one.")
def adopt(url: str, topic_id: str | None, name: str | None) -> None:
    """Make partitions that nothing names a topic again, in the storage of a stopped broker.

    Without an ID, list the topics that the cluster does not know. With an ID, append the committed records of this
    topic to the topic NAME, in the order of its logs. They get offsets when the broker starts. The former partitions
    stay. Use only one of the storages that have the topic.
    """
    if (topic_id is None) != (name is None):
        raise UsageMistake("expected an ID and --as NAME, or neither")

    async def program(meter: Meter) -> int:
        if topic_id is None or name is None:
            async with open_storage(url, read_only=True) as storage:
                found = [(each.topic_id, each.name, each.log_count) for each in await find_unnamed(storage)]
            print_table(("id", "former name"), ("logs",), found)
            return 0
        async with open_storage(url) as storage:
            with meter:
                count = await adopt_topic(storage, topic_id, name, progress=meter)
        click.echo(f"{counted(count, 'record')} appended to {name}: start the broker", err=True)
        return 0

    run_metered(program, "appended")
