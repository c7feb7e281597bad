"""The part of a consumer that hands the received records to the program."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Set
from functools import partial

import trio

from dafka.config import Config
from dafka.errors import ConfigError
from dafka.protocol import ConsumerMachine, DeliveryBuffer
from dafka.records import Partition, Record, RecordBatch
from dafka.roles.arguments import check_positions
from dafka.roles.group import Group
from dafka.roles.role import NodeRole
from dafka.roles.sockets import NodeSockets
from dafka.roles.trio_context import Iteration


class RecordStream(NodeRole):
    """A node whose records a program takes one by one or in batches, each record once."""

    def __init__(self, machine: ConsumerMachine, sockets: NodeSockets, config: Config) -> None:
        """Create the stream."""
        super().__init__(machine, sockets, config)
        self._machine = machine
        self._delivery = DeliveryBuffer(machine)
        self._arrived = trio.lowlevel.ParkingLot()
        self._group: Group | None = None

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that the consumer is subscribed to."""
        return tuple(self._machine.topics)

    def batches(self, *, until: Mapping[Partition, int] | None = None) -> AsyncIterator[RecordBatch]:
        """Return an iterator over batches of records, which waits for more.

        Each batch holds consecutive records of one partition. Iterating raises `trio.ClosedResourceError` after the
        consumer's block.

        Args:
            until: By partition, the sequence after the last record to return, such as `await consumer.ends()`. The
                iterator ends there, and does not take later records and other partitions. None: it does not end.

        Returns:
            The iterator.

        Raises:
            ConfigError: A partition, its topic or a sequence in `until` is invalid.
        """
        return Iteration(partial(self._next_batch_before, None if until is None else self._check_until(until)))

    def __aiter__(self) -> AsyncIterator[Record]:
        """Return an iterator over records. It executes a checkpoint for each received batch, not for each record."""
        return Iteration(self.next_record)

    async def next_batch(self, records_max: int | None = None) -> RecordBatch:
        """Wait for the next batch of records, as iterating over `batches()` does.

        Args:
            records_max: The maximum number of records to return, at least 1. None: as many as there are.

        Returns:
            Consecutive records of one partition.
        """
        await trio.lowlevel.checkpoint()
        while (batch := self._take_run()) is None:
            await self._arrived.park()
        return self._delivery.hand_over(batch, records_max)

    async def next_record(self) -> Record:
        """Wait for the next record, as iterating over the consumer does."""
        while (record := self._delivery.next_record()) is None:
            await self._open_run()
        return record

    async def _open_run(self, ends: dict[Partition, int] | None = None) -> bool:
        """Wait for records, which `_delivery` then hands over, in any thread; return False if all ends are reached."""
        await trio.lowlevel.checkpoint()
        while (found := self._open_run_nowait(ends)) is None:
            await (self._arrived if ends is None else self._changed).park()
        return found

    def _open_run_nowait(self, ends: dict[Partition, int] | None = None) -> bool | None:
        """Do the same without waiting; return None if it would have to wait."""
        if (batch := self._take_run(ends)) is None:
            return False if ends is not None and self._delivery.is_complete(ends) else None
        self._delivery.open_run(batch)
        return True

    async def _next_batch_before(self, ends: dict[Partition, int] | None) -> RecordBatch:
        """Wait for the next batch, as `batches` does until these ends."""
        if ends is None:
            return await self.next_batch()
        while await self._open_run(ends):
            if (batch := self._delivery.next_batch()) is not None:
                return batch
        raise StopAsyncIteration

    def _held(self, partitions: Set[Partition]) -> Set[Partition]:
        """Return the partitions that this consumer handles: in a group, some of them; otherwise all."""
        return partitions if self._group is None else partitions & self._group.held().keys()

    def _check_until(self, sequences: Mapping[Partition, int]) -> dict[Partition, int]:
        if self._group is not None:
            raise ConfigError("until: expected None in a group, whose other members read some of the partitions")
        return self._check_ends(sequences)

    def _check_ends(self, sequences: Mapping[Partition, int]) -> dict[Partition, int]:
        check_positions(sequences)
        for partition in sequences:
            if partition.topic not in self._machine.topics:
                raise ConfigError(f"{partition}: expected a topic that the consumer is subscribed to: {self.topics}")
        return dict(sequences)

    def _take_run(self, ends: Mapping[Partition, int] | None = None) -> RecordBatch | None:
        self._check_open()
        if self._group is not None and not self._group.has_lease():
            return None
        taken = self._delivery.take_run(trio.current_time(), ends)
        if taken is None:
            return None
        batch, actions = taken
        if actions:
            self._node.act(actions)
        return batch

    def _on_records(self, batch: RecordBatch) -> None:
        self._delivery.put_records(batch)
        self._arrived.unpark_all()

    def _refuse_calls(self) -> None:
        super()._refuse_calls()
        self._delivery.end_run()
        self._arrived.unpark_all()
