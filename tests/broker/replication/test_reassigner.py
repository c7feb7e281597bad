"""What a broker does with its copy of a log, by what was ordered, what the log has, and how long it has waited."""

from __future__ import annotations

from collections import defaultdict
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
from dafka.broker.core.metadata.log_replicas import RECOVERY_STEP
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.partition_address import INDEX_TOPIC
from dafka.broker.core.replication.records import NO_EPOCH_END, EpochStart, LeaderAndEpoch
from dafka.broker.replication import reassignment as reassignment_module
from dafka.broker.replication.reassignment import RETRY_S, Reassigner
from dafka.config import Config
from dafka.records import Partition
from tests.seeds import each_seed

NAME, INDEX = "1D/0", Partition(INDEX_TOPIC, "a/1D/0")
DELAY_S = 10.0


class World:
    """The broker `a`, with a log of the topic `orders` whose first replicas are a, b and c."""

    def __init__(self) -> None:
        self.state, self.brokers = ClusterState(), Brokers(BrokerRegistration(address="a", free_bytes=10**6), 1.0)
        for number, each in enumerate("abcd"):
            self.order(RegisterBroker(each, number))
            self.brokers.record_registration(BrokerRegistration(address=each))
        self.order(CreateTopic(Topic("orders", "1D", 1, placement=(("a", "b", "c"),))))
        self.log: Any = SimpleNamespace(name=NAME, topic="orders", topic_id="1D", number=0)
        self.has(("a", "b", "c"))
        self.made: list[Any] = []
        self.deleted: list[Partition] = []
        self.damaged: list[Partition] = []
        self.others: dict[str, Any] = {}
        self.keeps_log, self.holds_log = False, True
        state = SimpleNamespace(all_logs=lambda: self.led)
        self.led: list[Any] = []
        logs = SimpleNamespace(
            find=lambda name: (self.log if self.holds_log else None) if name == NAME else self.others.get(name),
            keeps_log=lambda _log: self.keeps_log,
            drop=lambda _log: self.made.append("drop"),
            recover=lambda _log, generation: [("recover", generation)],
            change_replicas=lambda _log, replicas, generation: [(replicas, generation)],
            set_preferences=lambda *_: None,
        )
        done = trio.Event()
        done.set()

        def delete(partitions: list[Partition]) -> trio.Event:
            self.deleted += partitions
            return done

        damaged = SimpleNamespace(
            partitions=lambda name: self.damaged if name == NAME else [], forget=lambda _name: None, names=[NAME]
        )
        membership = SimpleNamespace(
            subscribe_acknowledgements=lambda _leader: None, update_registration=self._update_registration
        )
        parts: dict[str, Any] = {
            "tables": SimpleNamespace(state=self.state, log_table=state, brokers=self.brokers, logs=logs),
            "led_logs": SimpleNamespace(forget=lambda _name: None, changes=0),
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

    def order(self, command: Command) -> None:
        assert self.state.apply(Order(command)).reason == ""

    def has(self, replicas: tuple[str, ...], generation: int = 0, **replica: Any) -> None:
        start = EpochStart(
            NAME, LeaderAndEpoch(5, "a"), NO_EPOCH_END, replicas, replica.pop("learners", ()), generation
        )
        fields = {"led_epoch": start.leader_epoch, "election": None, "may_drop": True, **replica}
        elections = SimpleNamespace(state=SimpleNamespace(election=fields.pop("election")))
        self.log.replica = SimpleNamespace(
            latest=start,
            newest=start,
            replicas=replicas,
            in_sync=lambda within_s: replicas,
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
        (True, False), (("a", "b", "c"), ordered), (0, 1), ((), ("d",)), (True, False), (None, "begun"), (0.0, RETRY_S)
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
        if not has_led or (replicas, generation) == (ordered, 1):
            is_made = has_led and not learners and is_established
            assert made == ([ReplicasChanged("1D", 0, 1, 5)] if is_made else [])
        elif election and waited_s < RETRY_S:
            assert made == []
        elif not learners:
            assert made == [(("a", "b", "c", "d") if replicas != ordered else ordered, 1)]
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
    world.has(("a",), recovery, led_epoch=None)
    await trio.sleep(RETRY_S)
    assert not world.reassigner._continue_change(NAME)
    assert world.take() == []


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
            assert bool(world.deleted) == is_deleted
            assert set(world.deleted) <= {INDEX, Partition("orders", INDEX.address)}
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
            assert bool(world.deleted) == (is_ordered and is_made and not holds_log and waited_s == 0.5)


@each_seed(100)
def test_logs_are_under_replicated_whose_living_replicas_in_sync_are_fewer_than_there_can_be(seed: int) -> None:
    draw, world = Random(seed), World()
    alive = {"a", *draw.sample("bcd", draw.randint(0, 3))}
    for each in alive:
        world.brokers.record_heartbeat(each, 0.5)
    world.brokers.check_alive(0.6)
    draining = {each for each in "bcd" if draw.random() < 0.3}
    for each in draining:
        world.brokers.record_registration(BrokerRegistration(address=each, is_draining=True))
    topics = {"orders": 3, "gone": 1}
    world.led = [
        SimpleNamespace(
            topic=draw.choice([*topics]), number=0, leadership=LeaderAndIsr("a", is_led=draw.random() < 0.7)
        )
        for _ in range(8)
    ]
    for log in world.led:
        in_sync = tuple(draw.sample("abcd", draw.randint(1, 3)))
        log.leadership = attrs.evolve(log.leadership, in_sync=in_sync)
    usable = 4 - len(draining)
    assert world.reassigner.under_replicated() == [
        log
        for log in world.led
        if log.leadership.is_led and len(alive.intersection(log.leadership.in_sync)) < min(topics[log.topic], usable)
    ]


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
        world, preferred = World(), list[Any]()
        world.reassigner._logs.set_preferences = lambda *found, it=preferred: it.append(found)  # type: ignore[method-assign]
        world.reassigner._ineligible = frozenset(full)
        world.reassigner._damaged_replicas = {NAME: frozenset(damaged), "2D/0": frozenset("d")}
        if has_changed:
            world.order(ChangeReplicas("1D", 0, ("b", "c", "d"), generation=1))
        world.log.topic_id = "1D" if is_known else "metadata"
        world.reassigner.prefer_leaders(world.log)
        ordered = ("b", "c", "d") if has_changed else ("a", "b", "c")
        leaving = {"a"} if has_changed and is_known else set()
        assert preferred == [(world.log, ordered if is_known else (), {*full, *damaged} | leaving)]


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
