"""What takes part in transactions: logs and groups, which other brokers may lead than the one that coordinates.

The leader of a log accepts records of a transaction only after the coordinator has said that the log takes part, which
it says when that is durable. So a transaction that has records somewhere is always known to a coordinator, which ends
it there. The coordinator says it when the producer adds the log; a leader that has missed it asks for it.

All messages between a coordinator and a leader name the leader epochs of both logs, that of the coordinator's slot and
that of the participant, and are ignored if one of them has passed. Within these epochs they arrive in order. So a late
message never ends a later transaction.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import attrs
import trio

from dafka.broker.coordinator.coordinator_shard import CoordinatorError, CoordinatorShard
from dafka.broker.coordinator.coordinators import Coordinators
from dafka.broker.core.coordination.effects import WriteMarkers
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.entries import MarkerEntry
from dafka.broker.core.log.log import Log
from dafka.broker.core.log.producer_state import Marker, Producer
from dafka.broker.core.topic_partition import TopicPartition
from dafka.broker.interbroker.messenger import BrokerMessenger, Message
from dafka.broker.log.producer_table import ProducerTable
from dafka.broker.node import BrokerNode
from dafka.errors import NotLeaderError
from dafka.storage.plugin_helpers import now_ms

RETRY_S = 1.0
"""How long to wait for an answer before a message is sent again."""

LOCAL_RETRY_S = 0.05
"""How long to wait for a log or slot here that changes its leader, or is being loaded."""

REFUSED_MAX = 10_000
"""How many refusals wait for producers that try again."""


class TransactionParticipant(NamedTuple):
    """What takes part in a transaction.

    Attributes:
        topic: The topic of a log; empty for a group.
        name: The name of the group; empty for a log.
        number: The number of the log.
    """

    topic: str = ""
    name: str = ""
    number: int = -1


@attrs.frozen
class _OfCoordinator(Message):
    """What the coordinator of a transaction tells the leader of a place.

    Attributes:
        slot: The number of the coordinator's slot.
        slot_epoch: The leader epoch of its log.
        producer: The producer.
        place: The place.
        place_epoch: The leader epoch of its log.
    """

    slot: int
    slot_epoch: int
    producer: Producer
    place: TransactionParticipant
    place_epoch: int


@attrs.frozen
class Begin(_OfCoordinator):
    """The place takes part in the transaction."""

    KIND = "begin"


@attrs.frozen
class Refuse(_OfCoordinator):
    """The place does not take part in the transaction."""

    KIND = "refuse"
    error: ErrorCode


@attrs.frozen
class End(_OfCoordinator):
    """The transaction ends; the answer is `Ended`."""

    KIND = "end"
    is_commit: bool
    request: int


@attrs.frozen
class Ended(Message):
    """The transaction has ended in a place."""

    KIND = "ended"
    request: int


@attrs.frozen
class Ask(Message):
    """Asks the coordinator of a transaction whether a place takes part; the answer is `Begin` or `Refuse`."""

    KIND = "ask"
    transactional_id: str
    producer: Producer
    place: TransactionParticipant
    place_epoch: int


class KnownTransactions:
    """The producers whose transactions a log or group takes part in, as far as this leader knows.

    Args:
        epoch: The leader epoch of the log.
    """

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.epochs: dict[tuple[TransactionParticipant, int], int] = {}
        self.asked: dict[tuple[TransactionParticipant, Producer], float] = {}
        self.refused: dict[tuple[TransactionParticipant, Producer], tuple[ErrorCode, float]] = {}


class TransactionParticipants:
    """The logs and groups that take part in transactions.

    Args:
        broker: The broker.
        coordinators: The slots.
        producers: What the logs know of producers.
        post: The messages to and from other brokers.
    """

    def __init__(
        self, broker: BrokerNode, coordinators: Coordinators, producers: ProducerTable, post: BrokerMessenger
    ) -> None:
        self._broker = broker
        self._coordinators = coordinators
        self._producers = producers
        self._post = post
        self._begun: dict[Log, KnownTransactions] = {}
        self._slot_epochs: dict[int, int] = {}
        self._ended: dict[int, trio.Event] = {}
        self._requests = itertools.count()
        post.on(Begin, self._on_begin)
        post.on(Ask, self._on_ask)
        post.on(Refuse, self._on_refuse)
        post.on(End, self._on_end)
        post.on(Ended, self._on_ended)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Answer other brokers until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            await trio.sleep_forever()

    def begin(
        self,
        slot: CoordinatorShard,
        producer: Producer,
        *,
        logs: Sequence[TopicPartition] = (),
        groups: Sequence[str] = (),
    ) -> None:
        """Inform the leaders of logs and groups that these take part in a transaction."""
        for place in _places(logs, groups):
            log = self._log_of(place)
            if log is None:
                continue
            if log.leadership.is_led:
                self._note_begun(log, place, producer)
            elif log.leadership.leader:
                begin = Begin(slot.log.number, slot.epoch, producer, place, log.leadership.epoch)
                self._post.send(log.leadership.leader, begin)

    async def end(self, slot: CoordinatorShard, ending: WriteMarkers) -> None:
        """End a transaction in all logs and groups that take part, and inform the coordinator."""
        async with trio.open_nursery() as nursery:
            for place in _places(ending.partitions, ending.groups):
                nursery.start_soon(self._end_at, slot, place, ending)
        slot.execute(slot.transactions.markers_written(ending.transactional_id, now_ms()))

    def check_log(self, log: Log, transactional_id: str, producer: Producer) -> ErrorCode:
        """Return what is wrong with a transactional batch for a log that this broker leads.

        Ask this before the batch is checked by the log's `LogProducers` and appended, in the same step.

        Args:
            log: The log.
            transactional_id: The name of the producer.
            producer: Its id and epoch.

        Returns:
            What is wrong. NOT_ENOUGH_REPLICAS asks the producer to try again: the coordinator has been asked.
        """
        slot = self._slot_of(transactional_id)
        if slot is not None:
            place = TopicPartition(log.topic, log.number)
            error = slot.transactions.check_partition(transactional_id, producer, place)
            if error:
                return error
        known = self._producers.of(log)
        is_open = producer.producer_id in known.open_transactions
        epoch = known.producers[producer.producer_id].producer_epoch if is_open else -1
        error = self._check(
            slot, log, TransactionParticipant(log.topic, number=log.number), transactional_id, producer, epoch
        )
        return ErrorCode.INVALID_PRODUCER_EPOCH if error is ErrorCode.PRODUCER_FENCED else error

    def check_group(
        self, group_slot: CoordinatorShard, transactional_id: str, producer: Producer, group_id: str
    ) -> ErrorCode:
        """Return what is wrong with a TxnOffsetCommit for a group that this broker coordinates.

        Ask this before the offsets are added, in the same step.

        Args:
            group_slot: The slot of the group.
            transactional_id: The name of the producer.
            producer: Its id and epoch.
            group_id: The group.

        Returns:
            What is wrong. COORDINATOR_LOAD_IN_PROGRESS asks the producer to try again.
        """
        slot = self._slot_of(transactional_id)
        if slot is not None:
            error = slot.transactions.check_group(transactional_id, producer, group_id)
            if error:
                return error
        error = self._check(slot, group_slot.log, TransactionParticipant(name=group_id), transactional_id, producer, -1)
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if error is ErrorCode.NOT_ENOUGH_REPLICAS else error

    def forget(self, log: Log) -> None:
        """Forget a log that is deleted."""
        self._begun.pop(log, None)

    def abort_orphans(self) -> None:
        """Abort the transactions in logs here that nobody will end. This broker must serve all slots.

        Former versions could leave such a transaction in a log. It would hold back the last stable offset forever.
        """
        for log, producers in self._producers.items():
            place = TopicPartition(log.topic, log.number)
            orphans = list(producers.open_transactions)
            for slot in self._coordinators.served():
                orphans = slot.transactions.orphans(place, orphans)
            for producer_id in orphans if log.leadership.is_led else ():
                epoch = producers.producers[producer_id].producer_epoch
                self.append_marker(log, Marker(producer_id, epoch, is_commit=False))

    def _check(
        self,
        slot: CoordinatorShard | None,
        log: Log,
        place: TransactionParticipant,
        name: str,
        producer: Producer,
        open_epoch: int,
    ) -> ErrorCode:
        """Return whether a place is known to take part in a transaction; ask the coordinator if it is not."""
        begun = self._begun_in(log)
        epoch = max(begun.epochs.get((place, producer.producer_id), -1), open_epoch)
        if epoch == producer.producer_epoch:
            return ErrorCode.NONE
        if slot is not None and slot.is_settled:
            self._note_begun(log, place, producer)
            return ErrorCode.NONE
        if epoch > producer.producer_epoch:
            return ErrorCode.PRODUCER_FENCED
        key, now = (place, producer), trio.current_time()
        error, refused_at = begun.refused.pop(key, (ErrorCode.NONE, now))
        if error and now - refused_at < RETRY_S:
            return error
        coordinator = self._coordinators.log_of(name)
        is_asked = now - begun.asked.get(key, float("-inf")) < RETRY_S
        if slot is None and not is_asked and coordinator is not None and coordinator.leadership.leader:
            if len(begun.asked) >= REFUSED_MAX:
                begun.asked.clear()
            begun.asked[key] = now
            self._post.send(coordinator.leadership.leader, Ask(name, producer, place, begun.epoch))
        return ErrorCode.NOT_ENOUGH_REPLICAS

    async def _end_at(self, slot: CoordinatorShard, place: TransactionParticipant, ending: WriteMarkers) -> None:
        """End a transaction in one log or group."""
        producer = Producer(ending.producer_id, ending.producer_epoch)
        while (log := self._log_of(place)) is not None:
            leadership = log.leadership
            if leadership.is_led:
                try:
                    await self._begin_end(log, place, producer, is_commit=ending.is_commit)()
                except (NotLeaderError, CoordinatorError):
                    await trio.sleep(LOCAL_RETRY_S)
                    continue
                return
            if await self._ask_end(slot, place, log, producer, is_commit=ending.is_commit):
                return

    async def _ask_end(
        self, slot: CoordinatorShard, place: TransactionParticipant, log: Log, producer: Producer, *, is_commit: bool
    ) -> bool:
        """Have another broker end a transaction. Return whether it has, before another one leads the log."""
        request, ended = next(self._requests), trio.Event()
        self._ended[request] = ended
        try:
            leader, epoch = log.leadership.leader, log.leadership.epoch
            if leader:
                self._post.send(leader, End(slot.log.number, slot.epoch, producer, place, epoch, is_commit, request))
            with trio.move_on_after(RETRY_S):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._wait_change, log, nursery.cancel_scope)
                    await ended.wait()
                    nursery.cancel_scope.cancel()
        finally:
            del self._ended[request]
        return ended.is_set()

    async def _wait_change(self, log: Log, scope: trio.CancelScope) -> None:
        await self._broker.wait_leadership(log)
        scope.cancel()

    def _begin_end(
        self, log: Log, place: TransactionParticipant, producer: Producer, *, is_commit: bool
    ) -> Callable[[], Awaitable[None]]:
        """End a transaction here, behind what was said of it before. The function returned waits until it is ended.

        Raises `NotLeaderError` or `CoordinatorError`, as does that function.
        """
        self._begun_in(log).epochs.pop((place, producer.producer_id), None)
        if place.name:
            slot = self._coordinators.find(place.name)
            slot.execute(slot.groups.end_transaction(place.name, producer.producer_id, is_commit))
            return slot.wait_committed
        epoch = log.leadership.epoch
        written = self.append_marker(log, Marker(*producer, is_commit))

        async def wait() -> None:
            await written.wait()
            end = log.index.end_offset
            while True:
                leadership = log.leadership
                if leadership.epoch != epoch or not leadership.is_led:
                    raise NotLeaderError("the end of a transaction may be lost", leadership.leader)
                if log.high_watermark >= end:
                    return
                with self._broker.watchers.watching([log]) as advanced:
                    await advanced.wait()

        return wait

    def append_marker(self, log: Log, marker: Marker) -> trio.Event:
        """Append the end of a transaction to a log. The event returned is set when it is durable here."""
        time_ms, producers = now_ms(), self._producers.of(log)
        first = producers.open_transactions.get(marker.producer_id)
        position = self._broker.next_sequence(log)
        entry = MarkerEntry(
            0, position, marker.producer_id, marker.producer_epoch, int(marker.is_commit), time_ms, first
        )
        written = self._broker.append_marker(log, entry)
        producers.add_marker(marker, time_ms)
        return written

    def _on_begin(self, _sender: str, message: Begin) -> None:
        log = self._log_of(message.place)
        if log is not None and self._is_current(log, message):
            self._note_begun(log, message.place, message.producer)

    def _on_ask(self, sender: str, message: Ask) -> None:
        """Answer a leader whether its log takes part in a transaction, when that is durable."""
        name, producer, place = message.transactional_id, message.producer, message.place
        slot = self._slot_of(name)
        if slot is None:
            return
        if place.name:
            error = slot.transactions.check_group(name, producer, place.name)
        else:
            error = slot.transactions.check_partition(name, producer, TopicPartition(place.topic, place.number))
        about = slot.log.number, slot.epoch, producer, place, message.place_epoch
        slot.execute([partial(self._post.send, sender, Refuse(*about, error) if error else Begin(*about))])

    def _on_refuse(self, _sender: str, message: Refuse) -> None:
        log = self._log_of(message.place)
        if log is not None and self._is_current(log, message):
            begun, key = self._begun_in(log), (message.place, message.producer)
            begun.asked.pop(key, None)
            if len(begun.refused) >= REFUSED_MAX:
                begun.refused.clear()
            begun.refused[key] = message.error, trio.current_time()

    def _on_end(self, sender: str, message: End) -> None:
        log = self._log_of(message.place)
        if log is None or not self._is_current(log, message):
            return
        try:
            wait = self._begin_end(log, message.place, message.producer, is_commit=message.is_commit)
        except (NotLeaderError, CoordinatorError):
            return  # the coordinator asks again
        self._nursery.start_soon(self._answer_end, sender, message.request, wait)

    async def _answer_end(self, sender: str, request: int, wait: Callable[[], Awaitable[None]]) -> None:
        try:
            await wait()
        except (NotLeaderError, CoordinatorError):
            return
        self._post.send(sender, Ended(request))

    def _on_ended(self, _sender: str, message: Ended) -> None:
        ended = self._ended.get(message.request)
        if ended is not None:
            ended.set()

    def _is_current(self, log: Log, message: _OfCoordinator) -> bool:
        """Return whether a coordinator's message is of the present leaders of both logs."""
        slot, epoch = message.slot, message.slot_epoch
        latest = self._slot_epochs[slot] = max(self._slot_epochs.get(slot, epoch), epoch)
        is_led = log.leadership.is_led and log.leadership.epoch == message.place_epoch
        return is_led and epoch == latest

    def _note_begun(self, log: Log, place: TransactionParticipant, producer: Producer) -> None:
        begun, key = self._begun_in(log), (place, producer.producer_id)
        begun.epochs[key] = max(begun.epochs.get(key, -1), producer.producer_epoch)
        begun.asked.pop((place, producer), None)
        begun.refused.pop((place, producer), None)

    def _begun_in(self, log: Log) -> KnownTransactions:
        found, epoch = self._begun.get(log), log.leadership.epoch
        if found is None or found.epoch != epoch:
            found = self._begun[log] = KnownTransactions(epoch)
        return found

    def _log_of(self, place: TransactionParticipant) -> Log | None:
        """Return the log of a place; None if it does not exist, or not yet."""
        if place.name:
            return self._coordinators.log_of(place.name)
        return self._broker.find_log(place.topic, place.number)

    def _slot_of(self, transactional_id: str) -> CoordinatorShard | None:
        try:
            return self._coordinators.find(transactional_id)
        except CoordinatorError:
            return None


def _places(logs: Iterable[TopicPartition], groups: Iterable[str]) -> list[TransactionParticipant]:
    return [
        *(TransactionParticipant(log.topic, number=log.partition) for log in logs),
        *(TransactionParticipant(name=group) for group in groups),
    ]
