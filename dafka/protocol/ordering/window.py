"""The records a producer holds until stores have them: push, acknowledge, read again.

RFC 46, "The RECORD Command": a producer must not delete records before they are acknowledged. Kept as the runs in
which they were published, so that neither publishing nor acknowledging touches records one by one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence

from dafka.records import Partition, RecordBatch

RUN_RECORDS_MAX = 4096
"""Longer runs are cut, so that memory is given back while a long one is being acknowledged."""


class Window:
    """Attributes:
    first_sequence: the oldest record still held.
    end_sequence: the sequence of the next record to come.
    content_bytes: octets held.
    """

    def __init__(self, partition: Partition, first_sequence: int = 0) -> None:
        self.first_sequence = first_sequence
        self.end_sequence = first_sequence
        self.content_bytes = 0
        self._partition = partition
        self._runs: deque[RecordBatch] = deque()

    def __len__(self) -> int:
        return self.end_sequence - self.first_sequence

    def push(self, contents: Sequence[bytes]) -> None:
        """Adds records at the end."""
        for start in range(0, len(contents), RUN_RECORDS_MAX):
            run = RecordBatch(self._partition, self.end_sequence, contents[start : start + RUN_RECORDS_MAX])
            self._runs.append(run)
            self.end_sequence = run.end_sequence
            self.content_bytes += run.content_bytes

    def release(self, end_sequence: int) -> None:
        """Lets go of the records before `end_sequence`."""
        self.first_sequence = max(self.first_sequence, min(end_sequence, self.end_sequence))
        while self._runs and self._runs[0].end_sequence <= self.first_sequence:
            self.content_bytes -= self._runs.popleft().content_bytes

    def trim(self, records_max: int, bytes_max: int) -> None:
        """Lets go of the oldest runs until the rest is within both limits, or a single run."""
        while len(self._runs) > 1 and (len(self) > records_max or self.content_bytes > bytes_max):
            self.release(self._runs[0].end_sequence)

    def read(self, first_sequence: int, count: int, bytes_max: int) -> RecordBatch | None:
        """Up to `count` records from `first_sequence` on, at least one and about `bytes_max`; None if not held."""
        if not self.first_sequence <= first_sequence < self.end_sequence:
            return None
        index = bisect_right(self._runs, first_sequence, key=lambda run: run.first_sequence) - 1
        return self._runs[index].between(first_sequence, first_sequence + count).within(bytes_max)
