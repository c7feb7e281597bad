"""A disk that keeps exactly what it has made durable: the base of stores, spools and saved positions.

It holds contents, so that what is read is what was written. After a crash, the transaction that was being written is
there completely, not at all, or, if the disk tears writes, up to some point of each partition.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Mapping, Sequence

import attrs

from dafka.protocol import ForgetPartitions, ResetPosition
from dafka.protocol.machines.commit_queue import StorageWork
from dafka.records import Partition, RecordBatch
from dafka.storage import PartitionInfo, RetentionPolicy
from tests.simulation.violations import Violation


@attrs.define
class Log:
    """One partition: its contents from `earliest` on, and the wall-clock time at which each was stored."""

    earliest: int = 0
    contents: list[bytes] = attrs.field(factory=list)
    stored_at: list[int] = attrs.field(factory=list)

    @property
    def end(self) -> int:
        return self.earliest + len(self.contents)


class Disk:
    """The durable state of one node. `dropped` has, by partition, the end of the records that retention has dropped."""

    def __init__(self) -> None:
        self.logs: dict[Partition, Log] = {}
        self.positions: dict[Partition, int] = {}
        self.is_full = False
        self.clock_offset_ms = 0
        self.dropped: dict[Partition, int] = {}

    def write(self, work: StorageWork, now: float) -> None:
        """Make durable what `CommitQueue` or a spool asks for. Raise `Violation` for a gap or an overlap."""
        if isinstance(work, ResetPosition):
            log = self.logs.setdefault(work.partition, Log())
            if work.next_sequence < log.end:
                raise Violation("skip back", f"{work.partition} from {log.end} to {work.next_sequence}")
            self.logs[work.partition] = Log(work.next_sequence)
            return
        if isinstance(work, ForgetPartitions):
            for partition in work.partitions:
                if self.logs.pop(partition, Log()).contents:
                    raise Violation("forgot records", str(partition))
            return
        assert isinstance(work, list), "only brokers delete partitions with records"
        for batch in work:
            self._append(batch, now)

    def write_torn(self, work: StorageWork, now: float, draw: random.Random, *, is_atomic: bool) -> None:
        """Write what a node was writing when it crashed: all, nothing or a part of it."""
        choice = draw.random()
        if not isinstance(work, list) or is_atomic or choice < 0.5:
            if choice % 0.5 < 0.25:
                self.write(work, now)
            return
        for batch in work:
            self._append(batch.between(0, batch.first_sequence + draw.randint(0, len(batch))), now)

    def read(self, partition: Partition, first_sequence: int, count: int) -> RecordBatch | None:
        log = self.logs.get(partition)
        if log is None or not log.earliest <= first_sequence < log.end:
            return None
        start = first_sequence - log.earliest
        return RecordBatch(partition, first_sequence, log.contents[start : start + count])

    def find_sequence_by_time(self, partition: Partition, time_ms: int) -> int | None:
        log = self.logs.get(partition, Log())
        number = bisect_left(log.stored_at, time_ms)
        return log.earliest + number if number < len(log.stored_at) else None

    def partitions(self) -> dict[Partition, PartitionInfo]:
        return {partition: PartitionInfo(log.earliest, log.end) for partition, log in self.logs.items()}

    def end(self, partition: Partition) -> int:
        log = self.logs.get(partition)
        return 0 if log is None else log.end

    def trim(self, partition: Partition, earliest: int) -> bool:
        """Drop the records before `earliest`. Return whether there were any."""
        log = self.logs.get(partition)
        count = 0 if log is None else min(earliest, log.end) - log.earliest
        if log is None or count <= 0:
            return False
        del log.contents[:count], log.stored_at[:count]
        log.earliest += count
        self.dropped[partition] = max(self.dropped.get(partition, 0), log.earliest)
        return True

    def retain(self, retention: RetentionPolicy, now: float) -> dict[Partition, int]:
        moved = {}
        for partition, log in self.logs.items():
            earliest = log.earliest
            if retention.records_max is not None:
                earliest = max(earliest, log.end - retention.records_max)
            if retention.age_ms is not None:
                oldest = self._wall_ms(now) - retention.age_ms
                earliest = max(earliest, log.earliest + sum(1 for time in log.stored_at if time < oldest))
            if self.trim(partition, earliest):
                moved[partition] = log.earliest
        return moved

    def save_positions(self, positions: Mapping[Partition, int]) -> None:
        self.positions.update(positions)

    def _append(self, batch: RecordBatch, now: float) -> None:
        if not batch.values:
            return
        log = self.logs.setdefault(batch.partition, Log(batch.first_sequence))
        if batch.first_sequence != log.end:
            raise Violation("gap in a log", f"{batch.partition} at {log.end}: {describe(batch)}")
        check_contents([batch])
        latest = log.stored_at[-1] if log.stored_at else 0
        log.contents += (value or b"" for value in batch.values)
        log.stored_at += [max(self._wall_ms(now), latest)] * len(batch)

    def _wall_ms(self, now: float) -> int:
        return wall_ms(now) + self.clock_offset_ms


def wall_ms(now: float) -> int:
    return 1_000_000_000 + int(now * 1000)


def content(partition: Partition, sequence: int) -> bytes:
    return b"%d %s" % (sequence, partition.address.encode())


def contents(partition: Partition, first_sequence: int, end_sequence: int) -> list[bytes]:
    suffix = partition.address.encode()
    return [b"%d %s" % (sequence, suffix) for sequence in range(first_sequence, end_sequence)]


def check_contents(batches: Sequence[RecordBatch]) -> None:
    for batch in batches:
        if list(batch.values) != contents(batch.partition, batch.first_sequence, batch.end_sequence):
            raise Violation("another record's content", describe(batch))


def describe(batch: RecordBatch) -> str:
    return f"{batch.partition} {batch.first_sequence}..{batch.end_sequence - 1}"
