"""The virtual clock: what is to happen, in order. Nothing takes time but waiting."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any


class Clock:
    """Attributes:
    now: seconds since the simulation began; it never jumps.
    events: how many things have happened.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self._agenda: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._tickets = 0

    def at(self, time: float, act: Callable[..., None], *arguments: Any) -> None:
        """Lets something happen then; what is due at the same time happens in the order in which it was asked for."""
        self._tickets += 1
        heapq.heappush(self._agenda, (time, self._tickets, act, arguments))

    def after(self, delay: float, act: Callable[..., None], *arguments: Any) -> None:
        """Lets something happen in so many seconds."""
        self.at(self.now + delay, act, *arguments)

    def run(self, until: float) -> None:
        """Lets everything happen that is due by then."""
        agenda = self._agenda
        while agenda and agenda[0][0] <= until:
            self.now, _, act, arguments = heapq.heappop(agenda)
            self.events += 1
            act(*arguments)
        self.now = until
