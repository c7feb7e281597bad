"""The APIs of the members of share groups (KIP-932)."""

from __future__ import annotations

from functools import partial

from dafka.broker.access.permissions import Permissions
from dafka.broker.core.acls import Operation, ResourceType
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.consumer.members import JOINING_EPOCH, by_topic
from dafka.broker.core.groups.share.members import ASSIGNOR, ShareHeartbeatRequest, ShareMember
from dafka.broker.core.groups.share.members import DescribedShareGroup as GroupDescription
from dafka.broker.core.metadata.features import SHARE_GROUPS
from dafka.kafka.apis.shared.authorization import (
    GROUP_REFUSED,
    TOPIC_REFUSED,
    add_refused,
    list_operations,
    refuse,
    split_unauthorized,
)
from dafka.kafka.apis.shared.registry import Decision, RequestContext, handles
from dafka.kafka.apis.shared.topic_ids import parse_id
from dafka.kafka.protocol.messages.consumer_groups import (
    DescribedAssignment,
    DescribedTopicPartitions,
    HeartbeatAssignment,
    HeartbeatTopicPartitions,
)
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
    assignment = None
    if result.assignment is not None:
        parts = [
            HeartbeatTopicPartitions(topic_id=parse_id(topic_id), partitions=numbers)
            for topic_id, numbers in by_topic(result.assignment).items()
        ]
        assignment = HeartbeatAssignment(topic_partitions=parts)
    return ShareGroupHeartbeatResponse(
        error_code=ErrorCode.NONE,
        member_id=result.member_id,
        member_epoch=result.member_epoch,
        heartbeat_interval_ms=context.broker.config.kafka.consumer_heartbeat_interval_ms,
        assignment=assignment,
    )


def _refuse(error: ErrorCode, message: str | None = None) -> ShareGroupHeartbeatResponse:
    return ShareGroupHeartbeatResponse(
        error_code=error, error_message=message, member_epoch=JOINING_EPOCH, heartbeat_interval_ms=0
    )


def _authorize_description(user: Permissions, _context: RequestContext, request: ShareGroupDescribeRequest) -> Decision:
    """Require the permission for the groups. Groups that read topics which the user may not see are refused, too."""
    refused = split_unauthorized(request, "group_ids", partial(user.allow, Operation.DESCRIBE, ResourceType.GROUP))
    add = add_refused(refused, "groups", GROUP_REFUSED)

    def patch(response: ShareGroupDescribeResponse) -> None:
        response.groups = [
            each if all(map(user.may_see, _topics_in(each))) else refuse(DescribedShareGroup, each, TOPIC_REFUSED)
            for each in response.groups
        ]
        if add is not None:
            add(response)

    return patch


def _topics_in(group: DescribedShareGroup) -> set[str]:
    return {topic.topic_name for member in group.members for topic in member.assignment.topic_partitions}


@handles(ShareGroupDescribeRequest, _authorize_description)
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
    """Return a member with its logs. Logs of deleted topics are left out."""
    return DescribedShareMember(
        member_id=member.member_id,
        rack_id=member.rack or None,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        assignment=DescribedAssignment(
            topic_partitions=[
                DescribedTopicPartitions(
                    topic_id=parse_id(topic_id), topic_name=group.topics[topic_id], partitions=numbers
                )
                for topic_id, numbers in by_topic(member.assigned).items()
                if topic_id in group.topics
            ]
        ),
    )
