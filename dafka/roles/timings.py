"""How long something took, each time it was done, as a histogram: two additions a time."""

from __future__ import annotations

from bisect import bisect_left

import attrs

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""The upper bounds of the buckets, in seconds: from a disk with a battery to one that is about to fail."""


@attrs.frozen
class Histogram:
    """Attributes:
    bounds: the upper bound of each bucket, in seconds; the last one has none.
    counts: how many times were in each, one more than there are bounds.
    total: the seconds of all of them together.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @property
    def count(self) -> int:
        """How many times there were."""
        return sum(self.counts)


class Timings:
    """Counts times."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._total = 0.0

    def add(self, seconds: float) -> None:
        """It took so long once more."""
        self._counts[bisect_left(BOUNDS_S, seconds)] += 1
        self._total += seconds

    def histogram(self) -> Histogram:
        """What there is so far."""
        return Histogram(BOUNDS_S, tuple(self._counts), self._total)
