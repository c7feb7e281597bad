"""The plan of replicas: logs follow the brokers that keep them, a few at a time, and come to rest."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterable
from itertools import product

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dafka.broker.core.metadata.brokers import BrokerRegistration, Brokers
from dafka.broker.core.metadata.cluster_state import ClusterState
from dafka.broker.core.metadata.commands import (
    ChangeReplicas,
    Command,
    CreateTopic,
    DeleteTopic,
    DrainBroker,
    ForgetBroker,
    Order,
    RegisterBroker,
    ReplicasChanged,
)
from dafka.broker.core.metadata.leader_and_isr import ReplicaSet
from dafka.broker.core.metadata.log_replicas import LogReplicas, Reason, next_replicas
from dafka.broker.core.metadata.outcome import DONE
from dafka.broker.core.metadata.planner import (
    LOADS_APART,
    Candidate,
    Planner,
    PlannerSettings,
    choose_replicas,
    find_ineligible_leaders,
)
from dafka.broker.core.metadata.topics import Topic
from dafka.protocol.rendezvous import rank_nodes

SETTINGS = PlannerSettings(replicas=3, replace_replicas_after_s=60, full_bytes=100, moves_max=2)
BROKERS = [f"broker-{number}" for number in range(10)]


# Choosing


@given(
    st.lists(
        st.builds(Candidate, st.sampled_from(BROKERS), st.integers(0, 9), st.sampled_from("rs"), st.booleans()),
        unique_by=lambda each: each.store_id,
    ),
    st.lists(st.integers(0, 5), min_size=10, max_size=10),
    st.integers(0, 5),
    st.lists(st.sampled_from([*BROKERS, "elsewhere"]), max_size=3, unique=True),
)
def test_each_replica_is_the_best_of_three_that_are_drawn(
    candidates: list[Candidate], counts: list[int], count: int, kept: list[str]
) -> None:
    loads = dict(zip(BROKERS, counts, strict=True))
    racks = {each.store_id: each.rack for each in candidates}
    found = choose_replicas("log", candidates, count, loads, kept, racks)
    assert list(found[: len(kept)]) == kept
    assert len(set(found)) == len(found)
    assert len(found) == max(min(count, len(kept) + len(racks.keys() - set(kept))), len(kept))
    by_name = {each.store_id: each for each in candidates}
    for place in range(len(kept), len(found)):
        used = Counter(racks.get(each, "") for each in found[:place])
        chosen = by_name[found[place]]
        others = [each for each in candidates if each.store_id not in found[: place + 1]]
        assert chosen.is_alive or not any(each.is_alive for each in others), "the living ones are first"
        others = [each for each in others if each.is_alive == chosen.is_alive]
        assert all(used[chosen.rack] <= used[each.rack] for each in others), "racks with fewer replicas are first"
        others = [each for each in others if used[each.rack] == used[chosen.rack]]
        assert all(loads[chosen.store_id] <= loads[each.store_id] + LOADS_APART for each in others)
        least = min([loads[chosen.store_id], *(loads[each.store_id] for each in others)])
        bigger = [e for e in others if loads[e.store_id] <= least + LOADS_APART and e.free_bytes > chosen.free_bytes]
        assert not bigger or len(others) > 2, "of three, the one with most space is chosen"


# A cluster


@attrs.frozen
class Epoch(ReplicaSet):
    """What the start of a leader epoch says of the replicas of a log."""

    replicas: tuple[str, ...]
    learners: tuple[str, ...] = ()
    generation: int = 0

    def promote(self, in_sync: Collection[str]) -> Epoch:
        """Make learners voters when all of them are in sync."""
        return attrs.evolve(self, learners=()) if set(self.learners) <= set(in_sync) else self

    def is_made(self, ordered: LogReplicas) -> bool:
        is_same = (self.generation, set(self.replicas)) == (ordered.generation, set(ordered.replicas))
        return is_same and not self.learners

    def follow(self, ordered: LogReplicas, ranked: Iterable[str], in_sync: Collection[str]) -> Epoch | None:
        """Return the next epoch of a change, if it has one. A voter that should stay leads if there is one."""
        voters = [each for each in ranked if each in self.voters and each in in_sync]
        leader = min(voters, key=lambda each: each not in ordered.replicas, default="")
        following = leader and next_replicas(ordered, self, self.generation, leader, in_sync)
        if not following:
            return None
        assert leader in following, "the leader remains a replica"
        assert set(self.learners).intersection(following) <= set(ordered.replicas), "others are in nobody's way"
        are_added = set(self.voters) <= set(following)
        learners = [each for each in following if each not in self.voters] if are_added else []
        return Epoch(following, tuple(learners), ordered.generation)


class Cluster:
    """Brokers and logs, with leaders that make what is ordered. A further replica is in sync after `copy_s`."""

    def __init__(self, seed: int = 1, broker_count: int = 0, copy_s: float = 3) -> None:
        self.draw = random.Random(seed)
        self.now = 0.0
        self.copy_s = copy_s
        self.state = ClusterState()
        self.brokers = Brokers(BrokerRegistration(address="controller"), timeout_s=0.5)
        self.alive: set[str] = set()
        self.planner = Planner(self.state, self.brokers, SETTINGS)
        self.present: dict[str, Epoch] = {}
        self.copied: dict[tuple[str, str], float] = {}
        self.died_at: dict[str, float] = {}
        for _ in range(broker_count):
            self.add_broker()

    def order(self, command: Command) -> None:
        assert self.state.apply(Order(command)) == DONE
        self.state.applied = type(self.state.applied)(self.state.applied + 1)

    def add_broker(self, rack: str = "", free_bytes: int = 1000) -> str:
        name = f"b{len(self.state.brokers)}"
        self.order(RegisterBroker(name, len(self.state.brokers)))
        self.brokers.record_registration(BrokerRegistration(address=name, rack=rack, free_bytes=free_bytes))
        self.revive(name)
        return name

    def drain(self, name: str, *, is_draining: bool = True) -> None:
        self.order(DrainBroker(name, is_draining))

    def fill(self, name: str, free_bytes: int) -> None:
        found = self.brokers.find(name)
        assert found is not None
        self.brokers.record_registration(attrs.evolve(found, free_bytes=free_bytes))

    def kill(self, *names: str) -> None:
        for each in names:
            self.alive.discard(each)
            self.died_at.setdefault(each, self.now)
        self._hear()

    def revive(self, *names: str) -> None:
        for each in names:
            self.alive.add(each)
            self.died_at.pop(each, None)
        self._hear()

    def _hear(self) -> None:
        for each in self.alive:
            self.brokers.record_heartbeat(each, self.now)
        self.brokers.check_alive(self.now)

    def create(
        self,
        name: str,
        logs: int = 1,
        wanted: int = 0,
        placement: tuple[tuple[str, ...], ...] = (),
        **settings: str,
    ) -> None:
        topic = Topic(name, name, logs, settings, wanted, placement)
        placed = attrs.evolve(topic, placement=self.planner.place(topic))
        self.order(CreateTopic(placed, is_assigned=bool(placement)))
        self.planner.forget_placed()
        self.present.update((f"{name}/{number}", Epoch(each)) for number, each in enumerate(placed.placement))

    def ordered(self, log: str) -> LogReplicas:
        topic, _, number = log.partition("/")
        return self.state.replicas.of(self.state.topics[topic], int(number))

    def in_sync(self, log: str) -> set[str]:
        replicas = self.present[log].replicas
        return {each for each in self.alive.intersection(replicas) if self.copied.get((log, each), 0) <= self.now}

    def step(self) -> list[ChangeReplicas]:
        """Advance the clock by a second. Return what is ordered."""
        self.now += 1
        self._hear()
        changes = self.planner.advance(self.now)
        for each in changes:
            self.check(each)
            self.order(each)
        moving = Counter(each for found in self.state.replicas.changing.values() for each in found.added)
        assert all(each <= SETTINGS.moves_max for each in moving.values()), "a few logs move at a time"
        for log in self.present:
            self._change(log)
        return changes

    def _change(self, log: str) -> None:
        ordered, in_sync = self.ordered(log), self.in_sync(log)
        present = self.present[log] = self.present[log].promote(in_sync)
        topic, _, number = log.partition("/")
        if ordered.is_changing and present.is_made(ordered):
            self.order(ReplicasChanged(topic, int(number), present.generation, 1))
        following = present.follow(ordered, rank_nodes(log, present.replicas), in_sync)
        if following:
            for each in set(following.replicas) - set(present.replicas):
                self.copied[log, each] = self.now + self.copy_s
            self.present[log] = following

    def check(self, change: ChangeReplicas) -> None:
        """Check what is true of each order: only usable brokers come, and only those go that have to."""
        present = self.ordered(f"{change.topic_id}/{change.log}")
        coming, usable = set(change.replicas) - set(present.replicas), self.usable()
        if not present.assigned_count and coming:
            assert list(change.replicas) == rank_nodes(f"{change.topic_id}/{change.log}", change.replicas)
        assert coming <= (usable or set(present.former)), "former ones stay if no broker is usable"
        voting = set(present.former or present.replicas)
        assert 2 * len(voting & self.alive) > len(voting), "the others can agree on it"
        dead = {each for each, at in self.died_at.items() if self.now - at >= SETTINGS.replace_replicas_after_s}
        assert not any(each in dead and self.state.brokers[each].is_draining for each in change.replicas)
        for each in set(present.replicas) - set(change.replicas):
            is_gone = each in self.died_at and self.now - self.died_at[each] >= SETTINGS.replace_replicas_after_s
            found = self.brokers.find(each)
            is_damaged = found is not None and f"{change.topic_id}/{change.log}" in found.damaged_logs
            assert is_gone or is_damaged or each not in self.state.brokers or self.state.brokers[each].is_draining

    def usable(self) -> set[str]:
        found = [self.brokers.find(each) for each in self.alive if not self.state.brokers[each].is_draining]
        with_space = {each.address for each in found if each is not None and each.free_bytes >= SETTINGS.full_bytes}
        return with_space - self.brokers.unwritable

    def run(self, seconds: int) -> list[ChangeReplicas]:
        return [each for _ in range(seconds) for each in self.step()]

    def changing(self) -> Iterable[LogReplicas]:
        return self.state.replicas.changing.values()

    def rest(self) -> None:
        changed_at = self.now
        while self.now < changed_at + 90:
            is_at_rest = not self.step() and not any(
                2 * len(self.alive & {*each.former}) > len(each.former) for each in self.changing()
            )
            changed_at = changed_at if is_at_rest else self.now
            assert self.now < 3000, "replicas do not come to rest"


def test_every_change_has_a_reason() -> None:
    cluster = Cluster(broker_count=5)
    cluster.create("logs", 3)
    assert cluster.run(5) == []
    first, *_ = cluster.present["logs/0"].replicas
    cluster.drain(first)
    assert {each.reason for each in cluster.run(20)} == {Reason.DRAINED}
    assert all(first not in each.replicas for each in cluster.present.values())
    cluster.drain(first, is_draining=False)
    assert cluster.run(20) == []
    dead = cluster.present["logs/1"].replicas[0]
    cluster.kill(dead)
    assert cluster.run(60) == [], "it is silent since the first of these seconds"
    assert {each.reason for each in cluster.run(1)} == {Reason.DEAD}
    cluster.run(20)
    cluster.revive(dead)
    cluster.create("wide", 1, wanted=9)
    assert cluster.run(20) == [], "there are no further brokers"
    cluster.add_broker()
    (missing,) = cluster.run(20)
    assert (missing.topic_id, missing.reason, len(missing.replicas)) == ("wide", Reason.MISSING, 6)


def test_a_cluster_of_one_grows_and_its_internal_logs_are_first() -> None:
    cluster = Cluster(broker_count=1)
    cluster.create("a", 5)
    cluster.create("$coordinators", 3)
    assert {each.replicas for each in cluster.present.values()} == {("b0",)}
    cluster.add_broker()
    cluster.add_broker()
    order = [each.topic_id for each in cluster.run(60)]
    assert order[:3] == ["$coordinators"] * 3
    assert all(set(each.replicas) == {"b0", "b1", "b2"} for each in cluster.present.values())


def test_nothing_moves_while_more_than_a_third_of_the_brokers_is_silent() -> None:
    for count, silent in product(range(4, 10), range(1, 4)):
        cluster = Cluster(broker_count=count)
        cluster.create("logs", 20)
        cluster.kill(*(f"b{number}" for number in range(silent)))
        assert bool(cluster.run(90)) == (3 * silent <= count)
        cluster.revive(*cluster.state.brokers)


def test_a_dead_broker_without_a_successor_stays_a_replica_until_it_is_drained() -> None:
    cluster = Cluster(broker_count=3)
    cluster.create("logs", 1)
    cluster.kill("b2")
    assert cluster.run(90) == []
    cluster.drain("b2")
    assert [set(each.replicas) for each in cluster.run(5)] == [{"b0", "b1"}]


def test_a_new_controller_measures_silence_anew() -> None:
    cluster = Cluster(broker_count=4)
    cluster.create("logs", 4)
    cluster.kill("b0")
    assert cluster.run(50) == []
    cluster.planner.begin()
    assert cluster.run(59) == []
    assert cluster.run(5)


def test_a_replica_that_dies_while_it_copies_is_given_up() -> None:
    cluster = Cluster(broker_count=4, copy_s=1000)
    cluster.create("logs", 1, wanted=3, placement=(("b0", "b1", "b2"),))
    cluster.drain("b0")
    (moved,) = cluster.run(5)
    assert set(moved.replicas) == {"b1", "b2", "b3"}
    cluster.add_broker()
    cluster.kill("b3")
    (again,) = cluster.run(70)
    assert (set(again.replicas), again.generation) == ({"b1", "b2", "b4"}, 2)


def test_living_brokers_keep_a_log_if_all_are_drained_and_one_is_forgotten() -> None:
    cluster = Cluster(broker_count=4, copy_s=1000)
    cluster.create("logs", 1, wanted=3, placement=(("b0", "b1", "b2"),))
    cluster.drain("b0")
    (moved,) = cluster.run(5)
    assert "b3" in moved.replicas
    for each in ("b1", "b2", "b3"):
        cluster.drain(each)
    cluster.kill("b3")
    cluster.order(ForgetBroker("b3"))
    (kept,) = cluster.run(70)
    assert set(kept.replicas) == {"b0", "b1", "b2"}


def test_a_successor_comes_into_the_rack_that_has_lost_a_replica() -> None:
    cluster = Cluster()
    racks = {cluster.add_broker(rack): rack for rack in "rstrst"}
    cluster.create("logs", 10)
    cluster.drain("b0")
    assert cluster.run(90)
    for each in cluster.present.values():
        assert {racks[store] for store in each.replicas} == {*"rst"}


def test_damaged_replicas_are_copied_anew_one_after_the_other_while_one_is_whole() -> None:
    cluster = Cluster(broker_count=3)
    cluster.create("logs", 1)
    cluster.create("branched", 1, availability="branch")

    def damage(to_copy: str, *damaged: str) -> None:
        for each in ("b0", "b1", "b2"):
            cluster.brokers.record_registration(
                BrokerRegistration(
                    address=each,
                    free_bytes=1000,
                    damaged_logs=("logs/0", "branched/0") * (each in damaged),
                    logs_to_copy=("logs/0", "branched/0") * (each in to_copy),
                )
            )

    damage("b0 b1 b2", "b0", "b1", "b2")
    assert cluster.run(20) == [], "none is whole"
    damage("", "b0", "b1")
    assert cluster.run(20) == [], "they are idle"
    damage("b0 b1", "b0", "b1")
    cluster.kill("b2")
    assert cluster.run(20) == [], "the whole one is not heard"
    cluster.revive("b2")
    (moved,) = cluster.run(20)
    assert (set(moved.replicas), moved.reason) == ({"b1", "b2"}, Reason.DAMAGED)
    damage("b1", "b1")
    assert [({*each.replicas}, each.reason) for each in cluster.run(20)] == [({"b0", "b2"}, Reason.DAMAGED)]
    damage("")
    assert [len(each.replicas) for each in cluster.run(20)] == [3]


def test_logs_whose_replicas_are_assigned_keep_their_number_and_order() -> None:
    cluster = Cluster(broker_count=5)
    cluster.create("one", 1, wanted=2, placement=(("b2", "b1", "b0", "b3"),))
    assert cluster.run(20) == []
    cluster.drain("b2")
    (moved,) = cluster.run(20)
    assert moved.replicas == ("b1", "b0", "b3", "b4")
    cluster.kill("b3")
    cluster.order(ForgetBroker("b3"))
    assert [(each.replicas, each.reason) for each in cluster.run(20)] == [(("b1", "b0", "b4"), Reason.FORGOTTEN)]
    cluster.drain("b2", is_draining=False)
    assert [(each.replicas, each.reason) for each in cluster.run(20)] == [(("b1", "b0", "b4", "b2"), Reason.MISSING)]


def test_new_logs_are_placed_on_silent_brokers_rather_than_on_too_few() -> None:
    cluster = Cluster(broker_count=4)
    cluster.kill("b1", "b2", "b3")
    cluster.drain("b3")
    cluster.run(10)
    cluster.create("logs", 1)
    assert set(cluster.present["logs/0"].replicas) == {"b0", "b1", "b2"}
    cluster.run(60)
    cluster.create("later", 1)
    assert cluster.present["later/0"].replicas == ("b0",), "they have been dead for too long"
    cluster.drain("b0")
    assert cluster.planner.place(Topic("nowhere", "nowhere")) == (("controller",),)


def test_drained_full_stopping_and_unwritable_brokers_lead_only_if_no_other_replica_can() -> None:
    cluster = Cluster(broker_count=6)
    cluster.drain("b1")
    cluster.fill("b2", 99)
    cluster.fill("b3", 100)
    cluster.brokers.record_registration(BrokerRegistration(address="b4", free_bytes=100, is_stopping=True))
    cluster.brokers.record_storage("b5", can_write=False)
    cluster.brokers.check_alive(cluster.now)
    assert find_ineligible_leaders(cluster.state, cluster.brokers, 100) == {"b1", "b2", "b4", "b5", "controller"}


TOPICS = st.lists(st.tuples(st.integers(1, 8), st.integers(1, 4)), min_size=1, max_size=5)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from("rs"), st.integers(100, 10**6)), min_size=1, max_size=7), TOPICS)
def test_new_logs_stay_where_they_are(brokers: list[tuple[str, int]], topics: list[tuple[int, int]]) -> None:
    """Also if loads differ: because of racks, of logs that are deleted, and of brokers that come."""
    cluster = Cluster()
    for rack, free_bytes in brokers:
        cluster.add_broker(rack, free_bytes)
    for number, (logs, wanted) in enumerate(topics):
        cluster.create(f"t{number}", logs, min(wanted, len(brokers)))
        assert cluster.run(3) == []
        if cluster.draw.random() < 0.3:
            cluster.order(DeleteTopic(f"t{number}"))
            cluster.present = {
                log: each for log, each in cluster.present.items() if log[: len(f"t{number}")] != f"t{number}"
            }
        if cluster.draw.random() < 0.3:
            cluster.add_broker(cluster.draw.choice("rs"))
        assert cluster.run(3) == []


@settings(max_examples=40)
@given(st.integers(1, 7), TOPICS)
def test_new_logs_are_spread_evenly(count: int, topics: list[tuple[int, int]]) -> None:
    cluster = Cluster(broker_count=count)
    for number, (logs, wanted) in enumerate(topics):
        cluster.create(f"t{number}", logs, wanted)
        placement = cluster.state.topics[f"t{number}"].placement
        led, kept = Counter(leader for leader, *_ in placement), Counter(each for log in placement for each in log)
        for log, (_, *others) in enumerate(placement):
            assert others == rank_nodes(f"t{number}/{log}", others)
        for numbers, apart in ((led, 1), (kept, 2)):
            found = [numbers[each] for each in cluster.state.brokers]
            assert max(found) - min(found) <= apart, "one topic"
    loads = [cluster.state.replicas.counts[each] for each in cluster.state.brokers]
    assert max(loads) - min(loads) <= 1 + LOADS_APART


def test_topics_that_are_created_at_the_same_time_are_spread_evenly() -> None:
    cluster = Cluster(broker_count=5)
    topics = [Topic(f"t{number}", f"t{number}", replica_count=1) for number in range(50)]
    for _ in range(2):
        placed = Counter(cluster.planner.place(each) for each in topics)
        assert len(placed) == 5
        assert max(placed.values()) - min(placed.values()) <= 1 + LOADS_APART
        cluster.planner.forget_placed()


@pytest.mark.parametrize("seed", range(20))
def test_replicas_come_to_rest_where_brokers_take_them_whatever_happens(seed: int) -> None:
    draw = random.Random(seed)
    cluster = Cluster(seed, draw.randint(1, 6), draw.choice([0, 3, 20]))
    wanted = draw.choice([1, 2, 3, 4])
    cluster.create("logs", draw.randint(1, 9), wanted)
    for _ in range(8):
        name = draw.choice(sorted(cluster.state.brokers))
        match draw.choice(["kill", "add", "drain", "fill", "revive"]):
            case "kill" if 3 * (len(cluster.died_at) + 1) <= len(cluster.state.brokers):
                cluster.kill(name)
            case "add":
                cluster.add_broker(draw.choice(["", "r1", "r2"]))
            case "drain":
                cluster.drain(name, is_draining=draw.random() < 0.6)
            case "fill":
                cluster.fill(name, draw.choice([50, 500, 5000]))
                cluster.brokers.record_storage(name, can_write=draw.random() < 0.5)
            case "revive":
                cluster.revive(*cluster.state.brokers)
        cluster.run(draw.choice([1, 10, 59, 100]))
    if draw.random() < 0.5:
        cluster.revive(*cluster.state.brokers)
    cluster.rest()
    for log, present in cluster.present.items():
        if 2 * len(cluster.in_sync(log)) > len(present.replicas):
            staying = [each for each in present.replicas if each in cluster.alive]
            staying = [each for each in staying if not cluster.state.brokers[each].is_draining]
            assert len(staying) >= min(wanted, len(cluster.usable())), log


# Making a change


REPLICAS = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=4, unique=True).map(tuple)


@given(REPLICAS, REPLICAS, REPLICAS, st.sets(st.sampled_from("abcdef")), st.integers(0, 4))
def test_a_change_ends_with_what_was_ordered_and_loses_no_majority(
    former: tuple[str, ...], first: tuple[str, ...], wanted: tuple[str, ...], dead: set[str], steps: int
) -> None:
    """Another change can take its place before it is made, and what that has added can be dead."""
    before = LogReplicas(former).order(first, 1, Reason.ASKED)
    ordered = before.order(wanted, 2, Reason.ASKED)
    present = Epoch(former)
    for step in range(12):
        in_sync = set(present.replicas) - dead
        present = present.promote(in_sync)
        following = present.follow(ordered if step >= steps else before, present.replicas, in_sync)
        if following is not None:
            if not set(present.voters) <= set(following.replicas):
                assert set((ordered if step >= steps else before).added) <= in_sync
                kept = in_sync & set(following.voters)
                assert 2 * len(kept) > len(following.voters), "nothing more is acknowledged"
            present = following
    if ordered.is_changing and not dead & {*former, *wanted}:
        assert present.is_made(ordered)
    later = attrs.evolve(present, generation=3)
    assert next_replicas(ordered, later, 3, present.voters[0], present.replicas) is None, "newer replicas were ordered"
