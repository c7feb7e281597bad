"""The producers that a consumer hears, and which of them are silent.

A producer repeats its HEAD at growing intervals while it has no new records; each interval is at most twice the
previous one. So the time for which it may be silent depends on the time between its last two messages.
"""

from __future__ import annotations

import attrs

from dafka.protocol.growing_interval import GROWTH_FACTOR
from dafka.records import Partition


@attrs.define
class _Producer:
    heard_at: float
    gap_s: float = 0.0
    is_silent: bool = False


class ProducerSilence:
    """When the producer of each partition was last heard.

    Args:
        silence_s: Seconds after which a producer counts as silent. For a producer with long intervals, half of that is
            added to the time in which its next message is expected.
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
