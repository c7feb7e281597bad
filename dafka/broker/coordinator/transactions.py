"""The transactions that this broker coordinates, for the Kafka and HTTP servers."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import attrs
import trio

from dafka.broker.coordinator.coordinator_shard import CoordinatorError, CoordinatorShard, Step, replace_answers
from dafka.broker.coordinator.coordinators import Coordinators
from dafka.broker.coordinator.participants import TransactionParticipants, participants_of
from dafka.broker.core.coordination.effects import Action, Answer, Token
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.producer_state import Producer
from dafka.broker.core.topic_partition import TopicPartition
from dafka.broker.core.transactions.coordinator import EndResult, InitProducerResult
from dafka.broker.core.transactions.transaction import Transaction
from dafka.broker.interbroker.messenger import BrokerMessenger, Message
from dafka.steady_clock import steady_now_ms

ID_WAIT_S = 1.0
"""The time to wait for a producer id from another broker."""

ID_ASK_S = 0.25
"""The time after which it is asked again, as messages can be lost."""

DRAWN_IDS = 2**52
"""The first random producer id, and the number of random ids. JavaScript's numbers represent them exactly."""


@attrs.frozen
class IdAsked(Message):
    """Requests a producer id from a broker that serves a shard."""

    KIND = "producer-id?"
    request: int


@attrs.frozen
class IdGiven(Message):
    """Answers `IdAsked` with a producer id."""

    KIND = "producer-id"
    request: int
    producer_id: int


