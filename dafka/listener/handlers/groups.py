"""The APIs of groups: finding their coordinator, joining, assignments, and administration."""

from __future__ import annotations

from typing import cast

from dafka.kafka.constants import GROUP_KEY, TRANSACTION_KEY
from dafka.kafka.errors import ErrorCode
from dafka.kafka.groups import (
    DeleteOffsetsResult,
    JoinRequest,
    JoinResult,
    LeaveResult,
    LeavingMember,
    SyncRequest,
    SyncResult,
)
from dafka.kafka.protocol.messages.groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from dafka.kafka.protocol.messages.membership import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from dafka.kafka.protocol.messages.offsets import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from dafka.kafka.topics import TopicPartition
from dafka.listener.handlers.registry import Client, handles
from dafka.listener.handlers.topics import NODE_ID
from dafka.storage.plugin_helpers import now_ms

_KNOWN_MEMBER_VERSION = 4
_SKIPPING_VERSION = 9
_MEMBERS_VERSION = 3
_NOT_FOUND_VERSION = 6


@handles(FindCoordinatorRequest)
async def find_coordinator(client: Client, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    """Answer with this broker."""
    host, port = client.endpoint
    is_known = request.key_type in {GROUP_KEY, TRANSACTION_KEY}
    error = ErrorCode.NONE if is_known else ErrorCode.INVALID_REQUEST
    return FindCoordinatorResponse(
        error_code=error,
        node_id=NODE_ID,
        host=host,
        port=port,
        coordinators=[
            Coordinator(key=key, node_id=NODE_ID, host=host, port=port, error_code=error, error_message=None)
            for key in request.coordinator_keys
        ],
    )


@handles(JoinGroupRequest)
async def join_group(client: Client, request: JoinGroupRequest) -> JoinGroupResponse:
    """Let a member join a group. The answer comes when the group's members are known."""
    version = client.header.api_version
    timeout_ms = request.rebalance_timeout_ms
    join = JoinRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        client_id=client.header.client_id or "",
        client_host=client.host,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.session_timeout_ms if timeout_ms < 0 else timeout_ms,
        protocol_type=request.protocol_type,
        protocols=tuple((each.name, bytes(each.metadata)) for each in request.protocols),
        requires_known_member_id=version >= _KNOWN_MEMBER_VERSION,
        supports_skipping_assignment=version >= _SKIPPING_VERSION,
    )
    groups = client.service.groups
    result = cast(JoinResult, await client.service.ask(lambda token: groups.join_group(token, join, now_ms())))
    return JoinGroupResponse(
        error_code=result.error_code,
        generation_id=result.generation_id,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol_name if result.protocol_name is not None or version >= 7 else "",
        leader=result.leader,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=[
            JoinGroupResponseMember(
                member_id=each.member_id, group_instance_id=each.group_instance_id, metadata=each.metadata
            )
            for each in result.members
        ],
    )


@handles(SyncGroupRequest)
async def sync_group(client: Client, request: SyncGroupRequest) -> SyncGroupResponse:
    """Tell a member its assignment, when the leader has assigned."""
    sync = SyncRequest(
        group_id=request.group_id,
        generation_id=request.generation_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignments=tuple((each.member_id, bytes(each.assignment)) for each in request.assignments),
    )
    groups = client.service.groups
    result = cast(SyncResult, await client.service.ask(lambda token: groups.sync_group(token, sync, now_ms())))
    return SyncGroupResponse(
        error_code=result.error_code,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol_name,
        assignment=result.assignment,
    )


@handles(HeartbeatRequest)
async def heartbeat(client: Client, request: HeartbeatRequest) -> HeartbeatResponse:
    """Extend the session of a member."""
    error = client.service.groups.heartbeat(
        request.group_id, request.generation_id, request.member_id, request.group_instance_id, now_ms()
    )
    return HeartbeatResponse(error_code=await client.service.settle(error))


@handles(LeaveGroupRequest)
async def leave_group(client: Client, request: LeaveGroupRequest) -> LeaveGroupResponse:
    """Remove members from a group."""
    if client.header.api_version < _MEMBERS_VERSION:
        leaving: tuple[LeavingMember, ...] = (LeavingMember(request.member_id),)
    else:
        leaving = tuple(LeavingMember(each.member_id, each.group_instance_id) for each in request.members)
    groups = client.service.groups
    result = cast(
        LeaveResult,
        await client.service.ask(lambda token: groups.leave_group(token, request.group_id, leaving, now_ms())),
    )
    error = result.error_code
    if client.header.api_version < _MEMBERS_VERSION and not error and result.members:
        error = result.members[0].error_code
    return LeaveGroupResponse(
        error_code=error,
        members=[
            MemberResponse(
                member_id=each.member_id, group_instance_id=each.group_instance_id, error_code=each.error_code
            )
            for each in result.members
        ],
    )


@handles(ListGroupsRequest)
async def list_groups(client: Client, request: ListGroupsRequest) -> ListGroupsResponse:
    """Answer with the groups."""
    groups = client.service.groups.list_groups(request.states_filter, request.types_filter)
    return ListGroupsResponse(
        error_code=ErrorCode.NONE,
        groups=[
            ListedGroup(
                group_id=each.group_id,
                protocol_type=each.protocol_type,
                group_state=each.state,
                group_type="classic",
            )
            for each in await client.service.settle(groups)
        ],
    )


@handles(DescribeGroupsRequest)
async def describe_groups(client: Client, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
    """Answer with groups and their members."""
    found = await client.service.settle([client.service.groups.describe_group(each) for each in request.groups])
    is_error_known = client.header.api_version >= _NOT_FOUND_VERSION
    return DescribeGroupsResponse(
        groups=[
            DescribedGroup(
                error_code=each.error_code if is_error_known else ErrorCode.NONE,
                group_id=each.group_id,
                group_state=each.state,
                protocol_type=each.protocol_type,
                protocol_data=each.protocol,
                members=[
                    DescribedGroupMember(
                        member_id=member.member_id,
                        group_instance_id=member.group_instance_id,
                        client_id=member.client_id,
                        client_host=member.client_host,
                        member_metadata=member.metadata,
                        member_assignment=member.assignment,
                    )
                    for member in each.members
                ],
            )
            for each in found
        ]
    )


@handles(DeleteGroupsRequest)
async def delete_groups(client: Client, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    """Delete groups without members."""
    groups = client.service.groups
    errors = cast(
        dict[str, ErrorCode],
        await client.service.ask(lambda token: groups.delete_groups(token, request.groups_names)),
    )
    results = [DeletableGroupResult(group_id=each, error_code=error) for each, error in errors.items()]
    return DeleteGroupsResponse(throttle_time_ms=0, results=results)


@handles(OffsetDeleteRequest)
async def delete_offsets(client: Client, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
    """Delete committed offsets."""
    logs = [TopicPartition(topic.name, each.partition_index) for topic in request.topics for each in topic.partitions]
    groups = client.service.groups
    result = cast(
        DeleteOffsetsResult,
        await client.service.ask(lambda token: groups.delete_offsets(token, request.group_id, logs)),
    )
    topics = [
        OffsetDeleteResponseTopic(
            name=topic.name,
            partitions=[
                OffsetDeleteResponsePartition(
                    partition_index=each.partition_index,
                    error_code=result.partitions.get(TopicPartition(topic.name, each.partition_index), ErrorCode.NONE),
                )
                for each in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return OffsetDeleteResponse(
        error_code=result.error_code, throttle_time_ms=0, topics=[] if result.error_code else topics
    )
