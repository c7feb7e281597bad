"""Members of consumer groups that lose messages, come and go; coordinators that restart; topics that change.

At no time do two members read the same log. When the faults end, each log has one reader, and all readers have as many
logs as is fair.
"""

from __future__ import annotations

from random import Random

import pytest

from dafka.broker.core.groups.consumer.group import ConsumerGroupState
from dafka.broker.core.groups.consumer.members import PAUSING_EPOCH
from tests.broker.core.groups.consumer.world import HEARTBEAT_MS, SESSION_MS, ClassicConsumer, Consumer, World

SEEDS = 150
STEPS = 120
NAMES = ("a", "b", "c")
WEIGHTS = {"beat": 60, "add": 6, "leave": 4, "crash": 3, "pause": 3, "switch": 3, "topic": 4, "restart": 4, "wait": 2}


class Simulation:
    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)
        self.world = World()
        self.consumers: list[Consumer | ClassicConsumer] = []
        self.count = 0
        for name in NAMES:
            self.world.topics.put(name, self.draw.randint(1, 6))
        self.classic_share = self.draw.choice((0.0, 0.4))
        self.is_fair = self.draw.random() < 0.5
        self.add()

    def add(self) -> None:
        self.count += 1
        topics = NAMES if self.is_fair else self.draw.sample(NAMES, self.draw.randint(1, 3))
        name, is_static = f"m{self.count}", self.draw.random() < 0.3
        consumer: Consumer | ClassicConsumer
        consumer = Consumer(self.world, name, frozenset(topics), f"i{self.count}" if is_static else "")
        is_classic = self.count > 1 and self.draw.random() < self.classic_share
        if is_classic:
            consumer = ClassicConsumer(self.world, name, consumer.topics, instance_id=consumer.instance_id)
        self.consumers.append(consumer)
        self.consumers[-1].beat()

    def step(self) -> None:
        draw, world = self.draw, self.world
        (kind,) = draw.choices(list(WEIGHTS), list(WEIGHTS.values()))
        first, consumer = self.consumers[0], draw.choice(self.consumers)
        if kind == "beat":
            consumer.beat(draw, loss=0.15)
        elif kind == "add" and len(self.consumers) < 6:
            self.add()
        elif kind in {"leave", "crash"} and consumer is not first:
            self.consumers.remove(consumer)
            if kind == "leave":
                consumer.leave()
        elif kind == "pause" and isinstance(consumer, Consumer) and consumer.instance_id and consumer.is_member:
            world.beat(consumer.member_id, PAUSING_EPOCH, instance_id=consumer.instance_id)
            consumer.forget()
            consumer.member_id += "'"
        elif kind == "switch" and consumer.instance_id and consumer is not first:
            self.switch(consumer)
        elif kind == "topic":
            self.change_topic()
        elif kind == "restart":
            world.restart(compact=draw.random() < 0.5)
        elif kind == "wait":
            world.pass_time(draw.choice((HEARTBEAT_MS, SESSION_MS // 2, SESSION_MS + 1)))
        first.beat()  # otherwise classic clients could be alone
        world.pass_time(draw.randint(0, HEARTBEAT_MS))

    def switch(self, consumer: Consumer | ClassicConsumer) -> None:
        """Restart a static client with the other protocol. A classic one does not say that it leaves."""
        self.count += 1
        if isinstance(consumer, Consumer) and consumer.is_member:
            self.world.beat(consumer.member_id, PAUSING_EPOCH, instance_id=consumer.instance_id)
        other = ClassicConsumer if isinstance(consumer, Consumer) else Consumer
        restarted = other(self.world, f"m{self.count}", consumer.topics, instance_id=consumer.instance_id)
        self.consumers[self.consumers.index(consumer)] = restarted

    def change_topic(self) -> None:
        name, topics = self.draw.choice(NAMES), self.world.topics
        known = topics.find(name)
        if known is not None and self.draw.random() < 0.3:
            topics.delete(name)
        else:
            topics.put(name, 1 if known is None else known.log_count + self.draw.randint(0, 3))

    def check(self) -> None:
        readers = [each for each in self.consumers if each.is_member]
        owned = [log for each in readers for log in each.owned]
        assert len(owned) == len(set(owned)), "two members read a log"

    def settle(self) -> None:
        for _ in range(40):
            for each in self.consumers:
                each.beat()
                self.check()
            self.world.pass_time(HEARTBEAT_MS)
        group, topics = self.world.group, self.world.topics
        assert group.state is ConsumerGroupState.STABLE
        assert group.members.keys() == {each.member_id for each in self.consumers}
        wanted = topics.logs_of(*{name for each in self.consumers for name in each.topics})
        assert sorted(log for each in self.consumers for log in each.owned) == sorted(wanted)
        for each in self.consumers:
            assert each.owned <= topics.logs_of(*each.topics)
            for other in self.consumers:
                shared = each.owned & topics.logs_of(*other.topics)
                assert not shared or len(other.owned) >= len(each.owned) - 1, "a member has too many logs"


@pytest.mark.parametrize("first", range(0, SEEDS, 30))
def test_no_log_has_two_readers_and_each_has_one_in_the_end(first: int) -> None:
    for seed in range(first, first + 30):
        simulation = Simulation(seed)
        try:
            for _ in range(STEPS):
                simulation.step()
                simulation.check()
            simulation.settle()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
