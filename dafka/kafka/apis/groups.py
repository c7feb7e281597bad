"""The APIs of groups: coordinators, membership, assignments and administration."""

from __future__ import annotations

from dafka.broker.access.permissions import Permissions
from dafka.broker.coordinator.coordinator_shard import CoordinatorError
from dafka.broker.core.acls import Operation, ResourceType
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.group import GroupState
from dafka.broker.core.groups.results import CLASSIC, JoinRequest, LeavingMember, SyncRequest
from dafka.broker.core.groups.results import DescribedGroup as GroupDescription
from dafka.kafka.apis.shared.authorization import (
    GROUP_REFUSED,
    TRANSACTION_REFUSED,
    add_refused,
    list_operations,
    may,
    refuse,
    require_each,
    require_group,
    show_only,
    split_unauthorized,
)
from dafka.kafka.apis.shared.registry import Decision, RequestContext, handles
from dafka.kafka.protocol.constants import GROUP_KEY, SHARE_KEY, TRANSACTION_KEY
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
from dafka.kafka.server.cluster_view import NO_NODE, ClusterView

_BATCHED_VERSION = 4
_KNOWN_MEMBER_VERSION = 4
_SKIPPING_VERSION = 9
_MEMBERS_VERSION = 3
_NOT_FOUND_VERSION = 6


def _authorize_coordinator(user: Permissions, context: RequestContext, request: FindCoordinatorRequest) -> Decision:
    """Require the permission for the groups or the transactional ids in the request."""
    resource_type, error = ResourceType.TRANSACTIONAL_ID, TRANSACTION_REFUSED
    if request.key_type in {GROUP_KEY, SHARE_KEY}:
        resource_type, error = ResourceType.GROUP, GROUP_REFUSED

    def is_permitted(key: str) -> bool:
        return user.allow(Operation.DESCRIBE, resource_type, _name_in(request.key_type, key))

    if context.header.api_version >= _BATCHED_VERSION:
        refused = split_unauthorized(request, "coordinator_keys", is_permitted)
        return add_refused(refused, "coordinators", error, node_id=NO_NODE, port=-1)
    if is_permitted(request.key):
        return None
    return refuse(FindCoordinatorResponse, request, error, node_id=NO_NODE, port=-1)


@handles(FindCoordinatorRequest, _authorize_coordinator)
async def find_coordinator(context: RequestContext, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    """Answer with the brokers that coordinate groups or transactions."""
    cluster, keys = context.view_cluster(), request.coordinator_keys or [request.key]
    found = [_find_coordinator(context, cluster, request.key_type, key) for key in keys]
    first = found[0]
    return FindCoordinatorResponse(
        error_code=first.error_code,
        node_id=first.node_id,
        host=first.host,
        port=first.port,
        coordinators=found if request.coordinator_keys else [],
    )


def _find_coordinator(context: RequestContext, cluster: ClusterView, key_type: int, key: str) -> Coordinator:
    error, node = ErrorCode.INVALID_REQUEST, None
    if key_type in {GROUP_KEY, TRANSACTION_KEY, SHARE_KEY}:
        broker = context.broker.coordinator_of(_name_in(key_type, key))
        node = None if broker is None else cluster.find_node(broker.address)
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE if node is None else ErrorCode.NONE
    if node is None:
        return Coordinator(key=key, node_id=NO_NODE, host="", port=-1, error_code=error, error_message=None)
    return Coordinator(
        key=key, node_id=node.node_id, host=node.host, port=node.port, error_code=error, error_message=None
    )


def _name_in(key_type: int, key: str) -> str:
    """Return the group or transactional id in a key. A share partition has the key `GROUP:TOPIC_ID:NUMBER`."""
    return key.rsplit(":", 2)[0] if key_type == SHARE_KEY else key


@handles(JoinGroupRequest, require_group(JoinGroupResponse, protocol_name=""))
async def join_group(context: RequestContext, request: JoinGroupRequest) -> JoinGroupResponse:
    """Add a member to a group. The response follows when the group's members are known."""
    version = context.header.api_version
    timeout_ms = request.rebalance_timeout_ms
    join = JoinRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        client_id=context.header.client_id or "",
        client_host=context.host,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.session_timeout_ms if timeout_ms < 0 else timeout_ms,
        protocol_type=request.protocol_type,
        protocols=tuple((each.name, bytes(each.metadata)) for each in request.protocols),
        requires_known_member_id=version >= _KNOWN_MEMBER_VERSION,
        supports_skipping_assignment=version >= _SKIPPING_VERSION,
    )
    result = await context.broker.groups.join_group(join)
    if not context.may_use_group(request.group_id):  # permissions can have changed meanwhile
        return refuse(JoinGroupResponse, request, GROUP_REFUSED, protocol_name="")
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


