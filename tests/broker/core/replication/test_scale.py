"""How many messages brokers exchange as their number grows: signs of life, control records and acknowledgements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from dafka.broker.core.metadata.brokers import BrokerRegistration, Brokers
from dafka.broker.core.positions import Offset
from dafka.broker.core.replication.effects import Acknowledge, Lead, ReplicaAction, WriteControl
from dafka.broker.core.replication.records import LeaderAndEpoch
from dafka.broker.core.replication.replica import Replica
from dafka.broker.core.replication.settings import ReplicaSettings

TICK_S = 0.2
ALIVE_S = 0.7
LOGS = 12
SETTINGS = ReplicaSettings(election_timeout_s=0.5, stagger_s=0.25)


class Cluster:
    """Brokers on a network without faults: what one publishes, all others get before the next tick."""

    def __init__(self, count: int) -> None:
        self.names = [f"b{number}" for number in range(count)]
        self.up = set(self.names)
        self.now = 0.0
        self.messages: Counter[str] = Counter()
        self.queue: list[Callable[[], None]] = []
        self.brokers = {}
        self.logs: dict[str, dict[str, Replica]] = {}
        for number, name in enumerate(self.names):
            self.brokers[name] = brokers = Brokers(BrokerRegistration(address=name, number=number), ALIVE_S)
            for other in self.names:
                brokers.record_registration(BrokerRegistration(address=other))
        for log in range(LOGS):
            replicas = tuple(self.names[(log * 3 + place) % count] for place in range(3))
            for number, name in enumerate(self.names):
                replica = Replica(f"log/{log}", name, number, replicas, SETTINGS)
                replica.elections.restore([], [])
                replica.restore_local({})
                self.logs.setdefault(name, {})[f"log/{log}"] = replica
        for name, logs in self.logs.items():
            for log_name, replica in logs.items():
                self.act(name, log_name, replica.resume())

    def publish(self, sender: str, deliver: Callable[[str], None]) -> None:
        """Send something to every other broker."""
        self.messages[sender] += len(self.names) - 1

        def arrive() -> None:
            for name in self.names:
                if name != sender and name in self.up:
                    deliver(name)

        self.queue.append(arrive)

    def act(self, broker: str, log: str, actions: list[ReplicaAction]) -> None:
        for action in actions:
            if isinstance(action, WriteControl):
                self._write(broker, log, action)
            elif isinstance(action, Lead):
                self._store(broker, log, action.start.leader_epoch, action.start.parent.end_offset)
            elif isinstance(action, Acknowledge):
                self._acknowledge(broker, log, action.leader_epoch, action.end_offset)

    def _write(self, broker: str, log: str, action: WriteControl) -> None:
        self.act(broker, log, self.logs[broker][log].elections.written(action.record))
        self.publish(broker, lambda name: self.act(name, log, self.logs[name][log].receive(broker, action.record)))

    def _store(self, broker: str, log: str, branch: LeaderAndEpoch, end_offset: int) -> None:
        """Store index records, and let the replicas have them."""
        replica = self.logs[broker][log]
        self.act(broker, log, replica.stored(branch, Offset(end_offset)))
        for name in replica.replicas:
            if name != broker and name in self.up:
                self.messages[broker] += 1
                self.act(name, log, self.logs[name][log].stored(branch, Offset(end_offset)))

    def _acknowledge(self, broker: str, log: str, branch: LeaderAndEpoch, end_offset: int) -> None:
        self.publish(
            broker,
            lambda name: self.act(name, log, self.logs[name][log].acknowledged(broker, branch, Offset(end_offset))),
        )

    def run(self, seconds: float) -> None:
        """Let time pass."""
        for _ in range(round(seconds / TICK_S)):
            self.now += TICK_S
            for name in sorted(self.up):
                self.publish(name, lambda other, name=name: self.brokers[other].record_heartbeat(name, self.now))  # type: ignore[misc]
            while self.queue:
                found, self.queue = self.queue, []
                for arrive in found:
                    arrive()
            for name in sorted(self.up):
                self.brokers[name].check_alive(self.now)
                for log, replica in self.logs[name].items():
                    self.act(name, log, replica.set_alive(self.brokers[name].alive, self.now))

    def leaders(self) -> dict[str, str]:
        """Return the leaders, which all brokers know alike."""
        views = {tuple(replica.leader for replica in self.logs[name].values()) for name in self.up}
        [view] = views
        return dict(zip(self.logs[self.names[0]], view, strict=True))


def count_messages(count: int) -> float:
    """Return how many messages the busiest broker sends for each other one, while a leader dies and is replaced."""
    cluster = Cluster(count)
    cluster.run(1)
    dead = cluster.leaders()["log/0"]
    cluster.up.discard(dead)
    cluster.run(3)
    assert dead not in cluster.leaders().values()
    return max(cluster.messages.values()) / (count - 1)


def test_messages_of_each_broker_grow_at_most_linearly_with_the_number_of_brokers() -> None:
    assert count_messages(72) <= 1.1 * count_messages(36)


@pytest.mark.long
def test_messages_of_each_broker_grow_at_most_linearly_up_to_1000_brokers() -> None:
    few = count_messages(36)
    assert count_messages(300) <= 1.1 * few
    assert count_messages(1000) <= 1.1 * few
