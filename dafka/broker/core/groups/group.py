"""One group: its members, their votes for assignors, and the waiting requests."""

from __future__ import annotations

from collections import Counter
from enum import Enum

import attrs

from dafka.broker.core.coordination.effects import Token
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.results import (
    CLASSIC,
    DescribedGroup,
    DescribedMember,
    JoinedMember,
    JoinRequest,
    JoinResult,
)
from dafka.broker.core.groups.subscriptions import CONSUMER_PROTOCOL, read_topics


class GroupState(Enum):
    """The states of a group, with Kafka's names."""

    EMPTY = "Empty"
    """It has no members. It can have offsets."""

    PREPARING_REBALANCE = "PreparingRebalance"
    """It waits until all members have joined again."""

    COMPLETING_REBALANCE = "CompletingRebalance"
    """It waits for the leader's assignments."""

    STABLE = "Stable"
    """Every member has its assignment."""

    DEAD = "Dead"
    """It does not exist."""


@attrs.define
class Member:
    """A member of a group. A dynamic one has no group instance id."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]  # the preferred assignor first, each with its metadata
    assignment: bytes = b""

    @classmethod
    def from_request(cls, request: JoinRequest, member_id: str) -> Member:
        """Return a member that has not joined a generation yet."""
        return cls(
            member_id,
            request.group_instance_id,
            request.client_id,
            request.client_host,
            request.session_timeout_ms,
            request.rebalance_timeout_ms,
            request.protocols,
        )

    def metadata_for(self, protocol_name: str | None) -> bytes:
        """Return the member's metadata for an assignor; empty if it does not support the assignor."""
        return next((metadata for name, metadata in self.protocols if name == protocol_name), b"")

    def vote(self, candidates: set[str]) -> str:
        """Return the first assignor in the member's list that all members support."""
        return next(name for name, _ in self.protocols if name in candidates)


