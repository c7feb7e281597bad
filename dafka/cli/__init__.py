"""The `dafka` command: each subcommand a few lines over a public call."""

from __future__ import annotations

import click

from dafka import __version__
from dafka.cli.consume import consume
from dafka.cli.daemons import store, tower, up
from dafka.cli.demo import demo
from dafka.cli.produce import produce
from dafka.cli.storage import storage
from dafka.cli.topics import topics


class _Group(click.Group):
    """Lists the commands in the order in which one needs them, each with its whole first sentence."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, command.get_short_help_str(limit=1000)) for name, command in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__)
def main() -> None:
    """Decentralised streams of records (Dafka, ZeroMQ RFC 46).

    Start `dafka up` in one terminal, then `dafka consume TOPIC` and `dafka produce TOPIC` in others.
    """


for command in (up, tower, store, produce, consume, topics, storage, demo):
    main.add_command(command)
