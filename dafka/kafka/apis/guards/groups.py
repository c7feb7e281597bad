"""Authorizes the APIs of groups and their offsets."""

from __future__ import annotations

from typing import Any

from dafka.kafka.apis.guards.registry import (
    GROUP_REFUSED,
    TOPIC_REFUSED,
    TRANSACTION_REFUSED,
    Decision,
    Permits,
    ResponsePatch,
    add_refused,
    guards,
    split_unauthorized,
)
from dafka.kafka.protocol.constants import GROUP_KEY, OFFSET_FETCH_GROUPS_VERSION
from dafka.kafka.protocol.messages.groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DescribedGroup,
    DescribeGroupsRequest,
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
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from dafka.kafka.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

_BATCHED_VERSION = 4


@guards(FindCoordinatorRequest)
def guard_coordinator(access: Permits, request: FindCoordinatorRequest) -> Decision:
    """Require the permission for the groups or the transactional ids in the request."""
    is_group = request.key_type == GROUP_KEY
    error = GROUP_REFUSED if is_group else TRANSACTION_REFUSED
    is_permitted = access.user.may_use_group if is_group else access.user.may_use_transaction
    if access.context.header.api_version < _BATCHED_VERSION:
        if is_permitted(request.key):
            return None
        return FindCoordinatorResponse(error_code=error, node_id=-1, host="", port=-1)
    refused = split_unauthorized(request, "coordinator_keys", is_permitted)

    def answer(key: str) -> Coordinator:
        return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=error, error_message=None)

    return add_refused(refused, "coordinators", answer)


@guards(JoinGroupRequest)
def guard_join(access: Permits, request: JoinGroupRequest) -> Decision:
    """Require the permission for the group."""
    if access.user.may_use_group(request.group_id):
        return None
    return JoinGroupResponse(error_code=GROUP_REFUSED, protocol_name="", leader="", member_id="", members=[])


@guards(SyncGroupRequest)
def guard_sync(access: Permits, request: SyncGroupRequest) -> Decision:
    """Require the permission for the group."""
    is_permitted = access.user.may_use_group(request.group_id)
    return None if is_permitted else SyncGroupResponse(error_code=GROUP_REFUSED, assignment=b"")


@guards(HeartbeatRequest)
def guard_heartbeat(access: Permits, request: HeartbeatRequest) -> Decision:
    """Require the permission for the group."""
    return None if access.user.may_use_group(request.group_id) else HeartbeatResponse(error_code=GROUP_REFUSED)


@guards(LeaveGroupRequest)
def guard_leave(access: Permits, request: LeaveGroupRequest) -> Decision:
    """Require the permission for the group."""
    return None if access.user.may_use_group(request.group_id) else LeaveGroupResponse(error_code=GROUP_REFUSED)


@guards(ListGroupsRequest)
def guard_list_groups(access: Permits, _request: ListGroupsRequest) -> ResponsePatch:
    """Show the groups that the user may use."""

    def amend(response: ListGroupsResponse) -> None:
        response.groups = [each for each in response.groups if access.user.may_use_group(each.group_id)]

    return amend


@guards(DescribeGroupsRequest)
def guard_describe_groups(access: Permits, request: DescribeGroupsRequest) -> Decision:
    """Require the permission for the groups."""

    def answer(group_id: str) -> DescribedGroup:
        return DescribedGroup(
            error_code=GROUP_REFUSED, group_id=group_id, group_state="", protocol_type="", protocol_data="", members=[]
        )

    return add_refused(split_unauthorized(request, "groups", access.user.may_use_group), "groups", answer)


@guards(DeleteGroupsRequest)
def guard_delete_groups(access: Permits, request: DeleteGroupsRequest) -> Decision:
    """Require the permission for the groups."""

    def answer(group_id: str) -> DeletableGroupResult:
        return DeletableGroupResult(group_id=group_id, error_code=GROUP_REFUSED)

    return add_refused(split_unauthorized(request, "groups_names", access.user.may_use_group), "results", answer)


