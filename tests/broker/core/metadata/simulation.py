"""Runs clusters with faults drawn from a seed: `python -m tests.broker.core.metadata.simulation --seeds 1000`.

Brokers crash, are cut off, drained, added and lost for good, while topics are created, changed, written to and deleted
through all of them. The log of metadata and the logs of topics are replicated by the same machine. The model is: what
the cluster is, is a function of the committed commands, and an acknowledged record of a topic that was not deleted can
be read.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import attrs

from dafka.broker.core.metadata.cluster_state import ClusterState
from dafka.broker.core.metadata.commands import (
    AddLogs,
    AlterSettings,
    ChangeReplicas,
    Command,
    CreateTopic,
    DeleteTopic,
    DrainBroker,
    ForgetBroker,
    Order,
    RegisterBroker,
)
from dafka.broker.core.metadata.outcome import DONE, Outcome
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.metadata.voters import choose_voters
from dafka.broker.core.partition_address import name_log
from dafka.broker.core.replication.settings import ReplicaSettings
from tests.broker.core.metadata.script import METADATA, TopicBroker, Topics, keep_log
from tests.broker.core.replication.brokers import KeptLog
from tests.broker.core.replication.history import Violation
from tests.broker.core.replication.read_log import Indexed
from tests.broker.core.replication.running import FAULTS_S, Faults

NAMES = ("orders", "visits", "views")
VOTER_AFTER_S = 3.0
FORGETTING_S = 8.0
HEALING_S = 30.0
LAST_S = 60.0
"""The longest time after which all changes of replicas are made, when everything has healed, in seconds."""


class SimulatedCluster(Topics):
    """Brokers of one cluster, of which the last ones start later."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = self.draw = random.Random(seed)
        self.transaction_draw = random.Random(f"transactions {seed}")
        self.settings = ReplicaSettings(preferred_leader_after_s=3.0)
        self.has_leases = seed % 2 == 0
        self.checks_stores = seed % 3 == 1
        self.has_transactions = self.keeps_indexes = False
        self.lost: set[str] = set()
        self.forgetful = 0
        self.told: dict[str, tuple[Command, Outcome]] = {}
        count = draw.choice([1, 3, 3, 4, 5])
        further = draw.randrange(count == 1, 3)
        names = tuple(f"b{number}" for number in range(count + further))
        self.reserve = list(names[count:])
        self.form(names[:count])
        for number, name in enumerate(names):
            self.brokers[name] = SimulatedBroker(name, number, self)
            if number < count:
                self.simulated(name).found(self.members)

    def simulated(self, name: str) -> SimulatedBroker:
        found = self.brokers[name]
        assert isinstance(found, SimulatedBroker)
        return found

    @property
    def joined(self) -> list[SimulatedBroker]:
        """The running brokers that are registered, as far as they know."""
        found = [each for each in self.brokers.values() if isinstance(each, SimulatedBroker) and each.is_running]
        return [each for each in found if each.name in each.state.brokers]

    # Clients

    def produce(self) -> None:
        for broker in self.joined if self.now < FAULTS_S + HEALING_S else ():
            for name, kept in list(broker.logs.items()):
                if name != METADATA and kept.led is not None and self.draw.random() < 0.5:
                    count = self.draw.randint(1, 3)
                    if kept.append([Indexed.make(f"{kept.led.epoch}:{self.sent + each}") for each in range(count)]):
                        self.sent += count
        self.later(self.draw.uniform(0.1, 0.3), self.produce)

    def administer(self) -> None:
        if self.now >= FAULTS_S:
            return
        if self.joined:
            broker = self.draw.choice(self.joined)
            command = self._draw_command(broker)
            if command is not None:
                broker.request(command)
        self.later(self.draw.expovariate(3), self.administer)

    def _draw_command(self, broker: SimulatedBroker) -> Command | None:
        draw, stores = self.draw, sorted(broker.state.brokers)
        topic = broker.state.topics.get(draw.choice(NAMES))
        if topic is None:
            topic_id = f"{next(self.requests) + 2**20:032X}"
            return CreateTopic(Topic(draw.choice(NAMES), topic_id, draw.randint(1, 3), {}, draw.randint(1, 3)))
        return draw.choice(
            [
                DeleteTopic(topic.topic_id),
                AddLogs(topic.topic_id, topic.log_count + 1),
                AlterSettings(topic.topic_id, {"retention.ms": str(draw.randrange(9))}),
                ChangeReplicas(
                    topic.topic_id,
                    draw.randrange(topic.log_count),
                    tuple(draw.sample(stores, min(draw.randint(1, 3), len(stores)))),
                    assigned_count=draw.randint(0, 3),
                ),
                DrainBroker(draw.choice(stores), draw.random() < 0.5),
                None,
            ]
        )

    # What must hold at the end

    def check_end(self) -> None:
        if self.problems:
            raise Violation(self.problems[0])
        brokers = self.joined
        first = brokers[0].state
        for each in brokers:
            if each.state.records != first.records:
                raise Violation(f"{brokers[0].name} and {each.name} differ in what the cluster is")
        self._check_replay(brokers[0])
        self._check_told(first)
        for topic in first.topics.values():
            for number in range(topic.log_count):
                self._check_log(first, topic, number, brokers)

    def _check_replay(self, broker: SimulatedBroker) -> None:
        state = ClusterState()
        state.found(broker.state.cluster_id)
        for number, name in enumerate(self.members):
            state.apply(Order(RegisterBroker(name, number)))
        assert broker.metadata is not None
        for name in broker.metadata.records()[: broker.state.applied]:
            state.apply(self.orders[name])
        if state.records != broker.state.records:
            raise Violation("the state of the cluster is not what its committed commands give")

    def _check_told(self, state: ClusterState) -> None:
        for command, outcome in self.told.values():
            if outcome != DONE:
                continue
            if isinstance(command, CreateTopic):
                topic_id = command.topic.topic_id
                if state.find_id(topic_id) is None and topic_id not in state.deleted_ids:
                    raise Violation(f"the topic {command.topic.name} was created, and is gone")
            if isinstance(command, DeleteTopic) and command.topic_id not in state.deleted_ids:
                raise Violation(f"the topic {command.topic_id} was deleted, and is there")

    def _check_log(self, state: ClusterState, topic: Topic, number: int, brokers: list[SimulatedBroker]) -> None:
        name = name_log(topic.topic_id, number)
        logs = [each.logs[name] for each in brokers]
        replicas = [each.replica for each in logs]
        claimed = [each.elections.votes.pending_voters(each.latest.leader_epoch.epoch) for each in replicas]
        for voters in (replicas[0].newest.voters, *(voters for each in claimed for voters in each)):
            if 2 * len(self.lost.intersection(voters)) >= len(voters):
                return  # it has lost its quorum for good, or that of an epoch that can have begun
        leaders = [each for each in logs if each.can_append]
        if len(leaders) != 1:
            raise Violation(f"{len(leaders)} brokers lead {self.labels[name]}")
        [leader] = leaders
        ordered, present = state.replicas.of(topic, number), leader.replica.replicas
        if ordered.is_changing or set(present) != set(ordered.replicas):
            raise Violation(f"{self.labels[name]} has the replicas {present}, and {ordered} was ordered")
        records = leader.records()
        counted = Counter(records)
        lost = self.histories[name].acknowledged - counted.keys()
        if lost or len(counted) < len(records):
            raise Violation(f"{self.labels[name]}: {len(lost)} lost, {len(records) - len(counted)} doubled")
        places: dict[str, int] = {each: place for place, each in enumerate(records)}
        if any(places[each] != self.offsets[each] for each in self.histories[name].acknowledged):
            raise Violation(f"{self.labels[name]}: acknowledged records have moved")
        for each in logs:
            if each.broker.name in present and each.records() != records:
                raise Violation(f"the replicas {leader.broker.name} and {each.broker.name} of {name} differ")