@attrs.define(eq=False, slots=False)
class TransactionCoordinators:
    """The transactional ids of the shards that this broker serves. Results of its methods are durable.

    `has_own_epochs` says whether the feature level of the cluster has transactions with an epoch each.
    """

    _coordinators: Coordinators
    _participants: TransactionParticipants
    _messenger: BrokerMessenger
    _has_own_epochs: Callable[[], bool]
    _requests: itertools.count[int] = attrs.field(init=False, factory=itertools.count)
    _given: dict[int, trio.Event] = attrs.field(init=False, factory=dict)
    _ids: dict[int, int] = attrs.field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        self._messenger.on(IdAsked, self._on_id_asked)
        self._messenger.on(IdGiven, self._on_id_given)

    async def init_producer_id(
        self, transactional_id: str | None, transaction_timeout_ms: int = 0, expected: Producer | None = None
    ) -> InitProducerResult:
        """Give a producer its id and epoch; see `TransactionCoordinator.init_producer_id`.

        A producer without a transactional id gets an id of any shard, or a random one if no shard answers.
        """
        if transactional_id is None and not self._coordinators.served():
            return await self._take_id_elsewhere()

        def init(shard: CoordinatorShard, token: Token) -> list[Action]:
            return shard.transactions.init_producer_id(
                token, transactional_id, transaction_timeout_ms, expected, steady_now_ms()
            )

        try:
            result: InitProducerResult = await self._ask(transactional_id, init)
        except CoordinatorError as error:
            return InitProducerResult(error.error_code)
        return result

    async def add_partitions(
        self, transactional_id: str, producer: Producer, partitions: Iterable[TopicPartition]
    ) -> ErrorCode:
        """Add logs to a transaction; begin one if none is open. All logs must exist."""
        return await self._join(transactional_id, producer, frozenset(partitions), frozenset())

    async def add_offsets(self, transactional_id: str, producer: Producer, group_id: str) -> ErrorCode:
        """Add the offsets of a group to a transaction; begin one if none is open."""
        return await self._join(transactional_id, producer, frozenset(), frozenset({group_id}))

    async def end_transaction(
        self, transactional_id: str, producer: Producer, *, is_commit: bool, raises_epoch: bool = False
    ) -> EndResult:
        """Commit or abort a transaction, and wait until its markers are written.

        With `raises_epoch`, the next transaction has a later epoch if the feature level of the cluster has that.
        """
        raises_epoch = raises_epoch and self._has_own_epochs()

        def end(shard: CoordinatorShard, token: Token) -> list[Action]:
            return shard.transactions.end_transaction(
                token, transactional_id, producer, is_commit, steady_now_ms(), raises_epoch
            )

        try:
            result: EndResult = await self._ask(transactional_id, end)
        except CoordinatorError as error:
            return EndResult(error.error_code)
        return result

    async def _join(
        self, transactional_id: str, producer: Producer, logs: frozenset[TopicPartition], groups: frozenset[str]
    ) -> ErrorCode:
        """Add logs and groups to a transaction. Their leaders are notified before the producer gets its answer."""

        def join(shard: CoordinatorShard, token: Token) -> list[Step]:
            begin = partial(self._participants.begin, shard, producer, participants_of(logs, groups))
            actions = shard.transactions.join(token, transactional_id, producer, logs, groups, steady_now_ms())
            return replace_answers(actions, lambda error: [*([] if error else [begin]), Answer(token, error)])

        try:
            error: ErrorCode = await self._ask(transactional_id, join)
        except CoordinatorError as lost:
            return lost.error_code
        return error

    async def _ask(
        self, transactional_id: str | None, call: Callable[[CoordinatorShard, Token], Sequence[Step]]
    ) -> Any:
        """Return the answer of the coordinator of a transactional id, or of any coordinator.

        The answer can be what it knew before, so that it counts only while no other broker coordinates. Raise
        `CoordinatorError`.
        """
        name = transactional_id
        shard = self._coordinators.any() if name is None else self._coordinators.find(name)
        result = await shard.ask(partial(call, shard))
        if name is not None:
            shard.check_lease()
        return result

    async def describe_transaction(self, transactional_id: str) -> Transaction | None:
        """Return the state of a transactional id; None if there is no such id.

        Raise `CoordinatorError` if this broker does not coordinate it.
        """
        shard = self._coordinators.find(transactional_id)
        found = shard.transactions.describe_transaction(transactional_id)
        await shard.confirm_read()
        return found

    async def list_transactions(self) -> list[Transaction]:
        """Return the states of all transactional ids here. Raises `CoordinatorError` if the storage fails."""
        return await self._coordinators.read(lambda shard: shard.transactions.list_transactions())

    def known(self) -> list[Transaction]:
        """Return the states of all transactional ids here, which are possibly not durable yet."""
        return [each for shard in self._coordinators.served() for each in shard.transactions.list_transactions()]

    async def _take_id_elsewhere(self) -> InitProducerResult:
        """Return a producer with an id from another broker; with a random id if none answers."""
        leader = self._coordinators.any_leader()
        request, given = next(self._requests), trio.Event()
        if leader:
            self._given[request] = given
            with trio.move_on_after(ID_WAIT_S):
                while not given.is_set():
                    self._messenger.send(leader, IdAsked(request))
                    with trio.move_on_after(ID_ASK_S):
                        await given.wait()
            del self._given[request]
        if not given.is_set():  # such as on the side of a split that serves no shard
            return InitProducerResult(ErrorCode.NONE, Producer(DRAWN_IDS + secrets.randbelow(DRAWN_IDS), 0))
        return InitProducerResult(ErrorCode.NONE, Producer(self._ids.pop(request), 0))

    def _on_id_asked(self, sender: str, message: IdAsked) -> None:
        """Send a producer id to another broker, once its allocation is durable."""

        def give(result: InitProducerResult) -> list[Step]:
            return [partial(self._messenger.send, sender, IdGiven(message.request, result.producer.producer_id))]

        for shard in self._coordinators.served()[:1]:
            actions = shard.transactions.init_producer_id(None, None, 0, None, steady_now_ms())
            shard.execute(replace_answers(actions, give))

    def _on_id_given(self, _sender: str, message: IdGiven) -> None:
        given = self._given.get(message.request)
        if given is not None:
            self._ids[message.request] = message.producer_id
            given.set()
