"""A coordinator, the topics of its cluster, and members that lose messages."""

from __future__ import annotations

import itertools
import struct
from random import Random
from typing import Any

import attrs

from dafka.broker.core.coordination.effects import Action, Answer, WriteState
from dafka.broker.core.coordination.state_records import StateRecord
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.consumer.classic_members import find_logs
from dafka.broker.core.groups.consumer.group import ConsumerGroup, name_logs
from dafka.broker.core.groups.consumer.members import JOINING_EPOCH, LEAVING_EPOCH, NOTHING, Assignment
from dafka.broker.core.groups.consumer.results import (
    ConsumerHeartbeatRequest,
    ConsumerHeartbeatResult,
    DescribedConsumerGroup,
)
from dafka.broker.core.groups.coordinator import GroupCoordinator
from dafka.broker.core.groups.results import JoinRequest, JoinResult, LeavingMember, SyncRequest
from dafka.broker.core.groups.settings import GroupSettings
from dafka.broker.core.groups.subscriptions import encode_assignment, read_assignment
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.metadata.log_replicas import LogKey
from dafka.broker.core.metadata.topics import Topic

SESSION_MS, REBALANCE_MS, HEARTBEAT_MS = 45_000, 60_000, 5_000
GROUP = "g"
FENCED = {ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}


@attrs.define
class ChangingTopics:
    """The topics of a cluster, with the ids that they get."""

    table: LogTable = attrs.field(factory=lambda: LogTable("A" * 32))
    _ids: Any = attrs.field(factory=itertools.count)

    def find(self, name: str) -> Topic | None:
        return self.table.find_client_topic(name)

    def put(self, name: str, log_count: int) -> str:
        """Create a topic, or add logs to one. Return its id."""
        known = self.find(name)
        topic_id = f"{next(self._ids):032X}" if known is None else known.topic_id
        self.table.add_topic(Topic(name, topic_id, log_count))
        return topic_id

    def delete(self, name: str) -> None:
        self.table.remove_topic(name)

    def logs_of(self, *names: str) -> Assignment:
        found = [each for each in map(self.find, names) if each is not None]
        return frozenset(LogKey(each.topic_id, number) for each in found for number in range(each.log_count))


class World:
    """A coordinator whose records are kept, so that it can be restarted, and the time."""

    def __init__(self, **settings: Any) -> None:
        self.settings = GroupSettings(**{"group_consumer_session_timeout_ms": SESSION_MS, **settings})
        self.topics = ChangingTopics()
        self.now_ms = 0
        self.records: list[StateRecord] = []
        self._ids = itertools.count()
        self.coordinator = self._make()

    def _make(self) -> GroupCoordinator:
        coordinator = GroupCoordinator(self.settings, lambda: f"made-{next(self._ids)}", self.topics.table)
        for record in self.records:
            coordinator.restore(record)
        coordinator.start(self.now_ms)
        return coordinator

    @property
    def group(self) -> ConsumerGroup:
        return self.coordinator._consumers.groups[GROUP]

    def restart(self, *, compact: bool = False) -> None:
        """Restart the coordinator. It knows what it knew, from all its records or only the last one of each key."""
        if compact:
            last = {each.key: number for number, each in enumerate(self.records)}
            self.records = [each for number, each in enumerate(self.records) if last[each.key] == number]
        before, self.coordinator = self._known(), self._make()
        assert self._known() == before

    def _known(self) -> DescribedConsumerGroup:
        group = self.coordinator.describe_consumer_group(GROUP)
        return attrs.evolve(group, members=tuple(sorted(group.members, key=lambda each: each.member.member_id)))

    def take(self, actions: list[Action]) -> list[Any]:
        """Carry out actions. Return the results for clients."""
        results = []
        for action in actions:
            if isinstance(action, WriteState):
                self.records += action.records
            elif isinstance(action, Answer):
                results.append(action.result)
        return results

    def pass_time(self, duration_ms: int) -> None:
        end_ms = self.now_ms + duration_ms
        while (due_ms := self.coordinator.next_deadline_ms()) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.take(self.coordinator.advance(self.now_ms))
        self.now_ms = end_ms

    def beat(self, member_id: str, epoch: int, **fields: Any) -> ConsumerHeartbeatResult:
        """Send a heartbeat, and return its result; see `beat_all`."""
        result = self.beat_all(member_id, epoch, **fields)[-1]
        assert isinstance(result, ConsumerHeartbeatResult)
        return result

    def beat_all(self, member_id: str, epoch: int, **fields: Any) -> list[Any]:
        """Send a heartbeat. That of a member that joins is complete. Return all results, also for other clients."""
        if epoch == JOINING_EPOCH:
            fields = {"rebalance_timeout_ms": REBALANCE_MS, "owned": NOTHING, **fields}
        request = ConsumerHeartbeatRequest(group_id=GROUP, member_id=member_id, member_epoch=epoch, **fields)
        return self.take(self.coordinator.consumer_heartbeat(0, request, self.now_ms))