class Group:
    """One group. It keeps its own state consistent; `Membership` decides when it changes."""

    group_type = CLASSIC

    def __init__(self, group_id: str, now_ms: int) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.state_since_ms = now_ms
        self.generation_id = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.pending: set[str] = set()
        self.joining: dict[str, Token] = {}
        self.syncing: dict[str, Token] = {}
        self.unsynced: set[str] = set()
        self.newcomers: set[str] = set()
        self._static: dict[str, str] = {}
        self._supporters: Counter[str] = Counter()

    @property
    def is_unused(self) -> bool:
        """Whether the group has no members and expects none."""
        return self.state is GroupState.EMPTY and not self.pending

    @property
    def has_members(self) -> bool:
        """Whether the group has members."""
        return self.state is not GroupState.EMPTY

    @property
    def has_all_joined(self) -> bool:
        """Whether the rebalance waits for no member."""
        return len(self.joining) == len(self.members) and not self.pending

    @property
    def rebalance_timeout_ms(self) -> int:
        """How long a rebalance waits for members: the longest rebalance timeout of a member."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def enter(self, state: GroupState, now_ms: int) -> None:
        """Enter a state."""
        self.state = state
        self.state_since_ms = now_ms

    def static_member_id(self, group_instance_id: str | None) -> str | None:
        """Return the member id of a static member; None if there is no such member."""
        return None if group_instance_id is None else self._static.get(group_instance_id)

    def has_capacity_for(self, member_id: str, size_max: int) -> bool:
        """Return whether a member is in the group or can join it."""
        return (
            member_id in self.members or member_id in self.pending or len(self.members) + len(self.pending) < size_max
        )

    def supports(self, protocol_type: str, protocols: tuple[tuple[str, bytes], ...]) -> bool:
        """Return whether a member with these assignors has one that all other members support."""
        if not self.members:
            return True
        count = len(self.members)
        return protocol_type == self.protocol_type and any(self._supporters[name] == count for name, _ in protocols)

    def check_member(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        """Return the error of a request of this member in any generation, or NONE."""
        if group_instance_id is not None:
            current_id = self._static.get(group_instance_id)
            if current_id is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current_id != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def check_generation(self, member_id: str, group_instance_id: str | None, generation_id: int) -> ErrorCode:
        """Return the error of a request of this member in this generation, or NONE."""
        error = self.check_member(member_id, group_instance_id)
        if error is ErrorCode.NONE and generation_id != self.generation_id:
            return ErrorCode.ILLEGAL_GENERATION
        return error

    def add(self, member: Member, protocol_type: str) -> None:
        """Add a member."""
        if not self.members:
            self.protocol_type = protocol_type
        self.pending.discard(member.member_id)
        self.members[member.member_id] = member
        self.newcomers.add(member.member_id)
        self._supporters.update({name for name, _ in member.protocols})
        if member.group_instance_id is not None:
            self._static[member.group_instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id

    def update(self, member_id: str, request: JoinRequest) -> None:
        """Update a member that joins again."""
        member = self.members[member_id]
        self._supporters.subtract({name for name, _ in member.protocols})
        member.protocols = request.protocols
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.client_id, member.client_host = request.client_id, request.client_host
        self._supporters.update({name for name, _ in member.protocols})

    def replace_static(self, old_id: str, new_id: str) -> None:
        """Assign another id to a static member whose client has restarted. It keeps its assignment."""
        member = self.members[old_id]
        assert member.group_instance_id is not None
        member.member_id = new_id
        self._static[member.group_instance_id] = new_id
        self.members = {each.member_id: each for each in self.members.values()}
        for ids in (self.unsynced, self.newcomers):
            if old_id in ids:
                ids.remove(old_id)
                ids.add(new_id)
        if self.leader == old_id:
            self.leader = new_id

    def remove(self, member_id: str) -> None:
        """Remove a member. Its waiting requests must have got a response."""
        member = self.members.pop(member_id)
        self._supporters.subtract({name for name, _ in member.protocols})
        if member.group_instance_id is not None:
            del self._static[member.group_instance_id]
        self.unsynced.discard(member_id)
        self.newcomers.discard(member_id)

    def elect_leader(self) -> None:
        """Elect a leader among the members that have joined. There must be one."""
        if self.leader not in self.joining:
            self.leader = next(member_id for member_id in self.members if member_id in self.joining)

    def select_protocol(self) -> str:
        """Return the assignor with the most votes that all members support."""
        candidates = {name for name, count in self._supporters.items() if count == len(self.members)}
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return votes.most_common(1)[0][0]

    def begin_generation(self, now_ms: int) -> None:
        """Enter the next generation with the current members."""
        self.generation_id = self.generation_id + 1 if self.generation_id < 2**31 - 1 else 1
        self.newcomers.clear()
        if self.members:
            self.protocol_name = self.select_protocol()
            self.unsynced = set(self.joining)
            self.enter(GroupState.COMPLETING_REBALANCE, now_ms)
        else:
            self.protocol_name = self.leader = None
            self.unsynced.clear()
            self.enter(GroupState.EMPTY, now_ms)

    def assign(self, assignments: dict[str, bytes], now_ms: int) -> None:
        """Set the leader's assignments. Members without one get an empty assignment."""
        for member in self.members.values():
            member.assignment = assignments.get(member.member_id, b"")
        self.enter(GroupState.STABLE, now_ms)

    def subscribed_topics(self) -> frozenset[str] | None:
        """Return the topics that a group of consumers reads; None if they are unknown."""
        if self.protocol_type != CONSUMER_PROTOCOL:
            return None
        topics = frozenset[str]()
        for member in self.members.values():
            for _, metadata in member.protocols:
                found = read_topics(metadata)
                if found is None:
                    return None
                topics |= found
        return topics

    def joined_members(self) -> tuple[JoinedMember, ...]:
        """Return the members for the response to the leader."""
        return tuple(
            JoinedMember(member.member_id, member.group_instance_id, member.metadata_for(self.protocol_name))
            for member in self.members.values()
        )

    def join_result(self, member_id: str) -> JoinResult:
        """Return the result for a member that has joined this generation."""
        is_leader = member_id == self.leader
        return JoinResult(
            ErrorCode.NONE,
            member_id,
            self.generation_id,
            self.protocol_type,
            self.protocol_name,
            self.leader or "",
            members=self.joined_members() if is_leader else (),
        )

    def describe(self) -> DescribedGroup:
        """Return the description for DescribeGroups."""
        is_stable = self.state is GroupState.STABLE
        members = tuple(
            DescribedMember(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host,
                member.metadata_for(self.protocol_name) if is_stable else b"",
                member.assignment if is_stable else b"",
            )
            for member in self.members.values()
        )
        protocol = self.protocol_name if is_stable else None
        return DescribedGroup(
            self.group_id,
            ErrorCode.NONE,
            self.state.value,
            self.protocol_type or "",
            protocol or "",
            self.generation_id,
            members,
        )
