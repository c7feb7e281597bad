"""Balancing: replicas follow the brokers that are there, one step at a time, and come to rest."""

from __future__ import annotations

import random
from collections import Counter

import attrs
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dafka.broker.core.metadata.balancer import Balancer, BalancerSettings
from dafka.broker.core.metadata.brokers import BrokerRegistration
from dafka.broker.core.metadata.replica_placement import LogPlacement, Reason
from dafka.protocol.rendezvous import rank_nodes

SETTINGS = BalancerSettings(replace_replicas_after_s=60, full_bytes=100, moves_max=2)


class Cluster:
    """Brokers that carry out what their balancers say, without any network between them.

    A further replica is in sync after `copy_s`. A log is led by the preferred living replica in sync.
    """

    def __init__(self, seed: int, broker_count: int, log_count: int = 0, wanted: int = 3, copy_s: float = 3) -> None:
        self.draw = random.Random(seed)
        self.now = 0.0
        self.copy_s = copy_s
        self.brokers: dict[str, BrokerRegistration] = {}
        self.alive: set[str] = set()
        self.balancers: dict[str, Balancer] = {}
        self.logs: dict[str, LogPlacement] = {}
        self.copied: dict[tuple[str, str], float] = {}
        self.changes = 0
        for _ in range(broker_count):
            self.add_broker()
        for number in range(log_count):
            name = f"orders/{number}"
            self.add_log(name, tuple(self.draw.sample(sorted(self.brokers), min(wanted, broker_count))), wanted)

    def add_broker(self, rack: str = "", free_bytes: int = 1000) -> str:
        name = f"b{len(self.brokers)}"
        self.brokers[name] = BrokerRegistration(address=name, rack=rack, free_bytes=free_bytes, awaits_share=True)
        self.alive.add(name)
        self.balancers[name] = Balancer(name, SETTINGS)
        return name

    def describe(self, name: str, **changes: object) -> None:
        self.brokers[name] = attrs.evolve(self.brokers[name], **changes)  # type: ignore[arg-type]

    def add_log(self, name: str, replicas: tuple[str, ...], wanted: int) -> None:
        self.logs[name] = LogPlacement(name, rank_nodes(name, replicas)[0], replicas, wanted, replicas)

    def create(self, *topics: tuple[str, int, int]) -> None:
        """Create topics at any broker, each with a name, a number of logs, and of replicas."""
        for topic, count, wanted in topics:
            creator = self.balancers[self.draw.choice(sorted(self.alive))]
            names = [f"{topic}/{number}" for number in range(count)]
            existing = list(self.logs.values())
            placed = creator.place_logs(self.brokers.values(), self.alive, existing, names, wanted, self.now)
            for name, replicas in zip(names, placed, strict=True):
                self.add_log(name, replicas, wanted)

    def step(self) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
        """Let a second pass. Return the changes: the log, its replicas before and after."""
        self.now += 1
        for name, log in self.logs.items():
            synced = [each for each in log.replicas if self.copied.get((name, each), 0) <= self.now]
            in_sync = tuple(each for each in synced if each in self.alive or each in log.in_sync)
            living = [each for each in rank_nodes(name, synced) if each in self.alive]
            living.sort(key=lambda each: each in self.balancers[each].ineligible_leaders(name))
            self.logs[name] = attrs.evolve(log, leader=living[0] if living else "", in_sync=in_sync)
        made = []
        seen = list(self.logs.values())
        for broker in sorted(self.alive):
            balancer = self.balancers[broker]
            changes = balancer.advance(self.brokers.values(), self.alive, seen, self.now)
            if balancer.has_share:
                self.describe(broker, awaits_share=False)
            for change in changes:
                log = self.logs[change.log]
                assert log.leader == broker
                assert broker in change.replicas
                assert len(set(change.replicas)) == len(change.replicas)
                if set(change.replicas) < set(log.replicas):
                    acknowledging = self.alive.intersection(change.replicas, log.in_sync)
                    assert 2 * len(acknowledging) > len(change.replicas), "nothing more is acknowledged"
                for each in set(change.replicas) - set(log.replicas):
                    self.copied[log.name, each] = self.now + self.copy_s
                made.append((log.name, log.replicas, change.replicas))
                self.logs[log.name] = attrs.evolve(log, replicas=change.replicas)
        self.changes += len(made)
        return made

    def run(self, seconds: int = 300) -> None:
        """Let time pass, and check that each log always has enough replicas in sync."""
        for _ in range(seconds):
            self.step()
            for log in self.logs.values():
                living = [each for each in log.replicas if each in self.alive and each in log.in_sync]
                assert len(living) > len(log.replicas) // 2 or log.wanted <= 2, log

    def loads(self) -> Counter[str]:
        return Counter(each for log in self.logs.values() for each in log.replicas)

    def check_rest(self) -> None:
        """Check that nothing changes any more."""
        before = self.changes
        self.run(120)
        assert self.changes == before


