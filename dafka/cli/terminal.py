"""What the commands say to the operator, on standard error: log lines, and errors of one sentence."""

from __future__ import annotations

import logging
import sys

import click
from rich.console import Console
from rich.logging import RichHandler

from dafka.config import LogConfig
from dafka.operations.logs import SentenceFormatter, json_formatter
from dafka.protocol import TowersHeard, TowersSilent
from dafka.roles.events import NodeLog
from dafka.roles.log_events import Failed, LogEvent

console = Console(stderr=True)
"""The one that log lines and a progress bar share, so that neither is written into the other."""


class UsageMistake(click.ClickException):
    """The command was asked for wrongly: one sentence, exit status 2."""

    exit_code = 2


COMMAND_LOG = NodeLog(logging.getLogger("dafka.command"))
"""What the command itself logs, and no node of it."""

_formats: list[str] = []
_handlers: list[logging.Handler] = []


def report_error(sentence: object) -> None:
    """Prints one sentence as click prints its own; where logs are objects, as the last of them."""
    _say(f"Error: {sentence}", Failed(str(sentence)), logging.ERROR)


def report(notice: LogEvent) -> None:
    """Prints a sentence that is no log line; where logs are objects, as one of them."""
    _say(str(notice), notice, logging.WARNING)


def _say(sentence: str, notice: LogEvent, level: int) -> None:
    if _formats[-1:] == ["json"]:
        COMMAND_LOG.write(notice, level)
    else:
        click.echo(sentence, err=True)


def start_logging(config: LogConfig) -> None:
    """Logs to standard error from here on. Called again, it begins anew."""
    level = logging.getLevelNamesMapping()[config.level.upper()]
    _formats[:] = [config.format]
    handler: logging.Handler
    if config.format == "json":
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(json_formatter())
    elif console.is_terminal:
        handler = RichHandler(console=console, show_path=False, rich_tracebacks=False)
        handler.setFormatter(SentenceFormatter("%(name)s: %(message)s", "%H:%M:%S"))
    else:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(SentenceFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.addFilter(_Selection(level))
    root = logging.getLogger()
    for former in _handlers:
        root.removeHandler(former)
    _handlers[:] = [handler]
    # What the filter must see to choose, a tower that is heard, is less important than the level may be.
    logging.basicConfig(level=min(level, logging.INFO), handlers=_handlers)


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