@guards(OffsetCommitRequest)
def guard_commit(access: Permits, request: OffsetCommitRequest) -> Decision:
    """Require the permission for the group, and `read` on the topics."""
    is_permitted = access.user.may_use_group(request.group_id)
    error = TOPIC_REFUSED if is_permitted else GROUP_REFUSED

    def answer(each: Any) -> OffsetCommitResponseTopic:
        parts = [
            OffsetCommitResponsePartition(partition_index=part.partition_index, error_code=error)
            for part in each.partitions
        ]
        return OffsetCommitResponseTopic(name=each.name, topic_id=each.topic_id, partitions=parts)

    if not is_permitted:
        return OffsetCommitResponse(topics=[answer(each) for each in request.topics])
    refused = split_unauthorized(
        request, "topics", lambda each: access.user.may_read(access.name_of(each.name, each.topic_id))
    )
    return add_refused(refused, "topics", answer)


@guards(OffsetFetchRequest)
def guard_offset_fetch(access: Permits, request: OffsetFetchRequest) -> Decision:
    """Require the permission for the groups, and the permission to see the topics."""
    if access.context.header.api_version >= OFFSET_FETCH_GROUPS_VERSION:
        return _guard_groups_offsets(access, request)

    def answer(each: Any, error: int = TOPIC_REFUSED) -> OffsetFetchResponseTopic:
        parts = [
            OffsetFetchResponsePartition(partition_index=number, committed_offset=-1, metadata="", error_code=error)
            for number in each.partition_indexes
        ]
        return OffsetFetchResponseTopic(name=each.name, partitions=parts)

    if not access.user.may_use_group(request.group_id):
        topics = [answer(each, GROUP_REFUSED) for each in request.topics or ()]
        return OffsetFetchResponse(error_code=GROUP_REFUSED, topics=topics)
    if request.topics is not None:
        return add_refused(
            split_unauthorized(request, "topics", lambda each: access.user.may_see(each.name)), "topics", answer
        )

    def hide(response: OffsetFetchResponse) -> None:
        response.topics = [each for each in response.topics if access.user.may_see(each.name)]

    return hide


def _guard_groups_offsets(access: Permits, request: OffsetFetchRequest) -> ResponsePatch:
    refused = split_unauthorized(request, "groups", lambda each: access.user.may_use_group(each.group_id))

    def is_permitted(each: Any) -> bool:
        return access.user.may_see(access.name_of(each.name, each.topic_id))

    hidden = {
        each.group_id: split_unauthorized(each, "topics", is_permitted)
        for each in request.groups
        if each.topics is not None
    }

    def answer(each: Any) -> OffsetFetchResponseTopics:
        parts = [
            OffsetFetchResponsePartitions(
                partition_index=number, committed_offset=-1, metadata="", error_code=TOPIC_REFUSED
            )
            for number in each.partition_indexes
        ]
        return OffsetFetchResponseTopics(name=each.name, topic_id=each.topic_id, partitions=parts)

    def amend(response: OffsetFetchResponse) -> None:
        for group in response.groups:
            group.topics = [each for each in group.topics if is_permitted(each)]
            group.topics.extend(answer(each) for each in hidden.get(group.group_id, ()))
        response.groups.extend(
            OffsetFetchResponseGroup(group_id=each.group_id, topics=[], error_code=GROUP_REFUSED) for each in refused
        )

    return amend


@guards(OffsetDeleteRequest)
def guard_delete_offsets(access: Permits, request: OffsetDeleteRequest) -> Decision:
    """Require the permission for the group, and `read` on the topics."""
    if not access.user.may_use_group(request.group_id):
        return OffsetDeleteResponse(error_code=GROUP_REFUSED, throttle_time_ms=0, topics=[])

    def answer(each: Any) -> OffsetDeleteResponseTopic:
        parts = [
            OffsetDeleteResponsePartition(partition_index=part.partition_index, error_code=TOPIC_REFUSED)
            for part in each.partitions
        ]
        return OffsetDeleteResponseTopic(name=each.name, partitions=parts)

    return add_refused(
        split_unauthorized(request, "topics", lambda each: access.user.may_read(each.name)), "topics", answer
    )
