"""The `dafka` command: each subcommand a few lines over a public call."""

from __future__ import annotations

import click

from dafka import __version__
from dafka.cli.consume import consume
from dafka.cli.daemons import store, tower, up
from dafka.cli.demo import demo
from dafka.cli.produce import produce
from dafka.cli.topics import topics


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__)
def main() -> None:
    """Decentralised streams of records (Dafka, ZeroMQ RFC 46).

    Start `dafka up` in one terminal, then `dafka consume TOPIC` and `dafka produce TOPIC` in others.
    """


for command in (up, tower, store, produce, consume, topics, demo):
    main.add_command(command)
