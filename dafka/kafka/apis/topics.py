"""The APIs that create and delete topics, and add logs to them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from dafka.broker.access.permissions import Permissions
from dafka.broker.core.acls import Operation, ResourceType
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.metadata.topic_settings import find_settings_problem
from dafka.broker.core.metadata.topics import LOGS_MAX, Topic, find_collisions, find_name_problem
from dafka.kafka.apis.reassignments import AssignmentError, check_factor, read_assignments
from dafka.kafka.apis.shared.authorization import (
    TOPIC_REFUSED,
    add_refused,
    may,
    name_of,
    require_each,
    split_unauthorized,
)
from dafka.kafka.apis.shared.changes import make_all, make_change, requester_of
from dafka.kafka.apis.shared.outdated import refuse_when_outdated
from dafka.kafka.apis.shared.registry import Decision, RequestContext, handles
from dafka.kafka.apis.shared.repeats import refuse_repeated
from dafka.kafka.apis.shared.settings import list_topic_settings, read_value
from dafka.kafka.apis.shared.topic_ids import uuid_of
from dafka.kafka.protocol.constants import TOPIC
from dafka.kafka.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from dafka.kafka.protocol.tables import NIL
from dafka.kafka.server.cluster_view import ClusterView
from dafka.text import counted

_TRY_LATER = "the quota controller_mutation_rate is used up: try again after the time that the response has"


@handles(CreateTopicsRequest, require_each("topics", Permissions.may_create), awaits_metadata=True)
@refuse_when_outdated("topics")
@refuse_repeated("topics")
async def create_topics(context: RequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
    """Create topics."""
    collisions = find_collisions([*context.broker.node.topics, *(each.name for each in request.topics)])
    results = await make_all(
        lambda each: _create(context, each, request, collisions.get(each.name, "")), request.topics
    )
    return CreateTopicsResponse(topics=results)


async def _create(
    context: RequestContext, asked: CreatableTopic, request: CreateTopicsRequest, colliding: str
) -> CreatableTopicResult:
    node = context.broker.node
    settings = {each.name: read_value(TOPIC, each.name, each.value) for each in asked.configs if each.value is not None}
    count = len(asked.assignments) if asked.assignments else asked.num_partitions
    count = context.broker.config.kafka.log_count if count == -1 else count
    replicas = max(asked.replication_factor, 0)
    nothing = ErrorCode.NONE, None
    error, message = next(_find_problems(context, asked, count, settings, colliding), nothing)
    if not error:
        try:
            placement = _place(context.view_cluster(), asked)
        except AssignmentError as refused:
            error, message = refused.error_code, str(refused)
        else:
            if not request.validate_only and not context.spend_mutations(count):
                error, message = ErrorCode.THROTTLING_QUOTA_EXCEEDED, _TRY_LATER
            elif not request.validate_only:
                error, message = await make_change(
                    node.admin.create_topic(
                        asked.name, count, settings, replicas, placement=placement, ordered_by=requester_of(context)
                    ),
                    request.timeout_ms,
                )
    if error:
        return CreatableTopicResult(name=asked.name, error_code=error, error_message=message)
    topic = node.find_topic(asked.name) or Topic(asked.name, "0", count, settings)
    user = context.find_permissions()
    if user is not None and not user.allow(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, asked.name):
        return CreatableTopicResult(
            name=asked.name, topic_id=uuid_of(topic), error_code=error, topic_config_error_code=TOPIC_REFUSED
        )
    configs = [
        CreatableTopicConfigs(
            name=each.name, value=each.value, read_only=False, config_source=each.source, is_sensitive=False
        )
        for each in list_topic_settings(topic, context.broker.config)
    ]
    return CreatableTopicResult(
        name=asked.name,
        topic_id=uuid_of(topic),
        error_code=error,
        num_partitions=count,
        replication_factor=_count_replicas(context, topic, replicas),
        configs=configs,
    )


def _find_problems(
    context: RequestContext, asked: CreatableTopic, count: int, settings: Mapping[str, str], colliding: str
) -> Iterator[tuple[ErrorCode, str | None]]:
    """Yield why a topic cannot be created, as far as the request and the present topics say."""
    if problem := find_name_problem(asked.name):
        yield ErrorCode.INVALID_TOPIC_EXCEPTION, problem
    if context.broker.node.find_topic(asked.name) is not None:
        yield ErrorCode.TOPIC_ALREADY_EXISTS, f"there is a topic {asked.name!r} already"
    if colliding:
        problem = f"the name differs from the topic {colliding!r} only in '.' and '_', which metrics do not tell apart"
        yield ErrorCode.INVALID_TOPIC_EXCEPTION, problem
    if asked.assignments and (asked.num_partitions, asked.replication_factor) != (-1, -1):
        problem = "expected -1 as the numbers of partitions and of replicas beside the brokers of each partition"
        yield ErrorCode.INVALID_REQUEST, problem
    if not 1 <= count <= LOGS_MAX:
        yield ErrorCode.INVALID_PARTITIONS, f"a topic has from 1 to {LOGS_MAX} partitions, not {count}"
    if problem := find_settings_problem(settings, context.broker.config):
        yield ErrorCode.INVALID_CONFIG, problem


def _place(cluster: ClusterView, asked: CreatableTopic) -> list[tuple[str, ...]]:
    """Return the replicas that a client requests for each log; none by default. Raises `AssignmentError`."""
    if not asked.assignments:
        check_factor(cluster, asked.replication_factor)
        return []
    found = {each.partition_index: each.broker_ids for each in asked.assignments}
    if sorted(found) != list(range(len(asked.assignments))):
        raise AssignmentError(f"expected brokers for each partition from 0 to {len(asked.assignments) - 1} once")
    return read_assignments(cluster, [found[number] for number in range(len(found))])


def _count_replicas(context: RequestContext, topic: Topic, asked: int) -> int:
    """Return the number of replicas that a topic has, or would have."""
    cluster = context.view_cluster()
    logs = context.broker.node.logs(topic.name)
    if logs:
        return len(cluster.replicas_of(logs[0]))
    return asked or min(context.broker.config.broker.replicas, len(cluster.nodes))


def _authorize_deletion(user: Permissions, context: RequestContext, request: DeleteTopicsRequest) -> Decision:
    """Require the permission to delete. A topic that the user may not see is answered by id only, if asked by id."""

    def is_permitted(part: Any) -> bool:
        name = name_of(context, part)
        is_unknown_id = not name and not isinstance(part, str) and part.name is None
        return is_unknown_id or user.allow(Operation.DELETE, ResourceType.TOPIC, name)

    refused = [part for each in ("topic_names", "topics") for part in split_unauthorized(request, each, is_permitted)]
    return add_refused(refused, "responses", TOPIC_REFUSED)


@handles(DeleteTopicsRequest, _authorize_deletion, awaits_metadata=True)
@refuse_when_outdated("topic_names", "topics", answers="responses")
@refuse_repeated("topic_names", "topics", answers="responses")
async def delete_topics(context: RequestContext, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    """Delete topics and their committed offsets."""
    asked: list[tuple[str | None, uuid.UUID]] = [(name, NIL) for name in request.topic_names]
    asked += [(each.name, each.topic_id) for each in request.topics]
    responses = await make_all(lambda each: _delete(context, *each, request.timeout_ms), asked)
    return DeleteTopicsResponse(responses=responses)


async def _delete(
    context: RequestContext, name: str | None, topic_id: uuid.UUID, timeout_ms: int
) -> DeletableTopicResult:
    topic = context.find_topic(name, topic_id)
    if topic is None:
        error = ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return DeletableTopicResult(name=name, topic_id=topic_id, error_code=error)
    if not context.spend_mutations(topic.log_count):
        return DeletableTopicResult(
            name=topic.name,
            topic_id=uuid_of(topic),
            error_code=ErrorCode.THROTTLING_QUOTA_EXCEEDED,
            error_message=_TRY_LATER,
        )
    deletion = context.broker.delete_topic(topic.name, ordered_by=requester_of(context))
    error, message = await make_change(deletion, timeout_ms)
    return DeletableTopicResult(name=topic.name, topic_id=uuid_of(topic), error_code=error, error_message=message)


@handles(
    CreatePartitionsRequest,
    require_each("topics", may(Operation.ALTER, ResourceType.TOPIC), answers="results"),
    awaits_metadata=True,
)
@refuse_when_outdated("topics", answers="results")
@refuse_repeated("topics", answers="results")
async def create_partitions(context: RequestContext, request: CreatePartitionsRequest) -> CreatePartitionsResponse:
    """Add logs to topics."""
    results = await make_all(lambda each: _add_logs(context, each, request), request.topics)
    return CreatePartitionsResponse(results=results)


async def _add_logs(
    context: RequestContext, asked: CreatePartitionsTopic, request: CreatePartitionsRequest
) -> CreatePartitionsTopicResult:
    node = context.broker.node
    topic = node.find_topic(asked.name)
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    if topic is None:
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    elif asked.count <= topic.log_count:
        error = ErrorCode.INVALID_PARTITIONS
        message = f"the topic has {counted(topic.log_count, 'partition')} already; their number can only increase"
    elif asked.count > LOGS_MAX:
        error = ErrorCode.INVALID_PARTITIONS
        message = f"a topic has from 1 to {LOGS_MAX} partitions, not {asked.count}"
    else:
        try:
            placement = _place_added(context.view_cluster(), asked, asked.count - topic.log_count)
        except AssignmentError as refused:
            error, message = ErrorCode.INVALID_REPLICA_ASSIGNMENT, str(refused)
        else:
            if not request.validate_only and not context.spend_mutations(asked.count - topic.log_count):
                error, message = ErrorCode.THROTTLING_QUOTA_EXCEEDED, _TRY_LATER
            elif not request.validate_only:
                change = node.admin.change_topic(
                    asked.name, log_count=asked.count, placement=placement, ordered_by=requester_of(context)
                )
                error, message = await make_change(change, request.timeout_ms)
    return CreatePartitionsTopicResult(name=asked.name, error_code=error, error_message=message)


def _place_added(cluster: ClusterView, asked: CreatePartitionsTopic, count: int) -> list[tuple[str, ...]]:
    """Return the replicas that a client requests for added logs; none by default. Raises `AssignmentError`."""
    if asked.assignments is None:
        return []
    if len(asked.assignments) != count:
        raise AssignmentError(f"expected brokers for {count} further partitions")
    return read_assignments(cluster, [each.broker_ids for each in asked.assignments])
