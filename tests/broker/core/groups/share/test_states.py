"""Leaders of a log that follow each other, and a coordinator that restarts.

What one leader has confirmed, each later one knows, whatever former leaders still write. Messages are lost, and arrive
late. Each leader knows only what it loads and writes.
"""

from __future__ import annotations

from random import Random

import attrs
import pytest

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.share.runs import ENDED
from dafka.broker.core.groups.share.share_partition import (
    DEFAULT_LIMITS,
    Acknowledgement,
    AcknowledgeType,
    FetchedBatch,
    SharePartition,
)
from dafka.broker.core.groups.share.state import SharePartitionKey, ShareState
from dafka.broker.core.metadata.log_replicas import LogKey
from tests.broker.core.groups.consumer.world import GROUP
from tests.broker.core.groups.share.world import ShareWorld

SEEDS = 150
STEPS = 80
FENCED = {ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.FENCED_STATE_EPOCH}


@attrs.define
class Leader:
    """A leader in an epoch. It confirms what was accepted when the state that contains it is written."""

    world: ShareWorld
    key: SharePartitionKey
    epoch: int
    confirmed: set[int]
    late: list[tuple[ShareState, frozenset[int]]] = attrs.field(factory=list)
    accepted: set[int] = attrs.field(factory=set)
    partition: SharePartition | None = None
    is_fenced: bool = False

    def load(self) -> None:
        loaded = self.world.load(self.key, self.epoch)
        if loaded.error_code:
            assert loaded.error_code is ErrorCode.FENCED_LEADER_EPOCH
            self.is_fenced = True
            return
        state = loaded.state
        if state.start_offset < 0:
            state = attrs.evolve(state, start_offset=0)
        self.partition = SharePartition(state, self.epoch)
        self.late.append((self.partition.store(), frozenset()))

    def deliver(self, draw: Random) -> None:
        """Deliver a record, and have it accepted or released."""
        if self.partition is None or self.is_fenced:
            return
        offset = self.partition.next_offset(DEFAULT_LIMITS)
        assert offset is not None
        batch = FetchedBatch(offset, offset + 1)
        assert self.partition.acquire("m", offset, [batch], DEFAULT_LIMITS, 0, records_max=1, range_max=1)
        kind = draw.choice((AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE))
        said = [Acknowledgement(offset, offset + 1, kind)]
        assert self.partition.acknowledge("m", said, DEFAULT_LIMITS, 0) is ErrorCode.NONE
        self.accepted |= {offset} if kind is AcknowledgeType.ACCEPT else set()
        self.late.append((self.partition.store(), frozenset(self.accepted)))

    def write(self, draw: Random) -> None:
        """Write the newest state, or lose it."""
        if not self.late:
            return
        state, accepted = self.late[-1]
        if draw.random() < 0.3:
            return
        self.late.clear()
        error = self.world.write(self.key, state)
        if error:
            assert error in FENCED
            self.is_fenced = True
        else:
            self.confirmed |= accepted


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_a_leader_has_confirmed_is_known_to_all_later_ones(seed: int) -> None:
    draw, world, confirmed = Random(seed), ShareWorld(), set[int]()
    key = SharePartitionKey(GROUP, world.topics.put("a", 1), 0)
    assert world.load(key, 0).error_code is ErrorCode.GROUP_ID_NOT_FOUND
    world.beat_share("m", 0, topics=frozenset("a"))
    leaders = [Leader(world, key, 0, confirmed)]
    for _ in range(STEPS):
        leader = draw.choice(leaders[-3:])
        (kind,) = draw.choices(("load", "deliver", "write", "elect", "restart"), (2, 12, 8, 2, 2))
        if kind == "elect":
            leaders.append(Leader(world, key, leaders[-1].epoch + draw.randint(1, 3), confirmed))
        elif kind == "restart":
            world.restart(compact=draw.random() < 0.5)
        elif kind == "load" or leader.partition is None:
            before = set(confirmed)
            leader.accepted, leader.late = set(), []
            leader.load()
            if leader.partition is not None and not leader.is_fenced:
                known = leader.partition
                assert not any(is_open(known, offset) for offset in before)
        elif kind == "deliver":
            leader.deliver(draw)
        else:
            leader.write(draw)


