"""The requests of group members and for offsets, and their results. Fields have the names of Kafka's protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import attrs

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.topic_partition import TopicPartition

CLASSIC, CONSUMER, SHARE = "classic", "consumer", "share"
"""The types of groups: members divide the logs among themselves, the coordinator does, or they share records."""


@attrs.frozen(kw_only=True)
class JoinRequest:
    """A request to join a group, or to join it again."""

    group_id: str
    member_id: str = ""  # empty if the coordinator has not assigned one yet
    group_instance_id: str | None = None  # None if the member is dynamic
    client_id: str = ""
    client_host: str = ""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]  # the preferred assignor first, each with its metadata
    requires_known_member_id: bool = False  # first gets its id, then joins with it (JoinGroup 4 and later)
    supports_skipping_assignment: bool = False  # JoinGroup version 9 and later


class JoinedMember(NamedTuple):
    """A member in the response to the leader of its group."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@attrs.frozen
class JoinResult:
    """The response to JoinGroup. Only the response for the leader has members."""

    error_code: ErrorCode
    member_id: str
    generation_id: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False  # the leader must not assign, because all assignments stay
    members: tuple[JoinedMember, ...] = ()


@attrs.frozen(kw_only=True)
class SyncRequest:
    """A request of a member for its assignment. That of the leader has the assignments of all, by member id."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None
    protocol_type: str | None = None  # None if the client does not provide it
    protocol_name: str | None = None  # None if the client does not provide it
    assignments: tuple[tuple[str, bytes], ...] = ()


@attrs.frozen
class SyncResult:
    """The response to SyncGroup."""

    error_code: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class LeavingMember(NamedTuple):
    """A member that leaves. Without a member id, an administrator removes a static member."""

    member_id: str
    group_instance_id: str | None = None


class LeftMember(NamedTuple):
    """The result for a member in a LeaveGroup request."""

    member_id: str
    group_instance_id: str | None
    error_code: ErrorCode


@attrs.frozen
class LeaveResult:
    """The response to LeaveGroup."""

    error_code: ErrorCode
    members: tuple[LeftMember, ...] = ()


@attrs.frozen
class DescribedMember:
    """A member in the response to DescribeGroups."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@attrs.frozen
class DescribedGroup:
    """A group in the responses to DescribeGroups and ListGroups. A group that does not exist is `Dead`."""

    group_id: str
    error_code: ErrorCode  # DescribeGroups before version 6 has NONE instead of GROUP_ID_NOT_FOUND
    state: str
    protocol_type: str = ""  # empty if it never had members
    protocol: str = ""  # only while the group is stable
    generation_id: int = -1
    members: tuple[DescribedMember, ...] = ()  # only those of a stable group have metadata and assignments
    group_type: str = CLASSIC


class OffsetToCommit(NamedTuple):
    """An offset in a commit request. `topic_id` is the id of its topic."""

    offset: int
    leader_epoch: int = -1
    metadata: str | None = None
    topic_id: str = ""


@attrs.frozen(kw_only=True)
class CommitRequest:
    """A commit of offsets, by a member or by a client that is none."""

    group_id: str
    generation_id: int = -1  # -1 if the client is no member
    member_id: str = ""  # empty if the client is no member
    group_instance_id: str | None = None
    retention_ms: int | None = None  # None or -1 if the broker decides; OffsetCommit 2 to 4 can set it
    offsets: Mapping[TopicPartition, OffsetToCommit]


class FetchedOffset(NamedTuple):
    """The committed offset of a group for a log. The offset is -1 if there is none."""

    offset: int
    leader_epoch: int
    metadata: str
    error_code: ErrorCode
    topic_id: str = ""


@attrs.frozen
class DeleteOffsetsResult:
    """The response to OffsetDelete."""

    error_code: ErrorCode
    partitions: Mapping[TopicPartition, ErrorCode] = attrs.field(factory=dict)
