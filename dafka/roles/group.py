"""A consumer's membership in a group: the nodes that read and write the group's topic, and the machine between them.

One node reads the topic from the stores as long as the consumer is open. Another one publishes this member's records; a
node with a new address replaces it whenever the member has lost its lease.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Protocol

import attrs
import trio

from dafka.config import Config
from dafka.errors import ConfigError, UnacknowledgedError
from dafka.protocol import ConsumerMachine, DeliveryBuffer, Event, PartitionsAssigned, PartitionsLost, PartitionsRevoked
from dafka.protocol.actions import Action
from dafka.protocol.groups import (
    LEASE_MS_MAX,
    Append,
    Assign,
    GroupAction,
    GroupMember,
    GroupReaderMachine,
    GroupSettings,
    GroupView,
    Lose,
    Revoke,
    topic_of_group,
)
from dafka.records import Partition, RecordBatch, new_address
from dafka.roles.arguments import check_topic, ephemeral
from dafka.roles.producer import Producer, open_producer
from dafka.roles.role import NodeRole
from dafka.roles.sockets import NodeSockets, open_sockets
from dafka.wire import Role

LEAVE_S = 2.0
"""The maximum seconds that leaving waits until a store has the member's last record."""


class Holder(Protocol):
    """The interface of the part that handles the partitions of a member."""

    def known_partitions(self) -> Iterable[Partition]:
        """Return the known partitions."""

    def begin_of(self, partition: Partition) -> int:
        """Return the first sequence of a partition without a saved position."""

    def assign(self, partition: Partition, sequence: int) -> None:
        """Hand out a partition from this record on."""

    def unassign(self, partition: Partition) -> int:
        """Stop handing out a partition. Return the sequence after the last record that was handed out."""

    def report(self, event: Event) -> None:
        """Report an event to the program."""


@attrs.frozen(eq=False)
class DeliveryHolder:
    """A `Holder` that hands out partitions to the program of a consumer."""

    _machine: ConsumerMachine
    _delivery: DeliveryBuffer
    _act: Callable[[Iterable[Action]], None]
    report: Callable[[Event], None]

    def known_partitions(self) -> Iterable[Partition]:
        """See `Holder`."""
        return self._machine.reassembler.cursors.keys()

    def begin_of(self, partition: Partition) -> int:
        """See `Holder`."""
        cursor = self._machine.reassembler.cursors.get(partition)
        return 0 if cursor is None else cursor.next_sequence

    def assign(self, partition: Partition, sequence: int) -> None:
        """See `Holder`."""
        self._act(self._delivery.assign(partition, sequence, trio.current_time()))

    def unassign(self, partition: Partition) -> int:
        """See `Holder`."""
        self._act(self._delivery.unassign(partition, trio.current_time()))
        return self._delivery.positions[partition]


class GroupReader(NodeRole):
    """The node that reads the topic of a group, and builds the view of the group; `open_group_reader` opens it."""

    def __init__(
        self, machine: GroupReaderMachine, sockets: NodeSockets, config: Config, on_change: Callable[[], None]
    ) -> None:
        super().__init__(machine, sockets, config)
        self.view = GroupView()
        self.machine = machine
        self._notify = on_change
        self._watched = -1

    def begin_survey(self) -> None:
        """Begin to ask the stores for all records."""
        self._node.act(self.machine.begin_survey(trio.current_time()))

    def watch_members(self) -> None:
        """Listen to the ACKs for the living members, so that their records arrive at once."""
        if self._watched != self.view.version:
            self._watched = self.view.version
            self._node.act(self.machine.watch(frozenset(each.address for each in self.view.living())))

    def _on_records(self, batch: RecordBatch) -> None:
        self.view.receive(batch.partition.address, batch.first_sequence, list(batch.values), trio.current_time())

    def _on_change(self) -> None:
        self._notify()


@asynccontextmanager
async def open_group_reader(group: str, config: Config, on_change: Callable[[], None]) -> AsyncIterator[GroupReader]:
    """Open a node that reads the topic of a group, and calls `on_change` after each change."""
    config = ephemeral(config)
    machine = GroupReaderMachine(new_address(), config, topic_of_group(group))
    async with open_sockets(machine.address, config, Role.READER, config.consumer.high_watermark) as sockets:
        reader = GroupReader(machine, sockets, config, on_change)
        async with reader._running():
            yield reader


