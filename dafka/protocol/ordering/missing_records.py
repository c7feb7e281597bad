"""Repeated reports of records that other nodes have announced, that a store does not have, and that no node sends.

If no node answers a FETCH several times, that is reported once for each partition, when it begins. If it lasts, for
example because the only node that had the records has ended, the store reports repeatedly how much is missing.
"""

from __future__ import annotations

from dafka.protocol.events import RecordsMissing
from dafka.protocol.ordering.reassembler import Reassembler

FIRST_S = 15.0
"""Seconds until the first report. By then, more FETCHes have gone unanswered."""

INTERVAL_S = 60.0
"""Seconds between two reports."""


class MissingRecords:
    """When one store reports its missing records, and which they are."""

    def __init__(self, reassembler: Reassembler) -> None:
        self._reassembler = reassembler
        self._due = float("inf")

    def begin(self, now: float) -> None:
        """Report what is missing soon, because FETCHes for it were not answered. Do nothing if that is planned."""
        if self._due == float("inf"):
            self._due = now + FIRST_S

    def count(self) -> int:
        """Return how many records are missing that no node sends."""
        cursors = self._reassembler.cursors
        unanswered = self._reassembler.unanswered_partitions()
        return sum(cursors[partition].known_end - cursors[partition].next_sequence for partition in unanswered)

    def take_due(self, now: float) -> list[RecordsMissing]:
        """Return the report that is due now. There are no further ones until `begin` if nothing is missing."""
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
