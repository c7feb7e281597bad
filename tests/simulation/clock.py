"""The virtual clock: an ordered queue of what will happen. Only waiting takes time."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any


class Clock:
    """A clock that runs what is due, in order.

    Attributes:
        now: Seconds since the simulation began. The clock never jumps.
        events: How many calls have been made.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self._agenda: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._tickets = 0

    def at(self, time: float, act: Callable[..., None], *arguments: Any) -> None:
        self._tickets += 1
        heapq.heappush(self._agenda, (time, self._tickets, act, arguments))

    def after(self, delay: float, act: Callable[..., None], *arguments: Any) -> None:
        self.at(self.now + delay, act, *arguments)

    def run(self, until: float) -> None:
        agenda = self._agenda
        while agenda and agenda[0][0] <= until:
            self.now, _, act, arguments = heapq.heappop(agenda)
            self.events += 1
            act(*arguments)
        self.now = until
