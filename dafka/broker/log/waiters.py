"""Notifies waiters when a log advances, or when they have waited long enough."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import trio

from dafka.broker.core.coordination.deadlines import Deadlines
from dafka.broker.core.log.log import Log

LONG_WAIT_MS = 200
"""Waits from this time on end together if they would end within `TICK_MS`, in milliseconds."""

TICK_MS = 10
"""The resolution of the deadlines of long waits, in milliseconds. That of others is 1 ms."""


class LogWaiters:
    """The tasks that wait for changes of a broker's logs.

    Waits with a deadline share the timer of `run`, because hundreds of clients wait for records of quiet logs again and
    again.
    """

    def __init__(self) -> None:
        self._advanced: dict[Log, set[trio.Event]] = {}
        self._deadlines: Deadlines[trio.Event] = Deadlines()
        self._sleeping = trio.CancelScope()

    def __len__(self) -> int:
        """Return the number of logs that are watched."""
        return len(self._advanced)

    @contextmanager
    def watching(self, logs: Iterable[Log], deadline: float = math.inf) -> Iterator[trio.Event]:
        """Give the block an event that is set when one of these logs advances or is deleted.

        It is also set at a deadline by Trio's clock, or at most `TICK_MS` later.
        """
        advanced = trio.Event()
        watched = list(logs)
        for log in watched:
            self._advanced.setdefault(log, set()).add(advanced)
        if deadline < math.inf:
            self._set_deadline(advanced, deadline)
        try:
            yield advanced
        finally:
            self._deadlines.cancel(advanced)
            for log in watched:
                waiting = self._advanced[log]
                waiting.discard(advanced)
                if not waiting:
                    del self._advanced[log]

    def notify(self, log: Log) -> None:
        """Notify the tasks that watch a log."""
        for advanced in self._advanced.get(log, ()):
            advanced.set()

    def _set_deadline(self, waiting: trio.Event, deadline: float) -> None:
        tick_ms = TICK_MS if deadline - trio.current_time() >= LONG_WAIT_MS / 1000 else 1
        deadline_ms = math.ceil(deadline * 1000 / tick_ms) * tick_ms
        self._deadlines.set(waiting, deadline_ms)
        wake_at = min(self._sleeping.deadline, deadline_ms / 1000)
        if wake_at != self._sleeping.deadline:  # setting it costs more than the rest
            self._sleeping.deadline = wake_at

    async def run(self) -> None:
        """End waits at their deadlines, until cancelled."""
        while True:
            next_ms = self._deadlines.next_deadline_ms()
            with trio.CancelScope(deadline=math.inf if next_ms is None else next_ms / 1000) as self._sleeping:
                await trio.sleep_forever()
            now_ms = math.ceil(trio.current_time() * 1000)
            while (due := self._deadlines.pop_due(now_ms)) is not None:
                due.set()
