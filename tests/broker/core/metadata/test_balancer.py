"""Balancing: replicas follow the brokers that are there, one step at a time, and come to rest."""

from __future__ import annotations

import random
from collections import Counter

import attrs
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dafka.broker.core.metadata.balancer import PLANNING_S, SHARE_S, Balancer, BalancerSettings
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
        self.died_at: dict[str, float] = {}
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
                self.check_change(log, change.replicas)
                for each in set(change.replicas) - set(log.replicas):
                    self.copied[log.name, each] = self.now + self.copy_s
                made.append((log.name, log.replicas, change.replicas))
                self.logs[log.name] = attrs.evolve(log, replicas=change.replicas)
        self.changes += len(made)
        return made

    def check_change(self, log: LogPlacement, replicas: tuple[str, ...]) -> None:
        """Check what is true of each change: the leader and a majority in sync stay, and only usable brokers come."""
        assert log.leader in replicas
        assert len(set(replicas)) == len(replicas)
        assert self.usable().issuperset(set(replicas) - set(log.replicas))
        for each in set(log.replicas) - set(replicas) - self.alive:
            is_gone = self.now - self.died_at[each] >= SETTINGS.replace_replicas_after_s
            assert is_gone or self.brokers[each].is_draining or len(log.replicas) > log.wanted
        if set(replicas) < set(log.replicas):
            acknowledging = self.alive.intersection(replicas, log.in_sync)
            assert 2 * len(acknowledging) > len(replicas), "nothing more is acknowledged"

    def usable(self) -> set[str]:
        found = (self.brokers[each] for each in self.alive)
        return {each.address for each in found if not each.is_draining and each.free_bytes >= SETTINGS.full_bytes}

    def kill(self, name: str) -> None:
        self.alive.discard(name)
        self.died_at.setdefault(name, self.now + 1)

    def revive(self, *names: str) -> None:
        for each in names:
            self.alive.add(each)
            self.died_at.pop(each, None)

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.step()

    def rest(self) -> None:
        """Advance the clock until nothing has changed for a minute and a half."""
        changed_at = self.now
        while self.now < changed_at + 90:
            changed_at = self.now if self.step() else changed_at
            assert self.now < 2000, "replicas do not come to rest"

    def loads(self) -> Counter[str]:
        return Counter(each for log in self.logs.values() for each in log.replicas)


def test_a_change_that_fails_is_asked_for_again_and_not_before_some_time_has_passed() -> None:
    brokers = [BrokerRegistration(address=f"b{number}", free_bytes=1000) for number in range(4)]
    balancer = Balancer("b0", SETTINGS)
    log = LogPlacement("log", "b0", ("b0", "b1"), 3, ("b0", "b1"))
    asked = [
        now for now in range(30) if balancer.advance(brokers, {each.address for each in brokers}, [log], float(now))
    ]
    assert asked == [0, 5, 10, 15, 20, 25]


@pytest.mark.parametrize("receives_s", [0, 1, 20, 41])
def test_a_broker_has_its_share_some_time_after_the_last_plan_that_gave_it_a_log(receives_s: int) -> None:
    brokers = [BrokerRegistration(address=f"b{number}", free_bytes=1000, awaits_share=number == 1) for number in (0, 1)]
    balancer = Balancer("b1", SETTINGS)
    receiving = LogPlacement("log", "b0", ("b0", "b1"), 1, ("b0",))
    for now in range(100):
        logs = [receiving] if now < receives_s else []
        balancer.advance(brokers, {"b0", "b1"}, logs, float(now))
        last = max((each for each in range(0, min(now + 1, receives_s), int(PLANNING_S))), default=0)
        assert balancer.has_share == (now >= last + SHARE_S)
    balancer.advance(brokers[:1], {"b0", "b1"}, [], 100.0)
    assert not balancer.has_share, "it awaits none any more"


def reasons(cluster: Cluster, log: str, assigned: tuple[str, ...] = ()) -> set[Reason | None]:
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
    cluster.kill("b1")
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
            cluster.kill(stopped)
            cluster.run(3)
            cluster.revive(stopped)
        cluster.run(7)
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
        moving = [log for log in cluster.logs.values() if len(log.replicas) > log.wanted]
        assert len(moving) <= SETTINGS.moves_max, "a few logs move at a time"
    share = cluster.loads()[added]
    assert cluster.changes == 2 * share  # each is added, then the replica that it replaces is removed
    assert share in {total // (count + 1), -(-total // (count + 1))}
    assert not cluster.brokers[added].awaits_share
    for _ in range(20):
        assert not cluster.step()


@pytest.mark.parametrize("seed", range(20))
def test_replicas_come_to_rest_where_brokers_take_them_whatever_happens(seed: int) -> None:
    draw = random.Random(seed)
    cluster = Cluster(seed, draw.randint(1, 6), draw.randint(1, 9), draw.choice([1, 2, 3, 4]), draw.choice([0, 3, 20]))
    for _ in range(8):
        name = draw.choice(sorted(cluster.brokers))
        match draw.choice(["kill", "add", "drain", "fill", "revive"]):
            case "kill" if len(cluster.alive) > 1:
                cluster.kill(name)
            case "add":
                cluster.add_broker(draw.choice(["", "r1", "r2"]))
            case "drain":
                cluster.describe(name, is_draining=draw.random() < 0.6)
            case "fill":
                cluster.describe(name, free_bytes=draw.choice([50, 500, 5000]))
            case "revive":
                cluster.revive(*cluster.brokers)
        cluster.run(draw.choice([1, 10, 59, 100]))
    if draw.random() < 0.5:
        cluster.revive(*cluster.brokers)
    cluster.rest()
    for log in cluster.logs.values():
        if log.leader:
            staying = [each for each in log.replicas if each in cluster.alive and not cluster.brokers[each].is_draining]
            assert len(staying) >= min(log.wanted, len(cluster.usable())), log
            assert len(staying) < log.wanted or len(log.replicas) == len(staying) == log.wanted, log
            ready = [each for each in staying if each in cluster.usable()]
            assert not ready or log.leader in ready, "full brokers lead only if no other one can"
