"""The transactions that this broker coordinates, for the Kafka and HTTP servers."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import attrs
import trio

from dafka.broker.coordinator.coordinator_shard import CoordinatorError, CoordinatorShard, Step
from dafka.broker.coordinator.coordinators import Coordinators
from dafka.broker.coordinator.participants import TransactionParticipants
from dafka.broker.core.coordination.effects import Action, Answer, Token
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.producer_state import Producer
from dafka.broker.core.topic_partition import TopicPartition
from dafka.broker.core.transactions.coordinator import InitProducerResult
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
    """The transactional ids of the shards that this broker serves. Results of its methods are durable."""

    _coordinators: Coordinators
    _participants: TransactionParticipants
    _messenger: BrokerMessenger
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
        try:
            shard = self._coordinators.any() if transactional_id is None else self._coordinators.find(transactional_id)
            result: InitProducerResult = await shard.ask(
                lambda token: shard.transactions.init_producer_id(
                    token, transactional_id, transaction_timeout_ms, expected, steady_now_ms()
                )
            )
        except CoordinatorError as error:
            return InitProducerResult(error.error_code)
        return result

    async def add_partitions(
        self, transactional_id: str, producer: Producer, partitions: Iterable[TopicPartition]
    ) -> ErrorCode:
        """Add logs to a transaction; begin one if none is open. All logs must exist."""
        logs = list(partitions)
        return await self._ask(
            transactional_id,
            lambda shard, token: self._begin(
                shard.transactions.add_partitions(token, transactional_id, producer, logs, steady_now_ms()),
                lambda: self._participants.begin(shard, producer, logs=logs),
            ),
        )

    async def add_offsets(self, transactional_id: str, producer: Producer, group_id: str) -> ErrorCode:
        """Add the offsets of a group to a transaction; begin one if none is open."""
        return await self._ask(
            transactional_id,
            lambda shard, token: self._begin(
                shard.transactions.add_offsets(token, transactional_id, producer, group_id, steady_now_ms()),
                lambda: self._participants.begin(shard, producer, groups=[group_id]),
            ),
        )

    async def end_transaction(self, transactional_id: str, producer: Producer, *, is_commit: bool) -> ErrorCode:
        """Commit or abort a transaction, and wait until its markers are written."""
        return await self._ask(
            transactional_id,
            lambda shard, token: shard.transactions.end_transaction(
                token, transactional_id, producer, is_commit, steady_now_ms()
            ),
        )

    async def _ask(self, transactional_id: str, call: Callable[[CoordinatorShard, Token], Sequence[Step]]) -> ErrorCode:
        """Call the coordinator of a transactional id, and return its error code, or why this broker has none."""
        try:
            shard = self._coordinators.find(transactional_id)
            error: ErrorCode = await shard.ask(partial(call, shard))
        except CoordinatorError as lost:
            return lost.error_code
        return error

    async def describe_transaction(self, transactional_id: str) -> Transaction | None:
        """Return the state of a transactional id; None if there is no such id.

        Raise `CoordinatorError` if this broker does not coordinate it.
        """
        shard = self._coordinators.find(transactional_id)
        found = shard.transactions.describe_transaction(transactional_id)
        await shard.wait_committed()
        shard.check_lease()
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
        for shard in self._coordinators.served()[:1]:
            steps = list[Step]()
            for action in shard.transactions.init_producer_id(None, None, 0, None, steady_now_ms()):
                if isinstance(action, Answer):
                    assert isinstance(action.result, InitProducerResult)
                    given = IdGiven(message.request, action.result.producer.producer_id)
                    steps.append(partial(self._messenger.send, sender, given))
                else:
                    steps.append(action)
            shard.execute(steps)

    def _on_id_given(self, _sender: str, message: IdGiven) -> None:
        given = self._given.get(message.request)
        if given is not None:
            self._ids[message.request] = message.producer_id
            given.set()

    def _begin(self, actions: list[Action], begin: Callable[[], None]) -> list[Step]:
        """Return actions as steps. Participants are notified before the producer gets its answer."""
        steps = list[Step]()
        for action in actions:
            if isinstance(action, Answer) and action.result is ErrorCode.NONE:
                steps.append(begin)
            steps.append(action)
        return steps
