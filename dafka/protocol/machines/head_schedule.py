"""Schedules a producer's HEADs (RFC 46, "The HEAD Command").

RFC 46 demands a HEAD at a regular interval. In a cluster of hundreds of idle producers these HEADs, and the ACKs that
answer them, are most of the work of a store. So an unchanged HEAD is sent at growing intervals (erratum 33), as long as
every connected store has acknowledged everything, and all peers that take HEADs are nodes of this project.
"""

from __future__ import annotations

from collections.abc import Callable

from dafka.protocol.growing_interval import GrowingInterval


class HeadSchedule:
    """The time of the next HEAD of one producer.

    Args:
        interval_s: Seconds between two HEADs, and between a record and the first HEAD after it.
        interval_max_s: The longest time between two HEADs if nothing new happens.
    """

    def __init__(self, interval_s: float, interval_max_s: float) -> None:
        self._interval = GrowingInterval(interval_s, interval_max_s, short_count=2)
        self._due = float("inf")
        self._need_regular_heads: Callable[[], bool] = lambda: False

    def watch_listeners(self, need_regular_heads: Callable[[], bool]) -> None:
        """Set the function that returns whether a peer needs HEADs at a regular interval."""
        self._need_regular_heads = need_regular_heads

    def start(self, due: float) -> None:
        """Begin at this time."""
        self._due = due

    def shorten(self, interval_s: float, now: float) -> None:
        """Repeat HEADs at this interval from now on, unless the configured one is shorter."""
        interval_s = min(interval_s, self._interval.shortest_s)
        self._interval = GrowingInterval(interval_s, interval_s)
        self._due = min(self._due, now + interval_s)

    def records_published(self, now: float) -> None:
        """Schedule a HEAD for new records after the short interval."""
        self._interval.restart()
        self._due = min(self._due, now + self._interval.next_wait_s())

    def head_sent(self, now: float, *, is_known: bool) -> None:
        """Record that a HEAD was sent.

        Args:
            now: The time.
            is_known: Whether every node that was connected before is known to have all announced records.
        """
        if not is_known or self._need_regular_heads():
            self._interval.restart()
        self._due = now + self._interval.next_wait_s()

    def is_due(self, now: float) -> bool:
        """Return whether it is time for the next HEAD."""
        return now >= self._due

    def deadline(self) -> float:
        """Return when the next HEAD is due."""
        return self._due
