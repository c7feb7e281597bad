"""`dafka storage`: looking after a store that is a place on disk; each command a few lines over a public call."""

from __future__ import annotations

import click

from dafka.cli.storage.inspection import info, verify
from dafka.cli.storage.transfer import copy, export, import_
from dafka.cli.storage.trimming import trim


class _Group(click.Group):
    """Lists the commands in the order in which one needs them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=_Group)
def storage() -> None:
    """Look after the records that a store keeps.

    A storage is named by a URL, such as sqlite:dafka.db or filelog:FOLDER.
    """


for command in (info, verify, copy, export, import_, trim):
    storage.add_command(command)
