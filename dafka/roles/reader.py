"""The reader role: reads the stored ends of partitions, and ranges of records, from the stores of a running cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator

import trio

from dafka.config import Config
from dafka.errors import UnansweredError
from dafka.exceptions import unwrap_group
from dafka.protocol import BatchBuffer, Incomplete, ReaderMachine
from dafka.records import Partition, RecordBatch, new_address
from dafka.roles.arguments import Time, check_topics, to_time_ms
from dafka.roles.role import NodeRole
from dafka.roles.sockets import NodeSockets, open_sockets
from dafka.roles.trio_context import bind_to_process, trio_block
from dafka.wire import Role

POSITIONS_TIMEOUT_S = 60.0
"""Seconds to wait until all stores have reported the positions of partitions at a time."""


def no_time_error(stores: int) -> UnansweredError:
    """Return the error for a cluster whose stores cannot find records by time."""
    found = "the store that was found is" if stores == 1 else f"the {stores} stores that were found are"
    return UnansweredError(
        f"{found} libdafka's or of an earlier version, and cannot find records by time; begin at the earliest or the "
        "latest record, at a sequence, or with the last records",
        stores=stores,
    )


class Reader(NodeRole):
    """Reads the records of a running cluster's stores, without following them. `open_reader` creates one.

    After the block, its methods and those of its ranges raise `trio.ClosedResourceError`.
    """

    def __init__(self, machine: ReaderMachine, sockets: NodeSockets, config: Config) -> None:
        """Create the reader. Programs call `open_reader` instead."""
        super().__init__(machine, sockets, config)
        self._machine = machine
        self._config = config
        self._ranges: dict[Partition, Range] = {}
        self._queried: set[Partition] = set()
        self._time_lock = trio.Lock()

    async def wait_ready(self) -> None:
        """Wait until `ends` includes all records that the connected stores held when this was called.

        Raises:
            DiscoveryError: No tower or no store was found within `tower_timeout_ms`.
        """
        with trio.move_on_after(self._config.node.tower_timeout_ms / 1000):
            await self._wait_for(lambda: self._machine.is_ready)
        self._check_found(stores=int(self._machine.is_ready))

    def check_settled(self) -> None:
        """Check that a cluster has been found. Call this after waiting for `tower_timeout_ms`.

        Raises:
            DiscoveryError: No cluster has been found. The message says whether a tower was heard.
        """
        self._check_found()

    def ends(self) -> dict[Partition, int]:
        """Return, by partition of the surveyed topics, the sequence after the last record that a store has stored."""
        return dict(self._machine.ends)

    async def held_end(self, partition: Partition, timeout_s: float, *, min_stores: int = 1) -> int:
        """Ask the stores for the end of a partition.

        It returns when all connected stores, and at least `min_stores`, have answered and, if they hold records, none
        were added for a second. This takes milliseconds if the stores hold no record, and some seconds if they hold
        records, or are libdafka's.

        Args:
            partition: The partition, of any topic. Only one query of it can run at a time.
            timeout_s: The seconds to wait for the answers after the cluster has been found.
            min_stores: The number of stores that must be connected.

        Returns:
            The sequence after the last record that any store holds; 0 if no store holds one.

        Raises:
            DiscoveryError: No cluster was found within `tower_timeout_ms`.
            UnansweredError: The stores did not answer in time.
            ValueError: The partition is being queried already.
        """
        self._check_open()
        if partition in self._queried:
            raise ValueError(f"{partition} is being queried already; wait for its result")
        self._queried.add(partition)
        self._node.act(self._machine.held_ends.add_partition(partition, trio.current_time()))
        try:
            await self._wait_settled()
            with trio.move_on_after(timeout_s):
                await self._wait_for(lambda: isinstance(self._current_held_end(partition, min_stores), int))
            found = self._current_held_end(partition, min_stores)
        finally:
            self._queried.discard(partition)
            actions = self._machine.held_ends.remove_partition(partition)
            if not self._is_closed:
                self._node.act(actions)
        if isinstance(found, Incomplete):
            raise self._unanswered(partition, timeout_s, min_stores, found)
        return found

    async def positions_at(self, time: Time, timeout_s: float = POSITIONS_TIMEOUT_S) -> dict[Partition, int]:
        """Ask the stores for the positions of the surveyed topics at a time, as `Consumer.positions_at` does.

        Raise `UnansweredError` after `timeout_s`. The answers take long only if many records were made before the time
        but stored after it.
        """
        time_ms = to_time_ms(time)
        await self.wait_ready()
        machine = self._machine
        async with self._time_lock:
            if not machine.answering_stores:
                raise no_time_error(machine.stores)
            partitions = set(machine.ends)
            self._node.act(machine.query_positions(partitions, time_ms, trio.current_time()))
            try:
                with trio.move_on_after(timeout_s):
                    await self._wait_for(lambda: partitions <= machine.positions.keys())
            finally:
                machine.end_positions_query(partitions)
            if partitions <= machine.positions.keys():
                return {partition: machine.positions[partition] for partition in partitions}
        raise UnansweredError(
            f"not every store answered within {timeout_s:g} s where records of that time begin",
            stores=self._machine.stores,
        )

    async def earliest(self, partitions: Iterable[Partition], timeout_s: float) -> dict[Partition, int]:
        """Find the first stored record of partitions.

        Args:
            partitions: The partitions, which must not be read at the same time.
            timeout_s: The seconds to wait for all answers together.

        Returns:
            The sequence of the first record, by partition. Partitions without an answer are left out.

        Raises:
            ValueError: A partition is being read already.
        """
        probes = {partition: self.read(partition, 0, 1) for partition in partitions}
        found: dict[Partition, int] = {}
        try:
            with trio.move_on_after(timeout_s):
                for partition, probe in probes.items():
                    found[partition] = await probe.first_sequence()
        finally:
            for probe in probes.values():
                probe.close()
        return found

    def read(self, partition: Partition, first_sequence: int, end_sequence: int) -> Range:
        """Begin to fetch a range of records, which must exist.

        Args:
            partition: The partition. Only one range of it can be read at a time; close it before you read another.
            first_sequence: The first record.
            end_sequence: The sequence after the last record.

        Returns:
            The range, to iterate over.

        Raises:
            ValueError: A range of the partition is being read already.
        """
        self._check_open()
        if partition in self._ranges:
            raise ValueError(f"{partition} is being read already; close that range first")
        self._ranges[partition] = Range(self, self._machine, partition, end_sequence)
        self._node.act(self._machine.fetch_range(partition, first_sequence, end_sequence, trio.current_time()))
        return self._ranges[partition]

    def _release(self, memory_bytes: int) -> None:
        """Release the memory of records that a range has passed to the program or dropped."""
        actions = self._machine.records_taken(memory_bytes, trio.current_time())
        if actions and not self._is_closed:
            self._node.act(actions)

    def _forget_range(self, partition: Partition) -> None:
        """Stop fetching: a range was closed."""
        if self._ranges.pop(partition, None) is not None:
            self._machine.forget_range(partition)

    async def _wait_settled(self) -> None:
        with trio.move_on_after(self._config.node.tower_timeout_ms / 1000):
            await self._wait_for(lambda: self._is_settled)
        self.check_settled()

    def _current_held_end(self, partition: Partition, min_stores: int) -> int | Incomplete:
        return self._machine.held_ends.held_end(partition, min_stores, trio.current_time())

    def _unanswered(
        self, partition: Partition, timeout_s: float, min_stores: int, missing: Incomplete
    ) -> UnansweredError:
        stores = self._machine.stores
        if missing is Incomplete.STORES:
            wanted = "1 store" if min_stores == 1 else f"{min_stores} stores"
            reason = f"{stores} of {wanted} found within {timeout_s:g} s"
        elif missing is Incomplete.ANSWERS:
            reason = f"not every store answered within {timeout_s:g} s how much it holds of {partition}"
        else:
            reason = f"records of {partition} are still being added: the stores were not quiet within {timeout_s:g} s"
        return UnansweredError(reason, missing.value, stores)

    def _on_records(self, batch: RecordBatch) -> None:
        self._machine.records_buffered(batch.memory_bytes)
        self._ranges[batch.partition]._buffer.add_batch(batch)


class Range:
    """The records of a range of one partition, as they arrive. Iterate over it for batches, in order.

    Unrecoverable and compacted records are left out: the next batch then begins later than the last one ended, or there
    is no next batch. Iterating waits without limit for records that no node sends; use a timeout. `Reader.read` creates
    one.

    Attributes:
        partition: The partition of the records.
    """

    def __init__(self, reader: Reader, machine: ReaderMachine, partition: Partition, end_sequence: int) -> None:
        """Create the range. Programs call `Reader.read` instead."""
        bind_to_process(self)
        self.partition = partition
        self._reader = reader
        self._machine = machine
        self._end_sequence = end_sequence
        self._buffer = BatchBuffer()
        self._runs: Iterator[RecordBatch] = iter(())

    def __aiter__(self) -> Range:
        return self

    async def __anext__(self) -> RecordBatch:
        batch = await self.next_batch()
        if batch is None:
            raise StopAsyncIteration
        return batch

    async def next_batch(self) -> RecordBatch | None:
        """Wait for the next batch. Return None after the last one."""
        await trio.lowlevel.checkpoint()
        self._reader._check_open()
        while (run := next(self._runs, None)) is None:
            batch = await self.next_sequences()
            if batch is None:
                return None
            self._runs = batch.held_runs()
        return run

    async def next_sequences(self) -> RecordBatch | None:
        """Wait for the next batch, with marks for records that compaction has removed.

        A batch that begins later than the last one ended therefore shows that records are unrecoverable. Use either
        this method or `next_batch`. `RecordBatch.compacted` has the marks. Return None after the last batch.
        """
        await self._reader._wait_for(self._has_news)
        if not self._buffer:
            return None
        buffered = self._buffer.memory_bytes
        batch = self._buffer.take_batch()
        self._reader._release(buffered - self._buffer.memory_bytes)
        return batch

    async def first_sequence(self) -> int:
        """Wait for the first batch, and return the sequence of its first record.

        If all records of the range are unrecoverable, return the sequence of the first record after the range.
        """
        await self._reader._wait_for(self._has_news)
        return self._buffer.first_sequences().get(self.partition, self._machine.position(self.partition))

    def close(self) -> None:
        """Stop fetching, and drop the records that have arrived. It can be repeated."""
        self._reader._release(self._buffer.drop_partition(self.partition))
        self._reader._forget_range(self.partition)

    def _has_news(self) -> bool:
        """Return whether a batch has arrived, or none will."""
        return bool(self._buffer) or self._machine.position(self.partition) >= self._end_sequence


@trio_block
async def open_reader(topics: Iterable[str] = (), config: Config | None = None) -> AsyncIterator[Reader]:
    """Open a reader for the length of a block.

    Args:
        topics: The topics to survey: those whose partitions `Reader.ends` returns. A reader can query and read
            partitions of all topics.
        config: The settings; by default those of `Config()`.

    Yields:
        The reader.

    Raises:
        ConfigError: A topic or the configuration is invalid.
        AddressInUseError: The node cannot listen at its endpoint.
        DiscoveryError: The discovery cannot be set up.
    """
    config = config or Config()
    machine = ReaderMachine(new_address(), config, check_topics(topics, config))
    high_watermark = config.consumer.high_watermark
    with unwrap_group():
        async with open_sockets(machine.address, config, Role.READER, high_watermark) as sockets:
            reader = Reader(machine, sockets, config)
            async with reader._running():
                yield reader
