"""A shard of the coordinators: the groups and transactional ids that this broker coordinates as leader of one log.

Coordinators return actions. The writes of an action are durable before a later action is executed. Answers to clients
follow this order too, so no client sees a state that a crash can undo.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Container, Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias

import attrs
import trio

from dafka.broker.coordinator.coordinator_log import CoordinatorLog
from dafka.broker.core.coordination.effects import (
    Action,
    Answer,
    DropReplacedStates,
    ReplacedState,
    Token,
    WriteMarkers,
    WriteState,
)
from dafka.broker.core.coordination.state_records import (
    TRANSACTIONS_TOPIC,
    read_state,
)
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.coordinator import GroupCoordinator
from dafka.broker.core.log.log import Log
from dafka.broker.core.transactions.coordinator import TransactionCoordinator
from dafka.broker.log.durable_waits import DURABLE_S, DurableWaits
from dafka.broker.replication.leases import LeaderLeases
from dafka.errors import DafkaError, StorageError
from dafka.steady_clock import steady_now_ms

Step: TypeAlias = Action | Callable[[], None]
"""An action, or a function to call after all earlier writes are durable."""


def replace_answers(actions: Iterable[Action], steps_of: Callable[[Any], Iterable[Step]]) -> list[Step]:
    """Return actions with steps in place of each answer. `steps_of` returns the steps for its result."""
    steps = list[Step]()
    for action in actions:
        steps += steps_of(action.result) if isinstance(action, Answer) else [action]
    return steps


class CoordinatorError(DafkaError):
    """This broker does not coordinate a group or transactional id now. Clients retry, perhaps at another broker.

    The error code is NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS or COORDINATOR_NOT_AVAILABLE. `problem` says why the
    storage accepts no changes; it is empty if it does.
    """

    def __init__(self, error_code: ErrorCode, problem: str = "") -> None:
        super().__init__(f"this broker does not coordinate that at present: {problem or error_code.name}")
        self.error_code = error_code
        self.problem = problem


@attrs.define(eq=False)
class _Answer:
    """The pending answer of a coordinator to a request."""

    arrived: trio.Event = attrs.field(factory=trio.Event)
    result: object = None
    is_lost: bool = False


class CoordinatorShard:
    """One shard, while this broker leads its log in one epoch.

    Both coordinators are still empty. `end_transaction` writes the markers of a transaction, and calls `execute` when
    they are written. `drop_replaced` returns when the leaders of logs have dropped former states of share partitions.
    `loaded` is set when the shard is served.
    """

    def __init__(
        self,
        log: Log,
        state: CoordinatorLog,
        waits: DurableWaits,
        leases: LeaderLeases,
        deleted_ids: Container[str],
        groups: GroupCoordinator,
        transactions: TransactionCoordinator,
        end_transaction: Callable[[CoordinatorShard, WriteMarkers], Awaitable[None]],
        drop_replaced: Callable[[Sequence[ReplacedState]], Awaitable[None]],
    ) -> None:
        self.log = log
        self.epoch = log.leadership.epoch
        self.groups = groups
        self.transactions = transactions
        self.loaded = trio.Event()
        self._end_transaction = end_transaction
        self._drop_replaced = drop_replaced
        self._deleted_ids = deleted_ids
        self._state = state
        self._waits = waits
        self._leases = leases
        self._answers: dict[Token, _Answer] = {}
        self._waiting: deque[tuple[int, Step]] = deque()
        self._written = 0
        self._durable = 0
        self._changed = trio.Event()

    @property
    def is_settled(self) -> bool:
        """Whether the state of the coordinators is durable."""
        return self._durable == self._written

    @property
    def holds_lease(self) -> bool:
        """Whether no other broker coordinates the shard yet."""
        return self._leases.holds_lease(self.log)

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Load the shard and serve it, until cancelled. It has started when it is loaded or waits for other brokers.

        Raise `NotLeaderError` if this broker no longer leads the log, and `StorageError` if the storage fails or a
        newer version of dafka has written the state.
        """
        waits_for_others = not self._state.is_settled or self.epoch > 0
        if waits_for_others:
            task_status.started()
        await self._state.load()
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._state.write, self._confirm)
            for key, value in self._state.values.items():
                record = read_state(key, value)
                if record is not None:
                    owner = self.transactions if record.topic == TRANSACTIONS_TOPIC else self.groups
                    owner.restore(record)
            self.groups.start(steady_now_ms())
            self.loaded.set()
            self.execute(self.groups.delete_topics(self._deleted_ids))
            self.execute(self.transactions.start())
            nursery.start_soon(self._keep_time)
            if not waits_for_others:
                task_status.started()

    def close(self) -> None:
        """Fail all pending requests: this broker no longer coordinates the shard."""
        for answer in self._answers.values():
            answer.is_lost = True
            answer.arrived.set()

    async def ask(self, call: Callable[[Token], Sequence[Step]], *, wait_s: float = DURABLE_S) -> Any:
        """Call a coordinator with a token for the request, and return its answer once all state behind it is durable.

        Raise `CoordinatorError` if this broker no longer coordinates the shard, or the storage fails or takes longer
        than `wait_s`.
        """
        if self._waits.problem:
            raise CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE, self._waits.problem)
        return await self._ask(call, wait_s)

    async def _ask(self, call: Callable[[Token], Sequence[Step]], wait_s: float) -> Any:
        token, answer = object(), _Answer()
        self._answers[token] = answer
        try:
            self.execute(call(token))
            with self._waits.bounded(wait_s):
                await answer.arrived.wait()
        except StorageError as error:
            raise CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from None
        finally:
            del self._answers[token]
        if answer.is_lost:
            raise CoordinatorError(ErrorCode.NOT_COORDINATOR)
        return answer.result

    async def wait_committed(self) -> None:
        """Wait until the state of the coordinators is durable. Raise `CoordinatorError`."""
        await self._ask(lambda token: [Answer(token, None)], DURABLE_S)

    async def confirm_read(self) -> None:
        """Wait until the state that was read is durable, and check that it is the latest. Raise `CoordinatorError`."""
        await self.wait_committed()
        self.check_lease()

    def check_lease(self) -> None:
        """Check that the state read is the latest. Call this after reading, right before the answer.

        Raise `CoordinatorError` if another broker has possibly begun to coordinate the shard.
        """
        if not self.holds_lease:
            raise CoordinatorError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    def execute(self, steps: Iterable[Step]) -> None:
        """Execute actions in order. Actions after a write wait until it is durable.

        The steps that follow `DropReplacedStates` here wait until leaders have dropped the states.
        """
        remaining = iter(steps)
        for action in remaining:
            if isinstance(action, WriteState):
                self._written += len(action.records)
                self._state.put(action.records)
                continue
            step = action
            if isinstance(action, DropReplacedStates):
                step = partial(self._nursery.start_soon, self._drop, action.states, tuple(remaining))
            if self.is_settled:
                self._execute(step)
            else:
                self._waiting.append((self._written, step))
        self._changed.set()

    def _execute(self, action: Step) -> None:
        if isinstance(action, Answer):
            answer = self._answers.get(action.token)
            if answer is not None:
                answer.result = action.result
                answer.arrived.set()
        elif isinstance(action, WriteMarkers):
            self._nursery.start_soon(self._end_transaction, self, action)
        elif not isinstance(action, WriteState | DropReplacedStates):
            action()

    async def _drop(self, states: Sequence[ReplacedState], later: Sequence[Step]) -> None:
        await self._drop_replaced(states)
        self.execute(later)

    def _confirm(self, count: int) -> None:
        """Record that records are durable, and execute the actions that waited for them."""
        self._durable += count
        while self._waiting and self._waiting[0][0] <= self._durable:
            self._execute(self._waiting.popleft()[1])

    async def _keep_time(self) -> None:
        """Expire sessions, rebalances and transactions."""
        while True:
            self._changed = trio.Event()
            deadlines = (self.groups.next_deadline_ms(), self.transactions.next_deadline_ms())
            due = min((each for each in deadlines if each is not None), default=None)
            wait_s = float("inf") if due is None else max(due - steady_now_ms(), 0) / 1000
            with trio.move_on_after(wait_s):
                await self._changed.wait()
            time_ms = steady_now_ms()
            actions = self.groups.advance(time_ms) + self.transactions.advance(time_ms)
            if actions:
                self.execute(actions)
            await trio.lowlevel.checkpoint()
