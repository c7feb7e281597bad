"""AlterPartitionReassignments and ListPartitionReassignments: the replicas of logs."""

from __future__ import annotations

from dafka.broker.access.permissions import Permissions
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.log import Log
from dafka.errors import ConfigError
from dafka.kafka.apis.shared.assignments import AssignmentError, read_assignment
from dafka.kafka.apis.shared.authorization import require_each, show_only
from dafka.kafka.apis.shared.registry import RequestContext, handles
from dafka.kafka.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)


@handles(
    AlterPartitionReassignmentsRequest,
    require_each("topics", Permissions.may_administer, answers="responses"),
    changes_topics=True,
)
async def alter_reassignments(
    context: RequestContext, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    """Start or cancel reassignments of logs."""
    may_change_count = request.allow_replication_factor_change
    responses = [
        ReassignableTopicResponse(
            name=topic.name,
            partitions=[_alter(context, topic.name, each, may_change_count) for each in topic.partitions],
        )
        for topic in request.topics
    ]
    return AlterPartitionReassignmentsResponse(
        throttle_time_ms=0,
        allow_replication_factor_change=may_change_count,
        error_code=ErrorCode.NONE,
        error_message=None,
        responses=responses,
    )


def _alter(
    context: RequestContext, topic: str, asked: ReassignablePartition, may_change_count: bool
) -> ReassignablePartitionResponse:
    log = context.broker.node.find_log(topic, asked.partition_index)
    message = None
    if log is None:
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    elif asked.replicas is None:
        error = _cancel(context, log)
    else:
        try:
            error, message = _begin(context, log, asked.replicas, may_change_count)
        except (AssignmentError, ConfigError) as refused:
            error, message = ErrorCode.INVALID_REPLICA_ASSIGNMENT, str(refused)
    return ReassignablePartitionResponse(partition_index=asked.partition_index, error_code=error, error_message=message)


def _begin(
    context: RequestContext, log: Log, numbers: list[int], may_change_count: bool
) -> tuple[ErrorCode, str | None]:
    cluster = context.view_cluster()
    before, after = cluster.replicas_of(log), read_assignment(cluster, numbers)
    if not may_change_count and len(before) != len(after):
        return ErrorCode.INVALID_REPLICATION_FACTOR, f"expected {len(before)} brokers, not {len(after)}"
    if before != after or log in _ongoing(context):
        context.broker.node.change_replicas(log, after)
    return ErrorCode.NONE, None


def _cancel(context: RequestContext, log: Log) -> ErrorCode:
    """Cancel a reassignment. Current replicas stay, surplus replicas leave, and the brokers choose again."""
    if log not in _ongoing(context):
        return ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    context.broker.node.change_replicas(log, ())
    return ErrorCode.NONE


def _ongoing(context: RequestContext) -> dict[Log, tuple[str, ...]]:
    """Return the logs whose reassignment is not complete, with their target replicas."""
    node, cluster = context.broker.node, context.view_cluster()
    found: dict[Log, tuple[str, ...]] = {}
    for topic in node.topics.values():
        for number, wanted in topic.assignments.items():
            log = node.find_log(topic.name, number)
            if log is not None and set(wanted) != set(cluster.replicas_of(log)):
                found[log] = wanted
    return found


@handles(ListPartitionReassignmentsRequest, show_only("topics", lambda user, topic: user.may_see(topic.name)))
async def list_reassignments(
    context: RequestContext, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """Answer with the ongoing reassignments."""
    cluster = context.view_cluster()
    asked = None if request.topics is None else {each.name: set(each.partition_indexes) for each in request.topics}
    topics: dict[str, list[OngoingPartitionReassignment]] = {}
    for log, wanted in _ongoing(context).items():
        if asked is not None and log.number not in asked.get(log.topic, ()):
            continue
        present = cluster.replicas_of(log)
        topics.setdefault(log.topic, []).append(
            OngoingPartitionReassignment(
                partition_index=log.number,
                replicas=cluster.numbers_of(present),
                adding_replicas=cluster.numbers_of(each for each in wanted if each not in present),
                removing_replicas=cluster.numbers_of(each for each in present if each not in wanted),
            )
        )
    return ListPartitionReassignmentsResponse(
        throttle_time_ms=0,
        error_code=ErrorCode.NONE,
        error_message=None,
        topics=[OngoingTopicReassignment(name=name, partitions=each) for name, each in topics.items()],
    )
