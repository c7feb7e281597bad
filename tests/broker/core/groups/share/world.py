"""A coordinator of share groups that restarts, the topics of its cluster, and members that lose messages."""

from __future__ import annotations

from random import Random
from typing import Any

import attrs

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.consumer.members import JOINING_EPOCH, LEAVING_EPOCH, NOTHING, Assignment
from dafka.broker.core.groups.share.coordinator import ShareCoordinator
from dafka.broker.core.groups.share.members import DescribedShareGroup, ShareHeartbeatRequest, ShareHeartbeatResult
from dafka.broker.core.groups.share.state import SharePartitionKey, ShareState
from dafka.broker.core.groups.share.states import LoadedShareState
from tests.broker.core.groups.consumer.world import GROUP, World

FENCED = {ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID}


class ShareWorld(World):
    """A world whose group is a share group."""

    @property
    def shares(self) -> ShareCoordinator:
        return self.coordinator.shares

    def describe(self) -> DescribedShareGroup:
        return self.shares.membership.describe(GROUP)

    def _known(self) -> Any:
        group = self.describe()
        members = tuple(sorted(group.members, key=lambda each: each.member_id))
        return attrs.evolve(group, members=members), self.shares.states_of(GROUP)

    def beat_share(self, member_id: str, epoch: int, **fields: Any) -> ShareHeartbeatResult:
        request = ShareHeartbeatRequest(group_id=GROUP, member_id=member_id, member_epoch=epoch, **fields)
        (result,) = self.take(self.coordinator.share_heartbeat("token", request, self.now_ms))
        assert isinstance(result, ShareHeartbeatResult)
        return result

    def load(self, key: SharePartitionKey, leader_epoch: int) -> LoadedShareState:
        actions, loaded = self.shares.load_state(key, leader_epoch)
        assert not self.take(actions)
        return loaded

    def write(self, key: SharePartitionKey, state: ShareState) -> ErrorCode:
        actions, error = self.shares.write_state(key, state)
        assert not self.take(actions)
        return error


class ShareConsumer:
    """A member that sends heartbeats, and can lose their responses."""

    def __init__(self, world: ShareWorld, member_id: str, topics: frozenset[str]) -> None:
        self.world, self.member_id, self.topics = world, member_id, topics
        self.epoch = JOINING_EPOCH
        self.assigned: Assignment = NOTHING

    def beat(self, draw: Random | None = None, loss: float = 0.0) -> None:
        is_joining = self.epoch == JOINING_EPOCH
        result = self.world.beat_share(
            self.member_id, self.epoch, topics=self.topics if is_joining else None, client_id=self.member_id
        )
        if draw is not None and draw.random() < loss:
            return
        if result.error_code in FENCED:
            self.epoch, self.assigned = JOINING_EPOCH, NOTHING
            return
        assert result.error_code is ErrorCode.NONE
        assert result.member_epoch >= self.epoch
        self.epoch = result.member_epoch
        if result.assignment is not None:
            self.assigned = result.assignment

    def leave(self) -> None:
        assert self.world.beat_share(self.member_id, LEAVING_EPOCH).error_code in {ErrorCode.NONE, *FENCED}
