"""The consumer: every record of its topics, each partition in order, from wherever it is to be had."""

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
from dafka.roles.arguments import check_topic, check_topics
from dafka.roles.role import NodeRole
from dafka.roles.sockets import NodeSockets, open_sockets
from dafka.storage import Storage, open_storage

SETTLE_S = 2.0
"""How long opening a `latest` consumer waits for a cluster to answer before it goes ahead alone."""


@attrs.frozen
class ConsumerStatistics:
    """A consumer's counters since it was opened.

    `positions` gives, by partition, the next sequence the program will be given; `lag` how many records are known to
    exist from there on, partitions without any left out. `buffered_bytes` wait for the program to take them.
    `records_gone` were to be had nowhere any more.
    """

    records: int
    bytes: int
    buffered_bytes: int
    records_gone: int
    fetches_sent: int
    positions: dict[Partition, int]
    lag: dict[Partition, int]
    discarded: dict[str, int]
    peers: int


class Consumer(NodeRole):
    """Made by `open_consumer`. Iterate over it for records, or over `batches()` for runs of them.

    Attributes:
        address: the consumer's node address.
        endpoint: where other nodes connect to.
    """

    def __init__(self, machine: ConsumerMachine, sockets: NodeSockets, config: Config, saved: Storage | None) -> None:
        super().__init__(machine, sockets, config)
        self._machine = machine
        self._config = config
        self._saved = saved
        self._delivery = DeliveryBuffer(machine)
        self._arrived = trio.lowlevel.ParkingLot()
        self._is_closed = False

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics subscribed to."""
        return tuple(self._machine.topics)

    def subscribe(self, topic: str) -> None:
        """Follows one more topic. Raises `ConfigError` for one that cannot be."""
        check_topic(topic, self._config)
        self._node.act(self._machine.subscribe(topic, trio.current_time()))

    def unsubscribe(self, topic: str) -> None:
        """Stops following a topic: no record of it is given any more."""
        self._node.act(self._machine.unsubscribe(topic))
        self._node.act(self._delivery.drop_topic(topic, trio.current_time()))

    def batches(self) -> AsyncIterator[RecordBatch]:
        """The records in runs, each of one partition and in order. Waits for more, for ever.

        Iterating raises `trio.ClosedResourceError` after the block.
        """
        return _Batches(self)

    def __aiter__(self) -> AsyncIterator[Record]:
        """The records one by one, each partition's in order. A checkpoint a batch, not a record."""
        return _Records(self)

    def positions(self) -> dict[Partition, int]:
        """By partition, the sequence after the last record that the program was given."""
        return dict(self._delivery.positions)

    async def save_positions(self) -> None:
        """Makes `positions` durable under the consumer's name; opened again by that name, it goes on from there.

        Raises `ConfigError` where the configuration has no `name` and `positions`, `StorageError` where they cannot
        be written.
        """
        if self._saved is None:
            raise ConfigError("saving positions needs `name` and `positions` (a storage URL) in the [consumer] section")
        await self._saved.save_positions(self._config.consumer.name, self._delivery.positions)

    def statistics(self) -> ConsumerStatistics:
        """What this consumer has done so far, and how far it is behind."""
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
            records_gone=self._machine.records_gone,
            fetches_sent=self._machine.reassembler.fetches_sent,
            positions=positions,
            lag=lag,
            discarded=self.discarded(),
            peers=self._node.peers,
        )

    async def next_batch(self, records_max: int | None = None) -> RecordBatch:
        """The next run of records, which the program has then been given; what iterating over `batches` does.

        At most `records_max` of them, which must be at least 1; None: however many there are.
        """
        return self._delivery.hand_over(await self._next_batch(), records_max)

    async def next_record(self) -> Record:
        """The next record, which the program has then been given; what iterating over the consumer does."""
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
    """A consumer of these topics, for the length of a block.

    It begins, in each partition, at the position given in `positions`, else at the one saved under its name, else
    where `offset_reset` says. With `latest`, every record published after the block was entered is received.

    Raises `ConfigError` for topics or settings that cannot be, `StorageError` where saved positions cannot be opened,
    `AddressInUseError` where the node cannot listen, `DiscoveryError` where its discovery cannot be set up.
    """
    config = config or Config()
    names = check_topics(topics, config)
    settings = config.consumer
    if bool(settings.name) != bool(settings.positions):
        raise ConfigError("[consumer]: `name` and `positions` go together; one of them is missing")
    with single_exception():
        async with AsyncExitStack() as stack:
            saved = await stack.enter_async_context(open_storage(settings.positions)) if settings.positions else None
            begin = await saved.load_positions(settings.name) if saved is not None else {}
            machine = ConsumerMachine(new_address(), config, {**begin, **(positions or {})})
            sockets = await stack.enter_async_context(
                open_sockets(machine.address, config, "consumer", settings.high_watermark)
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
                    yield consumer
                finally:
                    consumer._close()
                    nursery.cancel_scope.cancel()
