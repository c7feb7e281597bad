"""What members ask for, and what they are answered. The fields have the names of Kafka's protocol."""

from __future__ import annotations

from typing import NamedTuple

import attrs

from dafka.broker.core.error_codes import ErrorCode


@attrs.frozen(kw_only=True)
class JoinRequest:
    """A member that wants to join a group, or to join it again.

    Attributes:
        group_id: The group.
        member_id: The id that the coordinator gave the member; empty if it has none yet.
        group_instance_id: The name of a static member; None if it is dynamic.
        client_id: The name that the client gives itself.
        client_host: Where the client is.
        session_timeout_ms: How long the member stays in the group without a heartbeat.
        rebalance_timeout_ms: How long a rebalance waits for the member to join again.
        protocol_type: What kind of group it is, such as `consumer`.
        protocols: The assignors that the member supports, the preferred one first, each with the metadata for it.
        requires_known_member_id: Whether a new dynamic member gets its id first, and joins with it then (JoinGroup
            version 4 and later).
        supports_skipping_assignment: Whether the leader can be asked not to assign (JoinGroup version 9 and later).
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
    """A member as the leader of its group sees it."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@attrs.frozen
class JoinResult:
    """The answer to JoinGroup.

    Attributes:
        error_code: What went wrong.
        member_id: The id of the member.
        generation_id: The generation that it has joined.
        protocol_type: What kind of group it is.
        protocol_name: The assignor that won the vote.
        leader: The member that assigns.
        skip_assignment: Whether the leader must not assign, because everybody's assignment stays.
        members: All members, if the answer is for the leader; otherwise none.
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
    """A member that asks for its assignment.

    Attributes:
        group_id: The group.
        generation_id: The generation that the member has joined.
        member_id: The id of the member.
        group_instance_id: The name of a static member.
        protocol_type: What kind of group it is; None if the client does not say.
        protocol_name: The assignor; None if the client does not say.
        assignments: If the leader asks: what it assigns, by member id.
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
    """The answer to SyncGroup."""

    error_code: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class LeavingMember(NamedTuple):
    """A member that leaves. Without a member id it is the static member of that name, removed by an administrator."""

    member_id: str
    group_instance_id: str | None = None


class LeftMember(NamedTuple):
    """What became of a member that was to leave."""

    member_id: str
    group_instance_id: str | None
    error_code: ErrorCode


@attrs.frozen
class LeaveResult:
    """The answer to LeaveGroup."""

    error_code: ErrorCode
    members: tuple[LeftMember, ...] = ()


@attrs.frozen
class DescribedMember:
    """A member in the answer to DescribeGroups."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@attrs.frozen
class DescribedGroup:
    """A group in the answers to DescribeGroups and ListGroups. A group that does not exist is `Dead`.

    Attributes:
        group_id: The group.
        error_code: GROUP_ID_NOT_FOUND if there is no such group. DescribeGroups before version 6 has NONE there.
        state: The state under Kafka's name.
        protocol_type: What kind of group it is; empty if it never had members.
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
