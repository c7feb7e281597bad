"""The store: makes every record durable, acknowledges it, and serves it to whoever missed it."""

from __future__ import annotations

import attrs
import trio

from dafka.config import Config
from dafka.errors import StorageError
from dafka.groups import single_exception
from dafka.protocol import (
    RecordsDropped,
    Reply,
    Skip,
    StorageFailed,
    StorageRecovered,
    StorageRepaired,
    StoreMachine,
)
from dafka.records import Partition, RecordBatch
from dafka.roles.buffer import RunBuffer
from dafka.roles.feed import EventFeed
from dafka.roles.node import Node, open_node
from dafka.roles.replier import Replier
from dafka.storage import Retention, Storage, open_storage

FLUSH_S = 10.0
"""When a store is stopped, how long it may take to write what it has received."""


@attrs.frozen
class StoreStatistics:
    """A store's counters since it was opened.

    `lag` is, by partition, how many records are known to exist and not yet durable here; partitions without any are
    left out. `pending_bytes` have been received and not yet written; `records_dropped` went by retention.
    """

    partitions: int
    records_stored: int
    bytes_stored: int
    records_dropped: int
    commits: int
    pending_bytes: int
    fetches_sent: int
    fetches_received: int
    records_sent: int
    lag: dict[Partition, int]
    discarded: dict[str, int]
    peers: int


