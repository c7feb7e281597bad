"""Ordered records that wait for a program, which takes them in runs or one by one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from dafka.protocol.actions import Action
from dafka.protocol.machines.consumer import ConsumerMachine
from dafka.protocol.ordering.buffers import BatchBuffer
from dafka.records import Partition, Record, RecordBatch


class DeliveryBuffer:
    """The records that wait for a consumer's program. It reports to the machine how much memory they take.

    `records` and `bytes` (of their contents) count the records that have left the buffer so far.
    """

    def __init__(self, machine: ConsumerMachine) -> None:
        self.positions: dict[Partition, int] = {}
        """By partition, the sequence after the last record that the program received."""
        self.records = 0
        self.bytes = 0
        self._machine = machine
        self._buffer = BatchBuffer()
        self._open_batch: RecordBatch | None = None
        self._open_records: Iterator[Record] = iter(())

    def put_records(self, batch: RecordBatch) -> None:
        """Add records that the machine delivers. Marks of records that compaction has removed are left out."""
        for run in batch.held_runs():
            self._buffer.add_batch(run)
            self._machine.records_buffered(run.memory_bytes)

    def next_record(self) -> Record | None:
        """Hand over the next record of the open run. None if there is none left; then open another run."""
        record = next(self._open_records, None)
        if record is not None:
            self.positions[record.partition] = record.sequence + 1
        return record

    def next_batch(self, records_max: int | None = None) -> RecordBatch | None:
        """Hand over the rest of the open run, or its first `records_max` records. None if there is none left."""
        rest = self._take_rest()
        return None if rest is None else self.hand_over(rest, records_max)

    def open_run(self, batch: RecordBatch) -> None:
        """Hand over this run, which `take_run` returned, with `next_record` and `next_batch`."""
        self.positions[batch.partition] = batch.first_sequence
        self._open_batch, self._open_records = batch, iter(batch)

    def take_run(
        self, now: float, ends: Mapping[Partition, int] | None = None
    ) -> tuple[RecordBatch, list[Action]] | None:
        """Take the next run out of the buffer, to be passed to `open_run` or `hand_over`; None if no record waits.

        If `ends` is given, take only records before these sequences, and only of these partitions. The actions are
        those of the machine for the freed memory.
        """
        rest = self._take_rest()
        if rest is not None and ends is None:
            return rest, []
        if rest is not None:
            self._put_back(rest)
        if not self._buffer:
            return None
        buffered = self._buffer.memory_bytes
        batch = self._buffer.take_batch() if ends is None else self._buffer.take_batch_before(ends)
        if batch is None:
            return None
        self.records += len(batch)
        self.bytes += batch.content_bytes
        return batch, self._machine.records_taken(buffered - self._buffer.memory_bytes, now)

    def hand_over(self, batch: RecordBatch, records_max: int | None = None) -> RecordBatch:
        """Hand over a run that `take_run` returned, or its first `records_max` records; the rest comes next."""
        given = batch if records_max is None else batch.between(0, batch.first_sequence + records_max)
        self.positions[batch.partition] = given.end_sequence
        if len(given) < len(batch):
            self.open_run(batch.between(given.end_sequence, batch.end_sequence))
        return given

    def end_run(self) -> None:
        """Drop the rest of the open run: the program receives no more records."""
        self._drop_rest()

    def drop_topic(self, topic: str, now: float) -> list[Action]:
        """Drop the waiting records of a topic. Return the actions of the machine for the freed memory."""
        if self._open_batch is not None and self._open_batch.partition.topic == topic:
            self._drop_rest()
        return self._machine.records_taken(self._buffer.drop_topic(topic), now)

    def seek(self, partition: Partition, sequence: int, now: float) -> list[Action]:
        """Continue a partition at another record; drop its waiting records. Return the actions of the machine."""
        actions = self._drop_partition(partition, now)
        self.positions[partition] = sequence
        return actions + self._machine.seek(partition, sequence, now)

    def pause(self, selected: Collection[Partition | str], now: float) -> list[Action]:
        """Stop receiving records of these partitions and topics; waiting ones are dropped and fetched again later."""
        self._machine.reassembler.pause(selected)
        waiting = self.waiting_positions()
        actions: list[Action] = []
        for partition, cursor in list(self._machine.reassembler.cursors.items()):
            if partition in selected or partition.topic in selected:
                actions += self._drop_partition(partition, now)
                actions += self._machine.seek(partition, waiting.get(partition, cursor.next_sequence), now)
        return actions

    def assign_only(self) -> None:
        """Receive only records of partitions that `assign` names."""
        self._machine.reassembler.assigned = set()

    def assign(self, partition: Partition, sequence: int, now: float) -> list[Action]:
        """Receive a partition from a record on. Return the actions of the machine."""
        assigned = self._machine.reassembler.assigned
        assert assigned is not None
        assigned.add(partition)
        return self.seek(partition, sequence, now)

    def unassign(self, partition: Partition, now: float) -> list[Action]:
        """Stop receiving records of a partition; waiting records are dropped."""
        assigned = self._machine.reassembler.assigned
        assert assigned is not None
        assigned.discard(partition)
        actions = self._drop_partition(partition, now)
        return actions + self._machine.seek(partition, self.positions[partition], now)

    def is_complete(self, ends: dict[Partition, int]) -> bool:
        """Return whether all records before these ends have been handed over, or are unrecoverable.

        Complete partitions are removed from `ends`.
        """
        waiting = self.waiting_positions()
        cursors = self._machine.reassembler.cursors
        while ends:
            partition, end = next(iter(ends.items()))
            cursor = cursors.get(partition)
            if end and (cursor is None or waiting.get(partition, cursor.next_sequence) < end):
                return False
            del ends[partition]
        return True

    def waiting_positions(self) -> dict[Partition, int]:
        """Return, by partition, the sequence of the first record that waits for the program."""
        waiting = self._buffer.first_sequences()
        if self._open_batch is not None:
            partition = self._open_batch.partition
            waiting[partition] = self.positions[partition]
        return waiting

    def _take_rest(self) -> RecordBatch | None:
        """Take the rest of the open run."""
        batch, self._open_batch = self._open_batch, None
        self._open_records = iter(())
        if batch is None:
            return None
        rest = batch.between(self.positions[batch.partition], batch.end_sequence)
        return rest if len(rest) else None

    def _drop_rest(self) -> None:
        """Take the rest of the open run, which the program does not receive."""
        if (rest := self._take_rest()) is not None:
            self._uncount(rest)

    def _uncount(self, rest: RecordBatch) -> None:
        self.records -= len(rest)
        self.bytes -= rest.content_bytes

    def _put_back(self, rest: RecordBatch) -> None:
        """Put the rest of a run back into the buffer."""
        self._uncount(rest)
        self._buffer.put_back(rest)
        self._machine.records_buffered(rest.memory_bytes)

    def _drop_partition(self, partition: Partition, now: float) -> list[Action]:
        if self._open_batch is not None and self._open_batch.partition == partition:
            self._drop_rest()
        return self._machine.records_taken(self._buffer.drop_partition(partition), now)
