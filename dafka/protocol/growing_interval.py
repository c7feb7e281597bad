"""The growing time between two repetitions of an unchanged message."""

from __future__ import annotations

GROWTH_FACTOR = 2
"""The factor by which each interval is longer than the one before."""


class GrowingInterval:
    """A time between repetitions: short at first, then as long as all earlier repetitions took, up to a limit.

    If a receiver misses a message because its queue is full for some time, the message is repeated soon after that
    time.

    Args:
        shortest_s: Seconds until the first repetition.
        longest_s: The limit, in seconds.
        short_count: The number of repetitions that follow the shortest time.
    """

    def __init__(self, shortest_s: float, longest_s: float, short_count: int = 1) -> None:
        self._shortest_s = shortest_s
        self._longest_s = max(longest_s, shortest_s)
        self._short_count = short_count
        self._repeated = 0
        self._next_s = shortest_s

    @property
    def shortest_s(self) -> float:
        """Seconds until the first repetition."""
        return self._shortest_s

    def restart(self) -> None:
        """Begin with the shortest time again: the message says something new, or has a new receiver."""
        self._repeated = 0
        self._next_s = self._shortest_s

    def next_wait_s(self) -> float:
        """Return the seconds until the next repetition: the message has just been repeated."""
        self._repeated += 1
        wait_s = self._next_s
        if self._repeated >= self._short_count:
            self._next_s = min(GROWTH_FACTOR * self._next_s, self._longest_s)
        return wait_s
