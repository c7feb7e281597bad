"""The consumer: receives all records of its topics, each partition in order, from whichever node holds them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import attrs
import trio

from dafka.config import Config
from dafka.errors import ConfigError
from dafka.groups import single_exception
from dafka.protocol import ConsumerMachine, DeliveryBuffer
from dafka.records import Partition, Record, RecordBatch, new_address
from dafka.roles.arguments import check_positions, check_topic, check_topics
from dafka.roles.role import NodeRole
from dafka.roles.sockets import NodeSockets, open_sockets
from dafka.storage import Storage, open_storage
from dafka.wire import Role

SETTLE_S = 2.0
"""Seconds that opening a `latest` consumer waits to find a cluster before it continues without one."""


@attrs.frozen
class ConsumerStatistics:
    """A consumer's counters since it was opened.

    Attributes:
        records: Records that the program took.
        bytes: The bytes of their contents.
        buffered_bytes: Memory of the records that wait for the program.
        records_unrecoverable: Records left out because no node holds them any more.
        fetches_sent: FETCHes sent for missing records.
        positions: By partition, the sequence of the next record that the program receives.
        lag: By partition, how many records are known to exist from that position on; only partitions that have any.
        discarded: Messages that were discarded, by reason.
        peers: Nodes that this one is connected to.
    """

    records: int
    bytes: int
    buffered_bytes: int
    records_unrecoverable: int
    fetches_sent: int
    positions: dict[Partition, int]
    lag: dict[Partition, int]
    discarded: dict[str, int]
    peers: int


class Consumer(NodeRole):
    """A consumer of topics, opened by `open_consumer`.

    Iterate over it for records, or over `batches()` for batches of them, which is faster. They may be mixed: each
    record is returned once. A consumer is used by one task at a time.

    Attributes:
        address: The consumer's node address.
        endpoint: The endpoint that other nodes connect to.
        events: The events of the consumer since it was opened; an async iterable.
    """

    def __init__(self, machine: ConsumerMachine, sockets: NodeSockets, config: Config, saved: Storage | None) -> None:
        """Create the consumer. Programs call `open_consumer` instead."""
        super().__init__(machine, sockets, config)
        self._machine = machine
        self._config = config
        self._saved = saved
        self._delivery = DeliveryBuffer(machine)
        self._arrived = trio.lowlevel.ParkingLot()
        self._is_closed = False

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that the consumer is subscribed to."""
        return tuple(self._machine.topics)

    def subscribe(self, topic: str) -> None:
        """Follow one more topic.

        Args:
            topic: The topic.

        Raises:
            ConfigError: The topic is invalid.
        """
        check_topic(topic, self._config)
        self._node.act(self._machine.subscribe(topic, trio.current_time()))

    def unsubscribe(self, topic: str) -> None:
        """Stop following a topic. No further record of it is returned, even if it was received already."""
        self._node.act(self._machine.unsubscribe(topic))
        self._node.act(self._delivery.drop_topic(topic, trio.current_time()))

    def batches(self) -> AsyncIterator[RecordBatch]:
        """Return an iterator over batches of records, which waits for further ones.

        Each batch holds consecutive records of one partition. Iterating raises `trio.ClosedResourceError` after the
        consumer's block.
        """
        return _Batches(self)

    def __aiter__(self) -> AsyncIterator[Record]:
        """Return an iterator over records. It executes a checkpoint for each batch received, not for each record."""
        return _Records(self)

    def positions(self) -> dict[Partition, int]:
        """Return, by partition, the sequence after the last record that the program received."""
        return dict(self._delivery.positions)

    async def save_positions(self) -> None:
        """Make `positions()` durable under the consumer's name. A consumer opened with that name continues from there.

        Raises:
            ConfigError: The configuration has no `name` and `positions` in `[consumer]`.
            StorageError: The positions cannot be written.
        """
        if self._saved is None:
            raise ConfigError("saving positions needs `name` and `positions` (a storage URL) in [consumer]; set both")
        await self._saved.save_positions(self._config.consumer.name, self._delivery.positions)

    def statistics(self) -> ConsumerStatistics:
        """Return the counters so far, the positions, and the lag."""
        cursors = self._machine.reassembler.cursors
        positions = {partition: cursor.next_sequence for partition, cursor in cursors.items()}
        positions.update(self._delivery.waiting_positions())
        lag = {
            partition: cursors[partition].known_end - position
            for partition, position in positions.items()
            if cursors[partition].known_end > position
        }
        return ConsumerStatistics(
            records=self._delivery.records,
            bytes=self._delivery.bytes,
            buffered_bytes=self._machine.buffered_bytes,
            records_unrecoverable=self._machine.records_unrecoverable,
            fetches_sent=self._machine.reassembler.fetches_sent,
            positions=positions,
            lag=lag,
            discarded=self.discarded(),
            peers=self._node.peers,
        )

    async def next_batch(self, records_max: int | None = None) -> RecordBatch:
        """Wait for the next batch of records, as iterating over `batches()` does.

        Args:
            records_max: The maximum number of records to return, at least 1. None: as many as there are.

        Returns:
            Consecutive records of one partition.

        Raises:
            trio.ClosedResourceError: The consumer's block has been left.
        """
        return self._delivery.hand_over(await self._next_batch(), records_max)

    async def next_record(self) -> Record:
        """Wait for the next record, as iterating over the consumer does.

        Returns:
            The record.

        Raises:
            trio.ClosedResourceError: The consumer's block has been left.
        """
        while (record := self._delivery.next_record()) is None:
            self._delivery.open_run(await self._next_batch())
        return record

    async def _next_batch(self) -> RecordBatch:
        await trio.lowlevel.checkpoint()
        while (taken := self._delivery.take_run(trio.current_time())) is None:
            if self._is_closed:
                raise trio.ClosedResourceError("this consumer is closed")
            await self._arrived.park()
        batch, actions = taken
        if actions:
            self._node.act(actions)
        return batch

    def _on_records(self, batch: RecordBatch) -> None:
        self._delivery.put_records(batch)
        self._arrived.unpark_all()

    def _close(self) -> None:
        """Make waiting for records raise `trio.ClosedResourceError`."""
        self._is_closed = True
        self._arrived.unpark_all()


