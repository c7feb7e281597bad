"""What all listeners of a broker share: the broker, its coordinators, and what its logs know of producers.

Coordinators return actions. What an action writes is durable before a later action is carried out, and the answers to
clients keep that order, so that no client learns of a state that a crash can undo.
"""

from __future__ import annotations

import uuid
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Protocol, TypeVar

import attrs
import trio

from dafka.broker.crowd import Crowd
from dafka.broker.producer_table import ProducerTable
from dafka.broker.security import ListenerSecurity
from dafka.config import Config
from dafka.kafka.actions import Action, Answer, Token, WriteMarkers, WriteState
from dafka.kafka.groups import GroupCoordinator, GroupSettings
from dafka.kafka.state_records import GROUPS_TOPIC, OFFSETS_TOPIC, TRANSACTIONS_TOPIC, StateRecord
from dafka.kafka.topics import TopicPartition
from dafka.kafka.transactions import LogProducers, Marker, TransactionCoordinator, TransactionSettings
from dafka.protocol.logs import OWN, LogState, MarkerEntry
from dafka.roles import Broker, serve_broker
from dafka.storage.plugin_helpers import now_ms

_T = TypeVar("_T")

_EXPIRY_INTERVAL_S = 600.0


@attrs.define(eq=False)
class _Answer:
    """The answer to a request that waits for a coordinator."""

    arrived: trio.Event = attrs.field(factory=trio.Event)
    result: object = None


class ListenerCounters(Protocol):
    """Counters that every listener has."""

    sent_bytes: int
    consumed: Counter[str]


class Listener(Protocol):
    """A listener of a broker, for those who ask what all listeners do."""

    @property
    def crowd(self) -> Crowd:
        """Its connections."""

    @property
    def counters(self) -> ListenerCounters:
        """The counters of the listener."""


