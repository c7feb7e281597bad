"""The `dafka` command: each subcommand a few lines over a public call."""

from __future__ import annotations

import click

from dafka import __version__
from dafka.cli.bench import bench
from dafka.cli.consume import consume
from dafka.cli.daemons import store, tower, up
from dafka.cli.demo import demo
from dafka.cli.health import health
from dafka.cli.keys import keys
from dafka.cli.produce import produce
from dafka.cli.spark import spark
from dafka.cli.status import status
from dafka.cli.storage import storage
from dafka.cli.terminal import UsageMistake
from dafka.cli.topics import topics
from dafka.errors import ConfigError
from dafka.transport import choose_loops


class _Group(click.Group):
    """Lists the commands in the order in which one needs them, each with its whole first sentence."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, command.get_short_help_str(limit=1000)) for name, command in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _show_version(context: click.Context) -> None:
    try:
        transport = choose_loops().name
    except ConfigError as error:
        raise UsageMistake(str(error)) from None
    click.echo(f"dafka, version {__version__} (transport: {transport})")
    context.exit()


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda context, _, is_asked: _show_version(context) if is_asked else None,
    help="Show the version, and whether the transport is compiled, and exit.",
)
def main() -> None:
    """Decentralised streams of records (Dafka, ZeroMQ RFC 46).

    Start `dafka up` in one terminal, then `dafka consume TOPIC` and `dafka produce TOPIC` in others.
    """


for command in (up, tower, store, produce, consume, status, topics, storage, keys, health, spark, demo, bench):
    main.add_command(command)