def is_open(partition: SharePartition, offset: int) -> bool:
    """Return whether an offset can still be delivered."""
    is_known = any(run.first <= offset < run.end and run.state in ENDED for run in partition.runs)
    return offset >= partition.start_offset and not is_known


def test_an_administrator_moves_a_group_without_members() -> None:
    world = ShareWorld()
    topic_id, other_id = world.topics.put("a", 2), world.topics.put("b", 1)
    key, log = SharePartitionKey(GROUP, topic_id, 1), LogKey(topic_id, 1)
    assert world.take(world.shares.delete_states("token", GROUP, {topic_id})) == [ErrorCode.GROUP_ID_NOT_FOUND]
    world.beat_share("m", 0, topics=frozenset("ab"))
    assert world.take(world.coordinator.set_share_starts("token", GROUP, {log: 5}, 0)) == [ErrorCode.NON_EMPTY_GROUP]
    assert world.take(world.shares.delete_states("token", GROUP, {topic_id})) == [ErrorCode.NON_EMPTY_GROUP]
    state = attrs.evolve(world.load(key, 3).state, start_offset=2, written_epoch=3)
    assert world.write(key, state) is ErrorCode.NONE
    world.load(key._replace(topic_id=other_id, number=0), 1)
    world.beat_share("m", -1)
    assert world.take(world.coordinator.set_share_starts("token", GROUP, {log: 5}, 0)) == [ErrorCode.NONE]
    assert world.write(key, state) is ErrorCode.FENCED_STATE_EPOCH
    found = world.load(key, 3).state
    assert (found.start_offset, found.written_epoch) == (5, -1)
    assert world.load(key, 2).error_code is ErrorCode.FENCED_LEADER_EPOCH
    world.restart(compact=True)
    assert world.take(world.shares.delete_states("token", GROUP, {topic_id})) == [ErrorCode.NONE]
    assert set(world.shares.states_of(GROUP) or ()) == {LogKey(other_id, 0)}
    assert world.write(key, found) is ErrorCode.FENCED_STATE_EPOCH
    world.take(world.coordinator.delete_topics({other_id}))
    assert world.shares.states_of(GROUP) == {}
    world.restart()
    world.load(key, 4)
    assert world.take(world.coordinator.delete_groups("token", [GROUP])) == [{GROUP: ErrorCode.NONE}]
    assert world.shares.states_of(GROUP) is None
    world.restart(compact=True)
    assert world.shares.states_of(GROUP) is None


def test_a_group_that_has_received_records_does_not_expire() -> None:
    world = ShareWorld()
    key = SharePartitionKey(GROUP, world.topics.put("a", 1), 0)
    world.beat_share("m", 0, topics=frozenset("a"))
    world.load(key, 0)
    world.beat_share("m", -1)
    world.pass_time(30 * 24 * 3_600_000)
    assert world.describe().error_code is ErrorCode.NONE
    world.take(world.shares.delete_states("token", GROUP, {key.topic_id}))
    world.pass_time(3_600_000)
    assert world.describe().error_code is ErrorCode.GROUP_ID_NOT_FOUND


def test_a_group_is_created_without_members_and_begins_once() -> None:
    world = ShareWorld()
    key = SharePartitionKey(GROUP, world.topics.put("a", 2), 0)
    other = key._replace(number=1)

    def create(offsets: dict[LogKey, int]) -> list[object]:
        return world.take(world.coordinator.create_share_group("token", GROUP, offsets, 0))

    assert create({key.log: 5}) == [ErrorCode.NONE]
    state = world.load(key, 3).state
    assert state.start_offset == 5
    assert world.load(other, 3).state.start_offset == -1
    assert world.write(key, attrs.evolve(state, start_offset=7)) is ErrorCode.NONE
    world.beat_share("m", 0, topics=frozenset("a"))
    assert create({key.log: 9, other.log: 9}) == [ErrorCode.NONE]
    world.restart(compact=True)
    assert [world.load(each, 4).state.start_offset for each in (key, other)] == [7, 9]
    world.beat_share("m", -1)
    world.pass_time(30 * 24 * 3_600_000)
    assert world.describe().error_code is ErrorCode.NONE
    world.take(world.coordinator.delete_groups("token", [GROUP]))
    world.beat("c", 0, topics=frozenset("a"))
    assert create({key.log: 5}) == [ErrorCode.INCONSISTENT_GROUP_PROTOCOL]
