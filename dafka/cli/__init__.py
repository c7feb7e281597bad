"""The `dafka` command: each subcommand a few lines over a public call."""

from __future__ import annotations

from typing import Any

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

FORMER_OPTIONS = {
    "--authorized": "--authorized-keys",
    "--grace": "--grace-ms",
    "--key": "--key-file",
    "--metrics": "--metrics-listen",
    "--retain-age": "--retention-ms",
    "--retain-bytes": "--retention-bytes",
    "--retain-records": "--retention-records",
    "--timeout": "--close-timeout-ms",
    "--tower-key": "--tower-keys",
}
"""Options from before version 0.2, and what they are called today."""


class _Group(click.Group):
    """A group that lists its commands in the order of their use, each with its whole first sentence."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        """Name today's option where a former one was used."""
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            new = FORMER_OPTIONS.get(error.option_name)
            if new is None or error.ctx is None or not _has_option(error.ctx.command, new):
                raise
            raise UsageMistake(f"the option {error.option_name} has a new name: use {new}") from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, command.get_short_help_str(limit=1000)) for name, command in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _has_option(command: click.Command, flag: str) -> bool:
    return any(flag in parameter.opts for parameter in command.params)


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
