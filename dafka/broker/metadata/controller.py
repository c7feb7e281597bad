"""The controller: the broker that leads the log of metadata. It alone appends to it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import attrs
import trio

from dafka.batches import encode_records, read_header
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.metadata.commands import (
    SNAPSHOTS_KEPT,
    CloseTopic,
    OpenCluster,
    Order,
    decode_order,
    encode_order,
)
from dafka.broker.core.metadata.completion import CommandCompleter
from dafka.broker.core.metadata.outcome import Outcome
from dafka.broker.core.metadata.planner import Planner
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.metadata.voters import choose_voters
from dafka.broker.core.node_machine import BrokerMachine
from dafka.broker.core.partition_address import parse_address
from dafka.broker.core.positions import FIRST_OFFSET, Offset
from dafka.broker.core.replication.replicated_logs import LogAction
from dafka.broker.core.tables import BrokerTables
from dafka.broker.interbroker.messenger import BrokerMessenger, Message
from dafka.broker.log.deletion import RecordDeletion
from dafka.broker.log.writer import LogWriter
from dafka.broker.metadata.metadata_log import MetadataLog
from dafka.broker.metadata.removal import find_obstacle
from dafka.errors import NotLeaderError, StorageError, StorageFormatError
from dafka.records import RecordBatch
from dafka.storage.plugin_helpers import now_ms

_LOGGER = logging.getLogger("dafka.broker")

MANAGE_S = 0.1
"""Seconds between two looks at what the cluster needs, while it needs something."""

IDLE_S = 1.0
"""Seconds between two looks otherwise, unless the state changes."""

PLAN_S = 0.5
"""The least number of seconds between two plans of replicas."""

STALLED_S = 10.0
"""After this time without a plan, in seconds, this broker does not know for how long others were silent."""

VOTER_AFTER_S = 60.0
"""For how long a broker must have been heard to vote on metadata, in seconds, when the cluster is open."""

SUCCESSOR_AFTER_S = 5.0
"""The same if it replaces a forgotten voter: until then, the loss of fewer brokers leaves no majority."""

CLOSE_S = 3.0
"""How long the controller waits for brokers to tell how far they have the records of a deleted topic, in seconds."""

ASK_AGAIN_S = 0.2
"""Seconds after which they are asked again."""

APPENDED_MAX = 10_000
"""How many requests the controller remembers that it has appended, so that it does not append repeated ones again."""

TRIM_S = 60.0
"""Seconds after which the log of metadata is shortened at the latest, if that has failed."""


@attrs.frozen
class OrderRequest(Message):
    """Requests a command of the controller."""

    KIND = "metadata-order"
    order: str


@attrs.frozen
class OrderRefused(Message):
    """The controller refuses a request. It has written nothing."""

    KIND = "metadata-refused"
    request_id: str
    error: ErrorCode
    reason: str


@attrs.frozen
class ProducerEndsRequest(Message):
    """Asks how far a broker has the producer partitions of a deleted topic."""

    KIND = "producer-ends?"
    topic_id: str


@attrs.frozen
class ProducerEnds(Message):
    """How far a broker has the producer partitions of a deleted topic: addresses, and the sequences after the last."""

    KIND = "producer-ends"
    topic_id: str
    addresses: tuple[str, ...]
    ends: tuple[int, ...]


@attrs.define
class _Closing:
    """The answers about a deleted topic."""

    begun_at: float
    asked_at: float = float("-inf")
    is_closed: bool = False
    answered: set[str] = attrs.field(factory=set)
    ends: dict[str, int] = attrs.field(factory=dict)


class Controller:
    """Makes the changes of the cluster while this broker leads the log of metadata.

    `act` executes the effects of replicas.
    """

    def __init__(
        self,
        tables: BrokerTables,
        metadata: MetadataLog,
        writer: LogWriter,
        messenger: BrokerMessenger,
        machine: BrokerMachine,
        deletion: RecordDeletion,
        planner: Planner,
        act: Callable[[Iterable[LogAction]], None],
        initial_brokers: int,
    ) -> None:
        self._tables = tables
        self._state = tables.state
        self._metadata = metadata
        self._writer = writer
        self._messenger = messenger
        self._machine = machine
        self._deletion = deletion
        self._planner = planner
        self._completer = CommandCompleter(self._state, planner, tables.brokers, self._latest_epoch)
        self._act = act
        self._initial_brokers = initial_brokers
        self._closing: dict[str, _Closing] = {}
        self._alive_since: dict[str, float] = {}
        self._snapshot_offset = 0
        self._planned_at = float("-inf")
        self._appended: dict[str, int] = {}
        messenger.on(OrderRequest, self._receive)
        messenger.on(ProducerEndsRequest, self._tell_producer_ends)
        messenger.on(ProducerEnds, self._learn_producer_ends)

    @property
    def is_active(self) -> bool:
        """Whether this broker is the controller, and has applied all commands of its predecessors."""
        log = self._metadata.log
        return log is not None and log.leadership.is_led and self._state.applied >= log.epochs[-1][1]

    def _receive(self, sender: str, message: OrderRequest) -> None:
        try:
            order = decode_order(message.order.encode(), self._state.members.support)
        except StorageFormatError as error:
            _LOGGER.warning("a request of the broker %s is ignored: %s", sender, error)
            return
        refused = self.submit(order)
        if refused is not None:
            self._messenger.send(sender, OrderRefused(order.request_id, *refused))

    def submit(self, order: Order) -> Outcome | None:
        """Make a change. Return why it is refused at once; None if its outcome is known when it is applied.

        If this broker is not the controller, the error is NOT_CONTROLLER. A repeated request changes nothing: its
        command is in the log already, unless another broker was the controller meanwhile.
        """
        log = self._metadata.log
        if log is None or not self.is_active:
            return Outcome(ErrorCode.NOT_CONTROLLER, "this broker is not the controller")
        if self._appended.get(order.request_id) == log.leadership.epoch:
            return None
        refused = find_obstacle(self._tables, order.command)
        if refused is None:
            completed = self._completer.complete(order.command, trio.current_time(), now_ms())
            self._append(attrs.evolve(order, command=completed))
        return refused

    def _append(self, order: Order) -> None:
        log = self._metadata.log
        assert log is not None
        stamped = attrs.evolve(
            order,
            ordered_by=order.ordered_by or f"controller, broker {self._tables.brokers.own.number}",
            ordered_at=now_ms(),
            controller_epoch=log.leadership.epoch,
        )
        batch = RecordBatch(log.leader_partition, 0, [encode_order(stamped)], timestamps=[stamped.ordered_at])
        try:
            self._writer.append(log, [(read_header(data), data) for data in encode_records(batch)])
        except NotLeaderError:
            return  # the broker that requests it repeats it
        if order.request_id:
            self._appended[order.request_id] = log.leadership.epoch
        if len(self._appended) > APPENDED_MAX:
            del self._appended[next(iter(self._appended))]

    def _latest_epoch(self, topic: Topic) -> int:
        return max((log.leadership.epoch for log in self._tables.log_table.logs(topic.name)), default=0)

    # What the cluster needs

    async def run(self) -> None:
        """Make what the cluster needs, until cancelled: voters, replicas, deletions, and a short log of metadata.

        Raise `StateDiffersError` if most voters have another state of the cluster.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._trim)
            begun_epoch: int | None = None
            while True:
                log = self._metadata.log
                epoch = log.leadership.epoch if log is not None and self.is_active else None
                if epoch != begun_epoch:
                    begun_epoch = epoch
                    self._begin_epoch()
                if epoch is not None:
                    self._open()
                    self._close_topics()
                    self._plan()
                    self._agree_on_snapshots()
                is_busy = epoch is not None and (not self._state.is_open or bool(self._closing))
                with trio.move_on_after(MANAGE_S if is_busy or not self._state.is_open else IDLE_S):
                    await self._metadata.wait_changed()

    def _begin_epoch(self) -> None:
        """Forget what was ordered in an earlier epoch of the controller: those commands may never be committed."""
        self._planner.begin()
        self._closing.clear()
        self._snapshot_offset = 0

    def _open(self) -> None:
        """Change voters, and open the cluster when as many brokers have joined as it begins with, and enough vote."""
        is_waiting = self._change_voters()
        alive = self._tables.brokers.alive.intersection(self._state.brokers)
        if not self._state.is_open and not is_waiting and len(alive) >= self._initial_brokers:
            self._append(Order(OpenCluster(self._state.members.levels.highest)))

    def _change_voters(self) -> bool:
        """Change who votes on metadata, if other brokers should. Return whether they should.

        When the cluster is open, only brokers that have lived for a while become voters; sooner if one is forgotten.
        """
        log, now, brokers = self._tables.find_metadata(), trio.current_time(), self._tables.brokers
        self._alive_since = {each: self._alive_since.get(each, now) for each in brokers.alive}
        if log is None:
            return True
        registered, latest = self._state.brokers, log.replica.latest
        is_lost = not self._state.forgotten_ids.isdisjoint(latest.voters)
        least_s = (SUCCESSOR_AFTER_S if is_lost else VOTER_AFTER_S) if self._state.is_open else 0.0
        usable = {each for each, since in self._alive_since.items() if each in registered and now - since >= least_s}
        leaving = self._state.forgotten_ids.union(each.store_id for each in registered.values() if each.is_draining)
        usable -= leaving
        if latest.learners and usable.issuperset(latest.learners):
            return True  # they become voters when they are in sync
        chosen = choose_voters(latest.voters, brokers.own.address, usable, leaving)
        if set(chosen) == set(latest.replicas):
            return False
        if log.replica.elections.state.election is None:
            self._act(self._tables.logs.change_replicas(log, chosen, log.replica.newest.generation + 1))
        return True

    # Replicas

    def _plan(self) -> None:
        """Order other replicas where logs need them, when all that was ordered before is applied."""
        now, log = trio.current_time(), self._metadata.log
        if now - self._planned_at > STALLED_S:
            self._planner.begin()
        if log is None or self._state.applied < log.index.end_offset or now - self._planned_at < PLAN_S:
            return
        self._planned_at = now
        self._planner.forget_placed()
        for command in self._planner.advance(now):
            self._append(Order(command))

    # Snapshots

    def _agree_on_snapshots(self) -> None:
        """Record the newest snapshot that most voters have stored."""
        replicated, agreed = self._tables.find_metadata(), self._state.snapshots
        if replicated is None:
            return
        last = max(self._snapshot_offset, agreed[-1].offset if agreed else 0)
        command = self._metadata.exchange.find_agreed(replicated.replica.latest.voters, last, trio.current_time())
        if command is not None:
            self._snapshot_offset = command.offset
            self._append(Order(command))

    async def _trim(self) -> None:
        """Delete the commands before the first snapshot that stays, while this broker is the controller."""
        while True:
            log, agreed = self._metadata.log, self._state.snapshots
            start = Offset(agreed[0].offset) if len(agreed) == SNAPSHOTS_KEPT else FIRST_OFFSET
            if log is not None and self.is_active and log.index.start_offset < start:
                try:
                    await self._deletion.delete_before(log, start)
                except (StorageError, NotLeaderError) as error:
                    _LOGGER.warning("cannot shorten the log of metadata yet: %s", error)
            with trio.move_on_after(TRIM_S):
                await self._metadata.wait_changed()

    # Deleted topics

    def _close_topics(self) -> None:
        """Ask how far brokers have the records of deleted topics, and close the topics whose records are known."""
        now, others = trio.current_time(), self._tables.brokers.alive - {self._tables.brokers.own.address}
        deleting = {each.topic.topic_id: name for name, each in self._state.deleting.items()}
        self._closing = {each: found for each, found in self._closing.items() if each in deleting}
        for topic_id, name in deleting.items():
            closing = self._closing.get(topic_id)
            if closing is None:
                closing = self._closing[topic_id] = _Closing(now, ends=self._producer_ends(name))
            if closing.is_closed:
                continue
            if others <= closing.answered or now - closing.begun_at >= CLOSE_S:
                closing.is_closed = True
                self._append(Order(CloseTopic(topic_id, closing.ends)))
            elif now - closing.asked_at >= ASK_AGAIN_S:
                closing.asked_at = now
                for each in others - closing.answered:
                    self._messenger.send(each, ProducerEndsRequest(topic_id))

    def _producer_ends(self, name: str) -> dict[str, int]:
        machine = self._machine
        return {
            each.address: machine.next_sequence(each)
            for each in machine.reassembler.cursors
            if each.topic == name and parse_address(each.address) is None
        }

    def _tell_producer_ends(self, sender: str, message: ProducerEndsRequest) -> None:
        deletion = self._state.find_deleting(message.topic_id)
        if deletion is not None:
            ends = self._producer_ends(deletion.topic.name)
            self._messenger.send(sender, ProducerEnds(message.topic_id, tuple(ends), tuple(ends.values())))

    def _learn_producer_ends(self, sender: str, message: ProducerEnds) -> None:
        closing = self._closing.get(message.topic_id)
        if closing is not None and len(message.addresses) == len(message.ends):
            closing.answered.add(sender)
            for address, end in zip(message.addresses, message.ends, strict=True):
                closing.ends[address] = max(end, closing.ends.get(address, 0))
