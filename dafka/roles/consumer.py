"""The consumer: receives all records of its topics, each partition in order, from any node that holds them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack

import trio

from dafka.config import Config
from dafka.errors import ConfigError
from dafka.exceptions import unwrap_group
from dafka.protocol import ConsumerMachine
from dafka.records import Partition, new_address
from dafka.roles.arguments import Time, check_positions, check_topic, check_topics, ephemeral, to_time_ms
from dafka.roles.group import DeliveryHolder, Group, check_group
from dafka.roles.reader import no_time_error, open_reader
from dafka.roles.record_stream import RecordStream
from dafka.roles.sockets import NodeSockets, open_sockets
from dafka.roles.statistics import ConsumerStatistics
from dafka.roles.trio_context import trio_block
from dafka.storage import Storage, open_storage
from dafka.wire import Role

SETTLE_S = 2.0
"""Seconds that opening a `latest` consumer waits to find a cluster before it continues without one."""


class Consumer(RecordStream):
    """A consumer of topics, opened by `open_consumer`.

    Iterate over it for records, or over `batches()` for batches of them, which is faster. Both can be mixed: each
    record is returned once. Only one task at a time can use a consumer. After the block, its methods raise
    `trio.ClosedResourceError`.
    """

    def __init__(self, machine: ConsumerMachine, sockets: NodeSockets, config: Config, saved: Storage | None) -> None:
        """Create the consumer. Programs call `open_consumer` instead."""
        super().__init__(machine, sockets, config)
        self._config = config
        self._saved = saved
        self._known_partitions = 0

    @property
    def group(self) -> str:
        """The name of the consumer's group; empty if it is not in a group."""
        return "" if self._group is None else self._group.name

    def subscribe(self, topic: str) -> None:
        """Follow one more topic.

        Args:
            topic: The topic.

        Raises:
            ConfigError: The topic is invalid, or the consumer is in a group, whose topics are given when it is opened.
        """
        check_topic(topic, self._config)
        self._check_open()
        self._check_no_group("subscribe")
        self._node.act(self._machine.subscribe(topic, trio.current_time()))

    def unsubscribe(self, topic: str) -> None:
        """Stop following a topic. Its records are no longer returned, even if they were received already.

        Args:
            topic: The topic.

        Raises:
            ConfigError: The consumer is in a group.
        """
        self._check_open()
        self._check_no_group("unsubscribe")
        self._node.act(self._machine.unsubscribe(topic))
        self._node.act(self._delivery.drop_topic(topic, trio.current_time()))

    def positions(self) -> dict[Partition, int]:
        """Return, by partition, the sequence after the last record that the program received.

        In a group, only the partitions that this member handles are returned, here and by `lag`.
        """
        positions = self._delivery.positions
        return {partition: positions[partition] for partition in self._held(positions.keys())}

    def lag(self) -> dict[Partition, int]:
        """Return, by partition, the number of known records that the program has not received."""
        cursors = self._machine.reassembler.cursors
        return {
            partition: max(cursors[partition].known_end - position, 0)
            for partition, position in self._next_positions().items()
        }

    async def ends(self) -> dict[Partition, int]:
        """Ask the stores, by partition of the consumer's topics, for the sequence after the last record that they hold.

        A separate node asks, which takes a fraction of a second. Raise `DiscoveryError` if no tower or no store was
        found within `[node] tower_timeout_ms`.
        """
        self._check_open()
        async with open_reader(self.topics, ephemeral(self._config)) as reader:
            await reader.wait_ready()
            return reader.ends()

    def seek(self, positions: Mapping[Partition, int]) -> None:
        """Continue partitions at other records, earlier or later ones.

        If no node holds the record any more, the partition continues at the earliest one that a node holds.

        Args:
            positions: By partition, the sequence of the next record to receive. The consumer is subscribed to the
                topics, and in a group it handles the partitions.

        Raises:
            ConfigError: A partition, its topic or a sequence is invalid.
        """
        self._check_open()
        for partition in positions.keys() - self._held(positions.keys()):
            raise ConfigError(f"{partition}: expected a partition that this member of the group handles")
        for partition, sequence in self._check_ends(positions).items():
            self._node.act(self._delivery.seek(partition, sequence, trio.current_time()))

    async def seek_tail(self, count: int) -> None:
        """Continue each stored partition at its last records.

        Args:
            count: The number of last records to receive of each partition, at least 0.

        Raises:
            ConfigError: The count is invalid.
            DiscoveryError: No tower or no store was found within `[node] tower_timeout_ms`.
        """
        if type(count) is not int or count < 0:
            raise ConfigError(f"count: expected a whole number from 0 on, not {count!r}")
        self._seek_held({partition: max(end - count, 0) for partition, end in (await self.ends()).items()})

    async def positions_at(self, time: Time) -> dict[Partition, int]:
        """Ask the stores for the positions of the partitions of the consumer's topics at a time.

        A separate node asks, which takes a fraction of a second.

        Args:
            time: The time: a `datetime` with a time zone, milliseconds since 1970 UTC as in `Record.timestamp`, or a
                `timedelta` for how long ago.

        Returns:
            By partition, the sequence of the first record made at that time or later; the end of the partition if all
            records are older. A record without a timestamp counts as made when it was stored.

        Raises:
            ConfigError: The time is invalid.
            DiscoveryError: No tower or no store was found within `[node] tower_timeout_ms`.
            UnansweredError: A store did not answer within a minute, or there are only libdafka's stores, which cannot
                answer.
        """
        to_time_ms(time)
        self._check_open()
        async with open_reader(self.topics, ephemeral(self._config)) as reader:
            return await reader.positions_at(time)

    async def seek_time(self, time: Time) -> None:
        """Continue each partition with the first record that was made at a time or later.

        A partition whose records are all older continues at its end. A partition without stored records, now or when it
        is found later, begins at its first record. `positions_at` says what a time is, and what is raised.
        """
        time_ms = to_time_ms(time)
        found = await self.positions_at(time_ms)
        self._machine.timed_start.time_ms = time_ms
        unstored = self._machine.reassembler.cursors.keys() - found.keys()
        self._seek_held({**dict.fromkeys(unstored, 0), **found})

    def pause(self, *selected: Partition | str) -> None:
        """Stop receiving records of partitions until `resume`. The records fill no buffer, and the lag grows.

        Args:
            *selected: Partitions, and topics, whose future partitions are paused too.
        """
        self._check_open()
        self._node.act(self._delivery.pause(selected, trio.current_time()))

    def resume(self, *selected: Partition | str) -> None:
        """Receive records of paused partitions again, from the record at which they were paused.

        Args:
            *selected: The same partitions and topics as those of `pause`.
        """
        self._check_open()
        self._node.act(self._machine.resume(selected, trio.current_time()))

    @property
    def paused(self) -> frozenset[Partition | str]:
        """The partitions and topics that are paused."""
        return frozenset(self._machine.reassembler.paused)

    async def save_positions(self) -> None:
        """Save `positions()` durably, for the consumer's group or under its name: all records before them are handled.

        The members of a group save their positions in the cluster. The next member that handles a partition continues
        from there. Partitions that this member no longer handles are left out. A consumer with a name saves its
        positions in its own storage, and continues from there when it is opened again.

        Raises:
            ConfigError: The consumer is not in a group, and has no `name` and `positions` in `[consumer]`.
            StorageError: The positions cannot be written.
        """
        self._check_open()
        if self._group is not None:
            await self._group.save(self._delivery.positions)
            return
        if self._saved is None:
            raise ConfigError(
                "saving positions needs a group, or `name` and `positions` (a storage URL) in [consumer]; set both"
            )
        await self._saved.save_positions(self._config.consumer.name, self._delivery.positions)

    def statistics(self) -> ConsumerStatistics:
        """Return the counters so far, the positions, and the lag."""
        return ConsumerStatistics(
            records=self._delivery.records,
            bytes=self._delivery.bytes,
            buffered_bytes=self._machine.capacity.buffered_bytes,
            records_unrecoverable=self._machine.records_unrecoverable,
            fetches_sent=self._machine.reassembler.fetches_sent,
            positions=self._next_positions(),
            lag={partition: records for partition, records in self.lag().items() if records},
            discarded=self.discarded(),
            peers=self._node.peers,
        )

    def _next_positions(self) -> dict[Partition, int]:
        """Return, by partition with known records, the sequence of the next record that the program receives."""
        cursors = self._machine.reassembler.cursors
        waiting = self._delivery.waiting_positions()
        return {
            partition: waiting.get(partition, cursors[partition].next_sequence)
            for partition in self._held(cursors.keys())
        }

    def _seek_held(self, positions: Mapping[Partition, int]) -> None:
        """Continue partitions at other records; in a group, those that this member handles."""
        self.seek({partition: positions[partition] for partition in self._held(positions.keys())})

    async def _wait_time_store(self) -> None:
        """Wait for a store that can find records by time. Raise an error if there is none."""
        machine = self._machine
        with trio.move_on_after(self._config.node.tower_timeout_ms / 1000):
            await self._wait_for(lambda: bool(machine.timed_start.query.stores))
            return
        stores = len(machine.reassembler.gap_resolver.stores)
        self._check_found(stores=stores)
        raise no_time_error(stores)

    def _check_no_group(self, action: str) -> None:
        if self._group is not None:
            raise ConfigError(f"{action}: expected a consumer in no group; open another one with other topics instead")

    def _on_change(self) -> None:
        super()._on_change()  # unrecoverable records may complete a read with an end
        if self._group is not None and self._known_partitions != len(self._machine.reassembler.cursors):
            self._known_partitions = len(self._machine.reassembler.cursors)
            self._group.notify()

    def _join_group(self, name: str) -> Group:
        self._delivery.assign_only()
        holder = DeliveryHolder(self._machine, self._delivery, self._node.act, self.events.put)
        self._group = Group(name, self.topics, self._config, holder)
        return self._group


