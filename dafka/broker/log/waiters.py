"""Notifies waiters when a log advances."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import trio

from dafka.broker.core.log.log import Log


class LogWaiters:
    """The tasks that wait for changes of a broker's logs."""

    def __init__(self) -> None:
        self._advanced: dict[Log, set[trio.Event]] = {}

    def __len__(self) -> int:
        """Return the number of logs that are watched."""
        return len(self._advanced)

    @contextmanager
    def watching(self, logs: Iterable[Log]) -> Iterator[trio.Event]:
        """Give the block an event that is set when one of these logs advances or is deleted."""
        advanced = trio.Event()
        watched = list(logs)
        for log in watched:
            self._advanced.setdefault(log, set()).add(advanced)
        try:
            yield advanced
        finally:
            for log in watched:
                waiting = self._advanced[log]
                waiting.discard(advanced)
                if not waiting:
                    del self._advanced[log]

    def notify(self, log: Log) -> None:
        """Notify the tasks that watch a log."""
        for advanced in self._advanced.get(log, ()):
            advanced.set()
