"""Logs and groups join transactions where clients name them only in Produce and TxnOffsetCommit.

The leader of a log or group asks the coordinator of the transaction, and waits for the answer: once for all logs of a
request that do not take part yet, and not for later requests of the same transaction.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial

import attrs
import trio

from dafka.broker.coordinator.coordinator_shard import CoordinatorError, CoordinatorShard, Step, replace_answers
from dafka.broker.coordinator.coordinators import Coordinators
from dafka.broker.coordinator.participants import TransactionParticipants, check_in, participant_of
from dafka.broker.coordinator.transaction_messages import Join, Joined, TransactionParticipant
from dafka.broker.core.coordination.effects import Answer
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.log import Log
from dafka.broker.core.log.producer_state import Producer
from dafka.broker.core.topic_partition import TopicPartition
from dafka.broker.interbroker.messenger import BrokerMessenger
from dafka.steady_clock import steady_now_ms

ANSWER_S = 1.0
"""The time to wait for a coordinator on another broker. After it, the producer sends its request again."""


@attrs.define(eq=False)
class _Pending:
    """What another broker is asked: the participants, each with its log and the leader epoch of that."""

    producer: Producer
    participants: Sequence[tuple[TransactionParticipant, Log, int]]
    errors: Sequence[ErrorCode]
    answered: trio.Event = attrs.field(factory=trio.Event)


@attrs.define(eq=False, slots=False)
class TransactionJoins:
    """Adds logs and groups that this broker leads to transactions.

    `is_supported` says whether the feature level of the cluster has that.
    """

    _coordinators: Coordinators
    _participants: TransactionParticipants
    _messenger: BrokerMessenger
    _is_supported: Callable[[], bool]
    _requests: itertools.count[int] = attrs.field(init=False, factory=itertools.count)
    _pending: dict[int, _Pending] = attrs.field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        self._messenger.on(Join, self._on_join)
        self._messenger.on(Joined, self._on_joined)

    async def join_logs(
        self, transactional_id: str, producer: Producer, logs: Sequence[Log], *, adds: bool
    ) -> dict[Log, ErrorCode]:
        """Ask which logs take part in a transaction; with `adds`, add them first. Return the errors of the other logs.

        NOT_ENOUGH_REPLICAS asks the producer to retry. A log without an error takes part at this moment, but the
        transaction can end before records are appended: `TransactionParticipants.check_log` knows that.
        """
        participants = [(participant_of(log), log) for log in logs]
        errors = await self._join(transactional_id, producer, participants, adds=adds)
        fenced = ErrorCode.INVALID_PRODUCER_EPOCH
        return {log: fenced if error is ErrorCode.PRODUCER_FENCED else error for log, error in errors.items()}

    async def join_group(
        self, group_shard: CoordinatorShard, transactional_id: str, producer: Producer, group_id: str, *, adds: bool
    ) -> ErrorCode:
        """Ask whether a group of a shard served here takes part in a transaction; with `adds`, add it first.

        Return an error code, or NONE. COORDINATOR_LOAD_IN_PROGRESS asks the producer to retry.
        """
        participants = [(TransactionParticipant(name=group_id), group_shard.log)]
        errors = await self._join(transactional_id, producer, participants, adds=adds)
        error = errors.get(group_shard.log, ErrorCode.NONE)
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if error is ErrorCode.NOT_ENOUGH_REPLICAS else error

    async def _join(
        self,
        transactional_id: str,
        producer: Producer,
        participants: Sequence[tuple[TransactionParticipant, Log]],
        *,
        adds: bool,
    ) -> dict[Log, ErrorCode]:
        if not self._is_supported():
            return {}
        asked = [(each, log) for each, log in participants if not self._participants.knows(log, each, producer)]
        if not asked:
            return {}
        request = next(self._requests)
        join = Join(transactional_id, producer, tuple(each for each, _ in asked), adds, request)
        try:
            shard = self._coordinators.find(transactional_id)
            errors: Sequence[ErrorCode] = await shard.ask(
                lambda token: _execute(
                    shard, join, lambda errors: [partial(self._begin, shard, join, errors), Answer(token, errors)]
                )
            )
        except CoordinatorError:
            errors = await self._ask(join, [(each, log, log.leadership.epoch) for each, log in asked])
        return {log: error for (_, log), error in zip(asked, errors, strict=True) if error}

    def _begin(self, shard: CoordinatorShard, join: Join, errors: Sequence[ErrorCode]) -> None:
        """Record that participants that this broker leads take part in a transaction that it coordinates."""
        joined = [each for each, error in zip(join.participants, errors, strict=True) if not error]
        self._participants.begin(shard, join.producer, joined)

    async def _ask(
        self, join: Join, participants: Sequence[tuple[TransactionParticipant, Log, int]]
    ) -> Sequence[ErrorCode]:
        """Ask the broker that coordinates a transaction."""
        coordinator = self._coordinators.log_of(join.transactional_id)
        pending = _Pending(join.producer, participants, [ErrorCode.NOT_ENOUGH_REPLICAS] * len(participants))
        if coordinator is not None and not coordinator.leadership.is_led and coordinator.leadership.leader:
            self._pending[join.request] = pending
            self._messenger.send(coordinator.leadership.leader, join)
            try:
                with trio.move_on_after(ANSWER_S):
                    await pending.answered.wait()
            finally:
                del self._pending[join.request]
        return pending.errors

    def _on_join(self, sender: str, message: Join) -> None:
        """Answer another broker. A broker that does not coordinate the transaction does not answer."""
        try:
            shard = self._coordinators.find(message.transactional_id)
        except CoordinatorError:
            return

        def answer(errors: tuple[ErrorCode, ...]) -> list[Step]:
            joined = Joined(shard.log.number, shard.epoch, errors, message.request)
            return [partial(self._participants.answer, shard, sender, joined)]

        shard.execute(_execute(shard, message, answer))

    def _on_joined(self, _sender: str, message: Joined) -> None:
        pending = self._pending.get(message.request)
        if pending is None or len(message.errors) != len(pending.participants):
            return
        errors = list(message.errors)
        for number, (participant, log, epoch) in enumerate(pending.participants):
            is_same = log.leadership.is_led and log.leadership.epoch == epoch
            if not errors[number] and not (
                is_same
                and self._participants.confirm(log, participant, pending.producer, message.shard, message.shard_epoch)
            ):
                errors[number] = ErrorCode.NOT_ENOUGH_REPLICAS
        pending.errors = errors
        pending.answered.set()


def _execute(shard: CoordinatorShard, join: Join, answer: Callable[[tuple[ErrorCode, ...]], list[Step]]) -> list[Step]:
    """Return the steps of a coordinator that answer a request, with an error code for each participant."""
    name, producer = join.transactional_id, join.producer
    if not join.adds:
        return answer(tuple(check_in(shard, name, producer, each) for each in join.participants))
    logs = frozenset(TopicPartition(each.topic, each.number) for each in join.participants if not each.name)
    groups = frozenset(each.name for each in join.participants if each.name)
    actions = shard.transactions.join(None, name, producer, logs, groups, steady_now_ms())
    return replace_answers(actions, lambda error: answer((error,) * len(join.participants)))