def test_the_replicas_of_a_broker_are_replaced_when_it_has_been_dead_for_long() -> None:
    cluster = Cluster(1, 5, 20)
    cluster.run(300)
    cluster.alive.remove("b1")
    before = dict(cluster.loads())
    cluster.run(59)
    assert cluster.loads() == before
    cluster.run(120)
    assert cluster.loads()["b1"] == 0
    assert all(len(log.replicas) == 3 for log in cluster.logs.values())
    cluster.check_rest()


def test_a_dead_replica_is_replaced_in_one_step_so_that_the_living_ones_remain_more_than_half() -> None:
    cluster = Cluster(1, 4)
    cluster.add_log("log", ("b0", "b1", "b2"), 3)
    dead = next(each for each in ("b1", "b2") if each != rank_nodes("log", ("b0", "b1", "b2"))[0])
    cluster.alive.remove(dead)
    made = [each for _ in range(100) for each in cluster.step()]
    assert [set(after) for _, _, after in made] == [{"b0", "b1", "b2", "b3"} - {dead}]


def test_a_broker_that_comes_back_in_time_keeps_its_replicas() -> None:
    cluster = Cluster(2, 5, 20)
    cluster.run(300)
    before = dict(cluster.logs)
    for _ in range(5):
        cluster.alive.remove("b1")
        cluster.run(50)
        cluster.alive.add("b1")
        cluster.run(10)
    assert {name: log.replicas for name, log in cluster.logs.items()} == {
        name: log.replicas for name, log in before.items()
    }


def test_a_dead_replica_stays_where_no_broker_can_replace_it() -> None:
    cluster = Cluster(1, 3, 6)
    cluster.alive.remove("b1")
    cluster.run(200)
    assert cluster.changes == 0
    added = cluster.add_broker()
    cluster.run(200)
    assert cluster.loads() == {"b0": 6, "b2": 6, added: 6}


def test_a_broker_that_is_drained_hands_over_its_leadership_and_then_its_replicas() -> None:
    cluster = Cluster(3, 5, 20)
    cluster.run(100)
    cluster.describe("b2", is_draining=True)
    cluster.run(200)
    assert cluster.loads()["b2"] == 0
    assert all(len(log.replicas) == 3 for log in cluster.logs.values())
    cluster.check_rest()


def test_a_broker_that_is_drained_keeps_its_replica_until_its_successor_is_in_sync() -> None:
    cluster = Cluster(3, 4)
    cluster.add_log("log", ("b0", "b1", "b2"), 3)
    drained = next(each for each in ("b0", "b1", "b2") if each != cluster.logs["log"].leader)
    cluster.describe(drained, is_draining=True)
    steps = [[set(after) for _, _, after in cluster.step()] for _ in range(6)]
    everybody = {"b0", "b1", "b2", "b3"}
    assert steps == [[everybody], [], [], [everybody - {drained}], [], []]


def test_the_only_replica_of_a_log_can_be_drained() -> None:
    cluster = Cluster(3, 2)
    cluster.add_log("log", ("b0",), 1)
    cluster.describe("b0", is_draining=True)
    cluster.run(50)
    assert cluster.logs["log"].replicas == ("b1",)


def test_a_broker_that_is_drained_keeps_its_replica_while_a_dead_one_would_be_half_of_the_rest() -> None:
    cluster = Cluster(3, 3, 6)
    cluster.alive.remove("b1")
    cluster.run(100)
    cluster.describe("b2", is_draining=True)
    cluster.run(100)
    assert cluster.loads() == {"b0": 6, "b1": 6, "b2": 6}
    added = cluster.add_broker()
    cluster.run(100)
    assert cluster.loads() == {"b0": 6, added: 6}


def test_the_last_broker_keeps_its_logs_though_it_is_drained() -> None:
    cluster = Cluster(3, 1, 2, wanted=1)
    cluster.describe("b0", is_draining=True)
    cluster.run(50)
    assert cluster.changes == 0


