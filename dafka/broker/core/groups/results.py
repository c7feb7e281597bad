"""The requests of group members, and their results. The fields have the names of Kafka's protocol."""

from __future__ import annotations

from typing import NamedTuple

import attrs

from dafka.broker.core.error_codes import ErrorCode


@attrs.frozen(kw_only=True)
class JoinRequest:
    """A request to join a group, or to join it again.

    Attributes:
        group_id: The group.
        member_id: The id that the coordinator has assigned to the member; empty if it has none yet.
        group_instance_id: The group instance id of a static member; None if it is dynamic.
        client_id: The client id.
        client_host: The host of the client.
        session_timeout_ms: How long the member stays in the group without a heartbeat.
        rebalance_timeout_ms: How long a rebalance waits for the member to join again.
        protocol_type: The type of the group, such as `consumer`.
        protocols: The assignors that the member supports, the preferred one first, each with its metadata.
        requires_known_member_id: Whether a new dynamic member first gets its id, and then joins with it (JoinGroup
            version 4 and later).
        supports_skipping_assignment: Whether the leader can skip the assignment (JoinGroup version 9 and later).
    """

    group_id: str
    member_id: str = ""
    group_instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    requires_known_member_id: bool = False
    supports_skipping_assignment: bool = False


class JoinedMember(NamedTuple):
    """A member in the response to the leader of its group."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@attrs.frozen
class JoinResult:
    """The response to JoinGroup.

    Attributes:
        error_code: The error.
        member_id: The id of the member.
        generation_id: The generation that it has joined.
        protocol_type: The type of the group.
        protocol_name: The selected assignor.
        leader: The member that assigns.
        skip_assignment: Whether the leader must not assign, because all assignments stay.
        members: All members, if the response is for the leader; otherwise none.
    """

    error_code: ErrorCode
    member_id: str
    generation_id: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@attrs.frozen(kw_only=True)
class SyncRequest:
    """A request of a member for its assignment.

    Attributes:
        group_id: The group.
        generation_id: The generation that the member has joined.
        member_id: The id of the member.
        group_instance_id: The group instance id of a static member.
        protocol_type: The type of the group; None if the client does not provide it.
        protocol_name: The assignor; None if the client does not provide it.
        assignments: If the leader sends the request: its assignments, by member id.
    """

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
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
    """A group in the responses to DescribeGroups and ListGroups. A group that does not exist is `Dead`.

    Attributes:
        group_id: The group.
        error_code: GROUP_ID_NOT_FOUND if there is no such group. DescribeGroups before version 6 has NONE instead.
        state: The state, with Kafka's name.
        protocol_type: The type of the group; empty if it never had members.
        protocol: The assignor, while the group is stable; otherwise empty.
        generation_id: The current generation.
        members: The members. Only those of a stable group have metadata and assignments.
    """

    group_id: str
    error_code: ErrorCode
    state: str
    protocol_type: str = ""
    protocol: str = ""
    generation_id: int = -1
    members: tuple[DescribedMember, ...] = ()
