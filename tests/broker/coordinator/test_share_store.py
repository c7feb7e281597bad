"""States of share partitions are loaded and written at their coordinator, wherever it is, or asked for again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from types import SimpleNamespace
from typing import Any

import trio
from trio.testing import MockClock

from dafka.broker.coordinator.coordinator_shard import CoordinatorError
from dafka.broker.coordinator.share_store import ANSWER_S, COORDINATOR_ERRORS, ShareStore
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.share.state import NO_STATE, SharePartitionKey, ShareState
from dafka.broker.core.groups.share.states import LoadedShareState
from tests.seeds import each_seed

SEEDS, STEPS = 30, 40
KEY = SharePartitionKey("group", "topic", 0)
NONE, FENCED = ErrorCode.NONE, ErrorCode.FENCED_STATE_EPOCH
UNAVAILABLE = [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE]


class Broker:
    """A broker with the shard of the group, or without one. What it executes is durable at once, or never.

    Attributes:
        leader: The coordinator as far as this broker knows: `own`, another broker, empty or None.
    """

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.leader: str | None = None
        self.known_epoch = self.epoch = 0
        self.failure: ErrorCode | None = None
        self.has_lease = self.is_writing = True
        self.handlers: dict[type, Callable[[str, Any], None]] = {}
        self.groups = SimpleNamespace(shares=self)
        part: Any = self
        self.store = ShareStore(part, part)

    # Coordinators and their shards

    def log_of(self, group_id: str) -> Any:
        assert group_id == KEY.group_id
        if self.leader is None:
            return None
        is_led = self.leader == self.name
        leader = "" if is_led else self.leader
        return SimpleNamespace(leadership=SimpleNamespace(is_led=is_led, leader=leader, epoch=self.known_epoch))

    def find(self, group_id: str) -> Any:
        assert group_id == KEY.group_id
        if self.failure is not None:
            raise CoordinatorError(self.failure)
        return self

    def execute(self, steps: Iterable[Any]) -> None:
        for each in steps if self.is_writing else ():
            each()

    async def confirm_read(self) -> None:
        await trio.lowlevel.checkpoint()
        if not self.is_writing:
            raise CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self.check_lease()

    def check_lease(self) -> None:
        if not self.has_lease:
            raise CoordinatorError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    def load_state(self, key: SharePartitionKey, leader_epoch: int) -> tuple[list[Any], LoadedShareState]:
        assert (key, leader_epoch) == (KEY, self.world.number)
        return [], LoadedShareState(self.world.refusal, NO_STATE if self.world.refusal else self.world.committed)

    def write_state(self, key: SharePartitionKey, state: ShareState) -> tuple[list[Any], ErrorCode]:
        assert key == KEY
        return [lambda: self.world.commit(state)], self.world.refusal

    # Messages

    @property
    def address(self) -> str:
        return self.name

    def on(self, kind: type, handler: Callable[[str, Any], None]) -> None:
        self.handlers[kind] = handler

    def send(self, address: str, message: Any) -> None:
        self.world.send(self.name, address, message)


class World:
    """Two brokers; the first one asks."""

    def __init__(self, draw: Random) -> None:
        self.draw = draw
        self.number = 0
        self.refusal = NONE
        self.committed = NO_STATE
        self.expected: ShareState | None = None
        self.sent = 0
        self.is_lost = False
        self.brokers = {name: Broker(self, name) for name in ("own", "other")}

    def commit(self, state: ShareState) -> None:
        if not self.refusal:
            self.committed = state

    def send(self, sender: str, address: str, message: Any) -> None:
        self.sent += 1
        if sender == "other" and not message.error_code and self.expected is not None:
            assert self.committed == self.expected, "it is committed before it is answered"
        if not self.is_lost:
            self.brokers[address].handlers[type(message)](sender, message)

    async def step(self) -> None:
        """Change something, and load or write the state."""
        draw, own, other = self.draw, self.brokers["own"], self.brokers["other"]
        own.leader = draw.choice([None, "", "own", "other", "other"])
        own.known_epoch = draw.choice([3, 3, 4])
        self.is_lost, self.refusal = draw.random() < 0.1, FENCED if draw.random() < 0.2 else NONE
        for each in (own, other):
            each.epoch = 3
            each.failure = draw.choice(UNAVAILABLE) if draw.random() < 0.3 else None
            each.has_lease, each.is_writing = draw.random() < 0.9, draw.random() < 0.9
        if own.leader not in {"own", "other"}:
            own.failure = ErrorCode.NOT_COORDINATOR
        self.number += 1
        self.sent = 0
        before, begun, is_write = self.committed, trio.current_time(), draw.random() < 0.6
        if is_write:
            state = self.expected = ShareState("id", self.number, -1, self.number, ())
            error = await own.store.write(KEY, state)
            assert error or self.committed == state, "what is answered is committed"
        else:
            self.expected = None
            found = await own.store.load(KEY, self.number)
            error = found.error_code
            assert found.state == (NO_STATE if error else before)
        coordinator = other if own.leader == "other" else own
        is_answered = not self.is_lost and (coordinator is own or coordinator.failure or coordinator.is_writing)
        is_late = is_write and own.known_epoch != coordinator.epoch
        if error is not NONE and coordinator.failure is None and not is_late and coordinator.is_writing:
            assert self.is_lost or not coordinator.has_lease or error is self.refusal
        assert error in {NONE, *COORDINATOR_ERRORS} or error is self.refusal, "all others end it"
        if not coordinator.has_lease:
            assert error, "another broker can coordinate the group"
        if coordinator.failure or is_late or self.refusal:
            assert self.committed == before
        is_elsewhere = coordinator is other
        assert bool(self.sent) is is_elsewhere
        waited_s = trio.current_time() - begun
        assert waited_s == (ANSWER_S if is_elsewhere and not is_answered else 0)


async def play(seed: int) -> None:
    world = World(Random(seed))
    for _ in range(STEPS):
        await world.step()


@each_seed(SEEDS)
def test_what_is_answered_is_committed_and_other_requests_can_be_repeated(seed: int) -> None:
    trio.run(play, seed, clock=MockClock(autojump_threshold=0))
