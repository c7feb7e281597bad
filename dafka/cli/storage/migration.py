"""`dafka storage migrate`."""

from __future__ import annotations

import click

from dafka.cli.storage.common import Meter, json_option, print_summary, run_metered, url_argument
from dafka.cli.terminal import counted
from dafka.storage import open_storage
from dafka.storage.migration import Migrates, Migration


@click.command()
@url_argument
@json_option
def migrate(url: str, as_json: bool) -> None:
    """Rewrite what earlier releases of dafka stored in an older form.

    That is never required: older files are read as they are. A file log is rewritten segment by segment; an SQLite
    store is upgraded as whenever a store opens it. If the command is killed, nothing is lost; run it again. Earlier
    releases cannot open the storage afterward. The store must be stopped.
    """

    async def program(meter: Meter) -> int:
        async with open_storage(url, read_only=True):  # opening for writing would create a missing storage
            pass
        async with open_storage(url) as opened:
            is_upgraded_by_opening = not isinstance(opened, Migrates)
            done = await opened.migrate() if isinstance(opened, Migrates) else Migration()
        for damage in () if as_json else done.left:
            click.echo(str(damage))
        values = {
            "files": done.files,
            "records": done.records,
            "left": [{"location": damage.location, "reason": damage.reason} for damage in done.left],
        }
        sentence = (
            "opening the storage has upgraded it, if it was of an earlier release"
            if is_upgraded_by_opening
            else f"{counted(done.records, 'record')} rewritten in {counted(done.files, 'file')}"
        )
        print_summary(sentence, values, as_json)
        return 1 if done.left else 0

    run_metered(program, "rewritten")
