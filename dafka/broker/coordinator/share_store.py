"""Loads and writes the states of share partitions at the coordinators of their groups, on any broker."""

from __future__ import annotations

from functools import partial
from typing import TypeAlias

import attrs

from dafka.broker.coordinator.coordinator_shard import CoordinatorError, CoordinatorShard
from dafka.broker.coordinator.coordinators import Coordinators
from dafka.broker.core.coordination.effects import Action
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.share.state import NO_STATE, SharePartitionKey, ShareState
from dafka.broker.core.groups.share.states import LoadedShareState
from dafka.broker.interbroker.messenger import BrokerMessenger, Message
from dafka.broker.interbroker.pending_answers import Answer, PendingAnswers

ANSWER_S = 1.0
"""The time to wait for the answer of another broker."""

COORDINATOR_ERRORS = frozenset(
    (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE)
)
"""The errors after which the request can be repeated."""


@attrs.frozen
class LoadShareState(Message):
    """Asks the coordinator for the state of a share partition, for the leader of its log in an epoch."""

    KIND = "load-share-state"
    request: int
    key: SharePartitionKey
    leader_epoch: int


@attrs.frozen
class WriteShareState(Message):
    """Asks the coordinator to store the state of a share partition.

    A request that outlives the epoch of its coordinator is refused: later states can have been written meanwhile.
    """

    KIND = "write-share-state"
    request: int
    coordinator_epoch: int
    key: SharePartitionKey
    state: ShareState


@attrs.frozen
class ShareStateAnswer(Answer):
    """Answers `LoadShareState` and `WriteShareState`. Only the first is answered with a state."""

    KIND = "share-state-answer"
    error_code: ErrorCode
    state: ShareState


_Ask: TypeAlias = LoadShareState | WriteShareState


@attrs.define(eq=False, slots=False)
class ShareStore:
    """The states of share partitions, as the leaders of their logs load and write them.

    A state that was written is committed. One of the `COORDINATOR_ERRORS` says that it is not certain whether it was
    written. The caller writes one state of a share partition at a time.
    """

    _coordinators: Coordinators
    _messenger: BrokerMessenger
    _answers: PendingAnswers[ShareStateAnswer] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._answers = PendingAnswers(self._messenger, ShareStateAnswer, ANSWER_S)
        self._messenger.on(LoadShareState, self._on_request)
        self._messenger.on(WriteShareState, self._on_request)

    async def load(self, key: SharePartitionKey, leader_epoch: int) -> LoadedShareState:
        """Return the state of a share partition for the leader of its log; see `ShareStates.load`."""
        answer = await self._ask(LoadShareState(self._answers.next_number(), key, leader_epoch))
        return LoadedShareState(answer.error_code, answer.state)

    async def write(self, key: SharePartitionKey, state: ShareState) -> ErrorCode:
        """Store the state of a share partition; see `ShareStates.write`."""
        log = self._coordinators.log_of(key.group_id)
        epoch = -1 if log is None else log.leadership.epoch
        answer = await self._ask(WriteShareState(self._answers.next_number(), epoch, key, state))
        return answer.error_code

    async def _ask(self, message: _Ask) -> ShareStateAnswer:
        log = self._coordinators.log_of(message.key.group_id)
        if log is None or log.leadership.is_led or not log.leadership.leader:
            try:
                shard = self._coordinators.find(message.key.group_id)
                actions, answer = _carry_out(shard, message)
                shard.execute(actions)
                await shard.confirm_read()
            except CoordinatorError as error:
                return ShareStateAnswer(message.request, error.error_code, NO_STATE)
            return answer
        found = await self._answers.ask(log.leadership.leader, message.request, [message])
        return found or ShareStateAnswer(message.request, ErrorCode.COORDINATOR_NOT_AVAILABLE, NO_STATE)

    def _on_request(self, sender: str, message: _Ask) -> None:
        """Carry out a request at once, so that requests keep their order, and answer it when that is committed."""
        try:
            shard = self._coordinators.find(message.key.group_id)
        except CoordinatorError as error:
            self._messenger.send(sender, ShareStateAnswer(message.request, error.error_code, NO_STATE))
            return
        actions, answer = _carry_out(shard, message)
        shard.execute([*actions, partial(self._answer, shard, sender, answer)])

    def _answer(self, shard: CoordinatorShard, sender: str, answer: ShareStateAnswer) -> None:
        try:
            shard.check_lease()
        except CoordinatorError as error:
            answer = ShareStateAnswer(answer.request, error.error_code, NO_STATE)
        self._messenger.send(sender, answer)


def _carry_out(shard: CoordinatorShard, message: _Ask) -> tuple[list[Action], ShareStateAnswer]:
    """Return what precedes the answer to a request, and the answer."""
    shares = shard.groups.shares
    if isinstance(message, LoadShareState):
        actions, loaded = shares.load_state(message.key, message.leader_epoch)
        return actions, ShareStateAnswer(message.request, loaded.error_code, loaded.state)
    if message.coordinator_epoch != shard.epoch:
        return [], ShareStateAnswer(message.request, ErrorCode.NOT_COORDINATOR, NO_STATE)
    actions, error = shares.write_state(message.key, message.state)
    return actions, ShareStateAnswer(message.request, error, NO_STATE)
