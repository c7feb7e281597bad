"""What the controller appends, asks and remembers, against models of random histories."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from dafka.batches import decode_records
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.metadata.commands import (
    SNAPSHOTS_KEPT,
    CloseTopic,
    Command,
    DrainBroker,
    OpenCluster,
    Order,
    SnapshotTaken,
    decode_order,
    encode_order,
)
from dafka.broker.core.metadata.features import SUPPORTED
from dafka.broker.core.metadata.outcome import Outcome
from dafka.broker.metadata import controller as controllers
from dafka.broker.metadata.controller import (
    ASK_AGAIN_S,
    CLOSE_S,
    IDLE_S,
    PLAN_S,
    STALLED_S,
    SUCCESSOR_AFTER_S,
    VOTER_AFTER_S,
    Controller,
    OrderRefused,
    OrderRequest,
    ProducerEnds,
    ProducerEndsRequest,
)
from dafka.errors import NotLeaderError
from dafka.records import Partition
from tests.seeds import each_seed

OWN, PLACE = "A", Partition("$metadata", "A" * 32)
INITIAL = 2


class World:
    """The broker of a controller, and the others."""

    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)
        self.appended: list[tuple[Command, str, int]] = []
        self.sent: list[tuple[str, Any, float]] = []
        self.handlers: dict[type, Callable[[str, Any], None]] = {}
        self.has_lost_leadership = False
        self.is_waiting = False
        self.since: dict[str, float] = {}
        self.begun_at = self.planned_at = -float("inf")
        self.led_at = self.chosen_at = 0.0
        self.has_forgotten_placed = False
        self.snapshot: tuple[int, int] = (0, 0)
        members = SimpleNamespace(levels=SimpleNamespace(highest=3), support=SUPPORTED)
        self.state = SimpleNamespace(
            applied=9, is_open=False, brokers={}, forgotten_ids=set(), members=members, snapshots=[], deleting={}
        )
        self.state.find_deleting = lambda topic_id: next(iter(self.state.deleting.values()), None)
        self.log: Any = SimpleNamespace(
            leadership=SimpleNamespace(is_led=True, epoch=1),
            epochs=[(1, 5)],
            index=SimpleNamespace(start_offset=0, end_offset=9),
            leader_partition=PLACE,
        )
        latest = SimpleNamespace(voters=(OWN, "B"), learners=(), replicas=(OWN, "B"))
        election = SimpleNamespace(state=SimpleNamespace(election=None))
        self.replica = SimpleNamespace(latest=latest, elections=election, newest=SimpleNamespace(generation=4))
        self.brokers = SimpleNamespace(own=SimpleNamespace(address=OWN, number=1), alive={OWN})
        addresses = [("orders", "p" * 32), ("other", "p" * 32), ("orders", "q" * 32), ("orders", "A/T/0")]
        self.ends = {Partition(*each): 5 + number for number, each in enumerate(addresses)}
        part: Any = self
        tables: Any = SimpleNamespace(
            state=self.state,
            brokers=self.brokers,
            logs=SimpleNamespace(change_replicas=lambda *given: given),
            find_metadata=self.find_metadata,
        )
        machine: Any = SimpleNamespace(
            reassembler=SimpleNamespace(cursors=self.ends), next_sequence=self.ends.__getitem__
        )
        self.acted = 0
        self.exchange = part
        writer: Any = SimpleNamespace(append=self.append)
        completer: Any = SimpleNamespace(complete=lambda command, *_: command)
        self.controller = Controller(tables, part, writer, part, machine, part, part, self.act, INITIAL)
        self.controller._completer = completer

    def on(self, kind: type, handle: Callable[[str, Any], None]) -> None:
        self.handlers[kind] = handle

    def send(self, address: str, message: object) -> None:
        self.sent.append((address, message, trio.current_time()))

    def append(self, log: Any, batches: Sequence[tuple[Any, bytes]]) -> None:
        if self.has_lost_leadership:
            raise NotLeaderError("another broker leads it")
        for _, data in batches:
            (record,) = decode_records(PLACE, data)
            order = decode_order(record.value or b"")
            assert order.controller_epoch == log.leadership.epoch
            assert not (isinstance(order.command, OpenCluster) and self.is_waiting)
            self.appended.append((order.command, order.request_id, order.controller_epoch))
            log.index.end_offset += 1

    # What the controller does by itself

    def act(self, actions: Any) -> None:
        assert self.replica.elections.state.election is None
        assert actions[1:] == ((OWN, "D"), 5)
        self.acted += 1

    def find_metadata(self) -> Any:
        now = trio.current_time()
        self.since = {each: self.since.get(each, now) for each in self.brokers.alive}
        return SimpleNamespace(replica=self.replica)

    async def wait_changed(self) -> None:
        await trio.sleep_forever()

    def begin(self) -> None:
        self.begun_at = trio.current_time()

    def forget_placed(self) -> None:
        self.has_forgotten_placed = True

    def advance(self, now: float) -> list[Command]:
        assert self.state.applied >= self.log.index.end_offset
        assert now - self.planned_at >= PLAN_S
        assert now - self.planned_at <= STALLED_S or self.begun_at > self.planned_at, "silence is not known"
        assert self.has_forgotten_placed
        assert self.begun_at >= self.led_at
        self.has_forgotten_placed, self.planned_at = False, now
        return [DrainBroker("C", is_draining=True)] if self.draw.random() < 0.1 else []

    def find_agreed(self, voters: Iterable[str], last: int, _now: float) -> SnapshotTaken | None:
        agreed = max((each.offset for each in self.state.snapshots), default=0)
        epoch, taken = self.snapshot
        assert voters == self.replica.latest.voters
        assert last == max(agreed, taken if epoch == self.log.leadership.epoch else 0)
        if self.draw.random() < 0.7:
            return None
        self.snapshot = self.log.leadership.epoch, last + 1
        return SnapshotTaken(last + 1, "checksum")

    async def delete_before(self, log: Any, start: int) -> None:
        await trio.lowlevel.checkpoint()
        assert len(self.state.snapshots) == SNAPSHOTS_KEPT
        assert self.controller.is_active
        assert log.index.start_offset < start == self.state.snapshots[0].offset
        log.index.start_offset = start

    def choose_voters(self, present: tuple[str, ...], own: str, usable: set[str], leaving: set[str]) -> tuple[str, ...]:
        """Check that the brokers that can vote have lived for long enough. At times, choose other voters."""
        now, state = trio.current_time(), self.state
        least_s = SUCCESSOR_AFTER_S if state.forgotten_ids & set(present) else VOTER_AFTER_S
        gone = state.forgotten_ids | {each for each, broker in state.brokers.items() if broker.is_draining}
        lived = {each for each, since in self.since.items() if now - since >= (least_s if state.is_open else 0)}
        assert (present, own) == (self.replica.latest.voters, OWN)
        assert (usable, leaving) == (lived & state.brokers.keys() - gone, gone)
        assert not self.replica.latest.learners or not usable.issuperset(self.replica.latest.learners)
        self.chosen_at = now
        self.is_waiting = self.draw.random() < 0.2
        return (OWN, "D") if self.is_waiting else self.replica.latest.replicas[::-1]

    def step(self) -> None:
        draw, state = self.draw, self.state
        match draw.randrange(10):
            case 0 | 1:
                self.brokers.alive = {OWN} | {each for each in "BCD" if draw.random() < 0.8}
            case 2:
                each = draw.choice("ABCD")
                state.brokers[each] = SimpleNamespace(store_id=each, is_draining=draw.random() < 0.2)
            case 3:
                state.forgotten_ids = {each for each in "BCD" if draw.random() < 0.1}
            case 4:
                state.snapshots = state.snapshots[-SNAPSHOTS_KEPT + 1 :]
                state.snapshots.append(
                    SimpleNamespace(offset=max([each.offset for each in state.snapshots], default=0) + 3)
                )
            case 5:
                epoch, is_led = self.log.leadership.epoch + 1, draw.random() < 0.6
                self.log.leadership = SimpleNamespace(is_led=is_led, epoch=epoch)
                self.log.epochs, self.led_at = [(epoch, self.log.index.end_offset)], trio.current_time()
            case 6:
                self.replica.latest.learners = draw.choice([(), (), ("C",), ("nobody",)])
            case 7:
                self.replica.elections.state.election = draw.choice([None, "another"])
            case _:
                pass
        if self.draw.random() < 0.8:
            state.applied = self.log.index.end_offset


async def play(seed: int) -> None:
    world = World(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(controllers, "choose_voters", world.choose_voters)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.controller.run)
            for _ in range(150):
                world.step()
                count, begun = len(world.appended), trio.current_time()
                alive = world.brokers.alive & world.state.brokers.keys()
                await trio.sleep(world.draw.choice([1.1, 1.1, 4, 30]) * IDLE_S)
                found = [command for command, _, _ in world.appended[count:]]
                if any(isinstance(each, OpenCluster) for each in found):
                    assert len(alive) >= INITIAL
                    assert OpenCluster(3) in found
                    world.state.is_open = True
                if world.controller.is_active and "nobody" in world.replica.latest.learners:
                    assert world.chosen_at > begun
            assert world.state.is_open
            assert world.acted
            nursery.cancel_scope.cancel()


@each_seed(6)
def test_the_controller_does_what_the_cluster_needs_when_it_knows_enough(seed: int) -> None:
    trio.run(play, seed, clock=MockClock(autojump_threshold=0))


@each_seed(10)
def test_a_request_is_appended_once_by_each_controller_or_refused(seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(controllers, "APPENDED_MAX", 5)
        trio.run(_submit, seed, patch, clock=MockClock(autojump_threshold=0))


async def _submit(seed: int, patch: pytest.MonkeyPatch) -> None:
    world, kept = World(seed), dict[str, int]()
    obstacle: list[Outcome | None] = [None]
    patch.setattr(controllers, "find_obstacle", lambda *_: obstacle[0])
    draw = world.draw
    for _ in range(300):
        if draw.random() < 0.05:
            epoch = world.log.leadership.epoch + 1
            world.log.leadership = SimpleNamespace(is_led=draw.random() < 0.8, epoch=epoch)
            world.log.epochs.append((epoch, draw.randint(5, 15)))
        world.has_lost_leadership = draw.random() < 0.1
        world.state.applied = draw.randint(8, 15)
        obstacle[0] = Outcome(ErrorCode.INVALID_REQUEST, "impossible") if draw.random() < 0.1 else None
        number, epoch = f"r{draw.randrange(8)}", world.log.leadership.epoch
        command = DrainBroker("C", is_draining=draw.random() < 0.5)
        count = len(world.appended)
        world.sent.clear()
        world.handlers[OrderRequest]("B", OrderRequest(encode_order(Order(command, number, "B")).decode()))
        is_active = world.log.leadership.is_led and world.state.applied >= world.log.epochs[-1][1]
        is_repeated = kept.get(number) == epoch
        refusal = None if not is_active or is_repeated else obstacle[0]
        refusal = refusal if is_active else Outcome(ErrorCode.NOT_CONTROLLER, "this broker is not the controller")
        expected = [] if refusal is None else [("B", OrderRefused(number, *refusal), trio.current_time())]
        assert world.sent == expected
        is_appended = refusal is None and not is_repeated and not world.has_lost_leadership
        assert world.appended[count:] == ([(command, number, epoch)] if is_appended else [])
        if is_appended:
            kept[number] = epoch
            if len(kept) > 5:
                del kept[next(iter(kept))]


@each_seed(10)
def test_a_topic_is_closed_once_with_the_ends_that_any_broker_has(seed: int) -> None:
    async def close() -> None:
        world, draw = World(seed), Random(seed)
        world.state.is_open = True
        world.brokers.alive = set("ABC")
        world.state.deleting["orders"] = SimpleNamespace(topic=SimpleNamespace(topic_id="T", name="orders"))
        ends = {
            place.address: end
            for place, end in world.ends.items()
            if place.topic == "orders" and "/" not in place.address
        }
        silent = set("BC"[: draw.randrange(3)])
        answered = set[str]()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(controllers, "choose_voters", lambda present, *_: present)
            world.handlers[ProducerEndsRequest]("B", ProducerEndsRequest("T"))
            assert world.sent.pop()[1] == ProducerEnds("T", tuple(ends), tuple(ends.values()))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(world.controller.run)
                await trio.testing.wait_all_tasks_blocked()
                assert {each for each, message, _ in world.sent if message == ProducerEndsRequest("T")} == {"B", "C"}
                while not (closed := [each for each, _, _ in world.appended if isinstance(each, CloseTopic)]):
                    assert trio.current_time() < CLOSE_S + 1
                    for each in set("BC") - silent - answered if draw.random() < 0.3 else ():
                        answered.add(each)
                        theirs = {address: draw.randrange(12) for address in draw.sample([*ends, "new"], 2)}
                        world.handlers[ProducerEnds](each, ProducerEnds("T", ("x",), ()))
                        world.handlers[ProducerEnds](each, ProducerEnds("T", tuple(theirs), tuple(theirs.values())))
                        ends = {key: max(ends.get(key, 0), theirs.get(key, 0)) for key in ends | theirs}
                    begun, complete = trio.current_time(), answered == set("BC")
                    world.sent.clear()
                    await trio.sleep(2 * ASK_AGAIN_S)
                    if begun + 3 * ASK_AGAIN_S < CLOSE_S and not complete:
                        assert {each for each, _, _ in world.sent} == set("BC") - answered
                    world.state.applied = world.log.index.end_offset
                assert closed == [CloseTopic("T", ends)]
                assert answered == set("BC") or trio.current_time() >= CLOSE_S
                for count in (1, 2, 3):
                    await trio.sleep(2 * CLOSE_S)
                    assert len([each for each, _, _ in world.appended if isinstance(each, CloseTopic)]) == count
                    if draw.random() < 0.5:  # for so short a time that the controller does not look meanwhile
                        world.log.leadership.is_led = False
                        await trio.sleep(2 * IDLE_S)
                    world.log.leadership = SimpleNamespace(is_led=True, epoch=1 + count)  # it was not committed
                nursery.cancel_scope.cancel()

    trio.run(close, clock=MockClock(autojump_threshold=0))
