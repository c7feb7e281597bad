"""`dafka storage`: inspecting and changing a store on disk; each command calls one function of the library."""

from __future__ import annotations

import click

from dafka.cli.storage.adoption import adopt
from dafka.cli.storage.inspection import info, verify
from dafka.cli.storage.removal import delete, trim
from dafka.cli.storage.transfer import copy, export, import_, move, objects


class _Group(click.Group):
    """A group that lists its commands in the order of their definition."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=_Group)
def storage() -> None:
    """Inspect, copy, trim, delete and move records.

    A storage is given as a URL, such as sqlite:dafka.db or filelog:FOLDER.
    """


for command in (info, verify, copy, export, import_, trim, delete, move, objects, adopt):
    storage.add_command(command)
