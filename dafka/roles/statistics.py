"""Figures about a running role: its health, and histograms of durations."""

from __future__ import annotations

from bisect import bisect_left

import attrs

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""The upper bounds of the buckets, in seconds: from a disk with a battery-backed cache to one that is failing."""


@attrs.frozen
class Health:
    """The state of a role, for a supervisor. Each text is empty if all is well.

    Attributes:
        trouble: Why the role should be restarted, since it does not recover by itself.
        unready: Why the role cannot do its work now. It keeps trying, and a restart does not help.
    """

    trouble: str = ""
    unready: str = ""


@attrs.frozen
class Histogram:
    """A histogram of durations.

    Attributes:
        bounds: The upper bound of each bucket, in seconds. The last bucket has none.
        counts: The number of durations in each bucket; there is one more bucket than bounds.
        total: The sum of all durations, in seconds.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @property
    def count(self) -> int:
        """The number of durations measured."""
        return sum(self.counts)


class Timer:
    """Collects a histogram; one measurement costs two additions."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._total = 0.0

    def add(self, seconds: float) -> None:
        """Add one measurement."""
        self._counts[bisect_left(BOUNDS_S, seconds)] += 1
        self._total += seconds

    def histogram(self) -> Histogram:
        """Return the histogram so far."""
        return Histogram(BOUNDS_S, tuple(self._counts), self._total)
