"""The position in one partition: the next record, the known end, and records that arrived too early.

Records come from several senders at once: live from the producer, fetched from stores. A cursor puts them in order.
`FetchPlanner` decides when to fetch missing records.
"""

from __future__ import annotations

from bisect import bisect_left

from dafka.records import RecordBatch

RUNS_MAX = 4096
"""The maximum number of batches kept after gaps: a peer that sends every second record cannot make the list long."""


class Cursor:
    """The position in one partition: the sequence of the next record in order.

    `known_end` is the sequence after the last record that is known to exist, `ahead_bytes` the memory that records
    ahead of a gap take.
    """

    __slots__ = ("_ahead", "_begin", "_expected_end", "ahead_bytes", "known_end", "next_sequence")

    def __init__(self, next_sequence: int) -> None:
        self._begin = next_sequence
        self.next_sequence = next_sequence
        self.known_end = next_sequence
        self._expected_end = next_sequence
        self.ahead_bytes = 0
        self._ahead: list[RecordBatch] = []

    @property
    def is_proven(self) -> bool:
        """Whether records have arrived in order."""
        return self.next_sequence > self._begin

    def record_known_end(self, end_sequence: int) -> None:
        """Record that the records before this sequence exist."""
        self.known_end = max(self.known_end, end_sequence)

    @property
    def has_missing(self) -> bool:
        """Whether records are missing that are known to exist."""
        return self.next_sequence < self.known_end

    def expect_record(self) -> None:
        """Expect one more record, which may not exist."""
        self._expected_end = self.next_sequence + 1

    def stop_expecting(self) -> None:
        """Withdraw `expect_record`: only records that are known to exist can be missing."""
        self._expected_end = self.known_end

    def add_batch(self, batch: RecordBatch, ahead_bytes_left: int) -> list[RecordBatch]:
        """Add records, which may be duplicates or follow a gap, and return the batches that are now in order.

        Records after a gap that need more than `ahead_bytes_left` of memory are dropped and count as missing.
        """
        self.record_known_end(batch.end_sequence)
        if batch.end_sequence <= self.next_sequence:
            return []
        if batch.first_sequence > self.next_sequence:
            self._keep(batch, ahead_bytes_left)
            return []
        ready = [batch.between(self.next_sequence, batch.end_sequence)]
        self.next_sequence = batch.end_sequence
        if self._ahead:
            self._release(ready)
        return ready

    def reset_to(self, next_sequence: int) -> list[RecordBatch]:
        """Give up the records before `next_sequence`; return the batches ahead of them that are now in order."""
        self.record_known_end(next_sequence)
        self.next_sequence = next_sequence
        ready: list[RecordBatch] = []
        self._release(ready)
        return ready

    def first_gap(self) -> tuple[int, int] | None:
        """Return the first gap as its first and end sequence, or None if no known or expected record is missing."""
        end = max(self.known_end, self._expected_end)
        if self.next_sequence >= end:
            return None
        return self.next_sequence, self._ahead[0].first_sequence if self._ahead else end

    def _release(self, ready: list[RecordBatch]) -> None:
        """Move batches that are no longer ahead of a gap to `ready`."""
        count = 0
        for run in self._ahead:
            if run.first_sequence > self.next_sequence:
                break
            count += 1
            self.ahead_bytes -= run.memory_bytes
            if run.end_sequence > self.next_sequence:
                ready.append(run.between(self.next_sequence, run.end_sequence))
                self.next_sequence = run.end_sequence
        del self._ahead[:count]

    def _keep(self, batch: RecordBatch, ahead_bytes_left: int) -> None:
        """Keep the parts of a batch that no kept batch covers. The kept batches stay disjoint and sorted."""
        index = bisect_left(self._ahead, batch.first_sequence, key=lambda run: run.end_sequence - 1)
        first = batch.first_sequence
        while first < batch.end_sequence:
            run = self._ahead[index] if index < len(self._ahead) else None
            if run is not None and run.first_sequence <= first:
                first = run.end_sequence
                index += 1
                continue
            end = batch.end_sequence if run is None else min(batch.end_sequence, run.first_sequence)
            part = batch.between(first, end)
            part_bytes = part.memory_bytes
            if part_bytes > ahead_bytes_left or len(self._ahead) >= RUNS_MAX:
                return
            self._ahead.insert(index, part)
            self.ahead_bytes += part_bytes
            ahead_bytes_left -= part_bytes
            index += 1
            first = end