@attrs.define(eq=False)
class Consumer:
    """A client: it reads what it owns. What it must give up it gives up later, and then says so."""

    world: World
    member_id: str
    topics: frozenset[str]
    instance_id: str = ""
    epoch: int = JOINING_EPOCH
    owned: Assignment = NOTHING
    assigned: Assignment = NOTHING
    told: Assignment | None = None
    is_up: bool = True
    has_lost_answer: bool = False

    @property
    def is_member(self) -> bool:
        """Whether the coordinator takes this client for a member, in the epoch that the client has or the next one."""
        known = self.world.group.members.get(self.member_id)
        return self.epoch > JOINING_EPOCH and known is not None and not known.is_paused

    def beat(self, draw: Random | None = None, *, loss: float = 0.0) -> None:
        """Send a heartbeat. Without a request or a response, the next one says everything again."""
        if draw is None or draw.random() < 0.6:
            self.owned &= self.assigned
        is_complete = self.epoch == JOINING_EPOCH or self.has_lost_answer
        fields: dict[str, Any] = {}
        if is_complete:
            fields = {"rebalance_timeout_ms": REBALANCE_MS, "topics": self.topics}
        if is_complete or self.told != self.owned:
            fields["owned"] = self.owned
        if draw is not None and draw.random() < loss:
            self.has_lost_answer = True
            return
        result = self.world.beat(self.member_id, self.epoch, instance_id=self.instance_id, **fields)
        if draw is not None and draw.random() < loss:
            self.has_lost_answer = True
            return
        self.has_lost_answer = False
        self.told = fields.get("owned", self.told)
        self._receive(result)

    def _receive(self, result: ConsumerHeartbeatResult) -> None:
        if result.error_code in FENCED:
            self.forget()
            return
        assert result.error_code in {ErrorCode.NONE, ErrorCode.UNRELEASED_INSTANCE_ID}, result
        if result.error_code is ErrorCode.NONE:
            assert result.member_epoch >= self.epoch, "the epoch of a member went back"
            self.member_id, self.epoch = result.member_id, result.member_epoch
            if result.assignment is not None:
                self.assigned = result.assignment
                self.owned |= self.assigned

    def leave(self) -> None:
        self.world.beat(self.member_id, LEAVING_EPOCH, instance_id=self.instance_id)

    def forget(self) -> None:
        """Read nothing, and join again with the next heartbeat."""
        self.epoch, self.owned, self.assigned, self.told = JOINING_EPOCH, NOTHING, NOTHING, None


@attrs.define(eq=False)
class ClassicConsumer:
    """A client of the classic protocol with a cooperative assignor: it gives up what it must before it joins again."""

    world: World
    member_id: str
    topics: frozenset[str]
    epoch: int = JOINING_EPOCH
    owned: Assignment = NOTHING
    state: str = "joining"
    is_known: bool = False
    instance_id: str = ""

    @property
    def is_member(self) -> bool:
        return self.member_id in self.world.group.members

    def beat(self, draw: Random | None = None, *, loss: float = 0.0) -> None:
        """Send the next request: to join, for the assignment, or a heartbeat."""
        if draw is not None and draw.random() < loss:
            return
        step = {"joining": self._join, "syncing": self._sync, "reading": self._heartbeat}
        step[self.state](draw is not None and draw.random() < loss)

    def forget(self) -> None:
        self.owned, self.state, self.is_known = NOTHING, "joining", False

    def leave(self) -> None:
        leaving = (LeavingMember(self.member_id, self.instance_id or None),)
        coordinator = self.world.coordinator
        self.world.take(coordinator.leave_group("leave", GROUP, leaving, self.world.now_ms))

    def _names(self) -> dict[str, list[int]]:
        names = {topic.topic_id: name for name, topic in self.world.topics.table.topics.items()}
        return name_logs(self.owned, names)

    def _join(self, is_lost: bool) -> None:
        metadata = encode_subscription(self.topics, self._names())
        request = JoinRequest(
            group_id=GROUP,
            member_id=self.member_id if self.is_known else "",
            group_instance_id=self.instance_id or None,
            client_id=self.member_id.partition("-")[0],
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            protocol_type="consumer",
            protocols=(("cooperative", metadata),),
        )
        actions = self.world.coordinator.join_group(self.member_id, request, self.world.now_ms)
        results = self.world.take(actions)
        if not results or is_lost:
            return
        (result,) = results
        assert isinstance(result, JoinResult)
        if result.error_code is ErrorCode.UNKNOWN_MEMBER_ID:
            self.forget()
        elif result.error_code is ErrorCode.NONE:
            self.member_id, self.is_known = result.member_id, True
            self.epoch, self.state = result.generation_id, "syncing"

    def _sync(self, is_lost: bool) -> None:
        instance_id = self.instance_id or None
        request = SyncRequest(
            group_id=GROUP, generation_id=self.epoch, member_id=self.member_id, group_instance_id=instance_id
        )
        results = self.world.take(self.world.coordinator.sync_group("sync", request, self.world.now_ms))
        if not results or is_lost:
            return
        (result,) = results
        if result.error_code is ErrorCode.UNKNOWN_MEMBER_ID:
            self.forget()
        elif result.error_code:
            self.state = "joining"
        else:
            self._assign(result.assignment)

    def _assign(self, assignment: bytes) -> None:
        logs = read_assignment(assignment)
        assert logs is not None
        assigned = find_logs(logs, self.world.topics.table)
        given_up = self.owned - assigned
        self.owned, self.state = assigned, "joining" if given_up else "reading"

    def _heartbeat(self, is_lost: bool) -> None:
        instance_id, now_ms = self.instance_id or None, self.world.now_ms
        error = self.world.coordinator.heartbeat(GROUP, self.epoch, self.member_id, instance_id, now_ms)
        if is_lost or not error:
            return
        if error is ErrorCode.UNKNOWN_MEMBER_ID:
            self.forget()
        else:
            self.state = "joining"


def encode_subscription(topics: frozenset[str], owned: dict[str, list[int]]) -> bytes:
    """Return a subscription in version 1 of Kafka's format."""
    named = b"".join(struct.pack(">h", len(each)) + each.encode() for each in sorted(topics))
    logs = encode_assignment(owned)[2:-4]  # without version and the user's data
    return struct.pack(">hi", 1, len(topics)) + named + struct.pack(">i", -1) + logs
