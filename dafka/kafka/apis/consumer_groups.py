"""The APIs of groups whose coordinator assigns the logs (KIP-848)."""

from __future__ import annotations

from collections.abc import Iterable

from dafka.broker.access.permissions import Permissions
from dafka.broker.core.acls import ResourceType
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.consumer.members import JOINING_EPOCH, Assignment
from dafka.broker.core.groups.consumer.results import (
    ConsumerHeartbeatRequest,
    ConsumerHeartbeatResult,
    DescribedMember,
    permit_all,
)
from dafka.broker.core.groups.consumer.results import DescribedConsumerGroup as GroupDescription
from dafka.broker.core.metadata.features import CONSUMER_GROUPS
from dafka.broker.core.metadata.log_replicas import LogKey
from dafka.kafka.apis.shared.authorization import GROUP_REFUSED, TOPIC_REFUSED, list_operations
from dafka.kafka.apis.shared.group_assignments import answer_assignment, authorize_description, describe_assignment
from dafka.kafka.apis.shared.registry import Decision, RequestContext, handles
from dafka.kafka.apis.shared.topic_ids import id_of
from dafka.kafka.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedConsumer,
    DescribedConsumerGroup,
    HeartbeatTopicPartitions,
)

_MEMBER_ID_VERSION = 1
"""The first version in which clients choose the id of a member."""

CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1
"""The types of members in descriptions."""


def _authorize_heartbeat(
    user: Permissions, _context: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> Decision:
    """Require the permission for the group, and `read` on the topics that the member names."""
    if not user.may_use_group(request.group_id):
        return _refuse(GROUP_REFUSED)
    is_permitted = all(map(user.may_read, request.subscribed_topic_names or ()))
    return None if is_permitted else _refuse(TOPIC_REFUSED)


@handles(ConsumerGroupHeartbeatRequest, _authorize_heartbeat)
async def heartbeat(context: RequestContext, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
    """Add a member to a group, keep it there, or remove it."""
    if context.header.api_version >= _MEMBER_ID_VERSION and not request.member_id:
        return _refuse(ErrorCode.INVALID_REQUEST, "the member id is empty: a client chooses it before it joins")
    problem = context.explain_level(CONSUMER_GROUPS)
    if problem:
        return _refuse(ErrorCode.UNSUPPORTED_VERSION, problem)
    timeout_ms, names = request.rebalance_timeout_ms, request.subscribed_topic_names
    owned, permissions = request.topic_partitions, context.find_permissions()
    result = await context.broker.groups.consumer_heartbeat(
        ConsumerHeartbeatRequest(
            group_id=request.group_id,
            member_id=request.member_id,
            member_epoch=request.member_epoch,
            instance_id=request.instance_id or "",
            rack=request.rack_id or "",
            client_id=context.header.client_id or "",
            client_host=context.host,
            rebalance_timeout_ms=None if timeout_ms < 0 else timeout_ms,
            topics=None if names is None else frozenset(names),
            pattern=request.subscribed_topic_regex,
            assignor=request.server_assignor,
            owned=None if owned is None else _read_logs(owned),
            may_read=permit_all if permissions is None else permissions.may_read,
        )
    )
    return _answer(context, request.group_id, result)


def _refuse(error: ErrorCode, message: str | None = None) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(
        error_code=error, error_message=message, member_epoch=JOINING_EPOCH, heartbeat_interval_ms=0
    )


def _answer(context: RequestContext, group_id: str, result: ConsumerHeartbeatResult) -> ConsumerGroupHeartbeatResponse:
    if result.error_code:
        return _refuse(result.error_code, result.error_message)
    return ConsumerGroupHeartbeatResponse(
        error_code=ErrorCode.NONE,
        member_id=result.member_id,
        member_epoch=result.member_epoch,
        heartbeat_interval_ms=int(context.broker.group_setting(group_id, "consumer.heartbeat.interval.ms")),
        assignment=answer_assignment(result.assignment),
    )


def _read_logs(topics: Iterable[HeartbeatTopicPartitions]) -> Assignment:
    return frozenset(LogKey(id_of(topic.topic_id), number) for topic in topics for number in topic.partitions)


@handles(ConsumerGroupDescribeRequest, authorize_description(lambda each: (each.assignment, each.target_assignment)))
async def describe(context: RequestContext, request: ConsumerGroupDescribeRequest) -> ConsumerGroupDescribeResponse:
    """Answer with groups, their members and what they read."""
    found = await context.broker.groups.describe_consumer_groups(request.group_ids)
    groups = [_describe(found[each]) for each in request.group_ids]
    for each in groups:
        each.authorized_operations = list_operations(
            context, ResourceType.GROUP, each.group_id, is_asked=request.include_authorized_operations
        )
    return ConsumerGroupDescribeResponse(groups=groups)


def _describe(group: GroupDescription) -> DescribedConsumerGroup:
    return DescribedConsumerGroup(
        error_code=group.error_code,
        error_message=group.error_message,
        group_id=group.group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=group.assignor,
        members=[_describe_member(group, each) for each in group.members],
    )


def _describe_member(group: GroupDescription, described: DescribedMember) -> DescribedConsumer:
    member = described.member
    return DescribedConsumer(
        member_id=member.member_id,
        instance_id=member.instance_id or None,
        rack_id=member.rack or None,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.subscription.names),
        subscribed_topic_regex=member.subscription.pattern or None,
        assignment=describe_assignment(member.assigned, group.topics),
        target_assignment=describe_assignment(described.target, group.topics),
        member_type=CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
    )
