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
from dafka.wire import Dialect

RUN_RECORDS_MAX = 4000
"""Records published before what came in meanwhile gets its turn: a few milliseconds' worth."""

RUN_BYTES_MAX = 2**20
"""Likewise, in octets: so much more than the limit may be unacknowledged."""

_ACKNOWLEDGED = "acknowledged"
_ADDRESS = re.compile("[0-9A-F]{32}")


@attrs.frozen
class ProducerStatistics:
    """A producer's counters since it was opened; `unacknowledged` counts what a spool brought along, too.

    `unacknowledged_bytes` are the contents of these, without what is in a spool.
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
    """Made by `open_producer`.

    Attributes:
        partition: the topic, and the producer's address, which is the partition's name.
        endpoint: where other nodes connect to.
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
        """Publishes one record and gives its sequence. `send_many` is far faster for more than one.

        Waits while too much is unacknowledged. Raises `RecordError` for a content that is not bytes, or is larger than
        peers may take (`message_bytes_max`),
        `StorageError` where a spool cannot take it, or a store holds more of the partition than this producer knows of,
        `trio.ClosedResourceError` after the block.
        """
        return (await self.send_many([content])).start

    async def send_many(self, contents: Sequence[bytes]) -> range:
        """Publishes records, in order, and gives their sequences.

        They are published (and with a spool, durable) when this returns, but not yet stored: see `wait_stored`.
        Waits while too much is unacknowledged. Cancelled, it has published some first part of the records.
        Raises as `send` does.
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
        """Waits until every record sent so far is acknowledged by `min_stores` stores.

        Returns at once with `min_stores` 0. Raises `trio.ClosedResourceError` after the block, `StorageError` where a
        store holds more of a partition whose address was given than this producer knows of.
        """
        end_sequence = self._machine.next_sequence
        await trio.lowlevel.checkpoint()
        while self._machine.acknowledged_end < end_sequence:
            self._check_open()
            self._check_rival()
            await self._progress.park()

    def statistics(self) -> ProducerStatistics:
        """What this producer has done so far."""
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
        """Runs the producer's tasks until cancelled; `open_producer` does this."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._replies.run)
            if self._spool is not None:
                nursery.start_soon(self._trim_spool, self._spool)
            await nursery.start(self._run_node)
            task_status.started()

    async def wait_acknowledged(self) -> None:
        """Waits for outstanding ACKs; each that comes renews the time that the configuration allows.

        Raises `UnacknowledgedError` where some are still outstanding then, `StorageError` where a store holds more of a
        partition whose address was given than this producer knows of.
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
        """Makes waiting and further sending raise `trio.ClosedResourceError`."""
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
        """ACKs of what another has published under the given address are none of this producer's."""
        if self._is_named:
            self._check_stored()

    def _check_stored(self) -> None:
        """A store that holds more of this partition than its own producer would take new records for old ones."""
        stored_end, next_sequence = self._machine.stored_end, self._machine.next_sequence
        if stored_end <= next_sequence or not (self._is_named or self._spool is not None):
            return
        held = f"a store holds {self.partition} up to sequence {stored_end - 1}"
        if self._spool is not None:
            raise StorageSequenceError(
                f"{held}, the spool {self._config.spool} only up to {next_sequence - 1}: it is an older copy. "
                "Publish with a new spool"
            )
        raise StorageSequenceError(
            f"{held}, and this producer stands before {next_sequence}: another one publishes the same partition, "
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
    """A producer of one topic, for the length of a block.

    Leaving the block normally waits for outstanding ACKs, and raises `UnacknowledgedError` with their number when none
    has come for `close_timeout_ms`; leaving it by an exception or cancelled does not wait.

    A program that keeps its records itself can go on with a partition: `address` is its producer's address (32
    upper-case hexadecimal digits; any node's is random where none is given), `next_sequence` the sequence of the next
    record. The records before it must be in stores: they count as unacknowledged until `min_stores` stores say so, and
    cannot be had from this producer. Only one producer may publish a partition at a time. A spool does all this by
    itself, and excludes both.

    Raises `ConfigError` for a topic, an address, a sequence or settings that cannot be, `StorageError` where the spool
    cannot be opened or holds less than stores do, `AddressInUseError` where the node cannot listen, `DiscoveryError`
    where its discovery cannot be set up.
    """
    config = config or Config()
    check_topic(topic, config)
    if config.producer.min_stores > 1 and config.node.wire == Dialect.LIBDAFKA.value:
        raise ConfigError("min_stores: above 1 it needs wire rfc46, because a libdafka ACK does not name its store")
    _check_identity(address, next_sequence, config)
    with single_exception():
        async with AsyncExitStack() as stack:
            spool = (
                await stack.enter_async_context(open_storage(config.producer.spool)) if config.producer.spool else None
            )
            machine = await _make_machine(topic, config, spool, address, next_sequence)
            own_address = machine.partition.address
            sockets = await stack.enter_async_context(
                open_sockets(own_address, config, "producer", config.producer.high_watermark)
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
        raise ConfigError(f"next_sequence: expected a whole number from 0 to 2^62, not {next_sequence!r}")
    if next_sequence and address is None:
        raise ConfigError("next_sequence: it needs the address of the partition to go on with")
    if address is not None and config.producer.spool:
        raise ConfigError("address: a spool has its own, and knows its next sequence; give one or the other")


async def _make_machine(
    topic: str, config: Config, spool: Storage | None, address: str | None, next_sequence: int
) -> ProducerMachine:
    """The machine of a new partition, of the one that was left in a spool, or of the one with this address."""
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
        raise StorageSequenceError(f"{config.producer.spool}: the spool ends at {end}, before what was acknowledged")
    return ProducerMachine(
        partition,
        config.producer,
        config.fetch.replies_max,
        reply_records_max=config.fetch.reply_records_max,
        next_sequence=end,
        acknowledged_end=acknowledged_end,
        is_spooled=True,
    )
