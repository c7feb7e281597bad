"""FindCoordinator, JoinGroup, SyncGroup, Heartbeat and LeaveGroup: the members of consumer groups."""

from __future__ import annotations

from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.tables import Boolean, Bytes, Int8, Int16, Int32, Request, Response, String, Struct, field


class FindCoordinatorRequest(Request, key=ApiKey.FIND_COORDINATOR, versions="0-6", flexible="3+"):
    """Ask which broker coordinates groups or transactions."""

    key: String = field("0-3", default="")
    key_type: Int8 = field("1+", default=0)
    coordinator_keys: list[String] = field("4+", default=[])


class Coordinator(Struct):
    """An item of `FindCoordinatorResponse.coordinators`."""

    key: String
    node_id: Int32
    host: String
    port: Int32
    error_code: Int16
    error_message: String | None


class FindCoordinatorResponse(Response, key=ApiKey.FIND_COORDINATOR, versions="0-6", flexible="3+"):
    """The brokers that coordinate groups or transactions."""

    throttle_time_ms: Int32 = field("1+", default=0)
    error_code: Int16 = field("0-3", default=0)
    error_message: String | None = field("1-3", default=None)
    node_id: Int32 = field("0-3", default=0)
    host: String = field("0-3", default="")
    port: Int32 = field("0-3", default=0)
    coordinators: list[Coordinator] = field("4+", default=[])


class JoinGroupRequestProtocol(Struct):
    """An item of `JoinGroupRequest.protocols`."""

    name: String
    metadata: Bytes


class JoinGroupRequest(Request, key=ApiKey.JOIN_GROUP, versions="0-9", flexible="6+"):
    """Join a group, or join it again in a rebalance."""

    group_id: String
    session_timeout_ms: Int32
    rebalance_timeout_ms: Int32 = field("1+", default=-1)
    member_id: String
    group_instance_id: String | None = field("5+", default=None)
    protocol_type: String
    protocols: list[JoinGroupRequestProtocol]
    reason: String | None = field("8+", default=None)


class JoinGroupResponseMember(Struct):
    """An item of `JoinGroupResponse.members`."""

    member_id: String
    group_instance_id: String | None = field("5+", default=None)
    metadata: Bytes


class JoinGroupResponse(Response, key=ApiKey.JOIN_GROUP, versions="0-9", flexible="6+"):
    """The generation of a group; for its leader, the members."""

    throttle_time_ms: Int32 = field("2+", default=0)
    error_code: Int16
    generation_id: Int32 = field(default=-1)
    protocol_type: String | None = field("7+", default=None)
    protocol_name: String | None = field(nullable="7+")
    leader: String
    skip_assignment: Boolean = field("9+", default=False)
    member_id: String
    members: list[JoinGroupResponseMember]


class SyncGroupRequestAssignment(Struct):
    """An item of `SyncGroupRequest.assignments`."""

    member_id: String
    assignment: Bytes


class SyncGroupRequest(Request, key=ApiKey.SYNC_GROUP, versions="0-5", flexible="4+"):
    """Ask for a member's assignment; the leader brings those of all members."""

    group_id: String
    generation_id: Int32
    member_id: String
    group_instance_id: String | None = field("3+", default=None)
    protocol_type: String | None = field("5+", default=None)
    protocol_name: String | None = field("5+", default=None)
    assignments: list[SyncGroupRequestAssignment]


class SyncGroupResponse(Response, key=ApiKey.SYNC_GROUP, versions="0-5", flexible="4+"):
    """The assignment of a member."""

    throttle_time_ms: Int32 = field("1+", default=0)
    error_code: Int16
    protocol_type: String | None = field("5+", default=None)
    protocol_name: String | None = field("5+", default=None)
    assignment: Bytes


class HeartbeatRequest(Request, key=ApiKey.HEARTBEAT, versions="0-4", flexible="4+"):
    """Report that a member is alive."""

    group_id: String
    generation_id: Int32
    member_id: String
    group_instance_id: String | None = field("3+", default=None)


class HeartbeatResponse(Response, key=ApiKey.HEARTBEAT, versions="0-4", flexible="4+"):
    """Whether the member must join again."""

    throttle_time_ms: Int32 = field("1+", default=0)
    error_code: Int16


class MemberIdentity(Struct):
    """An item of `LeaveGroupRequest.members`."""

    member_id: String
    group_instance_id: String | None = field(default=None)
    reason: String | None = field("5+", default=None)


class LeaveGroupRequest(Request, key=ApiKey.LEAVE_GROUP, versions="0-5", flexible="4+"):
    """Remove members from a group."""

    group_id: String
    member_id: String = field("0-2", default="")
    members: list[MemberIdentity] = field("3+", default=[])


class MemberResponse(Struct):
    """An item of `LeaveGroupResponse.members`."""

    member_id: String
    group_instance_id: String | None
    error_code: Int16


class LeaveGroupResponse(Response, key=ApiKey.LEAVE_GROUP, versions="0-5", flexible="4+"):
    """Whether members were removed."""

    throttle_time_ms: Int32 = field("1+", default=0)
    error_code: Int16
    members: list[MemberResponse] = field("3+", default=[])
