"""The broker: a store that gives the records of each topic an order, for clients that are no nodes.

Clients come through listeners, such as Kafka's, which use the methods of `Broker`. What they append is published by
this node, as partitions of its own, so that other nodes see no difference to the records of producers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import trio

from dafka import wire
from dafka.batches import BatchHeader, decode_run, with_base_offset
from dafka.config import Config
from dafka.errors import ConfigError
from dafka.groups import single_exception
from dafka.protocol import StoreMachine
from dafka.protocol.logs import (
    LOGS_MAX,
    TOPICS_TOPIC,
    LogOrder,
    MarkerEntry,
    ProducerEntry,
    Topic,
    encode_topic,
    find_name_problem,
)
from dafka.protocol.logs.log_state import OWN, LogState
from dafka.records import Partition, RecordBatch, new_address
from dafka.roles.broker_inventory import Inventory
from dafka.roles.broker_loading import delete_partitions, is_internal, load_broker, retention_of
from dafka.roles.head_announcer import HeadAnnouncer
from dafka.roles.log_reader import LogReader
from dafka.roles.sockets import NodeSockets, open_sockets
from dafka.roles.state_log import StateLogs
from dafka.roles.store import Store, default_retention, make_machine
from dafka.storage import Storage, open_storage
from dafka.storage.plugin_helpers import now_ms
from dafka.wire import Role


@attrs.frozen(eq=False)
class Appended:
    """Records that a client has appended.

    Attributes:
        log: The log.
        first_sequence: The sequence of the first record in the broker's own partition of the log.
        durable: Set when they are durable.
    """

    log: LogState
    first_sequence: int
    durable: trio.Event

    async def wait_offset(self) -> int:
        """Wait until the records are durable, and return the offset of the first one."""
        await self.durable.wait()
        offset = self.log.index.find(OWN, self.first_sequence)
        return -1 if offset is None else offset


class Broker(Store):
    """A running broker, started by `serve_broker`.

    Attributes:
        address: The broker's node address, which is kept in its storage.
        endpoint: The endpoint that other nodes connect to.
        events: The events of the broker since it was started; an async iterable.
        order: The topics and their logs, for reading.
        reader: Reads the logs.
        inventory: The stored partitions, by topic.
    """

    def __init__(
        self,
        machine: StoreMachine,
        sockets: NodeSockets,
        storage: Storage,
        config: Config,
        order: LogOrder,
        state: StateLogs,
    ) -> None:
        """Create the broker. Programs call `serve_broker` instead."""
        super().__init__(machine, sockets, storage, config)
        self.order = order
        self.reader = LogReader(storage)
        self.inventory = Inventory(machine, storage, order)
        self._state = state
        self._log_count = config.kafka.log_count
        self._bytes_max = config.kafka.batch_bytes_max
        self._room_bytes = config.store.pending_bytes_max
        self._durable = trio.Event()
        self._writing: trio.Event | None = None
        self._is_writing_state = False
        self._advanced: dict[LogState, set[trio.Event]] = {}
        self._room = trio.lowlevel.ParkingLot()
        self._heads = HeadAnnouncer(sockets, machine.stored.durable_end)

    # Topics

    def find_topic(self, name: str) -> Topic | None:
        """Return a topic; None if there is none of that name."""
        return self.order.topics.get(name)

    def create_topic(self, name: str, log_count: int = 0, settings: Mapping[str, str] | None = None) -> trio.Event:
        """Create a topic.

        Args:
            name: The name.
            log_count: The number of its logs; 0 for `[kafka] log_count`.
            settings: Its own settings.

        Returns:
            An event that is set when the topic is durable.

        Raises:
            ConfigError: The name is taken or impossible, or there would be too many logs.
        """
        problem = find_name_problem(name) or (f"there is a topic {name!r} already" if self.find_topic(name) else "")
        count = log_count or self._log_count
        if not problem and not 0 < count <= LOGS_MAX:
            problem = f"a topic has from 1 to {LOGS_MAX} logs, not {count}"
        if problem:
            raise ConfigError(problem)
        return self._put_topic(Topic(name, new_address(), count, dict(settings or {})))

    def change_topic(
        self, name: str, *, log_count: int | None = None, settings: Mapping[str, str] | None = None
    ) -> trio.Event:
        """Give a topic further logs, or other settings.

        Args:
            name: The name of an existing topic.
            log_count: The number of its logs, which cannot decrease; None to keep it.
            settings: All its settings; None to keep them.

        Returns:
            An event that is set when the change is durable.

        Raises:
            ConfigError: The number of logs is impossible.
        """
        topic = self.order.topics[name]
        if log_count is not None and not topic.log_count <= log_count <= LOGS_MAX:
            raise ConfigError(f"the topic {name!r} can have from {topic.log_count} to {LOGS_MAX} logs, not {log_count}")
        changed = attrs.evolve(
            topic,
            log_count=topic.log_count if log_count is None else log_count,
            settings=topic.settings if settings is None else dict(settings),
        )
        return self._put_topic(changed)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with its records. A producer that continues one of its partitions creates it again."""
        logs = self.order.remove_topic(name)
        await self.write_state(TOPICS_TOPIC, [(name.encode(), None)]).wait()
        held = self._machine.stored.durable.get(name, {})
        native = {Partition(name, address): end for address, end in held.items()}
        for log in logs:
            native.pop(log.own, None)
            self._machine.forget_own(log.own)
            self._heads.forget(log.own)
            self._notify(log)
        self._machine.records_trimmed(native)
        own = [partition for log in logs for partition in (log.own, log.index_partition)]
        await delete_partitions(self._storage, own)
        for partition, end in native.items():
            await self._storage.trim(partition, end)

    def _put_topic(self, topic: Topic) -> trio.Event:
        self.order.add_topic(topic)
        return self.write_state(TOPICS_TOPIC, [(topic.name.encode(), encode_topic(topic))])

    # Records

    def append(self, log: LogState, batches: Sequence[tuple[BatchHeader, bytes | memoryview]]) -> Appended:
        """Append record batches of a client to a log, which is done when `wait_offset` returns.

        Args:
            log: The log.
            batches: The header of each record batch, whose CRC was checked, and the record batch.

        Returns:
            The records to wait for.

        Raises:
            BatchError: A batch is malformed, or its records are larger than `[kafka] batch_bytes_max` allows.
        """
        first_sequence = sequence = self._machine.next_sequence(log.own)
        moved = []
        for header, data in batches:
            moved.append((attrs.evolve(header, base_offset=sequence), with_base_offset(data, sequence)))
            sequence += header.count
        records = decode_run(log.own, moved, bytes_max=self._bytes_max)
        self._node.act(self._machine.append_own(records, trio.current_time()))
        return Appended(log, first_sequence, self._durable)

    def next_sequence(self, log: LogState) -> int:
        """Return the sequence in the broker's own partition of a log that the next appended record gets."""
        return self._machine.next_sequence(log.own)

    def durable_end(self, log: LogState) -> int:
        """Return the sequence after the last durable record of the broker's own partition of a log."""
        return self._machine.stored.durable_end(log.own)

    async def wait_room(self) -> None:
        """Wait until records that are not durable yet take less than `[store] pending_bytes_max`."""
        while self._machine.pending_bytes >= self._room_bytes:
            await self._room.park()

    def append_marker(self, log: LogState, marker: MarkerEntry) -> trio.Event:
        """Append the end of a transaction to a log, behind the records that were appended before.

        Other nodes do not see it: it has no record in a partition.

        Args:
            log: The log.
            marker: The end. Its offset does not matter; its position is `next_sequence`.

        Returns:
            An event that is set when it is durable.
        """
        self.order.append_marker(log, marker)
        self._arrived.unpark_all()
        return self._durable

    async def delete_records(self, log: LogState, offset: int) -> None:
        """Delete the records of a log before an offset, from all partitions in it.

        A partition whose records are in several logs keeps those behind the first one that any of these still has.
        """
        partitions = [log.partition_of(address) for address in log.index.addresses()]
        self.order.delete_before(log, offset)
        self._arrived.unpark_all()
        await self._durable.wait()
        trimmed: dict[Partition, int] = {}
        for partition in partitions:
            needed = min(self.order.first_needed(partition), self._machine.stored.durable_end(partition))
            if needed > self._machine.stored.earliest.get(partition, 0):
                await self._storage.trim(partition, needed)
                trimmed[partition] = needed
        self._machine.records_trimmed(trimmed)

    @contextmanager
    def watching(self, logs: Iterable[LogState]) -> Iterator[trio.Event]:
        """Give the block an event that is set when one of these logs gets further records, or is deleted."""
        advanced = trio.Event()
        watched = list(logs)
        for log in watched:
            self._advanced.setdefault(log, set()).add(advanced)
        try:
            yield advanced
        finally:
            for log in watched:
                waiting = self._advanced[log]
                waiting.discard(advanced)
                if not waiting:
                    del self._advanced[log]

    # State

    def state(self, topic: str) -> Mapping[bytes, bytes]:
        """Return the state that was kept with `write_state` in a topic."""
        return self._state.values(topic)

    def write_state(self, topic: str, changes: Iterable[tuple[bytes, bytes | None]]) -> trio.Event:
        """Keep state: pairs of a key and a value; None removes a key. The event returned says that it is durable."""
        self._state.put(topic, changes)
        self._arrived.unpark_all()
        return self._durable

    # The store's side

    async def _run(self, task_status: trio.TaskStatus[Any]) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._heads.run)
            await super()._run(task_status)

    def _on_records(self, batch: RecordBatch) -> None:
        topic = batch.partition.topic
        if topic not in self.order.topics and not find_name_problem(topic):
            self.create_topic(topic)
        super()._on_records(batch)

    def _has_work(self) -> bool:
        return super()._has_work() or bool(self._state) or self.order.has_unwritten()

    def _drops_records(self) -> bool:
        return True

    async def _flush(self) -> None:
        # What has failed is written again before anything else, so that `_writing` belongs to it.
        if super()._has_work() and not self._is_writing_state:
            await super()._flush()
        else:
            self._is_writing_state = True
            await self._append([])
            self._is_writing_state = False
            self._refusal = ""
        if not self._has_work():  # what came while a failed write was repeated was written with it
            self._durable.set()
            self._durable = trio.Event()
        self._room.unpark_all()

    async def _append(self, batches: list[RecordBatch]) -> None:
        time_ms = now_ms()
        if self._writing is None:
            self._writing, self._durable = self._durable, trio.Event()
        plan = self.order.plan(batches, time_ms)
        try:
            await super()._append([*batches, *plan.index_records, *self._state.begin_write(time_ms)])
        except BaseException:
            self.order.undo(plan)
            raise
        self.order.commit(plan)
        self._state.write_done()
        own = [batch for batch in batches if self.order.is_own(batch.partition)]
        if own:
            self._sockets.publish([wire.RecordRun(batch) for batch in own])
            self._heads.add(batch.partition for batch in own)
        self._writing.set()
        self._writing = None
        for log in plan.logs:
            self._notify(log)

    def _notify(self, log: LogState) -> None:
        for advanced in self._advanced.get(log, ()):
            advanced.set()

    async def _apply_retention(self) -> dict[Partition, int]:
        """Drop the records beyond the limits of each topic, and what indexes and state need no more."""
        moved: dict[Partition, int] = {}
        for name in list(self._machine.stored.durable):
            policy = retention_of(self.order.topics.get(name), default_retention(self._config))
            if policy:
                moved.update(await self._storage.apply_retention(policy, name))
        earliest = {**self._machine.stored.earliest, **moved}
        for log in self.order.all_logs():
            self.order.skip_dropped(log, earliest)
            if log.index_first > log.index_trimmed:
                await self._storage.trim(log.index_partition, log.index_first)
                log.index_trimmed = log.index_first
        await self._state.trim(self._storage)
        return moved


