"""Runs of records on their way to a slower taker: a program, or a disk.

A fast sender and an idle receiver make short runs, a few records each. Whoever takes from here gets what has gathered
of a partition as one run: the further behind the taker is, the larger the runs it is given, and the less each record
costs it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Sequence

from dafka.records import Partition, RecordBatch, join

TAKE_RECORDS_MAX = 10_000
"""Records joined into one run; a longer run that came as one stays one."""


class BatchBuffer:
    """A queue of runs, in order within each partition; partitions take turns."""

    def __init__(self) -> None:
        self._runs: OrderedDict[Partition, list[RecordBatch]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._runs)

    def put(self, batch: RecordBatch) -> None:
        """Adds a run, which follows what was put in of its partition before."""
        self._runs.setdefault(batch.partition, []).append(batch)

    def take(self) -> RecordBatch:
        """The partition's turn that comes first: what has gathered of it, joined. The buffer must not be empty."""
        partition, runs = self._runs.popitem(last=False)
        count, records, end_sequence = 0, 0, runs[0].first_sequence
        for run in runs:
            is_gap = run.first_sequence != end_sequence  # records between are gone
            if is_gap or (count and records + len(run) > TAKE_RECORDS_MAX):
                break
            count += 1
            records += len(run)
            end_sequence = run.end_sequence
        if count < len(runs):
            self._runs[partition] = runs[count:]
        return join(runs[:count])

    def take_all(self) -> list[RecordBatch]:
        """Everything, one run a partition; none of them may have a gap."""
        runs, self._runs = self._runs, OrderedDict()
        return [join(each) for each in runs.values()]

    def first_sequences(self) -> dict[Partition, int]:
        """By partition, the sequence of the first record that waits."""
        return {partition: runs[0].first_sequence for partition, runs in self._runs.items()}

    def drop_topic(self, topic: str) -> int:
        """Forgets a topic's runs; gives the memory that they took."""
        return sum(self.drop(partition) for partition in [each for each in self._runs if each.topic == topic])

    def drop(self, partition: Partition) -> int:
        """Forgets a partition's runs; gives the memory that they took."""
        return sum(run.memory_bytes for run in self._runs.pop(partition, ()))


RUN_RECORDS_MAX = 4096
"""Longer runs are cut, so that memory is given back while a long one is being acknowledged."""


class RetransmitBuffer:
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