class Store:
    """Attributes:
    address: the store's node address; it stays with the storage.
    endpoint: where other nodes connect to.
    """

    def __init__(self, node: Node, machine: StoreMachine, storage: Storage, config: Config) -> None:
        self.address = node.address
        self.endpoint = node.endpoint
        self._node = node
        self._machine = machine
        self._storage = storage
        self._config = config.store
        self._retry_s = config.store.retry_ms / 1000
        self._replier = Replier(node, machine.replies, self._read)
        self._pending = RunBuffer()
        self._writing: list[RecordBatch] = []
        self._skips: dict[Partition, int] = {}
        self._arrived = trio.lowlevel.ParkingLot()
        self._records_stored = 0
        self._bytes_stored = 0
        self._records_dropped = 0
        self._commits = 0
        node.on_batch(self._take)
        node.on_skip(self._skip)
        node.on_change(self._replier.wake)

    @property
    def events(self) -> EventFeed:
        """What happened, from the start on; an async iterable."""
        return self._node.events

    def statistics(self) -> StoreStatistics:
        """What this store has done so far."""
        machine = self._machine
        lag = {
            partition: cursor.known_end - machine.durable_end(partition)
            for partition, cursor in machine.assembly.cursors.items()
            if cursor.known_end > machine.durable_end(partition)
        }
        return StoreStatistics(
            partitions=len(machine.assembly.cursors),
            records_stored=self._records_stored,
            bytes_stored=self._bytes_stored,
            records_dropped=self._records_dropped,
            commits=self._commits,
            pending_bytes=machine.pending_bytes,
            fetches_sent=machine.assembly.fetches_sent,
            fetches_received=machine.fetches_received,
            records_sent=self._replier.records_sent,
            lag=lag,
            discarded=self._node.discarded(),
            peers=self._node.peers,
        )

    async def run(self, task_status: trio.TaskStatus[Store]) -> None:
        """Runs until cancelled, then writes what has been received."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write)
                nursery.start_soon(self._replier.run)
                if self._config.has_retention:
                    nursery.start_soon(self._retain)
                await nursery.start(self._node.run)
                task_status.started(self)
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + FLUSH_S):
                while self._has_unwritten():
                    await self._flush()

    def _take(self, batch: RecordBatch) -> None:
        self._pending.put(batch)
        self._machine.pending_bytes += batch.memory_bytes
        self._arrived.unpark_all()

    def _skip(self, skip: Skip) -> None:
        """What waits of the partition is dropped with what is stored of it."""
        self._machine.pending_bytes -= self._pending.drop(skip.partition)
        self._skips[skip.partition] = skip.next_sequence
        self._arrived.unpark_all()

    async def _read(self, reply: Reply, count: int) -> RecordBatch | None:
        end = self._machine.durable_end(reply.partition)
        if reply.next_sequence >= end:
            return None
        batch = await self._storage.read(reply.partition, reply.next_sequence, min(count, end - reply.next_sequence))
        if batch is None:
            await self._learn_earliest(reply)
        return batch

    async def _learn_earliest(self, reply: Reply) -> None:
        """A bounded storage drops records by itself: who asks for them again is then told."""
        info = (await self._storage.partitions(reply.partition.topic)).get(reply.partition)
        if info is not None and info.earliest_sequence > reply.next_sequence:
            self._records_dropped += self._machine.trimmed({reply.partition: info.earliest_sequence})

    async def _write(self) -> None:
        """Group commit: what arrives while one transaction is being made durable is the next one."""
        is_failing = False
        while True:
            if not self._has_unwritten():
                await self._arrived.park()
            try:
                await self._flush()
            except StorageError as error:
                if not is_failing:
                    self.events.put(StorageFailed(str(error)))
                is_failing = True
                await trio.sleep(self._retry_s)
            else:
                if is_failing:
                    self.events.put(StorageRecovered())
                is_failing = False

    def _has_unwritten(self) -> bool:
        return bool(self._writing or self._skips or self._pending)

    async def _flush(self) -> None:
        """Appends what is pending in one transaction, then acknowledges it. What failed last time goes first."""
        if not self._writing:
            await self._carry_out_skips()
            self._writing = self._pending.take_all()
        batches = self._writing
        await self._storage.append(batches)
        self._writing = []
        self._machine.pending_bytes -= sum(batch.memory_bytes for batch in batches)
        self._records_stored += sum(map(len, batches))
        self._bytes_stored += sum(batch.content_bytes for batch in batches)
        self._commits += 1
        ends = {batch.partition: batch.end_sequence for batch in batches}
        self._node.act(self._machine.committed(ends, trio.current_time()))

    async def _carry_out_skips(self) -> None:
        """Comes before what waits, which continues the partitions where they go on."""
        while self._skips:
            partition, next_sequence = next(iter(self._skips.items()))
            await self._storage.skip(partition, next_sequence)
            del self._skips[partition]
            self._node.act(self._machine.skipped(partition, next_sequence))

    async def _retain(self) -> None:
        """Drops what the limits do not keep, at once and then from time to time."""
        config = self._config
        retention = Retention(
            age_ms=config.retention_ms or None,
            bytes_max=config.retention_bytes or None,
            records_max=config.retention_records or None,
        )
        while True:
            try:
                moved = await self._storage.retain(retention)
            except StorageError as error:
                self.events.put(StorageFailed(str(error)))
            else:
                dropped = self._machine.trimmed(moved)
                self._records_dropped += dropped
                if dropped:
                    self.events.put(RecordsDropped(dropped, len(moved)))
            await trio.sleep(config.retention_interval_ms / 1000)


async def serve_store(
    config: Config | None = None, *, task_status: trio.TaskStatus[Store] = trio.TASK_STATUS_IGNORED
) -> None:
    """Runs a store until cancelled; `started` gives the `Store` once it listens.

    Raises `StorageError` (`StorageBusyError`, `StorageFormatError`) where its storage cannot be opened,
    `AddressInUseError` where it cannot listen, `DiscoveryError` where its discovery cannot be set up.
    """
    config = config or Config()
    with single_exception():
        async with open_storage(config.store.storage) as storage:
            held = await storage.partitions()
            ends = {partition: info.end_sequence for partition, info in held.items()}
            earliest = {partition: info.earliest_sequence for partition, info in held.items() if info.earliest_sequence}
            machine = StoreMachine(storage.identity, config, ends, earliest)
            async with open_node(storage.identity, machine, config, "store", config.store.high_watermark) as node:
                store = Store(node, machine, storage, config)
                for damage in storage.repairs:
                    store.events.put(StorageRepaired(str(damage)))
                await store.run(task_status)
