"""Whether a broker's wall clock is right, as far as the other brokers can tell. It is sans-I/O."""

from __future__ import annotations

from collections.abc import Collection
from statistics import median_low

DIFFERENCE_MS_MAX = 600_000
"""How far the wall clocks of two brokers can be apart, in milliseconds."""


class WallClocks:
    """The wall clocks of the other brokers, compared with the steady clock of this one.

    So a jump of this broker's own wall clock shows, too, even if it hears nobody. All times are in milliseconds.
    """

    def __init__(self) -> None:
        self._ahead_ms: dict[str, int] = {}

    def record(self, broker: str, time_ms: int, steady_ms: int) -> None:
        """Record the time of another broker, and that of the steady clock."""
        self._ahead_ms[broker] = time_ms - steady_ms

    def is_right(self, time_ms: int, steady_ms: int, others: Collection[str]) -> bool:
        """Return whether the clocks of at least half of the other brokers show about the time of this broker."""
        near = [each for each in self._differences(time_ms, steady_ms, others) if abs(each) <= DIFFERENCE_MS_MAX]
        return 2 * len(near) >= len(others)

    def is_wrong(self, time_ms: int, steady_ms: int, others: Collection[str]) -> bool:
        """Return whether the clocks of more than half of the other brokers are far from the time of this broker.

        If too few clocks are known, its clock is neither right nor wrong.
        """
        far = [each for each in self._differences(time_ms, steady_ms, others) if abs(each) > DIFFERENCE_MS_MAX]
        return 2 * len(far) > len(others)

    def correct(self, time_ms: int, steady_ms: int, others: Collection[str]) -> int:
        """Return the time of this broker, or that of the others if most of all known clocks are far from its own."""
        differences = self._differences(time_ms, steady_ms, others)
        near = 1 + sum(abs(each) <= DIFFERENCE_MS_MAX for each in differences)
        return time_ms if 2 * near > len(differences) else time_ms + median_low(differences)

    def _differences(self, time_ms: int, steady_ms: int, others: Collection[str]) -> list[int]:
        return [self._ahead_ms[each] + steady_ms - time_ms for each in others if each in self._ahead_ms]
