"""What a broker does with its copy of a log, by what was ordered, what the log has, and how long it has waited."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Iterator
from itertools import product
from random import Random
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from dafka.broker.core.metadata.brokers import BrokerRegistration, Brokers
from dafka.broker.core.metadata.cluster_state import ClusterState
from dafka.broker.core.metadata.commands import (
    ChangeReplicas,
    Command,
    CreateTopic,
    Order,
    RecoverLog,
    RegisterBroker,
    ReplicasChanged,
)
from dafka.broker.core.metadata.leader_and_isr import LeaderAndIsr
from dafka.broker.core.metadata.log_replicas import RECOVERY_STEP, LogReplicas, Reason
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.partition_address import INDEX_TOPIC
from dafka.broker.core.positions import Offset
from dafka.broker.core.replication.records import NO_EPOCH_END, EpochStart, LeaderAndEpoch
from dafka.broker.replication import reassignment as reassignment_module
from dafka.broker.replication.leader import IN_SYNC_S
from dafka.broker.replication.reassignment import RETRY_S, Reassigner
from dafka.config import Config
from dafka.records import Partition
from tests.seeds import each_seed

NAME, INDEX = "1D/0", Partition(INDEX_TOPIC, "a/1D/0")
DELAY_S = 10.0


class Logs(SimpleNamespace):
    def __iter__(self) -> Iterator[Any]:
        return iter([self.world.log])


class Damaged(SimpleNamespace):
    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.world.names)


class World:
    """The broker `a`, with a log of the topic `orders` whose first replicas are a, b and c."""

    def __init__(self) -> None:
        self.state, self.brokers = ClusterState(), Brokers(BrokerRegistration(address="a", free_bytes=10**6), 1.0)
        for number, each in enumerate("abcd"):
            self.order(RegisterBroker(each, number))
            self.brokers.record_registration(BrokerRegistration(address=each, free_bytes=10**10))
        self.order(CreateTopic(Topic("orders", "1D", 1, placement=(("a", "b", "c"),))))
        self.log: Any = SimpleNamespace(name=NAME, topic="orders", topic_id="1D", number=0)
        self.has(("a", "b", "c"))
        self.made: list[Any] = []
        self.deleted: list[Partition] = []
        self.damaged: list[Partition] = []
        self.names: tuple[str, ...] = (NAME,)
        self.forgotten: list[Any] = []
        self.preferred: list[Any] = []
        self.changed: list[Any] = []
        self.others: dict[str, Any] = {}
        self.keeps_log, self.holds_log = False, True
        state = SimpleNamespace(all_logs=lambda: self.led)
        self.led: list[Any] = []
        logs = Logs(
            world=self,
            find=lambda name: (self.log if self.holds_log else None) if name == NAME else self.others.get(name),
            keeps_log=lambda _log: self.keeps_log,
            drop=lambda _log: self.made.append("drop"),
            recover=lambda _log, generation: [("recover", generation)],
            change_replicas=lambda _log, replicas, generation: [(replicas, generation)],
            set_preferences=lambda *found: self.preferred.append(found),
            set_unreadable=lambda found, _now: [("unreadable", found)],
            take_changed=self._take_changed,
        )
        done = trio.Event()
        done.set()

        def delete(partitions: list[Partition]) -> trio.Event:
            self.deleted += partitions
            return done

        damaged = Damaged(
            world=self,
            partitions=lambda name: self.damaged if name == NAME else [],
            forget=lambda name: self.forgotten.append(("damage", name)),
            record_end=lambda *_: None,
            to_copy=(),
            unreadable=(),
        )
        self.subscribed: set[str] = set()
        membership = SimpleNamespace(
            subscribe_acknowledgements=self.subscribed.add, update_registration=self._update_registration
        )
        self.led_logs = SimpleNamespace(forget=lambda name: self.forgotten.append(("log", name)), changes=0)
        parts: dict[str, Any] = {
            "tables": SimpleNamespace(state=self.state, log_table=state, brokers=self.brokers, logs=logs),
            "led_logs": self.led_logs,
            "deletion": SimpleNamespace(delete_partitions=delete),
            "damaged": damaged,
            "membership": membership,
        }
        self.reassigner = Reassigner(
            Config().with_broker(delete_delay_ms=round(DELAY_S * 1000)),
            indexes=defaultdict(set, {NAME: {INDEX}}),
            request=self.made.append,
            act=self.made.extend,
            **parts,
        )

    def _update_registration(self, **changes: Any) -> None:
        self.brokers.own = attrs.evolve(self.brokers.own, **changes)
        self.made.append(changes)

    def _take_changed(self) -> list[Any]:
        changed, self.changed = self.changed, []
        return changed

    def order(self, command: Command) -> None:
        assert self.state.apply(Order(command)).reason == ""

    def has(self, replicas: tuple[str, ...], generation: int = 0, **replica: Any) -> None:
        start = EpochStart(
            NAME, LeaderAndEpoch(5, "a"), NO_EPOCH_END, replicas, replica.pop("learners", ()), generation
        )
        newest = attrs.evolve(start, generation=replica.pop("newest", generation))
        fields = {"led_epoch": start.leader_epoch, "election": None, "may_drop": True, **replica}
        elections = SimpleNamespace(state=SimpleNamespace(election=fields.pop("election")))
        self.log.replica = SimpleNamespace(
            latest=start,
            newest=newest,
            replicas=replicas,
            in_sync=lambda within_s: replicas if within_s == IN_SYNC_S else (),
            elections=elections,
            local_epochs=SimpleNamespace(log_end=lambda: NO_EPOCH_END),
            **{"has_established_replicas": True, **fields},
        )

    def take(self) -> list[Any]:
        made, self.made[:] = list(self.made), []
        return made


async def test_a_leader_reports_a_change_when_it_is_made_and_asks_again_when_an_election_takes_long(
    autojump_clock: MockClock,
) -> None:
    ordered = ("a", "b", "d")
    for has_led, replicas, generation, learners, is_established, election, waited_s in product(
        (True, False),
        (("a", "b", "c"), ordered, ordered[::-1]),
        (0, 1),
        ((), ("d",)),
        (True, False),
        (None, "begun"),
        (0.0, RETRY_S),
    ):
        world = World()
        world.order(ChangeReplicas("1D", 0, ordered, generation=1))
        led: dict[str, Any] = {} if has_led else {"led_epoch": None}
        led["has_established_replicas"] = is_established
        world.has(replicas, generation, learners=learners, election=election, **led)
        world.reassigner._changing[NAME] = trio.current_time() - waited_s
        goes_on = world.reassigner._continue_change(NAME)
        made = world.take()
        assert goes_on == has_led
        if not has_led or ("d" in replicas and generation == 1):
            is_made = has_led and not learners and is_established
            assert made == ([ReplicasChanged("1D", 0, 1, 5)] if is_made else [])
        elif election and waited_s < RETRY_S:
            assert made == []
        elif not learners:
            assert made == [(("a", "b", "c", "d") if "d" not in replicas else ordered, 1)]
    world.order(ReplicasChanged("1D", 0, 1, 5))
    world.has(ordered, 1)
    assert not world.reassigner._continue_change(NAME)
    assert world.take() == []


async def test_a_replica_recovers_a_log_alone_once_when_it_was_ordered(autojump_clock: MockClock) -> None:
    world = World()
    await trio.sleep(100)
    for store, is_own in (("b", False), ("a", True)):
        world.order(RecoverLog("1D", 0, store))
        recovery = world.state.replicas.of(world.state.topics["orders"], 0).generation
        world.has(("a", "b", "c"), 7, led_epoch=None)
        for _ in range(2):
            world.reassigner._changing.setdefault(NAME, float("-inf"))
            world.reassigner._continue_change(NAME)
        assert world.take() == ([("recover", recovery)] if is_own else []), "it takes time"
        assert recovery // RECOVERY_STEP == 1 + is_own
    await trio.sleep(RETRY_S)
    world.has(("a", "b", "c"), 7, led_epoch=None, newest=recovery)
    assert not world.reassigner._continue_change(NAME), "another replica knows of its recovery already"
    for reason in Reason:
        later = LogReplicas(("a",), recovery + RECOVERY_STEP, (), reason)
        world.state.replicas.put(world.state.topics["orders"], 0, later)
        await trio.sleep(RETRY_S)
        world.reassigner._continue_change(NAME)
        assert bool(world.take()) == (reason is Reason.RECOVERED), (
            "replicas that are moved there have the votes of others"
        )


async def test_a_copy_is_deleted_only_when_its_broker_is_no_replica_any_more(autojump_clock: MockClock) -> None:
    """A damaged one at once: it is copied anew."""
    for is_made, generation, may_drop, is_damaged, keeps_log in product(
        (True, False), (0, 1), (True, False), (True, False), (True, False)
    ):
        world = World()
        world.order(ChangeReplicas("1D", 0, ("b", "c", "d"), generation=1))
        if is_made:
            world.order(ReplicasChanged("1D", 0, 1, 5))
        world.has(("b", "c", "d"), generation, may_drop=may_drop)
        world.keeps_log, world.damaged = keeps_log, [INDEX] * is_damaged
        kept = SimpleNamespace(**{**vars(world.log.replica), "may_drop": False})
        world.others = {
            "kept": SimpleNamespace(**{**vars(world.log), "name": "kept", "replica": kept}),
            "late": SimpleNamespace(**{**vars(world.log), "name": "late"}),
        }
        world.reassigner._indexes["kept"] = world.reassigner._indexes["late"] = {INDEX}
        for waited_s in (0.0, DELAY_S - 0.5, 0.5):
            await trio.sleep(waited_s)
            late = {"late": None} if waited_s == 0.5 else {}
            world.reassigner._replaced = {"gone": None, "kept": None, **late, NAME: None}
            await world.reassigner._drop_replaced()
            may_go = is_made and generation == 1 and may_drop and not keeps_log
            is_deleted = may_go and (is_damaged or waited_s == 0.5)
            assert world.deleted == [INDEX, Partition("orders", INDEX.address)] * is_deleted
            assert (world.made, world.forgotten) == (
                ["drop"] * is_deleted,
                [("log", NAME), ("damage", NAME)] * is_deleted,
            )
        assert world.subscribed == (set() if keeps_log else {"a"}), "their acknowledgements show when it may go"
        world.reassigner._replaced[NAME] = None
        await world.reassigner._drop_replaced()
        assert NAME not in world.reassigner._replaced or not may_go


async def test_a_log_that_cannot_be_loaded_is_deleted_when_others_replicate_it_instead(
    autojump_clock: MockClock,
) -> None:
    for is_ordered, is_made, holds_log in product((True, False), (True, False), (True, False)):
        world = World()
        world.holds_log = holds_log
        if is_ordered:
            world.order(ChangeReplicas("1D", 0, ("b", "c", "d"), generation=1))
        if is_made:
            world.order(ReplicasChanged("1D", 0, 1, 5))
        for waited_s in (0.0, DELAY_S - 0.5, 0.5):
            await trio.sleep(waited_s)
            await world.reassigner._drop_unreadable()
            is_deleted = is_ordered and is_made and not holds_log and waited_s == 0.5
            assert bool(world.deleted) == is_deleted
            assert world.forgotten == [("damage", NAME)] * is_deleted
    world.names, world.forgotten = ("gone/0",), []
    await world.reassigner._drop_unreadable()
    assert world.forgotten == [("damage", "gone/0")], "its topic was deleted"


async def test_a_log_that_cannot_be_loaded_is_kept_as_long_after_its_broker_was_a_replica_again(
    autojump_clock: MockClock,
) -> None:
    world, begun = World(), trio.current_time()
    world.holds_log = False
    for generation, replicas in enumerate((("b", "c", "d"), ("a", "b", "c"), ("b", "c", "d")), 1):
        world.order(ChangeReplicas("1D", 0, replicas, generation=generation))
        world.order(ReplicasChanged("1D", 0, generation, 5))
        begun = trio.current_time()
        await world.reassigner._drop_unreadable()
        await trio.sleep(DELAY_S / 2)
    while not world.deleted:
        await world.reassigner._drop_unreadable()
        await trio.sleep(0.5)
    assert trio.current_time() - begun >= DELAY_S


async def test_each_second_a_broker_announces_and_does_what_has_changed_and_nothing_else(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_now(world: World, **fields: Any) -> None:
        world.brokers.record_registration(BrokerRegistration(address="b", free_bytes=10**10, **fields))

    def follow(world: World, *in_sync: str) -> None:
        world.led_logs.changes += 1
        world.led[:] = [SimpleNamespace(topic="orders", number=0, leadership=LeaderAndIsr("a", in_sync=in_sync))]

    rest: list[Any] = [("unreadable", {})]
    fewer, order = {"under_replicated_logs": 1}, ("a", "b", "c")
    damaged = {"damaged_logs": ("x/0",), "logs_to_copy": (), "unreadable_logs": ()}
    for change, made, ineligible in (
        (lambda _: None, rest, None),
        (
            lambda _: monkeypatch.setattr(reassignment_module, "_free_bytes", lambda _: 5),
            [{"free_bytes": 5}, *rest],
            "a",
        ),
        (lambda world: is_now(world, is_stopping=True), rest, "b"),
        (lambda world: is_now(world, damaged_logs=(NAME,)), rest, "b"),
        (lambda world: is_now(world, unreadable_logs=(NAME,)), [("unreadable", {NAME: {"b"}})], None),
        (lambda world: world.changed.append(world.log), rest, ""),
        (lambda world: follow(world, "a"), [*rest, fewer], None),
        (lambda world: setattr(world, "names", ("x/0",)), [*rest, {"under_replicated_logs": 0}, damaged], ""),
    ):
        monkeypatch.setattr(reassignment_module, "_free_bytes", lambda _: 10**10)
        world = World()
        world.names, world.keeps_log = (), True
        if {"under_replicated_logs": 0} in made:
            follow(world, "a")
        async with trio.open_nursery() as nursery:
            for each in "bcd":
                world.brokers.record_heartbeat(each, trio.current_time() + 5)
            world.brokers.check_alive(trio.current_time() + 5)
            nursery.start_soon(world.reassigner.run)
            await trio.sleep(1.5)
            world.take()
            world.preferred.clear()
            change(world)
            if {"under_replicated_logs": 0} in made:
                follow(world, "a", "b", "c")
            for expected in (made, [each for each in made if isinstance(each, tuple)]):
                await trio.sleep(1)
                assert world.take() == expected
            assert world.preferred == ([] if ineligible is None else [(world.log, order, frozenset(ineligible))])
            assert not world.reassigner._changing
            nursery.cancel_scope.cancel()


async def test_an_ordered_change_begins_soon_and_again_only_after_its_election_took_long(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reassignment_module, "_free_bytes", lambda _: 10**10)
    world = World()
    world.names, asked = (), list[float]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.reassigner.run)
        await trio.sleep(1.5)
        world.take()
        orders = {0: ("a", "b", "d"), 2: ("a", "c", "d")}  # the second one before the epoch of the first one has begun
        for second in range(9):
            if second in orders:
                world.order(ChangeReplicas("1D", 0, orders[second], generation=2 if second else 1))
                world.preferred.clear()
                world.reassigner.apply_state()
                assert world.preferred == [(world.log, orders[second], {"b"} if second else {"c"})]
            await trio.sleep(1)
            if world.take() != [("unreadable", {})]:
                asked.append(second)
            world.has(("a", "b", "c"), election="begun")
        nursery.cancel_scope.cancel()
    assert asked == [0, RETRY_S]


@each_seed(60)
def test_logs_are_under_replicated_whose_living_replicas_in_sync_are_fewer_than_there_can_be(seed: int) -> None:
    draw, world, now = Random(seed), World(), 0.0
    draining, wanted = set[str](), {"orders": 3, "gone": 1}
    world.led = [SimpleNamespace(topic=draw.choice([*wanted]), number=draw.choice([0, 0, 1])) for _ in range(8)]

    def lead(log: Any) -> None:
        in_sync = tuple(draw.sample("abcd", draw.randint(1, 3)))
        log.leadership = LeaderAndIsr("a", is_led=draw.random() < 0.7, in_sync=in_sync)
        world.led_logs.changes += 1

    for log in world.led:
        lead(log)
    for _ in range(12):
        now += 10
        match draw.choice(["alive", "alive", "drained", "led", "created"]):
            case "alive":
                for each in draw.sample("bcd", draw.randint(0, 3)):
                    world.brokers.record_heartbeat(each, now)
                world.brokers.check_alive(now)
            case "drained":
                draining ^= {draw.choice("bcd")}
                for each in "bcd":
                    world.brokers.record_registration(BrokerRegistration(address=each, is_draining=each in draining))
            case "led":
                lead(draw.choice(world.led))
            case "created" if wanted["gone"] == 1:
                world.order(CreateTopic(Topic("gone", "2D", 1, placement=(("a", "b", "c"),))))
                world.state.applied = Offset(world.state.applied + 1)
                wanted["gone"] = 3
        usable, alive = 4 - len(draining), world.brokers.alive
        assert world.reassigner.under_replicated() == [
            log
            for log in world.led
            if log.leadership.is_led
            and len(alive.intersection(log.leadership.in_sync)) < min(1 if log.number else wanted[log.topic], usable)
        ]


def test_the_free_space_is_that_of_the_disk_of_the_storage_or_of_the_current_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=9, used=4, free=5))
    for found, free in ((None, 5), (SimpleNamespace(free=7), 7)):
        monkeypatch.setattr(reassignment_module, "measure_disk", {"sqlite:a.db": found}.get)
        assert reassignment_module._free_bytes("sqlite:a.db") == free


@each_seed(20)
def test_free_space_is_announced_when_it_has_changed_by_more_than_a_share(seed: int) -> None:
    draw, world = Random(seed), World()
    announced, free = 10**6, 10**6
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(reassignment_module, "_free_bytes", lambda _url: free)
        for _ in range(50):
            free = max(free + draw.randint(-30_000, 30_000), 0)
            world.reassigner.measure_space()
            has_changed = abs(free - announced) > 0.02 * announced
            assert world.take() == ([{"free_bytes": free}] if has_changed else [])
            announced = free if has_changed else announced


def test_damaged_full_and_leaving_replicas_lead_only_if_no_other_one_can() -> None:
    for is_known, has_changed, full, damaged in product((True, False), (True, False), ("", "b"), ("", "ac")):
        world = World()
        world.reassigner._ineligible = frozenset(full)
        world.reassigner._damaged_replicas = {NAME: frozenset(damaged), "2D/0": frozenset("d")}
        if has_changed:
            world.order(ChangeReplicas("1D", 0, ("b", "c", "d"), generation=1))
        world.log.topic_id = "1D" if is_known else "metadata"
        world.reassigner.prefer_leaders(world.log)
        ordered = ("b", "c", "d") if has_changed else ("a", "b", "c")
        leaving = {"a"} if has_changed and is_known else set()
        assert world.preferred == [(world.log, ordered if is_known else (), {*full, *damaged} | leaving)]


def test_damaged_logs_are_announced_when_they_have_changed() -> None:
    for holds_log, names, to_copy, unreadable in product((True, False), ((), (NAME,)), ((), (NAME,)), ((), (NAME,))):
        world, ends = World(), list[Any]()
        world.holds_log = holds_log
        damaged: Any = SimpleNamespace(
            names=names, to_copy=to_copy, unreadable=unreadable, record_end=lambda *end, it=ends: it.append(end)
        )
        world.reassigner._damaged = damaged
        found = {"damaged_logs": names, "logs_to_copy": to_copy, "unreadable_logs": unreadable}
        for is_new in (any(found.values()), False):
            world.reassigner._announce_damaged()
            assert world.take() == [found] * is_new
        assert ends == [(NAME, 0 if holds_log else None)] * 2 * len(names)


@pytest.mark.parametrize("is_ordered", [True, False])
async def test_a_log_is_looked_at_when_replicas_are_ordered_and_when_it_has_changed(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, *, is_ordered: bool
) -> None:
    """Its leader can have changed since the order: the new one goes on, and who is no replica deletes its copy."""
    monkeypatch.setattr(reassignment_module, "_free_bytes", lambda _: 10**10)
    for leads, is_loaded in ((True, True), (False, True), (False, False)):
        world = World()
        world.names, world.holds_log = () if is_loaded else (NAME,), is_ordered and is_loaded
        replicas = ("a", "b", "d") if leads else ("b", "c", "d")
        world.order(ChangeReplicas("1D", 0, replicas, generation=1))
        if not leads:
            world.order(ReplicasChanged("1D", 0, 1, 5))
            world.has(replicas, 1, led_epoch=None)
        world.reassigner.apply_state()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.reassigner.run)
            await trio.sleep(2.5)
            if is_loaded and not is_ordered:
                world.holds_log, world.changed = True, [world.log]
            await trio.sleep(DELAY_S + 2)
            nursery.cancel_scope.cancel()
        assert bool(world.deleted) == (not leads)
        assert ((("a", "b", "c", "d"), 1) in world.made) == leads
