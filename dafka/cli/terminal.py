"""What the commands say to the operator, on standard error: log lines, and errors of one sentence."""

from __future__ import annotations

import logging
import sys

import click
from rich.console import Console
from rich.logging import RichHandler

from dafka.protocol import TowersHeard, TowersSilent

console = Console(stderr=True)
"""The one that log lines and a progress bar share, so that neither is written into the other."""


class UsageMistake(click.ClickException):
    """The command was asked for wrongly: one sentence, exit status 2."""

    exit_code = 2


def report_error(sentence: object) -> None:
    """Prints one sentence as click prints its own."""
    click.echo(f"Error: {sentence}", err=True)


def start_logging(verbose: int) -> None:
    """Logs warnings; with `verbose` 1 what happens, with 2 everything."""
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    handler: logging.Handler
    if console.is_terminal:
        handler = RichHandler(console=console, show_path=False, rich_tracebacks=False)
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s", "%H:%M:%S"))
    else:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.addFilter(_Selection(level))
    logging.basicConfig(level=min(level, logging.INFO), handlers=[handler])


class _Selection(logging.Filter):
    """Leaves out what is below the level, and the silence of towers never heard, which ends a command with an error."""

    def __init__(self, level: int) -> None:
        super().__init__()
        self._level = level
        self._is_tower_heard = False

    def filter(self, record: logging.LogRecord) -> bool:
        event = record.args[0] if isinstance(record.args, tuple) and record.args else None
        self._is_tower_heard = self._is_tower_heard or isinstance(event, TowersHeard)
        if isinstance(event, TowersSilent) and not self._is_tower_heard:
            return False
        return record.levelno >= self._level
