"""What every command that runs nodes has besides them: metrics, health, word to the service manager, a clean end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import trio

from dafka.cli.runner import Ending
from dafka.cli.terminal import COMMAND_LOG
from dafka.config import Config
from dafka.operations import Monitor, Notifier, begin_stopping, open_operations
from dafka.roles.log_events import MetricsServed

SLACK_S = 5.0
"""Beyond the grace and what sockets linger, a process that is ending has so long to end."""

_T = TypeVar("_T")


class Supervision:
    """Attributes:
    monitor: the nodes that run.
    is_stopping: whether the command was told to end.
    """

    def __init__(self, config: Config, *roles: str) -> None:
        self.monitor = Monitor(*roles)
        self.is_stopping = False
        self._config = config
        self._notifier = Notifier.from_environment()
        self._waiting: trio.CancelScope | None = None

    def ending(self, *, is_graceful: bool) -> Ending:
        """For `run`: a graceful command ends by itself, having been told to; any other is cancelled."""
        grace_s = self._config.node.grace_ms / 1000
        limit_s = grace_s + self._config.node.linger_ms / 1000 + SLACK_S
        return Ending(self._stop, grace_s if is_graceful else 0.0, limit_s)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str | None]:
        """Serves and tells during the block, which gets the metrics' URL, if any."""
        async with open_operations(self.monitor, self._config.metrics.listen, self._notifier) as url:
            if url is not None:
                COMMAND_LOG.write(MetricsServed(f"{url}/metrics"))
            yield url

    async def unless_stopping(self, wait: Callable[[], Awaitable[_T]]) -> _T | None:
        """What is waited for; None as soon as the command is told to end."""
        if not self.is_stopping:
            with trio.CancelScope() as self._waiting:
                return await wait()
        return None

    def _stop(self) -> None:
        self.is_stopping = True
        begin_stopping(self.monitor, self._notifier)
        if self._waiting is not None:
            self._waiting.cancel()
