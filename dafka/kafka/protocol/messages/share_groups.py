"""ShareGroupHeartbeat and ShareGroupDescribe: groups whose members share the records of logs (KIP-932)."""

from __future__ import annotations

from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.messages.consumer_groups import DescribedAssignment, HeartbeatAssignment
from dafka.kafka.protocol.tables import Boolean, Int16, Int32, Request, Response, String, Struct, field


class ShareGroupHeartbeatRequest(Request, key=ApiKey.SHARE_GROUP_HEARTBEAT, versions="1", flexible="0+"):
    """Join or leave a share group, or stay in it."""

    group_id: String
    member_id: String
    member_epoch: Int32
    rack_id: String | None = field(default=None)
    subscribed_topic_names: list[String] | None = field(default=None)


class ShareGroupHeartbeatResponse(Response, key=ApiKey.SHARE_GROUP_HEARTBEAT, versions="1", flexible="0+"):
    """The epoch of the member, and what it may read if that has changed."""

    throttle_time_ms: Int32 = field(default=0)
    error_code: Int16
    error_message: String | None = field(default=None)
    member_id: String | None = field(default=None)
    member_epoch: Int32
    heartbeat_interval_ms: Int32
    assignment: HeartbeatAssignment | None = field(default=None)


class ShareGroupDescribeRequest(Request, key=ApiKey.SHARE_GROUP_DESCRIBE, versions="1", flexible="0+"):
    """Ask for the members of share groups."""

    group_ids: list[String]
    include_authorized_operations: Boolean


class DescribedShareMember(Struct):
    """An item of `DescribedShareGroup.members`."""

    member_id: String
    rack_id: String | None = field(default=None)
    member_epoch: Int32
    client_id: String
    client_host: String
    subscribed_topic_names: list[String]
    assignment: DescribedAssignment


class DescribedShareGroup(Struct):
    """An item of `ShareGroupDescribeResponse.groups`."""

    error_code: Int16
    error_message: String | None = field(default=None)
    group_id: String
    group_state: String
    group_epoch: Int32
    assignment_epoch: Int32
    assignor_name: String
    members: list[DescribedShareMember]
    authorized_operations: Int32 = field(default=-2147483648)


class ShareGroupDescribeResponse(Response, key=ApiKey.SHARE_GROUP_DESCRIBE, versions="1", flexible="0+"):
    """The members of share groups, and their assignments."""

    throttle_time_ms: Int32 = field(default=0)
    groups: list[DescribedShareGroup]