class _Batches:
    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def __aiter__(self) -> _Batches:
        return self

    async def __anext__(self) -> RecordBatch:
        return await self._consumer.next_batch()


class _Records:
    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def __aiter__(self) -> _Records:
        return self

    async def __anext__(self) -> Record:
        return await self._consumer.next_record()


@asynccontextmanager
async def open_consumer(
    topics: Iterable[str], config: Config | None = None, *, positions: Mapping[Partition, int] | None = None
) -> AsyncIterator[Consumer]:
    """Open a consumer, for use as an async context manager.

    In each partition it begins at the position given in `positions`, or else at the one saved under its name, or else
    where `[consumer] offset_reset` says. With `latest`, it receives every record published after the block was entered.

    Args:
        topics: The topics to follow; more can be added with `Consumer.subscribe`.
        config: The configuration; the defaults if None.
        positions: By partition, the sequence of the first record to receive.

    Yields:
        The consumer. Leaving the block closes it.

    Raises:
        ConfigError: A topic, a position or a setting is invalid.
        StorageError: The saved positions cannot be read.
        AddressInUseError: The node cannot listen at the configured endpoint.
        DiscoveryError: The discovery cannot be set up.
    """
    config = config or Config()
    names = check_topics(topics, config)
    check_positions(positions or {})
    settings = config.consumer
    if bool(settings.name) != bool(settings.positions):
        raise ConfigError("[consumer]: expected both `name` and `positions`, or neither")
    with single_exception():
        async with AsyncExitStack() as stack:
            saved = await stack.enter_async_context(open_storage(settings.positions)) if settings.positions else None
            saved_positions = await saved.load_positions(settings.name) if saved is not None else {}
            machine = ConsumerMachine(new_address(), config, {**saved_positions, **(positions or {})})
            sockets = await stack.enter_async_context(
                open_sockets(machine.address, config, Role.CONSUMER, settings.high_watermark)
            )
            consumer = Consumer(machine, sockets, config, saved)
            async with trio.open_nursery() as nursery:
                await nursery.start(consumer._run_node)
                try:
                    for topic in names:
                        consumer.subscribe(topic)
                    if settings.offset_reset == "latest":
                        with trio.move_on_after(SETTLE_S):
                            await consumer.wait_settled()
                            # Producers do not say when they have received a subscription.
                            await trio.sleep(config.beacon.settle_ms / 1000)
                    yield consumer
                finally:
                    consumer._close()
                    nursery.cancel_scope.cancel()
