"""The token bucket of every rate limit of the project. It has no clock: the caller passes the time."""

from __future__ import annotations


class TokenBucket:
    """A rate limit that allows bursts.

    The bucket holds `burst` tokens, gains `per_second`, and starts full. Each action takes one or more tokens, or a
    fraction of one. All times are on the same steady clock.
    """

    __slots__ = ("_burst", "_per_second", "_tokens", "_updated_at")

    def __init__(self, per_second: float, burst: float, now: float) -> None:
        self._per_second = per_second
        self._burst = burst
        self._tokens = burst
        self._updated_at = now

    def try_take(self, now: float, tokens: float = 1.0) -> bool:
        """Take tokens if there are enough, and return whether there were."""
        left = self._level(now)
        if left < tokens:
            return False  # nothing is stored, so that many attempts do not add up rounding errors
        self._tokens, self._updated_at = left - tokens, now
        return True

    def spend(self, now: float, tokens: float = 1.0) -> float:
        """Take tokens even if there are not enough, and return the level, which is then negative."""
        self._tokens, self._updated_at = self._level(now) - tokens, now
        return self._tokens

    def _level(self, now: float) -> float:
        return min(self._tokens + self._per_second * (now - self._updated_at), self._burst)
