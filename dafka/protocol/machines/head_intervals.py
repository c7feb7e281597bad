"""The intervals at which a producer repeats its HEAD, and after which a consumer counts the producer as silent.

RFC 46 demands a HEAD at a regular interval. In a cluster of hundreds of idle producers these HEADs, and the ACKs that
answer them, are most of the work of a store. So an unchanged HEAD is sent at growing intervals (erratum 33), as long as
every connected store has acknowledged everything, and all peers that take HEADs are nodes of this project.
"""

from __future__ import annotations

import attrs

from dafka.records import Partition

GROWTH_FACTOR = 2
"""The factor by which each interval is longer than the one before."""


class GrowingInterval:
    """A time between repetitions: short at first, then as long as all earlier repetitions took, up to a limit.

    If a receiver misses a message because its queue is full for some time, the message is repeated soon after that
    time. The first `short_count` repetitions follow the shortest time.
    """

    def __init__(self, shortest_s: float, longest_s: float, short_count: int = 1) -> None:
        self.shortest_s = shortest_s
        self._longest_s = max(longest_s, shortest_s)
        self._short_count = short_count
        self._repeated = 0
        self._next_s = shortest_s

    def restart(self) -> None:
        """Begin with the shortest time again: the message says something new, or has a new receiver."""
        self._repeated = 0
        self._next_s = self.shortest_s

    def next_wait_s(self) -> float:
        """Return the seconds until the next repetition: the message has just been repeated."""
        self._repeated += 1
        wait_s = self._next_s
        if self._repeated >= self._short_count:
            self._next_s = min(GROWTH_FACTOR * self._next_s, self._longest_s)
        return wait_s


class HeadSchedule:
    """The time of the next HEAD of one producer (RFC 46, "The HEAD Command").

    `interval_s` is the time between two HEADs, and between a record and the first HEAD after it; `interval_max_s` is
    the longest time between two HEADs if nothing new happens.
    """

    def __init__(self, interval_s: float, interval_max_s: float) -> None:
        self._interval = GrowingInterval(interval_s, interval_max_s, short_count=2)
        self._due = float("inf")

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
        """Record that a HEAD was sent, and whether every connected node is known to have all announced records."""
        if not is_known:
            self._interval.restart()
        self._due = now + self._interval.next_wait_s()

    def is_due(self, now: float) -> bool:
        """Return whether it is time for the next HEAD."""
        return now >= self._due

    def deadline(self) -> float:
        """Return when the next HEAD is due."""
        return self._due


@attrs.define
class _Producer:
    heard_at: float
    gap_s: float = 0.0
    is_silent: bool = False


class ProducerSilence:
    """The producers that a consumer hears, and which of them are silent.

    Each interval of a producer is at most twice the previous one. So a producer counts as silent after `silence_s`; if
    its intervals are long, after twice the time between its last two messages and half of `silence_s`.
    """

    def __init__(self, silence_s: float) -> None:
        self._silence_s = silence_s
        self._producers: dict[Partition, _Producer] = {}

    def __contains__(self, partition: Partition) -> bool:
        """Return whether the producer of a partition was ever heard."""
        return partition in self._producers

    def record_heard(self, partition: Partition, now: float) -> bool:
        """Record a message of the producer, and return whether it was reported as silent."""
        producer = self._producers.get(partition)
        if producer is None:
            self._producers[partition] = _Producer(now)
            return False
        was_silent, producer.is_silent = producer.is_silent, False
        if not was_silent:
            producer.gap_s = now - producer.heard_at
        producer.heard_at = now
        return was_silent

    def forget_partition(self, partition: Partition) -> None:
        """Forget a partition."""
        self._producers.pop(partition, None)

    def take_silent(self, now: float) -> list[tuple[Partition, float]]:
        """Return the partitions whose producers have become silent, and for how many seconds they have been."""
        found = []
        for partition, producer in self._producers.items():
            silence_s = now - producer.heard_at
            if silence_s >= self._silence_s and not producer.is_silent:
                producer.is_silent = silence_s >= GROWTH_FACTOR * producer.gap_s + self._silence_s / 2
                if producer.is_silent:
                    found.append((partition, silence_s))
        return found
