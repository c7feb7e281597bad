"""The producer: publishes records of one topic as one partition, and keeps them until stores have them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import attrs
import trio

from dafka.config import Config
from dafka.contents import count_bytes, take_within
from dafka.errors import ConfigError, StorageError, StorageSequenceError, UnacknowledgedError
from dafka.groups import single_exception
from dafka.protocol import ProducerMachine, ReadRequest, StorageFailed
from dafka.records import SEQUENCE_MAX, Partition, RecordBatch, new_address
from dafka.roles.arguments import check_contents, check_topic
from dafka.roles.fetch_replies import FetchReplies
from dafka.roles.role import NodeRole
from dafka.roles.sockets import NodeSockets, open_sockets
from dafka.storage import READ_BYTES, Storage, open_storage
from dafka.wire import Dialect, Role

RUN_RECORDS_MAX = 4000
"""Records published before incoming messages get their turn: a few milliseconds of work."""

RUN_BYTES_MAX = 2**20
"""Bytes published before incoming messages get their turn, which may exceed the limit for unacknowledged bytes."""

_ACKNOWLEDGED = "acknowledged"
_ADDRESS = re.compile("[0-9A-F]{32}")


@attrs.frozen
class ProducerStatistics:
    """A producer's counters since it was opened.

    Attributes:
        records: Records published.
        bytes: The bytes of their contents.
        next_sequence: The sequence of the next record.
        unacknowledged: Records without enough ACKs, including those that were in the spool.
        unacknowledged_bytes: The bytes of their contents in memory; those in a spool do not count.
        fetches_received: FETCHes answered.
        records_sent: Records sent in answers to FETCHes.
        bytes_sent: The bytes of their contents.
        discarded: Messages that were discarded, by reason.
        peers: Nodes that this one is connected to.
    """

    records: int
    bytes: int
    next_sequence: int
    unacknowledged: int
    unacknowledged_bytes: int
    fetches_received: int
    records_sent: int
    bytes_sent: int
    discarded: dict[str, int]
    peers: int


class Producer(NodeRole):
    """A producer of one topic, opened by `open_producer`.

    Its methods may be called by several tasks at the same time.

    Attributes:
        address: The producer's node address.
        endpoint: The endpoint that other nodes connect to.
        events: The events of the producer since it was opened; an async iterable.
        partition: The topic and the producer's address: the name of its partition.
    """

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
        self.partition = machine.partition
        self._machine = machine
        self._config = config.producer
        self._content_bytes_max = config.node.message_bytes_max
        self._spool = spool
        self._is_named = is_named
        self._replies = FetchReplies(sockets, machine.responder, self._read)
        self._sending = trio.Lock()
        self._progress = trio.lowlevel.ParkingLot()
        self._records = 0
        self._bytes = 0
        self._is_closed = False

    async def send(self, content: bytes) -> int:
        """Publish one record. `send_many` is much faster for many.

        Waits while too many records are unacknowledged.

        Args:
            content: The record's content, at most `[node] message_bytes_max` bytes.

        Returns:
            The record's sequence.

        Raises:
            RecordError: The content is not bytes, or too large.
            StorageError: The spool cannot store it, or a store holds more of the partition than this producer has
                published.
            trio.ClosedResourceError: The producer's block has been left.
        """
        return (await self.send_many([content])).start

    async def send_many(self, contents: Sequence[bytes]) -> range:
        """Publish records in order.

        When this returns they are published, and durable if there is a spool, but not necessarily stored yet; see
        `wait_stored`. Waits while too many records are unacknowledged. If it is cancelled, it has published some of the
        records, from the first on.

        Args:
            contents: The contents of the records, each at most `[node] message_bytes_max` bytes.

        Returns:
            The records' sequences.

        Raises:
            RecordError: A content is not bytes, or too large. Nothing was published.
            StorageError: The spool cannot store them, or a store holds more of the partition than this producer has
                published.
            trio.ClosedResourceError: The producer's block has been left.
        """
        check_contents(contents, self._content_bytes_max)
        async with self._sending:
            first_sequence = self._machine.next_sequence
            start = 0
            while start < len(contents):
                run = take_within(contents, start, RUN_RECORDS_MAX, RUN_BYTES_MAX)
                await self._send_run(run)
                start += len(run)
            return range(first_sequence, self._machine.next_sequence)

    async def wait_stored(self) -> None:
        """Wait until `[producer] min_stores` stores have acknowledged every record sent so far.

        Returns at once if `min_stores` is 0.

        Raises:
            StorageError: A store holds more of the partition than this producer has published, whose address was given.
            trio.ClosedResourceError: The producer's block has been left.
        """
        end_sequence = self._machine.next_sequence
        await trio.lowlevel.checkpoint()
        while self._machine.acknowledged_end < end_sequence:
            self._check_open()
            self._check_rival()
            await self._progress.park()

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
            discarded=self.discarded(),
            peers=self._node.peers,
        )

    async def _run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Run the producer's tasks until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._replies.run)
            if self._spool is not None:
                nursery.start_soon(self._trim_spool, self._spool)
            await nursery.start(self._run_node)
            task_status.started()

    async def wait_acknowledged(self) -> None:
        """Wait for outstanding ACKs, as leaving the block does. Each ACK restarts the time that is waited.

        Raises:
            UnacknowledgedError: No ACK came for `[producer] close_timeout_ms`, and some are outstanding.
            StorageError: A store holds more of the partition than this producer has published, whose address was given.
        """
        timeout = self._config.close_timeout_ms / 1000
        with trio.move_on_after(timeout):
            if self._records:
                await self.wait_settled()
        machine = self._machine
        while machine.unacknowledged:
            acknowledged_end = machine.acknowledged_end
            with trio.move_on_after(timeout) as scope:
                while machine.acknowledged_end == acknowledged_end:
                    self._check_rival()
                    await self._progress.park()
            if scope.cancelled_caught:
                raise UnacknowledgedError(machine.unacknowledged, machine.acknowledged_end, self._config.min_stores)
        if self._records:
            self._check_rival()

    def _close(self) -> None:
        """Make waiting and further sending raise `trio.ClosedResourceError`."""
        self._is_closed = True
        self._progress.unpark_all()

    async def _send_run(self, contents: Sequence[bytes]) -> None:
        self._check_open()
        await trio.lowlevel.checkpoint()
        while not self._machine.has_room():
            await self._progress.park()
            self._check_open()
        self._check_stored()
        if self._spool is not None:
            with trio.CancelScope(shield=True):
                await self._spool.append([RecordBatch(self.partition, self._machine.next_sequence, contents)])
        self._node.act(self._machine.publish(contents, trio.current_time()))
        self._records += len(contents)
        self._bytes += count_bytes(contents)

    def _check_open(self) -> None:
        if self._is_closed:
            raise trio.ClosedResourceError("this producer is closed")

    def _check_rival(self) -> None:
        """Raise if another producer publishes under the given address: its ACKs would count for this one's records."""
        if self._is_named:
            self._check_stored()

    def _check_stored(self) -> None:
        """Raise if a store holds more of this partition than its producer: it would take new records for old ones."""
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
        self._progress.unpark_all()

    async def _read(self, request: ReadRequest) -> RecordBatch | None:
        if self._spool is not None:
            return await self._spool.read(self.partition, request.first_sequence, request.count)
        return self._machine.retransmit_buffer.read(request.first_sequence, request.count, READ_BYTES)

    async def _trim_spool(self, spool: Storage) -> None:
        while True:
            earliest = self._machine.begin_spool_trim()
            if earliest is None:
                await self._progress.park()
                continue
            try:
                with trio.CancelScope(shield=True):
                    await spool.save_positions(_ACKNOWLEDGED, {self.partition: earliest + 1})
                    self._machine.spool_starts_at(earliest)
                    await spool.trim(self.partition, earliest)
            except StorageError as error:
                self.events.put(StorageFailed(str(error)))


