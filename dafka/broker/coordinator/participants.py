"""Adds logs and groups to transactions and ends them there, also where other brokers lead them.

The leader of a log accepts records of a transaction only after the coordinator has confirmed that the log participates.
The coordinator confirms this once it is durable. So a coordinator knows every transaction that has records, and ends it
in all its logs. The coordinator confirms when the producer adds the log; a leader that missed the message requests it.

All messages between a coordinator and a leader name the leader epochs of both logs: that of the coordinator's shard and
that of the participant. They are ignored if one of the epochs has passed. Within these epochs they arrive in order. A
coordinator sends them only while it has the leader lease of its shard: the next one ends each open transaction in the
same leader epoch of the participant, which knows the later epoch of the shard from then on, or in a later one. So a
late message never ends a later transaction, and never confirms one that has ended.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from weakref import WeakKeyDictionary

import attrs
import trio

from dafka.broker.coordinator.coordinator_shard import CoordinatorError, CoordinatorShard
from dafka.broker.coordinator.coordinators import Coordinators
from dafka.broker.coordinator.transaction_messages import (
    Ask,
    Begin,
    End,
    Ended,
    Refuse,
    TransactionParticipant,
    _OfCoordinator,
)
from dafka.broker.core.coordination.effects import WriteMarkers
from dafka.broker.core.coordination.state_records import COORDINATORS_TOPIC
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.log import Log
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.log.producer_state import Marker, Producer
from dafka.broker.core.topic_partition import TopicPartition
from dafka.broker.interbroker.messenger import BrokerMessenger, Message
from dafka.broker.log.waiters import LogWaiters
from dafka.broker.log.writer import LogWriter
from dafka.broker.replication.leader import LedLogs
from dafka.errors import NotLeaderError
from dafka.steady_clock import steady_now_ms

RETRY_S = 1.0
"""The time to wait for an answer before a message is sent again."""

LOCAL_RETRY_S = 0.05
"""The time before a retry while a local log or shard changes its leader or is loaded."""

REFUSED_MAX = 10_000
"""The number of refusals that are kept until their producers retry."""


@attrs.define(eq=False)
class KnownTransactions:
    """The transactions that participants of one log take part in, as far as its leader in one leader epoch knows."""

    epoch: int
    epochs: dict[tuple[TransactionParticipant, int], int] = attrs.field(factory=dict)
    asked: dict[tuple[TransactionParticipant, Producer], float] = attrs.field(factory=dict)
    refused: dict[tuple[TransactionParticipant, Producer], tuple[ErrorCode, float]] = attrs.field(factory=dict)


@attrs.define(eq=False, slots=False)
class TransactionParticipants:
    """The logs and groups that take part in transactions."""

    _log_table: LogTable
    _coordinators: Coordinators
    _led_logs: LedLogs
    _writer: LogWriter
    _watchers: LogWaiters
    _messenger: BrokerMessenger
    _begun: WeakKeyDictionary[Log, KnownTransactions] = attrs.field(init=False, factory=WeakKeyDictionary)
    _shard_epochs: dict[int, int] = attrs.field(init=False, factory=dict)
    _ended: dict[int, trio.Event] = attrs.field(init=False, factory=dict)
    _requests: itertools.count[int] = attrs.field(init=False, factory=itertools.count)
    _nursery: trio.Nursery = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        messenger = self._messenger
        messenger.on(Begin, self._on_begin)
        messenger.on(Ask, self._on_ask)
        messenger.on(Refuse, self._on_refuse)
        messenger.on(End, self._on_end)
        messenger.on(Ended, self._on_ended)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Answer messages of other brokers until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            await trio.sleep_forever()

    def begin(
        self, shard: CoordinatorShard, producer: Producer, participants: Iterable[TransactionParticipant]
    ) -> None:
        """Notify the leaders of logs and groups that these take part in a transaction."""
        if not shard.holds_lease:
            return  # they ask the broker that coordinates it now
        for participant in participants:
            log = self._log_of(participant)
            if log is None:
                continue
            if log.leadership.is_led:
                self._record_begun(log, participant, producer)
            elif log.leadership.leader:
                begin = Begin(shard.log.number, shard.epoch, producer, participant, log.leadership.epoch)
                self._messenger.send(log.leadership.leader, begin)

    def knows(self, log: Log, participant: TransactionParticipant, producer: Producer) -> bool:
        """Return whether it is known that a participant of a log takes part in a producer's transaction."""
        return self._known_epoch(log, participant, producer) == producer.producer_epoch

    def confirm(
        self, log: Log, participant: TransactionParticipant, producer: Producer, shard: int, shard_epoch: int
    ) -> bool:
        """Record that a participant takes part in a transaction, as the coordinator has said in a leader epoch.

        Return False if another broker has led the shard since. The log has had the same leader since it was asked.
        """
        is_latest = self._is_latest(shard, shard_epoch)
        if is_latest:
            self._record_begun(log, participant, producer)
        return is_latest

    async def end(self, shard: CoordinatorShard, ending: WriteMarkers) -> None:
        """End a transaction at all its logs and groups, on any broker, and notify the coordinator."""
        async with trio.open_nursery() as nursery:
            for participant in participants_of(ending.partitions, ending.groups):
                nursery.start_soon(self._end_at, shard, participant, ending)
        shard.execute(shard.transactions.markers_written(ending.transactional_id, steady_now_ms()))

    def check_log(self, log: Log, transactional_id: str, producer: Producer) -> ErrorCode:
        """Check a transactional batch for a log that this broker leads. Return an error code, or NONE.

        Call this before the log's `ProducerStates` checks the batch, and append it without a checkpoint in between.
        NOT_ENOUGH_REPLICAS asks the producer to retry: the coordinator was asked.
        """
        error = self._check(log, participant_of(log), transactional_id, producer)
        return ErrorCode.INVALID_PRODUCER_EPOCH if error is ErrorCode.PRODUCER_FENCED else error

    def check_group(
        self, group_shard: CoordinatorShard, transactional_id: str, producer: Producer, group_id: str
    ) -> ErrorCode:
        """Check a TxnOffsetCommit for a group that this broker coordinates in a shard. Return an error code, or NONE.

        Call this before the offsets are added, without a checkpoint in between. COORDINATOR_LOAD_IN_PROGRESS asks the
        producer to retry.
        """
        error = self._check(group_shard.log, TransactionParticipant(name=group_id), transactional_id, producer)
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if error is ErrorCode.NOT_ENOUGH_REPLICAS else error

    def _check(
        self,
        log: Log,
        participant: TransactionParticipant,
        transactional_id: str,
        producer: Producer,
    ) -> ErrorCode:
        """Check whether a participant is known to take part in a transaction; if not, ask the coordinator."""
        shard = self._shard_of(transactional_id)
        if shard is not None and (error := check_in(shard, transactional_id, producer, participant)):
            return error
        begun = self._begun_in(log)
        epoch = self._known_epoch(log, participant, producer)
        if epoch == producer.producer_epoch:
            return ErrorCode.NONE
        if shard is not None and shard.is_settled:
            self._record_begun(log, participant, producer)
            return ErrorCode.NONE
        if epoch > producer.producer_epoch:
            return ErrorCode.PRODUCER_FENCED
        key, now = (participant, producer), trio.current_time()
        error, refused_at = begun.refused.pop(key, (ErrorCode.NONE, now))
        if error and now - refused_at < RETRY_S:
            return error
        coordinator = self._coordinators.log_of(transactional_id)
        is_asked = now - begun.asked.get(key, float("-inf")) < RETRY_S
        if shard is None and not is_asked and coordinator is not None and coordinator.leadership.leader:
            if len(begun.asked) >= REFUSED_MAX:
                begun.asked.clear()
            begun.asked[key] = now
            ask = Ask(transactional_id, producer, participant, begun.epoch)
            self._messenger.send(coordinator.leadership.leader, ask)
        return ErrorCode.NOT_ENOUGH_REPLICAS

    def _known_epoch(self, log: Log, participant: TransactionParticipant, producer: Producer) -> int:
        """Return the epoch of a producer's transaction that a participant takes part in; -1 if none is known."""
        known, producer_id = log.producers, producer.producer_id
        is_open = not participant.name and producer_id in known.open_transactions
        open_epoch = known.producers[producer_id].producer_epoch if is_open else -1
        return max(self._begun_in(log).epochs.get((participant, producer_id), -1), open_epoch)

    async def _end_at(self, shard: CoordinatorShard, participant: TransactionParticipant, ending: WriteMarkers) -> None:
        """End a transaction in one log or group."""
        producer = Producer(ending.producer_id, ending.producer_epoch)
        while (log := self._log_of(participant)) is not None:
            leadership = log.leadership
            if not shard.holds_lease:
                await trio.sleep(LOCAL_RETRY_S)
                continue
            if leadership.is_led:
                try:
                    await self._begin_end(log, participant, producer, is_commit=ending.is_commit)()
                except (NotLeaderError, CoordinatorError):
                    await trio.sleep(LOCAL_RETRY_S)
                    continue
                return
            if await self._ask_end(shard, participant, log, producer, is_commit=ending.is_commit):
                return

    async def _ask_end(
        self,
        shard: CoordinatorShard,
        participant: TransactionParticipant,
        log: Log,
        producer: Producer,
        *,
        is_commit: bool,
    ) -> bool:
        """Request the end of a transaction from the log's leader. Return whether it confirms in time."""
        request, ended = next(self._requests), trio.Event()
        self._ended[request] = ended
        try:
            leader, epoch = log.leadership.leader, log.leadership.epoch
            if leader:
                self._messenger.send(
                    leader, End(shard.log.number, shard.epoch, producer, participant, epoch, is_commit, request)
                )
            with trio.move_on_after(RETRY_S):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._wait_change, log, nursery.cancel_scope)
                    await ended.wait()
                    nursery.cancel_scope.cancel()
        finally:
            del self._ended[request]
        return ended.is_set()

    async def _wait_change(self, log: Log, scope: trio.CancelScope) -> None:
        await self._led_logs.wait_leadership(log)
        scope.cancel()

    def _begin_end(
        self, log: Log, participant: TransactionParticipant, producer: Producer, *, is_commit: bool
    ) -> Callable[[], Awaitable[None]]:
        """Append the transaction's marker after its records. The returned function waits until it is committed.

        Both raise `NotLeaderError` or `CoordinatorError`.
        """
        self._begun_in(log).epochs.pop((participant, producer.producer_id), None)
        if participant.name:
            shard = self._coordinators.find(participant.name)
            shard.execute(shard.groups.end_transaction(participant.name, producer.producer_id, is_commit))
            return shard.wait_committed
        epoch = log.leadership.epoch
        written = self._writer.append_marker(log, Marker(*producer, is_commit))

        async def wait() -> None:
            await written.wait()
            end = log.index.end_offset
            while True:
                leadership = log.leadership
                if leadership.epoch != epoch or not leadership.is_led:
                    raise NotLeaderError("the end of a transaction may be lost", leadership.leader)
                if log.high_watermark >= end:
                    return
                with self._watchers.watching([log]) as advanced:
                    await advanced.wait()

        return wait

    def _on_begin(self, _sender: str, message: Begin) -> None:
        log = self._log_of(message.participant)
        if log is not None and self._is_current(log, message):
            self._record_begun(log, message.participant, message.producer)

    def _on_ask(self, sender: str, message: Ask) -> None:
        """Answer whether a log or group takes part in a transaction, once that is durable."""
        producer, participant = message.producer, message.participant
        shard = self._shard_of(message.transactional_id)
        if shard is None:
            return
        error = check_in(shard, message.transactional_id, producer, participant)
        about = shard.log.number, shard.epoch, producer, participant, message.participant_epoch
        shard.execute([partial(self.answer, shard, sender, Refuse(*about, error) if error else Begin(*about))])

    def answer(self, shard: CoordinatorShard, leader: str, message: Message) -> None:
        """Send the answer of a coordinator to the leader of a participant, unless another broker coordinates now."""
        if shard.holds_lease:
            self._messenger.send(leader, message)

    def _on_refuse(self, _sender: str, message: Refuse) -> None:
        log = self._log_of(message.participant)
        if log is not None and self._is_current(log, message):
            begun, key = self._begun_in(log), (message.participant, message.producer)
            begun.asked.pop(key, None)
            if len(begun.refused) >= REFUSED_MAX:
                begun.refused.clear()
            begun.refused[key] = message.error, trio.current_time()

    def _on_end(self, sender: str, message: End) -> None:
        log = self._log_of(message.participant)
        if log is None or not self._is_current(log, message):
            return
        try:
            wait = self._begin_end(log, message.participant, message.producer, is_commit=message.is_commit)
        except (NotLeaderError, CoordinatorError):
            return  # the coordinator repeats its request
        self._nursery.start_soon(self._answer_end, sender, message.request, wait)

    async def _answer_end(self, sender: str, request: int, wait: Callable[[], Awaitable[None]]) -> None:
        try:
            await wait()
        except (NotLeaderError, CoordinatorError):
            return
        self._messenger.send(sender, Ended(request))

    def _on_ended(self, _sender: str, message: Ended) -> None:
        ended = self._ended.get(message.request)
        if ended is not None:
            ended.set()

    def _is_current(self, log: Log, message: _OfCoordinator) -> bool:
        """Return whether a coordinator's message names the current leader epochs of both logs."""
        is_led = log.leadership.is_led and log.leadership.epoch == message.participant_epoch
        return self._is_latest(message.shard, message.shard_epoch) and is_led

    def _is_latest(self, shard: int, epoch: int) -> bool:
        """Return whether no later leader epoch of a shard is known, from its coordinators or as that of its log.

        This broker gets no messages of the shard's coordinator if it is the coordinator itself.
        """
        log = self._log_table.find_log(COORDINATORS_TOPIC, shard)
        known = epoch if log is None else log.leadership.epoch
        latest = self._shard_epochs[shard] = max(self._shard_epochs.get(shard, epoch), epoch, known)
        return epoch == latest

    def _record_begun(self, log: Log, participant: TransactionParticipant, producer: Producer) -> None:
        begun, key = self._begun_in(log), (participant, producer.producer_id)
        begun.epochs[key] = max(begun.epochs.get(key, -1), producer.producer_epoch)
        begun.asked.pop((participant, producer), None)
        begun.refused.pop((participant, producer), None)

    def _begun_in(self, log: Log) -> KnownTransactions:
        found, epoch = self._begun.get(log), log.leadership.epoch
        if found is None or found.epoch != epoch:
            found = self._begun[log] = KnownTransactions(epoch)
        return found

    def _log_of(self, participant: TransactionParticipant) -> Log | None:
        """Return the log of a participant; None if it does not exist (yet)."""
        if participant.name:
            return self._coordinators.log_of(participant.name)
        return self._log_table.find_client_log(participant.topic, participant.number)

    def _shard_of(self, transactional_id: str) -> CoordinatorShard | None:
        """Return the shard of a transaction; None if another broker coordinates it, perhaps."""
        try:
            shard = self._coordinators.find(transactional_id)
        except CoordinatorError:
            return None
        return shard if shard.holds_lease else None


def participant_of(log: Log) -> TransactionParticipant:
    """Return the participant that a log of clients is."""
    return TransactionParticipant(log.topic, number=log.number)


def check_in(
    shard: CoordinatorShard, transactional_id: str, producer: Producer, participant: TransactionParticipant
) -> ErrorCode:
    """Check whether a participant takes part in a transaction of a shard."""
    if participant.name:
        return shard.transactions.check_group(transactional_id, producer, participant.name)
    partition = TopicPartition(participant.topic, participant.number)
    return shard.transactions.check_partition(transactional_id, producer, partition)


def participants_of(logs: Iterable[TopicPartition], groups: Iterable[str] = ()) -> list[TransactionParticipant]:
    """Return logs of clients and groups as participants."""
    return [
        *(TransactionParticipant(log.topic, number=log.partition) for log in logs),
        *(TransactionParticipant(name=group) for group in groups),
    ]
