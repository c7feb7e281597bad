"""The producer: publishes records of one topic as one partition, and keeps them until stores have them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, nullcontext, suppress

import trio

from dafka.batches import move_records
from dafka.config import Config
from dafka.errors import AddressInUseError, ConfigError, StorageSequenceError, UnacknowledgedError
from dafka.exceptions import unwrap_group
from dafka.internal_topics import check_no_system_topic
from dafka.protocol import Machine, PartitionReplaced, ProducerMachine, ReadRequest
from dafka.records import Header, Partition, ProducerRecord, Record, RecordBatch, new_address
from dafka.roles.arguments import check_identity, check_topic, make_batch
from dafka.roles.events import EventFeed
from dafka.roles.producer_partition import (
    make_machine,
    open_spooled_machine,
    replace_spooled_partition,
    trim_spool,
)
from dafka.roles.replies import FetchReplies
from dafka.roles.role import NodeRole
from dafka.roles.sockets import NodeSockets, open_sockets
from dafka.roles.statistics import ProducerStatistics
from dafka.roles.trio_context import trio_block
from dafka.storage import READ_BYTES, Storage, open_storage
from dafka.wire import Dialect, Role

RUN_RECORDS_MAX = 4000
"""The number of records published before incoming messages are processed: a few milliseconds of work."""

RUN_BYTES_MAX = 2**20
"""The number of bytes published before incoming messages are processed. They can exceed the limit for unacknowledged
bytes."""

REBIND_S = 0.1
"""Seconds until a new node retries to listen at the port of its predecessor, which has just been closed."""

REBIND_ATTEMPTS = 100


class Producer(NodeRole):
    """A producer of one topic, opened by `open_producer`.

    Several tasks can call its methods at the same time. After the block, they raise `trio.ClosedResourceError`.

    If no store can continue its partition, it begins a new one, with another address and endpoint, and sequences from 0
    on (`PartitionReplaced`).
    """

    partition: Partition
    """The topic and the producer's address: the name of its partition."""

    def __init__(
        self,
        machine: ProducerMachine,
        sockets: NodeSockets,
        config: Config,
        spool: Storage | None,
        *,
        is_named: bool = False,
    ) -> None:
        """Create the producer. Programs call `open_producer` instead."""
        super().__init__(machine, sockets, config)
        self._config = config.producer
        self._whole_config = config
        self._content_bytes_max = config.node.message_bytes_max
        self._spool = spool
        self._is_named = is_named
        self._sending = trio.Lock()
        self._publishing = trio.Lock()  # held while the machine is replaced
        self._replaced = 0
        self._sequence_shift = 0  # the number of a record in this producer minus its sequence
        self._records = 0
        self._bytes = 0

    def _attach(self, machine: Machine, sockets: NodeSockets, config: Config) -> None:
        assert isinstance(machine, ProducerMachine)
        super()._attach(machine, sockets, config)
        machine.watch_listeners(sockets.need_regular_heads)
        self.partition = machine.partition
        self._machine = machine
        self._stranded = trio.Event()
        self._replies = FetchReplies(sockets, machine.responder, self._read)

    async def send(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        timestamp: int | None = None,
    ) -> int:
        """Publish one record. `send_many` is much faster for many.

        Waits while too many records are unacknowledged. All parts together can have at most `[node] message_bytes_max`
        bytes.

        Args:
            value: The record's value; None for a tombstone.
            key: The record's key; None for none.
            headers: Pairs of a name and a value, in order; names may repeat.
            timestamp: When the record was made, in milliseconds since 1970 UTC; None for now.

        Returns:
            The record's sequence.

        Raises:
            RecordError: A part has the wrong type, or the record is too large.
            StorageError: The spool cannot store it, or a store holds more of the partition than this producer has
                published.
        """
        return (await self.send_many([ProducerRecord(value, key, headers, timestamp)])).start

    async def send_many(self, records: Sequence[bytes | None] | Sequence[ProducerRecord | Record]) -> range:
        """Publish records in order.

        When this returns, they are published, and durable if there is a spool, but not necessarily stored yet; see
        `wait_stored`. Waits while too many records are unacknowledged. If it is cancelled, it may have published some
        of the first records.

        Args:
            records: Values, or whole records, each at most `[node] message_bytes_max` bytes. The partitions and
                sequences of `Record` objects are ignored.

        Returns:
            The records' sequences. If the producer has begun a new partition meanwhile, they are the sequences of the
            last records, in the new partition.

        Raises:
            RecordError: A part of a record has the wrong type, or a record is too large. Nothing was published.
            StorageError: The spool cannot store them, or a store holds more of the partition than this producer has
                published.
        """
        return await self._send_batch(self._make_batch(records))

    def _make_batch(self, records: Sequence[bytes | None] | Sequence[ProducerRecord | Record]) -> RecordBatch:
        return make_batch(self.partition, records, round(time.time() * 1000), self._content_bytes_max)

    def _takes_at_once(self, batch: RecordBatch) -> bool:
        """Return whether a batch can be published without waiting for ACKs or another thread."""
        is_short = len(batch) <= RUN_RECORDS_MAX and batch.content_bytes <= RUN_BYTES_MAX
        return is_short and self._machine.has_capacity() and not self._sockets.compresses_aside(batch)

    def _cannot_refuse(self, batch: RecordBatch) -> bool:
        """Return whether publishing a batch next can neither fail nor wait for ACKs. It can be called in any thread."""
        return self._spool is None and not self._is_named and self._takes_at_once(batch)

    def _send_nowait(self, batch: RecordBatch) -> range | None:
        """Publish a batch as `_send_batch` does; return None if it would have to wait."""
        is_locked = self._sending.locked() or self._publishing.locked()
        if is_locked or self._spool is not None or not self._takes_at_once(batch):
            return None
        self._check_open()
        self._check_stored()
        self._publish(move_records(batch, self.partition, self._machine.next_sequence))
        return range(self._machine.next_sequence - len(batch), self._machine.next_sequence)

    async def _send_batch(self, batch: RecordBatch) -> range:
        async with self._sending:
            start = 0
            while start < len(batch):
                run = batch.between(start, start + RUN_RECORDS_MAX).within(RUN_BYTES_MAX)
                await self._send_run(await self._sockets.compress(run))
                start += len(run)
            end_sequence = self._machine.next_sequence
            return range(max(end_sequence - len(batch), 0), end_sequence)

    async def wait_stored(self) -> None:
        """Wait until `[producer] min_stores` stores have acknowledged every record sent so far.

        Returns at once if `min_stores` is 0.

        Raises:
            StorageError: The program gave the address, and a store holds more of the partition than this producer has
                published.
        """
        end = self._sequence_shift + self._machine.next_sequence
        await trio.lowlevel.checkpoint()
        self._check_open()
        while self._acknowledged_count() < end:
            self._check_open()
            self._check_rival()
            await self._changed.park()

    async def wait_acknowledged(self) -> None:
        """Wait for outstanding ACKs, as leaving the block does. Each ACK restarts the timeout.

        Raises:
            UnacknowledgedError: No ACK came for `[producer] close_timeout_ms`, and some are outstanding.
            StorageError: The program gave the address, and a store holds more of the partition than this producer has
                published.
        """
        self._check_open()
        timeout = self._config.close_timeout_ms / 1000
        deadline = trio.current_time() + timeout
        with trio.move_on_at(deadline):
            if self._records:
                await self.wait_settled()
        while self._machine.unacknowledged:
            acknowledged = self._acknowledged_count()
            with trio.move_on_at(deadline) as scope:
                while self._acknowledged_count() == acknowledged:
                    self._check_rival()
                    await self._changed.park()
                    self._check_open()
            if scope.cancelled_caught:
                machine = self._machine
                raise UnacknowledgedError(
                    machine.unacknowledged, machine.acknowledged_end, self._config.min_stores, self.unheard_towers()
                )
            deadline = trio.current_time() + timeout
        if self._records:
            self._check_rival()

    async def _wait_followed(self) -> None:
        """Wait until peers that fetch only after a HEAD have fetched everything, at most `close_timeout_ms`."""
        now = trio.current_time()
        self._node.act(self._machine.begin_leaving(now))
        with trio.move_on_at(now + self._config.close_timeout_ms / 1000):
            while (followed_at := self._machine.followed_at()) > trio.current_time():
                with trio.move_on_at(followed_at):
                    await self._changed.park()

    def statistics(self) -> ProducerStatistics:
        """Return the counters so far."""
        machine = self._machine
        return ProducerStatistics(
            records=self._records,
            bytes=self._bytes,
            next_sequence=machine.next_sequence,
            unacknowledged=machine.unacknowledged,
            unacknowledged_bytes=machine.unacknowledged_bytes,
            fetches_received=machine.fetches_received,
            records_sent=machine.responder.records_sent,
            bytes_sent=machine.responder.bytes_sent,
            partitions_replaced=self._replaced,
            discarded=self.discarded(),
            peers=self._node.peers,
        )

    async def _run(self, task_status: trio.TaskStatus[Producer] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the producer's tasks until its partition cannot be continued, or until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._replies.run)
            if self._spool is not None:
                nursery.start_soon(trim_spool, self._spool, self._machine, self._changed.park, self.events.put)
            await nursery.start(self._run_node)
            task_status.started(self)
            await self._stranded.wait()
            nursery.cancel_scope.cancel()

    async def _replace_partition(self) -> ProducerMachine:
        """Return the machine of a new partition that begins with the unacknowledged records of this one."""
        old, config = self._machine, self._whole_config
        first = old.unstored_from
        partition = Partition(self.partition.topic, new_address())
        self._replaced += 1
        if self._spool is None:
            machine = make_machine(config, partition, replaced=self._replaced)
            for batch in old.retransmit_buffer.batches_from(first):
                machine.publish(move_records(batch, partition, machine.next_sequence), trio.current_time())
        else:
            await replace_spooled_partition(self._spool, self.partition, first, partition, self.events.put)
            count = old.next_sequence - first
            machine = make_machine(config, partition, count, is_spooled=True, replaced=self._replaced)
        self._sequence_shift += first
        self.events.put(PartitionReplaced(old.partition, partition.address, old.next_sequence - first))
        return machine

    def _acknowledged_count(self) -> int:
        return self._sequence_shift + self._machine.acknowledged_end

    def _describe_unstored(self) -> str:
        """Describe in a sentence how many records are not stored, and why."""
        count, topic, min_stores = self._machine.unacknowledged, self.partition.topic, self._config.min_stores
        records, are = ("1 record", "is") if count == 1 else (f"{count} records", "are")
        if self._spool is not None:
            return (
                f"{records} of topic {topic} {are} only in the spool {self._config.spool}; open it again to store them"
            )
        stores = "no store has" if min_stores == 1 else f"fewer than {min_stores} stores have"
        towers = self.unheard_towers()
        cause = f", and no tower is heard at {', '.join(towers)}" if towers else ""
        return f"{records} of topic {topic} {are} not stored: {stores} acknowledged them{cause}"

    async def _send_run(self, run: RecordBatch) -> None:
        self._check_open()
        while True:
            async with self._publishing:
                self._check_open()
                if self._machine.has_capacity():
                    batch = move_records(run, self.partition, self._machine.next_sequence)
                    self._check_stored()
                    if self._spool is not None:
                        with trio.CancelScope(shield=True):
                            await self._spool.append([batch])
                    self._publish(batch)
                    return
            await self._changed.park()

    def _publish(self, batch: RecordBatch) -> None:
        self._node.act(self._machine.publish(batch, trio.current_time()))
        self._records += len(batch)
        self._bytes += batch.content_bytes

    def _check_rival(self) -> None:
        """Raise if another producer publishes under the given address: its ACKs would count for this one's records."""
        if self._is_named:
            self._check_stored()

    def _check_stored(self) -> None:
        """Raise if a store holds more of this partition than its producer, and would drop new records as old ones."""
        stored_end, next_sequence = self._machine.stored_end, self._machine.next_sequence
        if stored_end <= next_sequence or not (self._is_named or self._spool is not None):
            return
        held = f"a store holds {self.partition} up to sequence {stored_end - 1}"
        if self._spool is not None:
            raise StorageSequenceError(
                f"{held}, but the spool {self._config.spool} only up to {next_sequence - 1}, so it is an old copy; "
                "publish with a new spool"
            )
        raise StorageSequenceError(
            f"{held}, but this producer continues at {next_sequence}: another producer publishes the same partition, "
            "or next_sequence is too low"
        )

    def _on_change(self) -> None:
        self._replies.wake()
        super()._on_change()
        if self._machine.is_stranded:
            self._stranded.set()

    async def _read(self, request: ReadRequest) -> RecordBatch | None:
        if self._spool is not None:
            return await self._spool.read(self.partition, request.first_sequence, request.count)
        return self._machine.retransmit_buffer.read(request.first_sequence, request.count, READ_BYTES)


@trio_block
async def open_producer(
    topic: str, config: Config | None = None, *, address: str | None = None, next_sequence: int = 0
) -> AsyncIterator[Producer]:
    """Open a producer for the length of a block.

    Leaving the block normally waits for outstanding ACKs (`Producer.wait_acknowledged`), and then, at most `[producer]
    close_timeout_ms`, for nodes of other implementations that have fetched records within the last seconds: they fetch
    the rest only while their producer announces it. Leaving it by an exception or cancellation does not wait.

    A program that keeps its records itself can continue a partition with `address` and `next_sequence`. The records
    before `next_sequence` must be in stores: they count as unacknowledged until `min_stores` stores confirm them, and
    this producer cannot send them again. Only one producer may publish a partition at a time. A spool does all this
    automatically, and excludes both arguments.

    Args:
        topic: The topic.
        config: The configuration; the defaults if None.
        address: The address of the partition to continue, 32 upper-case hexadecimal digits; random if None.
        next_sequence: The sequence of the next record.

    Yields:
        The producer. Leaving the block closes it.

    Raises:
        ConfigError: The topic, the address, the sequence or a setting is invalid.
        StorageError: The spool cannot be opened, or holds less than stores do.
        AddressInUseError: The node cannot listen at the configured endpoint.
        DiscoveryError: The discovery cannot be set up.
        UnacknowledgedError: On leaving: no ACK came for `close_timeout_ms`, and some are outstanding.
    """
    config = config or Config()
    check_no_system_topic(check_topic(topic, config))
    if config.producer.min_stores > 1 and config.node.wire == Dialect.LIBDAFKA.value:
        raise ConfigError(
            "min_stores: expected 0 or 1 with wire libdafka, whose ACKs do not name their store; set wire to rfc46"
        )
    check_identity(address, next_sequence, config)
    with unwrap_group():
        async with open_storage(config.producer.spool) if config.producer.spool else nullcontext() as spool:
            if spool is None:
                partition = Partition(topic, address or new_address())
                end = 0 if config.producer.min_stores else next_sequence
                machine = make_machine(config, partition, next_sequence, end, is_named=address is not None)
            else:
                machine = await open_spooled_machine(config, spool, topic)
            async with trio.open_nursery() as nursery:
                producer: Producer = await nursery.start(_serve, machine, config, spool, address is not None)
                try:
                    yield producer
                    await producer.wait_acknowledged()
                    await producer._wait_followed()
                finally:
                    producer._close()
                    nursery.cancel_scope.cancel()


async def _serve(
    machine: ProducerMachine,
    config: Config,
    spool: Storage | None,
    is_named: bool,
    *,
    task_status: trio.TaskStatus[Producer],
) -> None:
    """Run a producer until cancelled. Each new partition is a new node, since its address is the partition's."""
    async with open_sockets(
        machine.partition.address, config, Role.PRODUCER, config.producer.high_watermark
    ) as sockets:
        producer = Producer(machine, sockets, config, spool, is_named=is_named)
        await producer._run(task_status)
        await producer._publishing.acquire()
    try:
        while True:
            machine = await producer._replace_partition()
            async with AsyncExitStack() as stack:
                sockets = await _open_sockets_again(stack, machine.partition.address, config, producer.events)
                producer._attach(machine, sockets, config)
                producer._publishing.release()
                producer._on_change()
                await producer._run()
                await producer._publishing.acquire()
    finally:
        if producer._publishing.statistics().owner is trio.lowlevel.current_task():
            producer._publishing.release()


async def _open_sockets_again(stack: AsyncExitStack, address: str, config: Config, events: EventFeed) -> NodeSockets:
    """Open the sockets of a producer that has just closed those of its former address, perhaps at the same port."""

    async def attempt() -> NodeSockets:
        opening = open_sockets(address, config, Role.PRODUCER, config.producer.high_watermark, events)
        return await stack.enter_async_context(opening)

    for _ in range(REBIND_ATTEMPTS):
        with suppress(AddressInUseError):
            return await attempt()
        await trio.sleep(REBIND_S)
    return await attempt()