def test_a_full_broker_gets_no_replicas_and_leads_nothing() -> None:
    cluster = Cluster(4, 5, 20)
    cluster.describe("b3", free_bytes=99)
    cluster.alive.remove("b1")
    before = cluster.loads()["b3"]
    cluster.run(300)
    assert cluster.loads()["b3"] <= before
    assert all(log.leader != "b3" for log in cluster.logs.values())


def test_missing_replicas_are_added_as_brokers_come() -> None:
    cluster = Cluster(5, 1, 6, wanted=3)
    cluster.run(20)
    assert cluster.changes == 0
    for count in (2, 3, 4):
        cluster.add_broker()
        for _ in range(200):
            cluster.step()
        assert {len(log.replicas) for log in cluster.logs.values()} == {min(count, 3)}
    cluster.check_rest()


@pytest.mark.parametrize("seed", range(10))
def test_a_further_broker_gets_its_share_a_few_logs_at_a_time(seed: int) -> None:
    cluster = Cluster(seed, 3, 24)
    added = cluster.add_broker()
    for _ in range(400):
        cluster.step()
        moving = [log for log in cluster.logs.values() if len(log.replicas) > 3]
        assert len(moving) <= SETTINGS.moves_max
    assert cluster.loads()[added] in {17, 18}
    cluster.check_rest()


def test_logs_with_one_replica_move_to_a_further_broker() -> None:
    cluster = Cluster(1, 2, 12, wanted=1)
    cluster.add_broker()
    cluster.run(400)
    assert max(cluster.loads().values()) - min(cluster.loads()[each] for each in cluster.brokers) <= 1
    cluster.check_rest()


def test_racks_remain_spread_when_replicas_move() -> None:
    cluster = Cluster(6, 0)
    for number in range(6):
        cluster.add_broker(rack=f"r{number % 3}")
    for number in range(30):
        cluster.add_log(f"orders/{number}", tuple(f"b{cluster.draw.choice([each, each + 3])}" for each in range(3)), 3)
    cluster.add_broker(rack="r0")
    cluster.add_broker(rack="r1")
    cluster.describe("b5", is_draining=True)
    cluster.run(500)
    for log in cluster.logs.values():
        assert {cluster.brokers[each].rack for each in log.replicas} == {"r0", "r1", "r2"}
    assert cluster.loads()["b6"] > 5
    assert cluster.loads()["b5"] == 0
    cluster.check_rest()


def test_a_change_that_fails_is_asked_for_again_and_not_before_some_time_has_passed() -> None:
    brokers = [BrokerRegistration(address=f"b{number}", free_bytes=1000) for number in range(4)]
    balancer = Balancer("b0", SETTINGS)
    log = LogPlacement("log", "b0", ("b0", "b1"), 3, ("b0", "b1"))
    asked = [
        now for now in range(30) if balancer.advance(brokers, {each.address for each in brokers}, [log], float(now))
    ]
    assert asked == [0, 5, 10, 15, 20, 25]


def reasons(cluster: Cluster, log: str, assigned: tuple[str, ...] = ()) -> set[Reason | None]:
    """Return why a log moves, as the brokers say; all say the same."""
    placed = cluster.logs[log]
    cluster.step()
    return {cluster.balancers[each].explain(placed, assigned) for each in cluster.alive}


def test_every_move_has_a_reason() -> None:
    cluster = Cluster(1, 4, copy_s=30)
    for name in ("one", "two", "three"):
        cluster.add_log(name, ("b0", "b1", "b2"), 3)
    cluster.describe("b3", awaits_share=False)
    assert reasons(cluster, "one") == {None}
    assert reasons(cluster, "one", ("b0", "b3")) == {Reason.ASKED}
    cluster.describe("b2", is_draining=True)
    assert reasons(cluster, "one") == {Reason.DRAINED}
    cluster.describe("b2", is_draining=False)
    cluster.add_log("short", ("b0",), 2)
    assert reasons(cluster, "short") == {Reason.MISSING}
    cluster.alive.remove("b1")
    for _ in range(60):
        cluster.step()
    cluster.add_log("dead", ("b0", "b1"), 2)
    assert reasons(cluster, "dead") == {Reason.DEAD}
    cluster.add_log("surplus", ("b0", "b2", "b3"), 2)
    assert reasons(cluster, "surplus") == {Reason.SURPLUS}
    cluster.describe("b3", awaits_share=True)
    cluster.add_log("shared", ("b0", "b2", "b3"), 2)
    assert reasons(cluster, "shared") == {Reason.SHARE}


TOPICS = st.lists(st.tuples(st.integers(1, 8), st.integers(1, 4)), min_size=1, max_size=5)