async def serve_broker(
    config: Config | None = None,
    *,
    restore_producer: Callable[[LogState, ProducerEntry], None] = lambda _log, _entry: None,
    task_status: trio.TaskStatus[Broker] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a broker until cancelled. It is also a store, with the settings of `[store]`; see `serve_store`.

    Args:
        config: The configuration; the defaults if None.
        restore_producer: Takes what producers with an id have done in the logs, before the broker has started.
        task_status: Receives the `Broker` once it listens.

    Raises:
        StorageError: The storage cannot be opened or read.
        StorageLostError: The storage was removed or replaced while it was open.
        AddressInUseError: The node cannot listen at the configured endpoint.
        DiscoveryError: The discovery cannot be set up.
    """
    config = config or Config()
    with single_exception():
        async with open_storage(config.store.storage) as storage:
            order, state, held = await load_broker(storage, config, restore_producer)
            identity = storage.identity
            machine = make_machine(
                storage,
                config,
                held,
                lambda partition: order.is_own(partition) or is_internal(partition, identity),
            )
            async with open_sockets(
                identity, config, Role.STORE, config.store.high_watermark, keeps_record_batches=True
            ) as sockets:
                broker = Broker(machine, sockets, storage, config, order, state)
                broker._report_opened(config.store.storage, held)
                await broker._run(task_status)
