"""Runs of records on their way to a slower taker: a program, or a disk.

A fast sender and an idle receiver make short runs, a few records each. Whoever takes from here gets what has gathered
of a partition as one run: the further behind the taker is, the larger the runs it is given, and the less each record
costs it.
"""

from __future__ import annotations

from collections import OrderedDict

from dafka.records import Partition, RecordBatch

TAKE_RECORDS_MAX = 10_000
"""Records joined into one run; a longer run that came as one stays one."""


class RunBuffer:
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
        count = records = 0
        for run in runs:
            if count and records + len(run) > TAKE_RECORDS_MAX:
                break
            count += 1
            records += len(run)
        if count < len(runs):
            self._runs[partition] = runs[count:]
        return _join(runs[:count])

    def take_all(self) -> list[RecordBatch]:
        """Everything, one run a partition."""
        runs, self._runs = self._runs, OrderedDict()
        return [_join(each) for each in runs.values()]

    def first_sequences(self) -> dict[Partition, int]:
        """By partition, the sequence of the first record that waits."""
        return {partition: runs[0].first_sequence for partition, runs in self._runs.items()}

    def drop(self, topic: str) -> int:
        """Forgets a topic's runs; gives the memory that they took."""
        dropped = [partition for partition in self._runs if partition.topic == topic]
        return sum(run.memory_bytes for partition in dropped for run in self._runs.pop(partition))


def _join(runs: list[RecordBatch]) -> RecordBatch:
    if len(runs) == 1:
        return runs[0]
    contents = [content for run in runs for content in run.contents]
    return RecordBatch(runs[0].partition, runs[0].first_sequence, contents)
