"""Members of share groups that lose messages, come and go; coordinators that restart; topics that change.

When the faults end, each log of a topic has a reader, each member reads a log of each of its topics, and all members
read about as many logs of a topic.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.consumer.results import ConsumerHeartbeatResult
from dafka.broker.core.groups.results import CommitRequest, JoinRequest, JoinResult, OffsetToCommit
from dafka.broker.core.topic_partition import TopicPartition
from tests.broker.core.groups.consumer.world import GROUP, HEARTBEAT_MS, SESSION_MS
from tests.broker.core.groups.share.world import ShareConsumer, ShareWorld

SEEDS = 120
STEPS = 100
NAMES = ("a", "b", "c")
WEIGHTS = {"beat": 60, "add": 6, "leave": 4, "crash": 3, "topic": 4, "restart": 4, "wait": 2}


class Simulation:
    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)
        self.world = ShareWorld()
        self.consumers: list[ShareConsumer] = []
        self.count = 0
        for name in NAMES:
            self.world.topics.put(name, self.draw.randint(1, 6))
        self.add()

    def add(self) -> None:
        self.count += 1
        topics = frozenset(self.draw.sample(NAMES, self.draw.randint(1, 3)))
        self.consumers.append(ShareConsumer(self.world, f"m{self.count}", topics))
        self.consumers[-1].beat()

    def step(self) -> None:
        draw, world = self.draw, self.world
        (kind,) = draw.choices(list(WEIGHTS), list(WEIGHTS.values()))
        consumer = draw.choice(self.consumers)
        if kind == "beat":
            consumer.beat(draw, loss=0.15)
        elif kind == "add" and len(self.consumers) < 8:
            self.add()
        elif kind in {"leave", "crash"} and len(self.consumers) > 1:
            self.consumers.remove(consumer)
            if kind == "leave":
                consumer.leave()
        elif kind == "topic":
            name = draw.choice(NAMES)
            topic = world.topics.find(name)
            if topic is not None and draw.random() < 0.4:
                world.topics.delete(name)
            else:
                world.topics.put(name, (0 if topic is None else topic.log_count) + draw.randint(1, 3))
        elif kind == "restart":
            world.restart(compact=draw.random() < 0.5)
        elif kind == "wait":
            world.pass_time(draw.choice((HEARTBEAT_MS, SESSION_MS // 2)))

    def settle(self) -> None:
        for _ in range(2 * SESSION_MS // HEARTBEAT_MS + 3):
            for consumer in self.consumers:
                consumer.beat()
            self.world.pass_time(HEARTBEAT_MS)
        for _ in range(2):
            for consumer in self.consumers:
                consumer.beat()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_all_logs_have_readers_when_faults_end(seed: int) -> None:
    simulation = Simulation(seed)
    for _ in range(STEPS):
        simulation.step()
    simulation.settle()
    world = simulation.world
    group = world.describe()
    assert {each.member_id for each in group.members} == {each.member_id for each in simulation.consumers}
    for name in NAMES:
        readers = [each for each in simulation.consumers if name in each.topics]
        logs = world.topics.logs_of(name)
        sizes = [len(each.assigned & logs) for each in readers]
        shares = Counter(log for each in readers for log in each.assigned & logs)
        if readers and logs:
            assert set(shares) == logs
            assert min(sizes) >= 1
            assert max(sizes) - min(sizes) <= 1
            assert max(shares.values()) - min(shares.values()) <= 1
    for each in simulation.consumers:
        assert each.assigned <= world.topics.logs_of(*each.topics)
        assert each.epoch == group.epoch
    world.pass_time(2 * SESSION_MS)
    assert world.describe().state == "Empty"


def test_heartbeats_that_no_group_accepts_are_refused() -> None:
    world = ShareWorld()
    world.topics.put("a", 1)
    invalid = ErrorCode.INVALID_REQUEST
    assert world.beat_share("", 0, topics=frozenset("a")).error_code is invalid
    assert world.beat_share("m", -2).error_code is invalid
    assert world.beat_share("m", 0).error_code is invalid
    assert world.beat_share("m", 0, topics=frozenset()).error_code is invalid
    assert world.beat_share("m", 3).error_code is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.beat_share("m", -1).error_code is ErrorCode.UNKNOWN_MEMBER_ID
    joined = world.beat_share("m", 0, topics=frozenset("a"))
    assert world.beat_share("m", joined.member_epoch + 1).error_code is ErrorCode.FENCED_MEMBER_EPOCH
    assert world.beat_share("n", 1).error_code is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_has_lost_a_response_repeats_its_heartbeat() -> None:
    world = ShareWorld()
    world.topics.put("a", 1)
    first = world.beat_share("m", 0, topics=frozenset("a"))
    log_count = 3
    world.topics.put("a", log_count)
    lost = world.beat_share("m", first.member_epoch)
    world.restart(compact=True)
    repeated = world.beat_share("m", first.member_epoch)
    assert repeated == lost
    assert lost.assignment == world.topics.logs_of("a")
    assert world.beat_share("m", lost.member_epoch).assignment is None


def test_a_group_has_one_type() -> None:
    world = ShareWorld(group_share_max_size=1)
    world.topics.put("a", 1)
    world.beat_share("m", 0, topics=frozenset("a"))
    assert world.beat_share("n", 0, topics=frozenset("a")).error_code is ErrorCode.GROUP_MAX_SIZE_REACHED
    result = world.beat("c", 0, topics=frozenset("a"))
    assert isinstance(result, ConsumerHeartbeatResult)
    assert result.error_code is ErrorCode.GROUP_ID_NOT_FOUND
    join = JoinRequest(
        group_id=GROUP,
        session_timeout_ms=SESSION_MS,
        rebalance_timeout_ms=1,
        protocol_type="consumer",
        protocols=(("range", b""),),
    )
    (joined,) = world.take(world.coordinator.join_group("token", join, 0))
    assert isinstance(joined, JoinResult)
    assert joined.error_code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    log = TopicPartition("a", 0)
    commit = CommitRequest(group_id=GROUP, offsets={log: OffsetToCommit(1)})
    assert world.take(world.coordinator.commit_offsets("token", commit, 0)) == [{log: ErrorCode.GROUP_ID_NOT_FOUND}]
    assert world.take(world.coordinator.delete_groups("token", [GROUP])) == [{GROUP: ErrorCode.NON_EMPTY_GROUP}]
    world.beat_share("m", -1)
    assert world.take(world.coordinator.delete_groups("token", [GROUP])) == [{GROUP: ErrorCode.NONE}]
    assert world.beat("c", 0, topics=frozenset("a")).error_code is ErrorCode.NONE
    assert world.beat_share("m", 0, topics=frozenset("a")).error_code is ErrorCode.GROUP_ID_NOT_FOUND
