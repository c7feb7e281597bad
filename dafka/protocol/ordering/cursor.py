"""One partition's place: what comes next, what is known to exist, and what arrived too early.

Records come from several senders at once: live from the producer, fetched from stores. A cursor puts them in order.
Every method is pure bookkeeping; whether and how to ask for what is missing is `fetching`'s business.
"""

from __future__ import annotations

from bisect import bisect_left

from dafka.records import RecordBatch

RUNS_MAX = 4096
"""Separate runs kept ahead of a gap; a peer that sends every second record cannot make the list long."""


class Cursor:
    """Attributes:
    next_sequence: the sequence that continues the partition.
    known_end: the sequence after the last one known to exist.
    ahead_bytes: the memory that records ahead of a gap take.
    """

    __slots__ = ("_ahead", "_begin", "ahead_bytes", "known_end", "next_sequence")

    def __init__(self, next_sequence: int) -> None:
        self._begin = next_sequence
        self.next_sequence = next_sequence
        self.known_end = next_sequence
        self.ahead_bytes = 0
        self._ahead: list[RecordBatch] = []

    @property
    def is_proven(self) -> bool:
        """Have any records of it come, one after the other?"""
        return self.next_sequence > self._begin

    def note_known_end(self, end_sequence: int) -> None:
        """Records up to, not including, this sequence are known to exist."""
        self.known_end = max(self.known_end, end_sequence)

    def add_batch(self, batch: RecordBatch, ahead_bytes_left: int) -> list[RecordBatch]:
        """The records that are now in order, thanks to these: none (duplicates, or a gap before them), or runs.

        Records ahead of a gap are kept where `ahead_bytes_left` has room for them, otherwise only learned of.
        """
        self.note_known_end(batch.end_sequence)
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
        """Gives up the records before `next_sequence`; gives the runs that they held back and that are now in order."""
        self.note_known_end(next_sequence)
        self.next_sequence = next_sequence
        ready: list[RecordBatch] = []
        self._release(ready)
        return ready

    def first_gap(self) -> tuple[int, int] | None:
        """The first gap as (first sequence, end sequence), or None where everything known is here."""
        if self.next_sequence >= self.known_end:
            return None
        return self.next_sequence, self._ahead[0].first_sequence if self._ahead else self.known_end

    def _release(self, ready: list[RecordBatch]) -> None:
        """Moves over what the gap held back."""
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
        """Stores the parts of a run that no kept run covers, keeping runs disjoint and sorted."""
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
