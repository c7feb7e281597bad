"""The reader: how far the stores of a running cluster have come, how much they hold, and any range of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

import trio

from dafka.config import Config
from dafka.errors import DiscoveryError, UnansweredError
from dafka.groups import single_exception
from dafka.protocol import BatchBuffer, Incomplete, ReaderMachine, TowersHeard
from dafka.records import Partition, RecordBatch, new_address
from dafka.roles.arguments import check_topics
from dafka.roles.role import NodeRole
from dafka.roles.sockets import NodeSockets, open_sockets


class Reader(NodeRole):
    """Made by `open_reader`.

    Attributes:
        address: the reader's node address.
    """

    def __init__(self, machine: ReaderMachine, sockets: NodeSockets, config: Config) -> None:
        super().__init__(machine, sockets, config)
        self._machine = machine
        self._config = config
        self._ranges: dict[Partition, Range] = {}
        self._asked: set[Partition] = set()
        self._changed = trio.lowlevel.ParkingLot()
        self._is_tower_heard = False
        self._is_closed = False

    async def wait_ready(self) -> None:
        """Waits until `ends` tells what the stores that are there held when this was called.

        Raises `DiscoveryError` where `tower_timeout_ms` is not enough to find a tower and a store.
        """
        with trio.move_on_after(self._config.node.tower_timeout_ms / 1000):
            await self.wait(lambda: self._machine.is_ready)
        self.check_settled()
        if not self._machine.is_ready:
            seconds = self._config.node.tower_timeout_ms / 1000
            towers = ", ".join(self._config.beacon.tower_pub)
            raise DiscoveryError(f"no store was found within {seconds:g} s through the tower at {towers}")

    def check_settled(self) -> None:
        """For who has waited for `tower_timeout_ms`: raises `DiscoveryError` unless a cluster has been found."""
        if self._settled.is_set():
            return
        beacon = self._config.beacon
        seconds = self._config.node.tower_timeout_ms / 1000
        sub, pub = ", ".join(beacon.tower_sub), ", ".join(beacon.tower_pub)
        if not self._is_tower_heard:
            raise DiscoveryError(
                f"no tower answered at {pub} within {seconds:g} s; start one with `dafka up`, or name another"
            )
        raise DiscoveryError(
            f"the tower at {pub} is heard, but what is sent to {sub} did not come back from it within {seconds:g} s: "
            "both must be the same tower's"
        )

    def ends(self) -> dict[Partition, int]:
        """By partition of the surveyed topics, the sequence after the last record that a store has made durable."""
        return dict(self._machine.ends)

    async def held_end(self, partition: Partition, seconds: float, *, min_stores: int = 1) -> int:
        """The sequence after the last record of this partition that any store holds; 0 where none holds any.

        Certain, as far as it can be: all stores that are there, and at least `min_stores`, have told, and where
        something is held, nothing has been added for a while. That takes milliseconds where stores hold nothing, and
        some seconds where they hold something, or are libdafka's. Of one partition, ask once at a time.

        Raises `DiscoveryError` where `tower_timeout_ms` is not enough to find a tower, `UnansweredError` where
        `seconds`, from then on, are not enough.
        """
        if partition in self._asked:
            raise ValueError(f"{partition} is being asked about already")
        self._asked.add(partition)
        self._node.act(self._machine.query_held_end(partition, trio.current_time()))
        try:
            await self._wait_settled()
            with trio.move_on_after(seconds):
                await self.wait(lambda: isinstance(self._look(partition, min_stores), int))
            found = self._look(partition, min_stores)
        finally:
            self._asked.discard(partition)
            actions = self._machine.end_held_end_query(partition)
            if not self._is_closed:
                self._node.act(actions)
        if isinstance(found, Incomplete):
            raise self._unanswered(partition, seconds, min_stores, found)
        return found

    async def earliest(self, partitions: Iterable[Partition], seconds: float) -> dict[Partition, int]:
        """The first record of each that any store still holds; partitions for which nobody answers are left out."""
        probes = {partition: self.read(partition, 0, 1) for partition in partitions}
        found: dict[Partition, int] = {}
        try:
            with trio.move_on_after(seconds):
                for partition, probe in probes.items():
                    found[partition] = await probe.first_sequence()
        finally:
            for probe in probes.values():
                probe.close()
        return found

    def read(self, partition: Partition, first_sequence: int, end_sequence: int) -> Range:
        """Begins to fetch the records from `first_sequence` up to, not including, `end_sequence`, which must exist.

        Close what this gives before another range of the same partition is begun.
        """
        if partition in self._ranges:
            raise ValueError(f"{partition} is being read already")
        self._ranges[partition] = Range(self, self._machine, partition, first_sequence, end_sequence)
        self._node.act(self._machine.fetch_range(partition, first_sequence, end_sequence, trio.current_time()))
        return self._ranges[partition]

    async def wait(self, condition: Callable[[], bool]) -> None:
        """Waits until something that happened to the node has made this true.

        Raises `trio.ClosedResourceError` after the block.
        """
        while not condition():
            if self._is_closed:
                raise trio.ClosedResourceError("this reader is closed")
            await self._changed.park()

    def release(self, batch: RecordBatch) -> None:
        """A range gave this to the program, or dropped it."""
        actions = self._machine.records_taken(batch.memory_bytes, trio.current_time())
        if actions:
            self._node.act(actions)

    def forget(self, partition: Partition) -> None:
        """A range is closed."""
        if self._ranges.pop(partition, None) is not None:
            self._machine.forget_range(partition)

    def close(self) -> None:
        """Makes waiting raise `trio.ClosedResourceError`."""
        self._is_closed = True
        self._changed.unpark_all()

    async def watch_towers(self) -> None:
        """Takes note of the first sign of a tower."""
        async for event in self.events:
            if isinstance(event, TowersHeard):
                self._is_tower_heard = True
                return

    async def _wait_settled(self) -> None:
        with trio.move_on_after(self._config.node.tower_timeout_ms / 1000):
            await self.wait(self._settled.is_set)
        self.check_settled()

    def _look(self, partition: Partition, min_stores: int) -> int | Incomplete:
        return self._machine.held_end(partition, min_stores, trio.current_time())

    def _unanswered(
        self, partition: Partition, seconds: float, min_stores: int, lacking: Incomplete
    ) -> UnansweredError:
        stores = self._machine.stores
        if lacking is Incomplete.STORES:
            wanted = "a store" if min_stores == 1 else f"{min_stores} stores"
            reason = f"{stores} of {wanted} found within {seconds:g} s"
        elif lacking is Incomplete.ANSWERS:
            reason = f"not every store told within {seconds:g} s what it holds of {partition}"
        else:
            reason = f"somebody goes on publishing {partition}: what stores hold has not come to rest in {seconds:g} s"
        return UnansweredError(reason, lacking.value, stores)

    def _on_change(self) -> None:
        self._changed.unpark_all()

    def _on_records(self, batch: RecordBatch) -> None:
        self._machine.records_buffered(batch.memory_bytes)
        self._ranges[batch.partition].put(batch)


class Range:
    """Records of one partition on their way: iterate over it for the runs, in order.

    Records that nobody holds any more are left out: the next run then begins later than the last one ended, or there is
    none. It waits for ever for records that nobody sends.
    """

    def __init__(
        self, reader: Reader, machine: ReaderMachine, partition: Partition, first_sequence: int, end_sequence: int
    ) -> None:
        self.partition = partition
        self._reader = reader
        self._machine = machine
        self._first_sequence = first_sequence
        self._end_sequence = end_sequence
        self._buffer = BatchBuffer()

    def __aiter__(self) -> Range:
        return self

    async def __anext__(self) -> RecordBatch:
        batch = await self.next_batch()
        if batch is None:
            raise StopAsyncIteration
        return batch

    async def next_batch(self) -> RecordBatch | None:
        """The next run; None after the last one."""
        await trio.lowlevel.checkpoint()
        await self._reader.wait(lambda: bool(self._buffer) or self._is_complete())
        if not self._buffer:
            return None
        batch = self._buffer.take_batch()
        self._reader.release(batch)
        return batch

    async def first_sequence(self) -> int:
        """Where the first run begins, or, if there is none, where records begin after the range."""
        await self._reader.wait(lambda: bool(self._buffer) or self._is_complete())
        return self._buffer.first_sequences().get(self.partition, self._machine.position(self.partition))

    def put(self, batch: RecordBatch) -> None:
        """Records have come."""
        self._buffer.add_batch(batch)

    def close(self) -> None:
        """Ends fetching; what has come and was not taken is dropped. May be called again."""
        while self._buffer:
            self._reader.release(self._buffer.take_batch())
        self._reader.forget(self.partition)

    def _is_complete(self) -> bool:
        return self._machine.position(self.partition) >= self._end_sequence


@asynccontextmanager
async def open_reader(topics: Iterable[str] = (), config: Config | None = None) -> AsyncIterator[Reader]:
    """A reader that surveys these topics, for the length of a block.

    Raises `ConfigError` for topics that cannot be, `AddressInUseError` where the node cannot listen, `DiscoveryError`
    where its discovery cannot be set up.
    """
    config = config or Config()
    machine = ReaderMachine(new_address(), config, check_topics(topics, config))
    high_watermark = config.consumer.high_watermark
    with single_exception():
        async with open_sockets(machine.address, config, "reader", high_watermark) as sockets:
            reader = Reader(machine, sockets, config)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(reader.watch_towers)
                await nursery.start(reader._run_node)
                try:
                    yield reader
                finally:
                    reader.close()
                    nursery.cancel_scope.cancel()
