"""A node that asks stores how much of a partition they hold, and reads it back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio

from dafka.config import Config
from dafka.errors import DiscoveryError, LocalError
from dafka.groups import single_exception
from dafka.records import Partition, RecordBatch, new_address
from dafka.roles.node import Node, open_node
from dafka.spark.inquiry import InquiryMachine


class UnansweredError(LocalError):
    """Stores did not tell, in time, what they hold."""


class Inquiry:
    """Made by `open_inquiry`."""

    def __init__(self, node: Node, machine: InquiryMachine, config: Config) -> None:
        self._node = node
        self._machine = machine
        self._config = config
        self._timeout_s = config.producer.close_timeout_ms / 1000
        self._runs: dict[Partition, list[RecordBatch]] = {}
        self._changed = trio.lowlevel.ParkingLot()
        node.on_batch(lambda batch: self._runs.setdefault(batch.partition, []).append(batch))
        node.on_change(self._wake)

    async def held_end(self, partition: Partition) -> int:
        """The sequence after the last record of this partition that any store holds.

        Raises `DiscoveryError` where no tower answers, `UnansweredError` where there are fewer stores than must
        acknowledge, or where somebody else goes on adding to the partition.
        """
        self._node.act(self._machine.ask(partition, trio.current_time()))
        await self._wait_settled()
        with trio.move_on_after(self._timeout_s):
            while (end := self._machine.held_end(partition, trio.current_time())) is None:
                self._node.act(())  # the machine may want to be looked at sooner
                await self._changed.park()
            return end
        required = self._config.producer.min_stores
        if self._machine.stores < required:
            stores = "a store" if required == 1 else f"{required} stores"
            raise UnansweredError(
                f"topic {partition.topic}: {self._machine.stores} of {stores} found within {self._timeout_s:g} s; "
                "start one more, see that the option towers names their tower, or change minStores or ackTimeout"
            )
        raise UnansweredError(
            f"topic {partition.topic}: somebody else goes on publishing this task's partition "
            f"({partition.address}): another attempt of it. Set spark.speculation to false"
        )

    async def read(self, partition: Partition, first_sequence: int, end_sequence: int) -> Sequence[bytes | None]:
        """The contents of these records; None for one that retention has dropped.

        Raises `UnansweredError` where no store sends them.
        """
        contents: list[bytes | None] = []
        runs = self._runs[partition] = []
        cursor_at = first_sequence
        self._node.act(self._machine.read(partition, first_sequence, end_sequence, trio.current_time()))
        while (position := self._machine.assembly.cursors[partition].next_sequence) < end_sequence:
            with trio.move_on_after(self._timeout_s) as scope:
                while self._machine.assembly.cursors[partition].next_sequence == position:
                    await self._changed.park()
            if scope.cancelled_caught:
                raise UnansweredError(
                    f"topic {partition.topic}: stores hold {end_sequence} records of {partition.address}, and for "
                    f"{self._timeout_s:g} s none sent the one at {position}; see to the stores, or raise ackTimeout"
                )
        for run in runs:
            contents += [None] * (run.first_sequence - cursor_at)
            contents += run.contents
            cursor_at = run.end_sequence
        self._runs.pop(partition)
        return contents + [None] * (end_sequence - cursor_at)

    def _wake(self) -> None:
        self._changed.unpark_all()

    async def _wait_settled(self) -> None:
        with trio.move_on_after(self._config.node.tower_timeout_ms / 1000):
            await self._node.settled.wait()
            return
        endpoints = ", ".join(self._config.beacon.pub_addresses)
        raise DiscoveryError(
            f"no tower answers at {endpoints} (for {self._config.node.tower_timeout_ms / 1000:g} s); start one with "
            "`dafka up`, or name another with the option towers"
        )


@asynccontextmanager
async def open_inquiry(config: Config) -> AsyncIterator[Inquiry]:
    """A node that asks, for the length of a block. Raises as `open_consumer` does."""
    with single_exception():
        machine = InquiryMachine(new_address(), config)
        async with open_node(machine.address, machine, config, "spark", config.consumer.high_watermark) as node:
            inquiry = Inquiry(node, machine, config)
            async with trio.open_nursery() as nursery:
                await nursery.start(node.run)
                try:
                    yield inquiry
                finally:
                    nursery.cancel_scope.cancel()