@handles(SyncGroupRequest, require_group(SyncGroupResponse))
async def sync_group(context: RequestContext, request: SyncGroupRequest) -> SyncGroupResponse:
    """Answer with a member's assignment when the group's leader has sent it."""
    sync = SyncRequest(
        group_id=request.group_id,
        generation_id=request.generation_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignments=tuple((each.member_id, bytes(each.assignment)) for each in request.assignments),
    )
    result = await context.broker.groups.sync_group(sync)
    if not context.may_use_group(request.group_id):  # permissions can have changed meanwhile
        return refuse(SyncGroupResponse, request, GROUP_REFUSED)
    error = result.error_code
    if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:  # some clients do not expect it here; they join again
        error = ErrorCode.REBALANCE_IN_PROGRESS
    return SyncGroupResponse(
        error_code=error,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol_name,
        assignment=result.assignment,
    )


@handles(HeartbeatRequest, require_group(HeartbeatResponse))
async def heartbeat(context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
    """Extend the session of a member."""
    error = await context.broker.groups.heartbeat(
        request.group_id, request.generation_id, request.member_id, request.group_instance_id
    )
    if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:  # some clients do not expect it here; sessions begin afterwards
        error = ErrorCode.NONE
    return HeartbeatResponse(error_code=error)


@handles(LeaveGroupRequest, require_group(LeaveGroupResponse))
async def leave_group(context: RequestContext, request: LeaveGroupRequest) -> LeaveGroupResponse:
    """Remove members from a group."""
    if context.header.api_version < _MEMBERS_VERSION:
        leaving: tuple[LeavingMember, ...] = (LeavingMember(request.member_id),)
    else:
        leaving = tuple(LeavingMember(each.member_id, each.group_instance_id) for each in request.members)
    result = await context.broker.groups.leave_group(request.group_id, leaving)
    error = result.error_code
    if context.header.api_version < _MEMBERS_VERSION and not error and result.members:
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


@handles(
    ListGroupsRequest,
    show_only("groups", lambda user, group: user.allow(Operation.DESCRIBE, ResourceType.GROUP, group.group_id)),
)
async def list_groups(context: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
    """Answer with the groups."""
    try:
        groups = await context.broker.groups.list_groups(request.states_filter, request.types_filter)
    except CoordinatorError as error:
        return ListGroupsResponse(error_code=error.error_code, groups=[])
    return ListGroupsResponse(
        error_code=ErrorCode.NONE,
        groups=[
            ListedGroup(
                group_id=each.group_id,
                protocol_type=each.protocol_type,
                group_state=each.state,
                group_type=each.group_type,
            )
            for each in groups
        ],
    )


@handles(
    DescribeGroupsRequest, require_each("groups", may(Operation.DESCRIBE, ResourceType.GROUP), error=GROUP_REFUSED)
)
async def describe_groups(context: RequestContext, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
    """Answer with groups and their members."""
    found = await context.broker.groups.describe_groups(request.groups)
    hidden = ErrorCode.NONE if context.header.api_version >= _NOT_FOUND_VERSION else ErrorCode.GROUP_ID_NOT_FOUND
    return DescribeGroupsResponse(
        groups=[
            DescribedGroup(
                error_code=ErrorCode.NONE if each.error_code is hidden else each.error_code,
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
                authorized_operations=list_operations(
                    context, ResourceType.GROUP, each.group_id, is_asked=request.include_authorized_operations
                ),
            )
            for each in (_hide_other_types(found[group_id]) for group_id in request.groups)
        ]
    )


def _hide_other_types(group: GroupDescription) -> GroupDescription:
    """Return a group; one that does not exist if it has another type, which other APIs describe."""
    if group.group_type == CLASSIC:
        return group
    return GroupDescription(group.group_id, ErrorCode.GROUP_ID_NOT_FOUND, GroupState.DEAD.value)


@handles(
    DeleteGroupsRequest,
    require_each("groups_names", may(Operation.DELETE, ResourceType.GROUP), answers="results", error=GROUP_REFUSED),
)
async def delete_groups(context: RequestContext, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    """Delete groups without members."""
    errors = await context.broker.groups.delete_groups(request.groups_names)
    results = [DeletableGroupResult(group_id=each, error_code=error) for each, error in errors.items()]
    return DeleteGroupsResponse(results=results)
