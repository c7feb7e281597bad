"""Ranges of a producer's sequences that a log has.

Usually there is one range. There are several if the availability of the log is "branch": the records that a producer
sent to the other side of a network partition are missing until both sides meet. They are appended after later ones.
"""

from __future__ import annotations

from dafka.broker.core.positions import ProducerSequence

SEQUENCES = 2**31
"""The number of different sequences. After the last one, sequences continue at 0."""

RANGES_MAX = 64
"""The number of ranges that are remembered of one producer. The earliest ones are forgotten."""


class SequenceRanges:
    """Ranges of sequences. Each sequence has an ordinal, which continues to grow where sequences continue at 0.

    `end` is the ordinal after the last sequence, or the first ordinal if there is none.
    """

    __slots__ = ("_ranges", "end")

    def __init__(self) -> None:
        self.end = 0
        self._ranges: list[list[int]] = []

    def ordinal_of(self, sequence: ProducerSequence) -> int:
        """Return the ordinal of a sequence that is nearest to the end."""
        ahead = (sequence - self.end) % SEQUENCES
        return self.end + (ahead if ahead < SEQUENCES // 2 else ahead - SEQUENCES)

    def add(self, base_sequence: ProducerSequence, count: int) -> bool:
        """Add sequences. Return whether they are after all others."""
        ranges = self._ranges
        first = self.ordinal_of(base_sequence) if ranges else base_sequence
        end = first + count
        if ranges and first == ranges[-1][1]:
            ranges[-1][1] = self.end = end
            return True
        is_last = not ranges or end > self.end
        touched = [each for each in ranges if each[0] <= end and first <= each[1]]
        if touched:
            first, end = min(first, touched[0][0]), max(end, touched[-1][1])
        ranges[:] = sorted([*(each for each in ranges if each not in touched), [first, end]])[-RANGES_MAX:]
        self.end = ranges[-1][1]
        return is_last

    def covers(self, base_sequence: ProducerSequence, count: int) -> bool:
        """Return whether all of these sequences are included.

        A sequence that is half of all sequences behind the end, or more, counts as a future one: it is not included.
        """
        first = self.ordinal_of(base_sequence)
        return any(each[0] <= first and first + count <= each[1] for each in self._ranges)