class SimulatedBroker(TopicBroker):
    """A broker of a simulated cluster, whose controller also chooses voters."""

    world: SimulatedCluster

    def __init__(self, name: str, number: int, world: SimulatedCluster) -> None:
        super().__init__(name, number, world)
        self.checks_store = world.checks_stores

    def start(self, kept_log: Callable[..., KeptLog] = keep_log) -> None:
        if self.name in self.world.lost:
            return
        self.alive_since: dict[str, float] = {}
        super().start(kept_log)

    def describe(self) -> Any:
        registered = self.state.brokers.get(self.name)
        return attrs.evolve(super().describe(), is_draining=registered is not None and registered.is_draining)

    def change_replicas(self) -> None:
        alive, now = self.brokers.alive & self.state.brokers.keys(), self.world.now
        self.alive_since = {each: self.alive_since.get(each, now) for each in alive}
        if self.metadata is not None and self.metadata.is_controller:
            self._change_voters()
        super().change_replicas()

    def _change_voters(self) -> None:
        kept = self.metadata
        assert kept is not None
        replica, registered = kept.replica, self.state.brokers
        leaving = self.state.forgotten_ids.union(each.store_id for each in registered.values() if each.is_draining)
        usable = {each for each, at in self.alive_since.items() if self.world.now - at >= VOTER_AFTER_S} - leaving
        chosen = choose_voters(replica.latest.voters, self.name, usable, leaving)
        is_growing = replica.latest.learners and usable.issuperset(replica.latest.learners)
        if set(chosen) != set(replica.latest.replicas) and not is_growing and replica.elections.state.election is None:
            kept.act(kept.wake_up().elections.change_replicas(chosen, replica.newest.generation + 1))

    def _ask(self, order: Order, deadline: float, generation: int) -> None:
        outcome = self.world.outcomes.get(self.link, {}).get(order.request_id)
        if outcome is not None and generation == self.generation:
            self.world.told[order.request_id] = order.command, outcome
        super()._ask(order, deadline, generation)

    # The votes and the acknowledgements of a forgotten store do not count

    def acknowledged(self, log: str, broker: str, branch: Any, end_offset: int) -> None:
        if broker not in self.state.forgotten_ids:
            super().acknowledged(log, broker, branch, end_offset)


