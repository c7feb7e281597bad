"""Records in order on their way to a program: it takes them in runs or one by one, when it finds time."""

from __future__ import annotations

from collections.abc import Iterator

from dafka.protocol.actions import Action
from dafka.protocol.machines.consumer import ConsumerMachine
from dafka.protocol.ordering.buffers import BatchBuffer
from dafka.records import Partition, Record, RecordBatch


class Delivery:
    """Keeps the machine's `buffered_bytes`, and tells it when there is room again.

    Attributes:
        positions: by partition, the sequence after the last record that the program was given.
        records: records that have left the buffer so far.
        bytes: their contents.
    """

    def __init__(self, machine: ConsumerMachine, buffer_bytes_max: int) -> None:
        self.positions: dict[Partition, int] = {}
        self.records = 0
        self.bytes = 0
        self._machine = machine
        self._buffer_bytes_max = buffer_bytes_max
        self._buffer = BatchBuffer()
        self._open_batch: RecordBatch | None = None
        self._open_records: Iterator[Record] = iter(())

    def put(self, batch: RecordBatch) -> None:
        """The machine delivers these."""
        self._buffer.put(batch)
        self._machine.buffered_bytes += batch.memory_bytes

    def next_record(self) -> Record | None:
        """The next record of the run that is being given one by one (`open`); None where that is at its end."""
        record = next(self._open_records, None)
        if record is not None:
            self.positions[record.partition] = record.sequence + 1
        return record

    def open(self, batch: RecordBatch) -> None:
        """Gives this run, which `take` gave, one by one from now on."""
        self._open_batch, self._open_records = batch, iter(batch)

    def take(self, now: float) -> tuple[RecordBatch, list[Action]] | None:
        """The next run, not counted as given yet, and what the machine wants done; None where nothing waits."""
        rest = self._take_rest()
        if rest is not None:
            return rest, []
        if not self._buffer:
            return None
        batch = self._buffer.take()
        self.records += len(batch)
        self.bytes += batch.content_bytes
        was_full = self._machine.buffered_bytes >= self._buffer_bytes_max
        self._machine.buffered_bytes -= batch.memory_bytes
        return batch, self._machine.taken(now) if was_full else []

    def give(self, batch: RecordBatch, records_max: int | None = None) -> RecordBatch:
        """The program is given this run, which `take` gave, or its first records; the others come next."""
        given = batch if records_max is None else batch.between(0, batch.first_sequence + records_max)
        self.positions[batch.partition] = given.end_sequence
        if len(given) < len(batch):
            self.open(batch.between(given.end_sequence, batch.end_sequence))
        return given

    def drop_topic(self, topic: str) -> None:
        """Nothing of a topic is given any more."""
        self._machine.buffered_bytes -= self._buffer.drop_topic(topic)
        if self._open_batch is not None and self._open_batch.partition.topic == topic:
            self._take_rest()

    def due(self) -> dict[Partition, int]:
        """By partition, the sequence of the first record that waits for the program."""
        due = self._buffer.first_sequences()
        if self._open_batch is not None:
            partition = self._open_batch.partition
            due[partition] = self.positions[partition]
        return due

    def _take_rest(self) -> RecordBatch | None:
        """What is left of a run that was being given record by record."""
        batch, self._open_batch = self._open_batch, None
        self._open_records = iter(())
        if batch is None:
            return None
        rest = batch.between(self.positions[batch.partition], batch.end_sequence)
        return rest if len(rest) else None