@asynccontextmanager
async def open_producer(
    topic: str, config: Config | None = None, *, address: str | None = None, next_sequence: int = 0
) -> AsyncIterator[Producer]:
    """Open a producer, for use as an async context manager.

    Leaving the block normally waits for outstanding ACKs (`Producer.wait_acknowledged`). Leaving it by an exception, or
    cancelled, does not wait.

    A program that keeps its records itself can continue a partition with `address` and `next_sequence`. The records
    before `next_sequence` must be in stores: they count as unacknowledged until `min_stores` stores confirm them, and
    this producer cannot send them again. Only one producer may publish a partition at a time. A spool does all this
    by itself, and excludes both arguments.

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
    check_topic(topic, config)
    if config.producer.min_stores > 1 and config.node.wire == Dialect.LIBDAFKA.value:
        raise ConfigError(
            "min_stores: expected 0 or 1 with wire libdafka, whose ACKs do not name their store; set wire to rfc46"
        )
    _check_identity(address, next_sequence, config)
    with single_exception():
        async with AsyncExitStack() as stack:
            spool = (
                await stack.enter_async_context(open_storage(config.producer.spool)) if config.producer.spool else None
            )
            machine = await _make_machine(topic, config, spool, address, next_sequence)
            own_address = machine.partition.address
            sockets = await stack.enter_async_context(
                open_sockets(own_address, config, Role.PRODUCER, config.producer.high_watermark)
            )
            producer = Producer(machine, sockets, config, spool, is_named=address is not None)
            async with trio.open_nursery() as nursery:
                await nursery.start(producer._run)
                try:
                    yield producer
                    await producer.wait_acknowledged()
                finally:
                    producer._close()
                    nursery.cancel_scope.cancel()


def _check_identity(address: str | None, next_sequence: int, config: Config) -> None:
    if address is not None and not _ADDRESS.fullmatch(address):
        raise ConfigError(f"address: expected 32 upper-case hexadecimal digits, not {address!r}")
    if type(next_sequence) is not int or not 0 <= next_sequence < SEQUENCE_MAX:
        raise ConfigError(f"next_sequence: expected a whole number from 0 to 2^62 - 1, not {next_sequence!r}")
    if next_sequence and address is None:
        raise ConfigError("next_sequence: expected an address with it, that of the partition to continue")
    if address is not None and config.producer.spool:
        raise ConfigError("address: expected none with a spool, which has its own; give one or the other")


async def _make_machine(
    topic: str, config: Config, spool: Storage | None, address: str | None, next_sequence: int
) -> ProducerMachine:
    """Return the machine of a new partition, of the one in the spool, or of the one with this address."""
    if spool is None:
        return ProducerMachine(
            Partition(topic, address or new_address()),
            config.producer,
            config.fetch.replies_max,
            reply_records_max=config.fetch.reply_records_max,
            next_sequence=next_sequence,
            acknowledged_end=0 if config.producer.min_stores else next_sequence,
        )
    partition = Partition(topic, spool.identity)
    info = (await spool.partitions(topic)).get(partition)
    acknowledged = await spool.load_positions(_ACKNOWLEDGED)
    end = 0 if info is None else info.end_sequence
    acknowledged_end = max(acknowledged.get(partition, 0), 0 if info is None else info.earliest_sequence)
    if acknowledged_end > end:
        raise StorageSequenceError(
            f"{config.producer.spool}: the spool ends at {end}, before acknowledged records (up to {acknowledged_end})"
        )
    return ProducerMachine(
        partition,
        config.producer,
        config.fetch.replies_max,
        reply_records_max=config.fetch.reply_records_max,
        next_sequence=end,
        acknowledged_end=acknowledged_end,
        is_spooled=True,
    )
