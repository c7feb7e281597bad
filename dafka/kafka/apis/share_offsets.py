"""Describe-, Alter- and DeleteShareGroupOffsets: where share groups are in logs."""

from __future__ import annotations

from collections.abc import Mapping

from dafka.broker.access.permissions import Permissions
from dafka.broker.coordinator.coordinator_shard import CoordinatorError
from dafka.broker.core.acls import Operation, ResourceType
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.share.state import ShareState
from dafka.broker.core.metadata.log_replicas import LogKey
from dafka.broker.core.metadata.topics import Topic
from dafka.kafka.apis.shared.authorization import (
    GROUP_REFUSED,
    TOPIC_REFUSED,
    refuse,
    require,
    require_all,
    require_each,
    require_group,
    split_unauthorized,
)
from dafka.kafka.apis.shared.registry import Decision, RequestContext, handles
from dafka.kafka.apis.shared.topic_ids import uuid_of
from dafka.kafka.protocol.messages.share_offsets import (
    AlteredSharePartition,
    AlteredShareTopic,
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    DeletedShareTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DescribedShareOffsets,
    DescribedSharePartition,
    DescribedShareTopic,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
    ShareOffsetsGroup,
)
from dafka.kafka.protocol.tables import NIL


def _authorize_description(
    user: Permissions, _context: RequestContext, request: DescribeShareGroupOffsetsRequest
) -> Decision:
    """Require the permission for the groups, and to see the topics. Other topics are left out if none are named."""
    refused = split_unauthorized(
        request, "groups", lambda group: user.allow(Operation.DESCRIBE, ResourceType.GROUP, group.group_id)
    )
    hidden = [
        [] if group.topics is None else split_unauthorized(group, "topics", lambda each: user.may_see(each.topic_name))
        for group in request.groups
    ]

    def patch(response: DescribeShareGroupOffsetsResponse) -> None:
        for group, topics in zip(response.groups, hidden, strict=True):
            group.topics = [each for each in group.topics if user.may_see(each.topic_name)]
            group.topics += [refuse(DescribedShareTopic, each, TOPIC_REFUSED, start_offset=-1) for each in topics]
        response.groups += [refuse(DescribedShareOffsets, each, GROUP_REFUSED) for each in refused]

    return patch


@handles(DescribeShareGroupOffsetsRequest, _authorize_description)
async def describe_offsets(
    context: RequestContext, request: DescribeShareGroupOffsetsRequest
) -> DescribeShareGroupOffsetsResponse:
    """Answer with the offsets of the first records that groups still have to acknowledge."""
    return DescribeShareGroupOffsetsResponse(groups=[await _describe(context, each) for each in request.groups])


async def _describe(context: RequestContext, asked: ShareOffsetsGroup) -> DescribedShareOffsets:
    if asked.topics == []:  # the user may see none of them
        return DescribedShareOffsets(group_id=asked.group_id)
    try:
        states = await context.broker.groups.share_states(asked.group_id)
    except CoordinatorError as error:
        return DescribedShareOffsets(group_id=asked.group_id, error_code=error.error_code)
    if states is None:
        return DescribedShareOffsets(
            group_id=asked.group_id,
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=f"there is no share group {asked.group_id!r}",
        )
    if asked.topics is None:
        table = context.broker.node.log_table
        topics = {log.topic_id: table.find_client_topic_by_id(log.topic_id) for log in states}
        wanted = {
            topic.name: [log.number for log in sorted(states) if log.topic_id == topic_id]
            for topic_id, topic in topics.items()
            if topic is not None
        }
    else:
        wanted = {topic.topic_name: topic.partitions for topic in asked.topics}
    found = [_describe_topic(context, name, numbers, states) for name, numbers in wanted.items()]
    return DescribedShareOffsets(group_id=asked.group_id, topics=found)


def _describe_topic(
    context: RequestContext, name: str, numbers: list[int], states: Mapping[LogKey, ShareState]
) -> DescribedShareTopic:
    topic = context.find_topic(name, NIL)
    partitions = [_describe_partition(context, topic, number, states) for number in numbers]
    return DescribedShareTopic(
        topic_name=name, topic_id=NIL if topic is None else uuid_of(topic), partitions=partitions
    )


def _describe_partition(
    context: RequestContext, topic: Topic | None, number: int, states: Mapping[LogKey, ShareState]
) -> DescribedSharePartition:
    """Return where a group is in a log. The offset is -1 if it has got no records of it."""
    log = None if topic is None else context.find_log(topic.name, NIL, number)
    if topic is None or log is None:
        return DescribedSharePartition(partition_index=number, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    state = states.get(LogKey(topic.topic_id, number))
    if state is None or state.start_offset < 0:
        return DescribedSharePartition(partition_index=number)
    start, end = state.start_offset, context.broker.node.tables.find_known_end(topic.name, number)
    return DescribedSharePartition(
        partition_index=number,
        start_offset=start,
        leader_epoch=max(state.written_epoch, 0),
        lag=-1 if end is None else state.lag_to(end),
    )


@handles(
    AlterShareGroupOffsetsRequest,
    require_all(
        require_group(AlterShareGroupOffsetsResponse), require_each("topics", Permissions.may_read, answers="responses")
    ),
)
async def alter_offsets(
    context: RequestContext, request: AlterShareGroupOffsetsRequest
) -> AlterShareGroupOffsetsResponse:
    """Set where a share group without members continues."""
    topics = {each.topic_name: context.find_topic(each.topic_name, NIL) for each in request.topics}
    offsets = {
        LogKey(topic.topic_id, each.partition_index): max(each.start_offset, 0)
        for asked in request.topics
        if (topic := topics[asked.topic_name]) is not None
        for each in asked.partitions
        if each.partition_index in range(topic.log_count)
    }
    error = await context.broker.groups.set_share_starts(request.group_id, offsets) if offsets else ErrorCode.NONE
    responses = list[AlteredShareTopic]()
    for asked in request.topics:
        topic = topics[asked.topic_name]
        count = 0 if topic is None else topic.log_count
        partitions = [
            AlteredSharePartition(
                partition_index=each.partition_index,
                error_code=error if each.partition_index in range(count) else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            )
            for each in asked.partitions
        ]
        topic_id = NIL if topic is None else uuid_of(topic)
        responses.append(AlteredShareTopic(topic_name=asked.topic_name, topic_id=topic_id, partitions=partitions))
    return AlterShareGroupOffsetsResponse(error_code=error, responses=responses)


@handles(
    DeleteShareGroupOffsetsRequest,
    require_all(
        require(
            lambda user, request: user.allow(Operation.DELETE, ResourceType.GROUP, request.group_id),
            DeleteShareGroupOffsetsResponse,
            GROUP_REFUSED,
        ),
        require_each("topics", Permissions.may_read, answers="responses"),
    ),
)
async def delete_offsets(
    context: RequestContext, request: DeleteShareGroupOffsetsRequest
) -> DeleteShareGroupOffsetsResponse:
    """Forget where a share group without members was in topics."""
    topics = {each.topic_name: context.find_topic(each.topic_name, NIL) for each in request.topics}
    topic_ids = {topic.topic_id for topic in topics.values() if topic is not None}
    error = (
        await context.broker.groups.delete_share_states(request.group_id, topic_ids) if topic_ids else ErrorCode.NONE
    )
    responses = [
        DeletedShareTopic(
            topic_name=name,
            topic_id=NIL if topic is None else uuid_of(topic),
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic is None else error,
        )
        for name, topic in topics.items()
    ]
    return DeleteShareGroupOffsetsResponse(error_code=error, responses=responses)
