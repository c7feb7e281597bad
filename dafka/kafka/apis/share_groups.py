"""The APIs of the members of share groups (KIP-932)."""

from __future__ import annotations

from dafka.broker.access.permissions import Permissions
from dafka.broker.core.acls import ResourceType
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.consumer.members import JOINING_EPOCH
from dafka.broker.core.groups.share.members import ASSIGNOR, ShareHeartbeatRequest, ShareMember
from dafka.broker.core.groups.share.members import DescribedShareGroup as GroupDescription
from dafka.broker.core.metadata.features import SHARE_GROUPS
from dafka.kafka.apis.shared.authorization import GROUP_REFUSED, TOPIC_REFUSED, list_operations
from dafka.kafka.apis.shared.group_assignments import answer_assignment, authorize_description, describe_assignment
from dafka.kafka.apis.shared.registry import Decision, RequestContext, handles
from dafka.kafka.protocol.messages.share_groups import (
    DescribedShareGroup,
    DescribedShareMember,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)


def _authorize_heartbeat(user: Permissions, _context: RequestContext, request: ShareGroupHeartbeatRequest) -> Decision:
    """Require the permission for the group, and `read` on the topics that the member names."""
    if not user.may_use_group(request.group_id):
        return _refuse(GROUP_REFUSED)
    is_permitted = all(map(user.may_read, request.subscribed_topic_names or ()))
    return None if is_permitted else _refuse(TOPIC_REFUSED)


@handles(ShareGroupHeartbeatRequest, _authorize_heartbeat)
async def heartbeat(context: RequestContext, request: ShareGroupHeartbeatRequest) -> ShareGroupHeartbeatResponse:
    """Add a member to a share group, keep it there, or remove it."""
    problem = context.explain_level(SHARE_GROUPS)
    if problem:
        return _refuse(ErrorCode.UNSUPPORTED_VERSION, problem)
    names = request.subscribed_topic_names
    result = await context.broker.groups.share_heartbeat(
        ShareHeartbeatRequest(
            group_id=request.group_id,
            member_id=request.member_id,
            member_epoch=request.member_epoch,
            rack=request.rack_id,
            client_id=context.header.client_id or "",
            client_host=context.host,
            topics=None if names is None else frozenset(names),
        )
    )
    if result.error_code:
        return _refuse(result.error_code, result.error_message)
    return ShareGroupHeartbeatResponse(
        error_code=ErrorCode.NONE,
        member_id=result.member_id,
        member_epoch=result.member_epoch,
        heartbeat_interval_ms=int(context.broker.group_setting(request.group_id, "share.heartbeat.interval.ms")),
        assignment=answer_assignment(result.assignment),
    )


def _refuse(error: ErrorCode, message: str | None = None) -> ShareGroupHeartbeatResponse:
    return ShareGroupHeartbeatResponse(
        error_code=error, error_message=message, member_epoch=JOINING_EPOCH, heartbeat_interval_ms=0
    )


@handles(ShareGroupDescribeRequest, authorize_description(lambda each: (each.assignment,)))
async def describe(context: RequestContext, request: ShareGroupDescribeRequest) -> ShareGroupDescribeResponse:
    """Answer with share groups, their members and what they read."""
    found = await context.broker.groups.describe_share_groups(request.group_ids)
    groups = [_describe(found[each]) for each in request.group_ids]
    for each in groups:
        each.authorized_operations = list_operations(
            context, ResourceType.GROUP, each.group_id, is_asked=request.include_authorized_operations
        )
    return ShareGroupDescribeResponse(groups=groups)


def _describe(group: GroupDescription) -> DescribedShareGroup:
    return DescribedShareGroup(
        error_code=group.error_code,
        error_message=group.error_message,
        group_id=group.group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.epoch,
        assignor_name="" if group.error_code else ASSIGNOR,
        members=[_describe_member(group, each) for each in group.members],
    )


def _describe_member(group: GroupDescription, member: ShareMember) -> DescribedShareMember:
    return DescribedShareMember(
        member_id=member.member_id,
        rack_id=member.rack or None,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        assignment=describe_assignment(member.assigned, group.topics),
    )
