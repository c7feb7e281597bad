"""Repeated reports of announced records that a store misses and that no node sends.

When FETCHes for a partition go unanswered several times, that is reported once. If it lasts, for example because the
only node that had the records has ended, the store repeatedly reports the number of missing records.
"""

from __future__ import annotations

from dafka.protocol.ordering.reassembler import Reassembler
from dafka.protocol.store_events import RecordsMissing

FIRST_S = 15.0
"""Seconds until the first report, in which more FETCHes go unanswered."""

INTERVAL_S = 60.0
"""Seconds between two reports."""


class MissingRecords:
    """The reports of one store about its missing records."""

    def __init__(self, reassembler: Reassembler) -> None:
        self._reassembler = reassembler
        self._due = float("inf")

    def begin(self, now: float) -> None:
        """Schedule a report, because FETCHes were not answered. Do nothing if one is scheduled."""
        if self._due == float("inf"):
            self._due = now + FIRST_S

    def count(self) -> int:
        """Return how many records are missing that no node sends."""
        cursors = self._reassembler.cursors
        unanswered = self._reassembler.unanswered_partitions()
        return sum(cursors[partition].known_end - cursors[partition].next_sequence for partition in unanswered)

    def take_due(self, now: float) -> list[RecordsMissing]:
        """Return the report that is due now. If nothing is missing, the reports stop until `begin`."""
        if now < self._due:
            return []
        partitions = self._reassembler.unanswered_partitions()
        if not partitions:
            self._due = float("inf")
            return []
        self._due = now + INTERVAL_S
        return [RecordsMissing(self.count(), len(partitions), partitions[0])]

    def deadline(self) -> float:
        """Return when to call `take_due`."""
        return self._due