class Group:
    """A consumer's membership in a group. The holder handles the partitions."""

    def __init__(self, name: str, topics: Iterable[str], config: Config, holder: Holder) -> None:
        self.name = name
        settings = config.consumer
        self._settings = GroupSettings(
            topics=tuple(topics),
            lease_s=settings.group_lease_ms / 1000,
            handover_s=settings.group_handover_ms / 1000,
            stores=settings.group_stores,
        )
        self._config = config
        self._holder = holder
        self._member: GroupMember | None = None
        self._reader: GroupReader | None = None
        self._wake = trio.Event()
        self._saved = trio.lowlevel.ParkingLot()
        self._is_leaving = False
        self._has_left = trio.Event()
        self._outbox: deque[bytes] = deque()
        self._outbox_filled = trio.Event()
        self._sent = trio.lowlevel.ParkingLot()

    def held(self) -> dict[Partition, int]:
        """Return the partitions that this member handles, each with its saved position."""
        return {} if self._member is None else self._member.held()

    def has_lease(self) -> bool:
        """Return whether no other member can have taken over this one's partitions."""
        return self._member is not None and self._member.has_lease(trio.current_time())

    def notify(self) -> None:
        """Wake the task that drives the member, after a change."""
        self._wake.set()

    async def save(self, positions: Mapping[Partition, int]) -> None:
        """Save positions of this member's partitions, and wait until enough stores have them."""
        await trio.lowlevel.checkpoint()
        member = self._member
        if member is None or member.is_over or self._reader is None:
            return
        held = member.held()
        wanted = {partition: sequence for partition, sequence in positions.items() if partition in held}
        if any(held[partition] != sequence for partition, sequence in wanted.items()):
            self._carry_out(member.commit(wanted, trio.current_time()), self._reader)
            self.notify()
        end = member.end_sequence
        while not self._is_saved(member, end):
            await self._saved.park()

    def _is_saved(self, member: GroupMember, end_sequence: int) -> bool:
        """Return whether enough stores have a member's records up to a sequence, or the member is over."""
        return member.confirmed_end >= end_sequence or member.is_over or self._has_left.is_set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Be a member until `leave`, or until cancelled."""
        async with open_group_reader(self.name, self._config, self.notify) as reader:
            self._reader = reader
            task_status.started()
            try:
                while not self._is_leaving:
                    await self._live(reader)
            finally:
                self._has_left.set()
                self._saved.unpark_all()

    async def leave(self) -> None:
        """Release everything, so that others take over at once."""
        self._is_leaving = True
        self.notify()
        with trio.move_on_after(LEAVE_S):
            await self._has_left.wait()

    async def _live(self, reader: GroupReader) -> None:
        """Be one member, until it is over."""
        config = ephemeral(self._config).with_producer(
            min_stores=max(self._settings.stores, 1),
            new_partition_after_ms=0,  # a member without contact to any store loses its lease instead
            spool="",
            linger_ms=0,
            close_timeout_ms=round(LEAVE_S * 1000),
        )
        with suppress(UnacknowledgedError, _OverError):
            async with open_producer(topic_of_group(self.name), config) as producer:
                self._outbox.clear()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._send, producer)
                    nursery.start_soon(self._watch, producer)
                    await self._drive(reader, producer)
                    while self._is_leaving and self._outbox:
                        await self._sent.park()
                    nursery.cancel_scope.cancel()
                if not self._is_leaving:
                    raise _OverError

    async def _drive(self, reader: GroupReader, producer: Producer) -> None:
        holder = self._holder
        member = GroupMember(producer.address, self._settings, reader.view, holder.begin_of)
        self._member = member
        self._carry_out(member.start(trio.current_time()), reader)
        known, version = 0, -1
        while not member.is_over:
            reader.watch_members()
            now = trio.current_time()
            actions = member.record_stores(reader.machine.stores, now)
            actions += member.acknowledged(producer._machine.ends_by_store, now)
            partitions = list(holder.known_partitions())
            if len(partitions) != known:
                known = len(partitions)
                actions += member.partitions_known(partitions, now)
            if version != reader.view.version:
                version = reader.view.version
                actions += member.view_changed(now)
            self._carry_out(actions, reader)
            if (stores := reader.machine.surveyed()) >= member.quorum:
                reader.machine.end_survey()
                self._carry_out(member.survey_done(stores, trio.current_time()), reader)
            if self._is_leaving:
                self._carry_out(member.leave(trio.current_time()), reader)
                return
            self._saved.unpark_all()
            with trio.move_on_at(member.deadline()):
                await self._wake.wait()
            self._wake = trio.Event()
            self._carry_out(member.tick(trio.current_time()), reader)
        self._saved.unpark_all()

    def _carry_out(self, actions: Iterable[GroupAction], reader: GroupReader) -> None:
        holder, member = self._holder, self._member
        assert member is not None
        assigned: list[Partition] = []
        revoked: list[Partition] = []
        for action in actions:
            if isinstance(action, Append):
                self._outbox.append(action.value)
                self._outbox_filled.set()
            elif isinstance(action, Assign):
                holder.assign(action.partition, action.sequence)
                assigned.append(action.partition)
            elif isinstance(action, Revoke):
                revoked.append(action.partition)
            elif isinstance(action, Lose):
                self._lose(action.partitions)
            else:
                reader.begin_survey()
        if assigned:
            holder.report(PartitionsAssigned(tuple(assigned)))
        if revoked:
            holder.report(PartitionsRevoked(tuple(revoked)))
        for partition in revoked:
            self._carry_out(member.handed_out(partition, holder.unassign(partition), trio.current_time()), reader)

    def _lose(self, partitions: tuple[Partition, ...]) -> None:
        for partition in partitions:
            self._holder.unassign(partition)
        if not self._is_leaving:
            self._holder.report(PartitionsLost(partitions))

    async def _send(self, producer: Producer) -> None:
        """Publish the member's records in order."""
        while True:
            await self._outbox_filled.wait()
            self._outbox_filled = trio.Event()
            while self._outbox:
                values = list(self._outbox)
                await producer.send_many(values)
                for _ in values:
                    self._outbox.popleft()
            self._sent.unpark_all()

    async def _watch(self, producer: Producer) -> None:
        """Pass ACKs to the member."""
        while True:
            await producer._changed.park()
            self.notify()


class _OverError(Exception):
    """The member has lost its lease, so nothing waits for its records any more."""


def check_group(name: str, config: Config) -> None:
    """Raise `ConfigError` if the name of a group is too long, or a setting does not suit groups."""
    check_topic(topic_of_group(name), config)
    settings = config.consumer
    if settings.name or settings.positions:
        raise ConfigError("[consumer] group: expected no `name` and no `positions` with it; a group has its own")
    if settings.group_lease_ms > LEASE_MS_MAX:
        raise ConfigError(f"[consumer] group_lease_ms: expected at most {LEASE_MS_MAX}, not {settings.group_lease_ms}")
