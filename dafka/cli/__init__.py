"""The `dafka` command. Each subcommand is a few lines over a public call of the library, in a module of its own."""

from __future__ import annotations

import sys
from difflib import get_close_matches
from importlib import import_module

import click
from click.shell_completion import CompletionItem

from dafka import __version__
from dafka.cli.terminal import UsageMistake
from dafka.errors import ConfigError, MissingExtraError

BENCH = "dafka_bench"
"""The package of `dafka bench`, which is a distribution of its own."""

COMMANDS = {
    "up": ("dafka.cli.daemons", "Run a tower and a store, or with --kafka or --http a broker, in one process."),
    "tower": ("dafka.cli.daemons", "Run a tower, which introduces nodes to each other."),
    "store": ("dafka.cli.daemons", "Run a store, which keeps every record and acknowledges it."),
    "broker": ("dafka.cli.daemons", "Run a broker, which is a store and serves clients of Kafka, WebSocket and HTTP."),
    "produce": ("dafka.cli.produce", "Publish each line, or each MESSAGE, as a record of TOPIC."),
    "consume": ("dafka.cli.consume", "Print the records of TOPICs, one per line."),
    "status": ("dafka.cli.status", "Show a running cluster: nodes, topics, brokers, and each store's lag."),
    "topics": ("dafka.cli.storage.inspection", "List a store's topics and partitions, with their heads and sizes."),
    "topic": ("dafka.cli.kafka.topic", "Create, list, describe, change, move and delete the topics of brokers."),
    "cluster": ("dafka.cli.kafka.cluster", "Show the state of a cluster, and drain and forget brokers."),
    "group": ("dafka.cli.kafka.group", "List, describe and reset groups of consumers, and delete those of a broker."),
    "storage": ("dafka.cli.storage", "Inspect, copy, trim, delete and move records."),
    "keys": ("dafka.cli.keys", "Manage the keys of a closed cluster."),
    "user": ("dafka.cli.users", "Manage the users of a broker: their passwords, and what they may do."),
    "acl": ("dafka.cli.kafka.acl", "List, create and delete ACLs, which say what users may do in a cluster."),
    "quota": ("dafka.cli.kafka.quota", "List, set and remove quotas, which limit what clients use of each broker."),
    "health": ("dafka.cli.status", "Ask a running command whether it is healthy."),
    "completion": ("dafka.cli.completion", "Print the code that completes commands and options in a shell."),
    "spark": ("dafka.cli.spark", "Open a Python shell, or run a script, with a Spark session."),
    "demo": ("dafka.cli.demo", "Publish real records, receive them live and late, and compare."),
    "bench": (f"{BENCH}.command", "Run the same jobs over dafka and other systems, and compare."),
}
"""The module of each command and the first sentence of its help, in the order of their use.

A module is loaded when its command runs, so that `dafka --help` and a wrong command need not wait for all of them.
"""

NEED_PYTHON = ("spark", "demo", "bench")
"""Commands that need packages for which the binary of `make binary` is too small, or a Python for processes of their
own."""


class _LazyGroup(click.Group):
    """A group that loads a command's module when the command is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in COMMANDS if not _is_left_out(name)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        if _is_left_out(cmd_name):
            raise UsageMistake(
                f"this binary has no 'dafka {cmd_name}', which needs Python: pip install {_package_of(cmd_name)}"
            )
        try:
            command: click.Command = getattr(import_module(COMMANDS[cmd_name][0]), cmd_name)
        except MissingExtraError as error:
            raise UsageMistake(str(error)) from None
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != BENCH:
                raise
            needed = _package_of(cmd_name)
            raise UsageMistake(f"'dafka {cmd_name}' needs {needed}: pip install {needed}") from None
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Suggest a command in place of an unknown one."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            close = get_close_matches(args[0], COMMANDS, 1)
            if not close:
                raise
            raise click.UsageError(f"{error.message} Did you mean {close[0]!r}?", ctx) from None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the names of commands without loading their modules."""
        found = [CompletionItem(name, help=COMMANDS[name][1]) for name in self.list_commands(ctx)]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(each for each in found if each.value.startswith(incomplete)), *options]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])


def _package_of(name: str) -> str:
    """Return what to install for a command: the extra with its name, but for `dafka bench` a distribution."""
    return "dafka-bench" if name == "bench" else f"'dafka[{name}]'"


def _is_left_out(name: str) -> bool:
    return name in NEED_PYTHON and bool(getattr(sys, "frozen", False))  # PyInstaller sets it


def _show_version(context: click.Context) -> None:
    from dafka.batches import records_codec  # noqa: PLC0415 (only this option needs it)
    from dafka.transport import choose_loops  # noqa: PLC0415 (only this option needs it)

    try:
        parts = f"transport: {choose_loops().name}, batches: {records_codec().name}"
    except ConfigError as error:
        raise UsageMistake(str(error)) from None
    click.echo(f"dafka, version {__version__} ({parts})")
    context.exit()


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda context, _, is_asked: _show_version(context) if is_asked else None,
    help="Show the version, and whether the transport and the codec of record batches are compiled, and exit.",
)
def main() -> None:
    """Decentralized streams of records (Dafka, ZeroMQ RFC 46).

    Start `dafka up` in one terminal, then `dafka consume TOPIC` and `dafka produce TOPIC` in others.
    """