@settings(max_examples=40)
@given(st.lists(st.integers(100, 10**6), min_size=1, max_size=7), TOPICS, st.booleans())
def test_new_logs_stay_where_they_are(free: list[int], topics: list[tuple[int, int]], are_new: bool) -> None:
    """The balancer proposes no move, however much space the brokers have, also if all of them have just come."""
    cluster = Cluster(1, 0)
    for each in free:
        cluster.describe(cluster.add_broker(free_bytes=each), awaits_share=are_new)
    for number, (count, wanted) in enumerate(topics):
        cluster.create((f"t{number}", count, wanted))
        for _ in range(7):
            assert not cluster.step()
    loads = [cluster.loads()[each] for each in cluster.brokers]
    assert max(loads) - min(loads) <= 1


@settings(max_examples=40)
@given(st.lists(st.sampled_from(["r1", "r2", "r3"]), min_size=1, max_size=7), TOPICS, st.integers())
def test_logs_move_only_when_something_has_changed(racks: list[str], topics: list[tuple[int, int]], seed: int) -> None:
    """Racks, logs that are deleted, and brokers that were stopped for a moment leave loads that differ."""
    cluster = Cluster(seed, 0)
    draw = cluster.draw
    for rack in racks:
        cluster.describe(cluster.add_broker(rack, draw.randrange(100, 10**6)), awaits_share=False)
    for number, (count, wanted) in enumerate(topics):
        cluster.create((f"t{number}", count, wanted))
        for name in [each for each in cluster.logs if draw.random() < 0.3]:
            del cluster.logs[name]
        if len(racks) > 1:
            stopped = draw.choice(sorted(cluster.alive))
            cluster.alive.remove(stopped)
            for _ in range(3):
                cluster.step()
            cluster.alive.add(stopped)
        for _ in range(7):
            cluster.step()
    assert cluster.changes == 0


@settings(max_examples=15)
@example(4, [(5, 2)])  # one broker leads all the logs that it keeps
@given(st.integers(1, 5), st.lists(st.tuples(st.integers(1, 6), st.integers(1, 3)), min_size=1, max_size=3))
def test_further_broker_gets_its_share_with_the_fewest_moves(count: int, topics: list[tuple[int, int]]) -> None:
    cluster = Cluster(1, count)
    cluster.create(*((f"t{number}", logs, min(wanted, count)) for number, (logs, wanted) in enumerate(topics)))
    for _ in range(20):
        assert not cluster.step()
    assert not any(each.awaits_share for each in cluster.brokers.values())
    added = cluster.add_broker()
    total = sum(cluster.loads().values())
    while cluster.brokers[added].awaits_share and cluster.now < 600:
        cluster.step()
    share = cluster.loads()[added]
    assert cluster.changes == 2 * share  # each is added, then the replica that it replaces is removed
    assert share in {total // (count + 1), -(-total // (count + 1))}
    assert not cluster.brokers[added].awaits_share
    for _ in range(20):
        assert not cluster.step()


@pytest.mark.parametrize("seed", range(12))
def test_replicas_come_to_rest_whatever_happens_to_the_brokers(seed: int) -> None:
    draw = random.Random(seed)
    cluster = Cluster(seed, draw.randint(3, 9), draw.randint(1, 30), draw.choice([1, 2, 3, 5]), draw.choice([0, 3, 20]))
    for _ in range(8):
        names = sorted(cluster.brokers)
        what = draw.randrange(5)
        if what == 0 and len(cluster.alive) > 5:
            cluster.alive.discard(draw.choice(names))
        elif what == 1:
            cluster.add_broker(draw.choice(["", "r1", "r2"]))
        elif what == 2:
            cluster.describe(draw.choice(names), is_draining=draw.random() < 0.6)
        elif what == 3:
            cluster.describe(draw.choice(names), free_bytes=draw.choice([50, 500, 5000]))
        else:
            cluster.alive.update(names)
        for _ in range(draw.choice([1, 10, 100])):
            cluster.step()
    for _ in range(1000):
        cluster.step()
    before = cluster.changes
    for _ in range(200):
        cluster.step()
    assert cluster.changes == before
    usable = [
        name
        for name, each in cluster.brokers.items()
        if name in cluster.alive and not each.is_draining and each.free_bytes >= 100
    ]
    for log in cluster.logs.values():
        staying = [each for each in log.replicas if each in cluster.alive and not cluster.brokers[each].is_draining]
        assert not log.leader or len(staying) >= min(log.wanted, len(usable)), log
