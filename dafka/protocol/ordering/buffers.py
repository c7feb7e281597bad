"""Buffers of batches: received records on their way to a program or a disk, and published records until their ACKs."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Mapping

from dafka.records import Partition, RecordBatch, join

TAKE_RECORDS_MAX = 10_000
"""The maximum number of records that are joined to one batch; longer batches that arrive are not split."""

TAKE_BYTES_MAX = 2**23
"""The maximum memory of records that are joined to one batch, in bytes; larger batches that arrive are not split."""

RUN_RECORDS_MAX = 4096
"""Records kept as one batch in a `RetransmitBuffer`. Longer ones are split, so that memory is released while they are
being acknowledged."""


class BatchBuffer:
    """A queue of batches, in order within each partition; partitions take turns.

    If the taker keeps up, batches are small. Many waiting records of a partition are taken as one batch, so if the
    taker falls behind, batches grow, up to a limit, and each record costs less.
    """

    def __init__(self) -> None:
        self.memory_bytes = 0
        """The memory that the waiting batches take. A taken batch, which is joined, may take less."""
        self._batches: OrderedDict[Partition, list[RecordBatch]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._batches)

    def add_batch(self, batch: RecordBatch) -> None:
        """Add a batch. It comes after all batches of its partition in the buffer."""
        self._batches.setdefault(batch.partition, []).append(batch)
        self.memory_bytes += batch.memory_bytes

    def take_batch(self) -> RecordBatch:
        """Take waiting records of the next partition as one batch. The buffer must not be empty."""
        partition, batches = self._batches.popitem(last=False)
        count, records, memory_bytes, end_sequence = 0, 0, 0, batches[0].first_sequence
        for batch in batches:
            is_gap = batch.first_sequence != end_sequence  # the records between are unrecoverable
            is_full = records + len(batch) > TAKE_RECORDS_MAX or memory_bytes + batch.memory_bytes > TAKE_BYTES_MAX
            if is_gap or (count and is_full):
                break
            count += 1
            records += len(batch)
            memory_bytes += batch.memory_bytes
            end_sequence = batch.end_sequence
        if count < len(batches):
            self._batches[partition] = batches[count:]
        self.memory_bytes -= memory_bytes
        return join(batches[:count])

    def take_batch_before(self, ends: Mapping[Partition, int]) -> RecordBatch | None:
        """Take waiting records of the next partition that has some before its end; None if there are none.

        Partitions without an end are not taken.
        """
        for partition, batches in self._batches.items():
            first, end = batches[0], ends.get(partition, 0)
            if first.first_sequence >= end:
                continue
            if batches[-1].end_sequence <= end:
                self._batches.move_to_end(partition, last=False)
                return self.take_batch()
            taken, rest = first.between(first.first_sequence, end), first.between(end, first.end_sequence)
            batches[:1] = [rest] if len(rest) else []
            self.memory_bytes -= first.memory_bytes - (rest.memory_bytes if len(rest) else 0)
            return taken
        return None

    def put_back(self, batch: RecordBatch) -> None:
        """Put records back that were taken. They come before all batches of their partition in the buffer."""
        self._batches.setdefault(batch.partition, []).insert(0, batch)
        self.memory_bytes += batch.memory_bytes

    def take_all(self) -> list[RecordBatch]:
        """Take everything, one batch for each partition. There must be no gap in any of them."""
        batches, self._batches = self._batches, OrderedDict()
        self.memory_bytes = 0
        return [join(each) for each in batches.values()]

    def first_sequences(self) -> dict[Partition, int]:
        """Return the sequence of the first record in the buffer, by partition."""
        return {partition: batches[0].first_sequence for partition, batches in self._batches.items()}

    def drop_topic(self, topic: str) -> int:
        """Drop the batches of a topic; return how much memory they took, in bytes."""
        partitions = [partition for partition in self._batches if partition.topic == topic]
        return sum(self.drop_partition(partition) for partition in partitions)

    def drop_partition(self, partition: Partition) -> int:
        """Drop the batches of a partition; return how much memory they took, in bytes."""
        freed = sum(batch.memory_bytes for batch in self._batches.pop(partition, ()))
        self.memory_bytes -= freed
        return freed


class RetransmitBuffer:
    """The records that a producer holds until stores have acknowledged them.

    A producer must not delete records before that (RFC 46, "The RECORD Command"). They are kept in the batches
    that were published, so that neither publishing nor acknowledging handles records one by one.

    The buffer holds the records from `first_sequence` to `end_sequence`, which is the next one to be published.
    """

    def __init__(self, first_sequence: int) -> None:
        self.first_sequence = first_sequence
        self.end_sequence = first_sequence
        self.content_bytes = 0
        self._batches: deque[RecordBatch] = deque()

    def __len__(self) -> int:
        return self.end_sequence - self.first_sequence

    def push(self, batch: RecordBatch) -> None:
        """Add records at the end. Their first sequence is `end_sequence`."""
        for first in range(batch.first_sequence, batch.end_sequence, RUN_RECORDS_MAX):
            part = batch.between(first, first + RUN_RECORDS_MAX)
            self._batches.append(part)
            self.end_sequence = part.end_sequence
            self.content_bytes += part.content_bytes

    def release(self, end_sequence: int) -> None:
        """Release the records before `end_sequence`."""
        self.first_sequence = max(self.first_sequence, min(end_sequence, self.end_sequence))
        while self._batches and self._batches[0].end_sequence <= self.first_sequence:
            self.content_bytes -= self._batches.popleft().content_bytes

    def batches_from(self, first_sequence: int) -> list[RecordBatch]:
        """Return the records in the buffer from a sequence on."""
        parts = (batch.between(max(first_sequence, self.first_sequence), batch.end_sequence) for batch in self._batches)
        return [part for part in parts if len(part)]

    def trim(self, records_max: int, bytes_max: int) -> None:
        """Release the oldest batches until the rest is within both limits, or a single batch."""
        while len(self._batches) > 1 and (len(self) > records_max or self.content_bytes > bytes_max):
            self.release(self._batches[0].end_sequence)

    def read(self, first_sequence: int, count: int, bytes_max: int) -> RecordBatch | None:
        """Return up to `count` records of about `bytes_max` bytes, at least one; None if the first is not held."""
        if not self.first_sequence <= first_sequence < self.end_sequence:
            return None
        index = bisect_right(self._batches, first_sequence, key=lambda batch: batch.first_sequence) - 1
        return self._batches[index].between(first_sequence, first_sequence + count).within(bytes_max)
