"""The transactions that this broker coordinates, and those that take part in its logs and groups, for its listeners."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterable
from functools import partial

import attrs
import trio

from dafka.broker.coordinator.coordinator_shard import CoordinatorError, Step
from dafka.broker.coordinator.coordinators import Coordinators
from dafka.broker.coordinator.participants import TransactionParticipants
from dafka.broker.core.coordination.effects import Action, Answer
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.producer_state import Producer
from dafka.broker.core.topic_partition import TopicPartition
from dafka.broker.core.transactions.coordinator import InitProducerResult
from dafka.broker.core.transactions.transaction import Transaction
from dafka.broker.interbroker.messenger import BrokerMessenger, Message
from dafka.storage.plugin_helpers import now_ms

ID_WAIT_S = 1.0
"""How long to wait for the id of a producer that another broker gives."""

DRAWN_IDS = 2**52
"""Ids from here on, of which there are as many, are drawn at random. Numbers of JavaScript have them exactly."""


@attrs.frozen
class IdAsked(Message):
    """Asks a broker that serves a slot for the id of a producer."""

    KIND = "producer-id?"
    request: int


@attrs.frozen
class IdGiven(Message):
    """Gives it."""

    KIND = "producer-id"
    request: int
    producer_id: int


class TransactionCoordinators:
    """The transactional ids of the slots that this broker serves. Whatever its methods return is durable.

    Args:
        coordinators: The slots.
        participants: The logs and groups that take part.
        post: The messages to and from other brokers.
    """

    def __init__(
        self, coordinators: Coordinators, participants: TransactionParticipants, post: BrokerMessenger
    ) -> None:
        self._coordinators = coordinators
        self._participants = participants
        self._post = post
        self._requests = itertools.count()
        self._given: dict[int, trio.Event] = {}
        self._ids: dict[int, int] = {}
        post.on(IdAsked, self._on_id_asked)
        post.on(IdGiven, self._on_id_given)

    async def init_producer_id(
        self, transactional_id: str | None, transaction_timeout_ms: int = 0, expected: Producer | None = None
    ) -> InitProducerResult:
        """Give a producer its id and epoch; see `TransactionCoordinator.init_producer_id`.

        A producer without a transactional id gets an id of any slot, or one that is drawn at random if none answers.
        """
        if transactional_id is None and not self._coordinators.served():
            return await self._take_id_elsewhere()
        try:
            slot = self._coordinators.any() if transactional_id is None else self._coordinators.find(transactional_id)
            result: InitProducerResult = await slot.ask(
                lambda token: slot.transactions.init_producer_id(
                    token, transactional_id, transaction_timeout_ms, expected, now_ms()
                )
            )
        except CoordinatorError as error:
            return InitProducerResult(error.error_code)
        return result

    async def add_partitions(
        self, transactional_id: str, producer: Producer, partitions: Iterable[TopicPartition]
    ) -> ErrorCode:
        """Add logs to a transaction, which begins if there is none. All of them must exist."""
        logs = list(partitions)
        try:
            slot = self._coordinators.find(transactional_id)
            error: ErrorCode = await slot.ask(
                lambda token: self._begin(
                    slot.transactions.add_partitions(token, transactional_id, producer, logs, now_ms()),
                    lambda: self._participants.begin(slot, producer, logs=logs),
                )
            )
        except CoordinatorError as lost:
            return lost.error_code
        return error

    async def add_offsets(self, transactional_id: str, producer: Producer, group_id: str) -> ErrorCode:
        """Add the offsets of a group to a transaction, which begins if there is none."""
        try:
            slot = self._coordinators.find(transactional_id)
            error: ErrorCode = await slot.ask(
                lambda token: self._begin(
                    slot.transactions.add_offsets(token, transactional_id, producer, group_id, now_ms()),
                    lambda: self._participants.begin(slot, producer, groups=[group_id]),
                )
            )
        except CoordinatorError as lost:
            return lost.error_code
        return error

    async def end_transaction(self, transactional_id: str, producer: Producer, *, is_commit: bool) -> ErrorCode:
        """Commit or abort a transaction, and wait until its markers are written."""
        try:
            slot = self._coordinators.find(transactional_id)
            error: ErrorCode = await slot.ask(
                lambda token: slot.transactions.end_transaction(token, transactional_id, producer, is_commit, now_ms())
            )
        except CoordinatorError as lost:
            return lost.error_code
        return error

    async def describe_transaction(self, transactional_id: str) -> Transaction | None:
        """Return the state of a transactional id; None if there is no such id.

        Args:
            transactional_id: The name of the producer.

        Returns:
            The state.

        Raises:
            CoordinatorError: This broker does not coordinate it.
        """
        slot = self._coordinators.find(transactional_id)
        found = slot.transactions.describe_transaction(transactional_id)
        await slot.wait_committed()
        slot.check_lease()
        return found

    async def list_transactions(self) -> list[Transaction]:
        """Return the states of all transactional ids here. Raises `CoordinatorError` if the storage fails."""
        return await self._coordinators.read(lambda slot: slot.transactions.list_transactions())

    def known(self) -> list[Transaction]:
        """Return the states of all transactional ids here, which may not be durable yet."""
        return [each for slot in self._coordinators.served() for each in slot.transactions.list_transactions()]

    async def _take_id_elsewhere(self) -> InitProducerResult:
        """Return a producer with an id of a slot that another broker serves; with one that is drawn if none answers."""
        leader = self._coordinators.any_leader()
        request, given = next(self._requests), trio.Event()
        if leader:
            self._given[request] = given
            self._post.send(leader, IdAsked(request))
            with trio.move_on_after(ID_WAIT_S):
                await given.wait()
            del self._given[request]
        if not given.is_set():  # such as on the side of a split that serves no slot
            return InitProducerResult(ErrorCode.NONE, Producer(DRAWN_IDS + secrets.randbelow(DRAWN_IDS), 0))
        return InitProducerResult(ErrorCode.NONE, Producer(self._ids.pop(request), 0))

    def _on_id_asked(self, sender: str, message: IdAsked) -> None:
        """Give another broker an id, when it is durable that it was given."""
        for slot in self._coordinators.served()[:1]:
            steps = list[Step]()
            for action in slot.transactions.init_producer_id(None, None, 0, None, now_ms()):
                if isinstance(action, Answer):
                    assert isinstance(action.result, InitProducerResult)
                    given = IdGiven(message.request, action.result.producer.producer_id)
                    steps.append(partial(self._post.send, sender, given))
                else:
                    steps.append(action)
            slot.execute(steps)

    def _on_id_given(self, _sender: str, message: IdGiven) -> None:
        given = self._given.get(message.request)
        if given is not None:
            self._ids[message.request] = message.producer_id
            given.set()

    def _begin(self, actions: list[Action], begin: Callable[[], None]) -> list[Step]:
        """Return the steps of actions. TransactionParticipants begin before the producer hears that they take part."""
        steps = list[Step]()
        for action in actions:
            if isinstance(action, Answer) and action.result is ErrorCode.NONE:
                steps.append(begin)
            steps.append(action)
        return steps