class ClusterFaults(Faults):
    """What goes wrong in a cluster."""

    world: SimulatedCluster

    def __init__(self, world: SimulatedCluster) -> None:
        super().__init__(world)
        self._kinds = [each for each in self._kinds if each.__name__ != "_drain"]
        self._kinds += [self._add_broker, self._lose]

    def _lose(self) -> None:
        """Lose a broker for good, if all logs can do without it, and have it forgotten later."""
        world, up = self.world, self.world.joined
        if len(up) < 4 or len(up) < len(world.brokers) - len(world.reserve) or world.lost:
            return
        lost = self.draw.choice(up)
        for broker in up:
            for kept in broker.logs.values():
                voters = kept.replica.newest.voters
                if lost.name in voters and 2 * (len(voters) - 1) <= len(voters):
                    return
        world.lost.add(lost.name)
        lost.crash()

    def end(self) -> None:
        self._forget_lost()
        super().end()

    def _forget_lost(self) -> None:
        if not self.world.joined:
            self.world.later(0.5, self._forget_lost)
            return
        for name in self.world.lost:
            self.world.joined[0].request(ForgetBroker(name))


def run_seed(seed: int) -> SimulatedCluster:
    """Run a cluster. Raise `Violation` if a promise is broken."""
    world = SimulatedCluster(seed)
    faults = ClusterFaults(world)
    for name in world.members:
        world.later(world.draw.uniform(0, 0.5), world.brokers[name].start)
    world.later(1.0, world.produce)
    world.later(1.0, world.administer)
    world.later(world.draw.uniform(1, 3), faults.go_on)
    world.crash_after_write = world.draw.choice([0, 0.02])
    world.skipped = world.draw.choice([0.0, 0.3])
    world.compacts = world.draw.random() < 0.5
    world.run_until(FAULTS_S)
    world.run_until(FAULTS_S + 1.0)
    faults.end()
    if world.checks_stores:
        world.run_until(FAULTS_S + FORGETTING_S)
        _forget(world)
    world.run_until(FAULTS_S + HEALING_S)
    for number, broker in enumerate(world.joined):
        broker.request(CreateTopic(Topic(f"last-{number}", f"{number + 2**30:032X}", 1, {}, 1)))
    for _ in range(int(LAST_S)):
        world.run_until(world.now + 1.0)
        states = [each.state for each in world.joined]
        if states and not any(each.replicas.changing or each.deleting for each in states):
            break
    world.run_until(world.now + 5.0)
    for number, broker in enumerate(world.joined):
        if f"last-{number}" not in broker.state.topics:
            raise Violation(f"{broker.name} cannot create a topic at the end")
    world.check_end()
    return world


def _is_dispensable(broker: SimulatedBroker) -> bool:
    """Return whether each log that a broker knows, or that others know, has a quorum without it."""
    replicas = [kept.replica for each in broker.world.joined for kept in each.logs.values()]
    sets = [voters for each in replicas for voters in ({*each.newest.voters}, {*each.latest.voters})]
    claimed = [each.elections.votes.pending_replicas() for each in replicas]
    return all(len(each) > 2 for each in (*sets, *claimed) if broker.name in each)


def _forget(world: SimulatedCluster) -> None:
    """Have a broker come back with a disk from some seconds before, if every log has a quorum without it."""
    if len(world.joined) > 2:
        broker = world.draw.choice(world.joined)
        saved = broker.save()
        world.run_until(world.now + world.draw.choice([0.5, 2.0, 5.0]))
        if broker.is_up and _is_dispensable(broker):
            broker.crash()
            broker.restore(saved)
            world.forgetful += 1
            world.later(world.draw.uniform(0.1, 2), broker.start)


def main() -> int:
    """Run seeds, and print those that fail."""
    parser = argparse.ArgumentParser(prog="python -m tests.broker.core.metadata.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    arguments = parser.parse_args()
    started, failed, records, commands, forgetful = time.monotonic(), 0, 0, 0, 0
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        try:
            world = run_seed(seed)
        except AssertionError as error:
            failed += 1
            print(f"seed {seed}: {error!r}", flush=True)
        else:
            records += world.acknowledged()
            commands += len(world.orders)
            forgetful += world.forgetful
    seconds = time.monotonic() - started
    print(
        f"{arguments.seeds} seeds, {failed} failed: {commands} commands, {records} records, {forgetful} older disks, "
        f"{seconds:.0f} s"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
