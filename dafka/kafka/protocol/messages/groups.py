"""ListGroups, DescribeGroups and DeleteGroups: groups as administrators see them."""

from __future__ import annotations

from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.tables import Boolean, Bytes, Int16, Int32, Request, Response, String, Struct, field


class ListGroupsRequest(Request, key=ApiKey.LIST_GROUPS, versions="0-5", flexible="3+"):
    """Ask for groups."""

    states_filter: list[String] = field("4+", default=[])
    types_filter: list[String] = field("5+", default=[])


class ListedGroup(Struct):
    """An item of `ListGroupsResponse.groups`."""

    group_id: String
    protocol_type: String
    group_state: String = field("4+", default="")
    group_type: String = field("5+", default="")


class ListGroupsResponse(Response, key=ApiKey.LIST_GROUPS, versions="0-5", flexible="3+"):
    """Groups and their states."""

    throttle_time_ms: Int32 = field("1+", default=0)
    error_code: Int16
    groups: list[ListedGroup]


class DescribeGroupsRequest(Request, key=ApiKey.DESCRIBE_GROUPS, versions="0-6", flexible="5+"):
    """Ask for the members of groups."""

    groups: list[String]
    include_authorized_operations: Boolean = field("3+", default=False)


class DescribedGroupMember(Struct):
    """An item of `DescribedGroup.members`."""

    member_id: String
    group_instance_id: String | None = field("4+", default=None)
    client_id: String
    client_host: String
    member_metadata: Bytes
    member_assignment: Bytes


class DescribedGroup(Struct):
    """An item of `DescribeGroupsResponse.groups`."""

    error_code: Int16
    error_message: String | None = field("6+", default=None)
    group_id: String
    group_state: String
    protocol_type: String
    protocol_data: String
    members: list[DescribedGroupMember]
    authorized_operations: Int32 = field("3+", default=-2147483648)


class DescribeGroupsResponse(Response, key=ApiKey.DESCRIBE_GROUPS, versions="0-6", flexible="5+"):
    """The members of groups, and their assignments."""

    throttle_time_ms: Int32 = field("1+", default=0)
    groups: list[DescribedGroup]


class DeleteGroupsRequest(Request, key=ApiKey.DELETE_GROUPS, versions="0-2", flexible="2+"):
    """Delete groups without members."""

    groups_names: list[String]


class DeletableGroupResult(Struct):
    """An item of `DeleteGroupsResponse.results`."""

    group_id: String
    error_code: Int16


class DeleteGroupsResponse(Response, key=ApiKey.DELETE_GROUPS, versions="0-2", flexible="2+"):
    """Whether groups were deleted."""

    throttle_time_ms: Int32 = field(default=0)
    results: list[DeletableGroupResult]