@trio_block
async def open_consumer(
    topics: Iterable[str],
    config: Config | None = None,
    *,
    positions: Mapping[Partition, int] | None = None,
    start: Time | None = None,
    group: str | None = None,
) -> AsyncIterator[Consumer]:
    """Open a consumer for the length of a block.

    In each partition it begins at the position in `positions`, or else at the one saved under its name, or else at
    `start`, or else as `[consumer] offset_reset` specifies. With `latest`, it receives every record published after the
    block was entered.

    The members of a group share the partitions of their topics. One member at a time handles each partition. It begins
    at the last position that any member has saved with `save_positions`.

    Args:
        topics: The topics to follow; more can be added with `Consumer.subscribe`.
        config: The configuration; the defaults if None.
        positions: By partition, the sequence of the first record to receive; in a group, only for partitions without a
            saved position.
        start: The time from which to receive records: a `datetime` with a time zone, milliseconds since 1970 UTC, or a
            `timedelta` for how long ago. Each partition begins with the first record that was made at that time or
            later, according to the stores; see `Consumer.seek_time`.
        group: The name of the group to join; by default `[consumer] group`.

    Yields:
        The consumer. Leaving the block closes it.

    Raises:
        ConfigError: A topic, a position, the time or a setting is invalid.
        StorageError: The saved positions cannot be read.
        AddressInUseError: The node cannot listen at the configured endpoint.
        DiscoveryError: The discovery cannot be set up. With `start`: no tower or no store was found within
            `[node] tower_timeout_ms`.
        UnansweredError: With `start`: only libdafka's stores were found, which cannot find records by time.
    """
    config = config or Config()
    names = check_topics(topics, config)
    check_positions(positions or {})
    start_ms = None if start is None else to_time_ms(start)
    settings = config.consumer
    group = settings.group if group is None else group
    if group:
        check_group(group, config)
    if bool(settings.name) != bool(settings.positions):
        raise ConfigError("[consumer]: expected both `name` and `positions`, or neither")
    with unwrap_group():
        async with AsyncExitStack() as stack:
            saved = await stack.enter_async_context(open_storage(settings.positions)) if settings.positions else None
            saved_positions = await saved.load_positions(settings.name) if saved is not None else {}
            machine = ConsumerMachine(new_address(), config, {**saved_positions, **(positions or {})}, start_ms)
            sockets = await stack.enter_async_context(
                open_sockets(machine.address, config, Role.CONSUMER, settings.high_watermark)
            )
            consumer = Consumer(machine, sockets, config, saved)
            async with consumer._running() as nursery:
                joined: Group | None = None
                try:
                    for topic in names:
                        consumer.subscribe(topic)
                    if group:
                        joined = consumer._join_group(group)
                        await nursery.start(joined.run)
                    if start_ms is not None:
                        await consumer._wait_time_store()
                    elif settings.offset_reset == "latest":
                        with trio.move_on_after(SETTLE_S):
                            await consumer.wait_settled()
                            # Producers do not confirm subscriptions.
                            await trio.sleep(config.beacon.settle_ms / 1000)
                    yield consumer
                finally:
                    consumer._refuse_calls()  # before others take over the partitions
                    if joined is not None:
                        with trio.CancelScope(shield=True):
                            await joined.leave()
