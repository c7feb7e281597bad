"""A simulated world of brokers: time, a network whose links fail, and disks that lose nothing that was durable."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import count

from dafka.broker.core.metadata.brokers import BrokerRegistration, Brokers
from dafka.broker.core.metadata.cluster_state import ClusterState
from dafka.broker.core.metadata.commands import (
    ChangeReplicas,
    Command,
    CreateTopic,
    DrainBroker,
    Order,
    RegisterBroker,
    ReplicasChanged,
)
from dafka.broker.core.metadata.log_replicas import LogReplicas
from dafka.broker.core.metadata.planner import Planner, PlannerSettings
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.partition_address import name_log
from dafka.broker.core.replication.settings import Availability, ReplicaSettings
from dafka.broker.core.replication.transitions import Transition
from tests.broker.core.replication.brokers import ALIVE_S, FULL_BYTES, Broker
from tests.broker.core.replication.history import History
from tests.broker.core.replication.transactions import Transactions

TRANSACTIONS_EVERY = 5
"""Which part of the seeds has real index records, and transactions with "majority": every fifth one, from seed 4 on."""

LEASES_EVERY = 4
"""Which part of the seeds has processes that are stopped, and clocks that run as those of leases do."""

HANDOVERS_EVERY = 7
"""Which part of the seeds has leaders that hand over their logs and stop: every seventh one, from seed 5 on."""

PLAN_S = 0.5


class World:
    """Brokers, of which the last `reserve_count` may start later, a network, disks, and promises to clients."""

    def __init__(
        self,
        seed: int,
        availability: Availability,
        broker_count: int = 3,
        log_count: int = 1,
        reserve_count: int = 0,
        balances: bool = False,
    ) -> None:
        self.draw = random.Random(seed)
        self.transaction_draw = random.Random(f"transactions {seed}")
        self.now = 0.0
        self.availability = availability
        self.settings = ReplicaSettings(availability=availability, preferred_leader_after_s=3.0)
        self.balances = balances
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._log_table = count()
        names = [f"b{number}" for number in range(broker_count + reserve_count)]
        self.brokers = {name: Broker(name, number, self) for number, name in enumerate(names)}
        self.reserve = names[broker_count:]
        self.wanted = min(broker_count, 3) if balances else broker_count
        self._broker_count, self._log_count = broker_count, log_count
        self.histories: dict[str, History] = {}
        self.place_on(self.wanted)
        self.down: set[tuple[str, str]] = set()
        self.deaf: set[tuple[str, str]] = set()
        self.stalled: set[str] = set()
        self.drops = False
        self.compacts = False
        self.has_transactions = availability is Availability.MAJORITY and seed % TRANSACTIONS_EVERY == 4
        self.keeps_indexes = seed % TRANSACTIONS_EVERY == 4
        self.has_leases = availability is Availability.MAJORITY and seed % LEASES_EVERY == 2
        self.has_handovers = seed % HANDOVERS_EVERY == 5
        self.rewrite_entries = self.transaction_draw.choice([0, 20, 2000])
        self.slow_s = 0.01
        self.crash_after_write = 0.0
        self.skipped = 0.0
        self.sent = 0
        self.messages: Counter[str] = Counter()
        self.transitions: Counter[tuple[Transition, str]] = Counter()  # by the state that a replica has left
        if balances:
            self.later(PLAN_S, self._plan)

    @property
    def ordered(self) -> dict[str, LogReplicas]:
        """The replicas that were ordered for logs, as committed commands say."""
        return {name_log(*key): found for key, found in self.state.replicas}

    def order(self, command: Command) -> None:
        self.state.apply(Order(command))

    def order_replicas(self, log: str, replicas: Iterable[str]) -> int:
        """Order replicas of a log in place of all others. Return the generation."""
        topic = self.state.topics["log"]
        number = int(log.rpartition("/")[2])
        generation = self.state.replicas.of(topic, number).generation + 1
        self.order(ChangeReplicas(topic.topic_id, number, tuple(replicas), generation=generation))
        return self.state.replicas.of(topic, number).generation

    def report_change(self, log: str, generation: int, epoch: int) -> None:
        self.order(ReplicasChanged("log", int(log.rpartition("/")[2]), generation, epoch))

    def _plan(self) -> None:
        """Order replicas as a controller does that hears all brokers that are up."""
        for each in self.brokers.values():
            if each.generation and each.name not in self.state.brokers:
                self.order(RegisterBroker(each.name, each.number))
            if each.is_running:
                self.seen.record_registration(each.describe())
                self.seen.record_heartbeat(each.name, self.now)
            if each.name in self.state.brokers:
                self.order(DrainBroker(each.name, each.is_draining))
        self.seen.check_alive(self.now)
        for command in self.planner.advance(self.now):
            self.order(command)
        self.later(PLAN_S, self._plan)

    def place_on(self, replica_count: int) -> None:
        names = list(self.brokers)[: self._broker_count]
        for name in [f"log/{number}" for number in range(self._log_count)]:
            replicas = tuple(self.draw.sample(names, replica_count))
            self.histories[name] = History(name, replicas, self.availability, Transactions(self.transaction_draw))
        self.state = ClusterState()
        for each in names:
            self.order(RegisterBroker(each, self.brokers[each].number))
        placement = tuple(each.replicas for each in self.histories.values())
        self.order(CreateTopic(Topic("log", "log", self._log_count, replica_count=self.wanted, placement=placement)))
        settings = PlannerSettings(replace_replicas_after_s=2.0, full_bytes=FULL_BYTES, moves_max=2)
        self.seen = Brokers(BrokerRegistration(address="controller"), ALIVE_S)
        self.planner = Planner(self.state, self.seen, settings)

    # Time

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        self.call_at(self.now + delay_s, call)

    def call_at(self, at: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at, next(self._log_table), call))

    def run_until(self, end: float) -> None:
        while self._events and self._events[0][0] <= end:
            self.now, _, call = heapq.heappop(self._events)
            call()
        self.now = end

    # Network and disks

    def send(self, sender: Broker, receiver: Broker, deliver: Callable[[], None]) -> None:
        """Deliver something, if both are up and connected then; to a stopped process when it goes on."""
        link = (sender.link, receiver.link)
        if not sender.is_up or not receiver.is_up or link in self.down:
            return
        self.messages[sender.name] += 1

        def arrive() -> None:
            if self.now < receiver.stopped_until:
                self.call_at(receiver.stopped_until + self.draw.uniform(0, 0.02), arrive)
            elif receiver.is_up and sender.is_up and link not in self.down:
                deliver()

        self.later(self.draw.expovariate(1 / self.slow_s), arrive)

    def is_skipped(self) -> bool:
        return self.draw.random() < self.skipped

    def write(self, broker: Broker, stored: Callable[[], None]) -> None:
        generation = broker.generation
        broker.pending_writes += 1
        at = max(broker.last_write_at, self.now + self.draw.uniform(0.0005, 0.01), broker.full_until)
        broker.last_write_at = at

        def done() -> None:
            if self.now < broker.stopped_until:
                self.call_at(broker.stopped_until, done)
            elif broker.generation == generation:
                broker.pending_writes -= 1
                stored()

        self.later(at - self.now, done)

    # Promises

    def acknowledged(self) -> int:
        return sum(len(each.acknowledged) for each in self.histories.values())

    def check_tables(self, age_s: float) -> None:
        for log, history in self.histories.items():
            old = {branch for branch, at in history.begun_at.items() if at < self.now - age_s}
            for broker in self.brokers.values():
                if broker.is_up:
                    history.check_table(broker.name, broker.logs[log].replica.epoch_tree, old)

    def check_end(self) -> None:
        """Check all logs after everything has healed."""
        self.check_tables(1.0)
        started = [each for each in self.brokers.values() if each.is_up]
        for log, history in self.histories.items():
            history.check_end([each.logs[log] for each in started], min(self.wanted, len(started)))