class Service:
    """A broker with its coordinators, started by `open_service`.

    Attributes:
        broker: The broker.
        config: The configuration.
        security: The users and the certificate of its listeners.
        groups: The groups.
        transactions: The transactions.
        producers: What its logs know of producers.
        listeners: Its listeners.
    """

    def __init__(self, broker: Broker, config: Config, security: ListenerSecurity, producers: ProducerTable) -> None:
        """Create the service. Programs call `open_service` instead."""
        self.broker = broker
        self.config = config
        self.security = security
        self.producers = producers
        self.listeners: list[Listener] = []
        kafka = config.kafka
        settings = GroupSettings(
            group_initial_rebalance_delay_ms=kafka.rebalance_delay_ms,
            group_min_session_timeout_ms=kafka.session_timeout_min_ms,
        )
        self.groups = GroupCoordinator(settings, lambda: str(uuid.uuid4()))
        self.transactions = TransactionCoordinator(TransactionSettings())
        self._answers: dict[Token, _Answer] = {}
        self._written: trio.Event | None = None
        self._waiting: deque[tuple[trio.Event, Action]] = deque()
        self._arrived = trio.Event()
        self._changed = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the coordinators until cancelled. They have started when all transactions that were decided are ended."""
        for topic in (GROUPS_TOPIC, OFFSETS_TOPIC, TRANSACTIONS_TOPIC):
            restore = self.transactions.restore if topic == TRANSACTIONS_TOPIC else self.groups.restore
            for key, value in self.broker.state(topic).items():
                restore(StateRecord(topic, key, value))
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._carry_out_later)
            self.groups.start(now_ms())
            self.carry_out(self.transactions.start())
            for log, producers in self.producers.items():
                self._abort_orphans(log, producers)
            nursery.start_soon(self._keep_time)
            nursery.start_soon(self._expire_producers)
            task_status.started()

    async def ask(self, call: Callable[[Token], list[Action]]) -> object:
        """Call a coordinator, and return its answer.

        Args:
            call: Calls a method of a coordinator with a token for the request.

        Returns:
            The result, when everything that it depends on is durable.
        """
        token, answer = object(), _Answer()
        self._answers[token] = answer
        try:
            self.carry_out(call(token))
            await answer.arrived.wait()
        finally:
            del self._answers[token]
        return answer.result

    async def settle(self, result: _T) -> _T:
        """Return what a coordinator has returned directly, when the answers before it have been given."""
        if self._written is not None:
            await self._written.wait()
        return result

    def carry_out(self, actions: Iterable[Action]) -> None:
        """Carry out actions in order. What follows a write waits until it is durable."""
        for action in actions:
            if isinstance(action, WriteState):
                for record in action.records:
                    self._written = self.broker.write_state(record.topic, [(record.key, record.value)])
            elif self._written is None or (self._written.is_set() and not self._waiting):
                self._carry_out(action)
            else:
                self._waiting.append((self._written, action))
                self._arrived.set()
        self._changed.set()

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with its records, and the offsets that groups have committed for it."""
        for log in self.broker.order.logs(name):
            self.producers.forget(log)
        await self.broker.delete_topic(name)
        self.carry_out(self.groups.delete_topic(name))
        await self.settle(None)

    def append_marker(self, log: LogState, marker: Marker) -> trio.Event:
        """Append the end of a transaction to a log. The event returned is set when it is durable."""
        time_ms, producers = now_ms(), self.producers.of(log)
        first = producers.transactions.open_transactions().get(marker.producer_id, -1)
        position = self.broker.next_sequence(log)
        producers.add_marker(marker, position - 1, time_ms)
        entry = MarkerEntry(
            0, position, marker.producer_id, marker.producer_epoch, int(marker.is_commit), time_ms, first
        )
        return self.broker.append_marker(log, entry)

    def last_stable_offset(self, log: LogState) -> int:
        """Return the offset up to which readers get records that want committed ones only."""
        end = self.broker.durable_end(log)
        sequence = self.producers.of(log).last_stable_offset(end)
        return log.high_watermark if sequence >= end else min(log.index.find_from(OWN, sequence), log.high_watermark)

    def aborted_between(self, log: LogState, offset: int, end_offset: int) -> list[tuple[int, int]]:
        """Return the aborted transactions in a range of offsets: producer ids, and the offsets of first records."""
        first = log.index.sequence_from(OWN, offset)
        if first is None:
            return []
        end = log.index.sequence_from(OWN, end_offset)
        found = self.producers.of(log).aborted_between(first, self.broker.durable_end(log) if end is None else end)
        return [(each.producer_id, log.index.find_from(OWN, each.first_offset)) for each in found]

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, Answer):
            answer = self._answers.get(action.token)
            if answer is not None:
                answer.result = action.result
                answer.arrived.set()
        elif isinstance(action, WriteMarkers):
            self._nursery.start_soon(self._end_transaction, action)

    async def _carry_out_later(self) -> None:
        while True:
            while self._waiting:
                written, action = self._waiting[0]
                await written.wait()
                self._waiting.popleft()
                self._carry_out(action)
            self._arrived = trio.Event()
            await self._arrived.wait()

    async def _end_transaction(self, ending: WriteMarkers) -> None:
        marker = Marker(ending.producer_id, ending.producer_epoch, ending.is_commit)
        logs = [self.broker.order.find_log(each.topic, each.partition) for each in ending.partitions]
        appended = [self.append_marker(log, marker) for log in logs if log is not None]
        for group_id in ending.groups:
            self.carry_out(self.groups.end_transaction(group_id, ending.producer_id, ending.is_commit))
        await self.settle(None)
        for each in appended:
            await each.wait()
        self.carry_out(self.transactions.markers_written(ending.transactional_id, now_ms()))

    def _abort_orphans(self, log: LogState, producers: LogProducers) -> None:
        """Abort the transactions that nobody will end."""
        opened: Sequence[int] = list(producers.transactions.open_transactions())
        place = TopicPartition(log.topic, log.number)
        for producer_id in self.transactions.orphans(place, opened):
            epoch = producers.producers[producer_id].producer_epoch
            self.append_marker(log, Marker(producer_id, epoch, is_commit=False))

    async def _expire_producers(self) -> None:
        """Forget producers that have sent nothing for a day."""
        while True:
            await trio.sleep(_EXPIRY_INTERVAL_S)
            self.producers.expire(now_ms())
            for log, producers in self.producers.items():
                first = log.index.sequence_from(OWN, log.index.start_offset)
                producers.drop_before(self.broker.durable_end(log) if first is None else first)

    async def _keep_time(self) -> None:
        """Let sessions, rebalances and transactions expire."""
        while True:
            self._changed = trio.Event()
            deadlines = [self.groups.next_deadline_ms(), self.transactions.next_deadline_ms()]
            due = [each for each in deadlines if each is not None]
            wait_s = max(min(due) - now_ms(), 0) / 1000 if due else float("inf")
            with trio.move_on_after(wait_s):
                await self._changed.wait()
            time_ms = now_ms()
            actions = self.groups.advance(time_ms) + self.transactions.advance(time_ms)
            if actions:
                self.carry_out(actions)
            await trio.lowlevel.checkpoint()


@asynccontextmanager
async def open_service(config: Config, security: ListenerSecurity) -> AsyncIterator[Service]:
    """Run a broker with its coordinators for the duration of a block.

    Args:
        config: The configuration.
        security: The users and the certificate of its listeners.

    Yields:
        The service.

    Raises:
        DafkaError: What `serve_broker` raises.
    """
    producers = ProducerTable(TransactionSettings())
    async with trio.open_nursery() as nursery:
        start = partial(serve_broker, config, restore_producer=producers.restore)
        broker: Broker = await nursery.start(start)
        service = Service(broker, config, security, producers)
        await nursery.start(service.run)
        nursery.start_soon(security.keep_current)
        yield service
        nursery.cancel_scope.cancel()
