"""Brokers, topics and the leaders of logs.

The APIs are Metadata, DescribeCluster, UnregisterBroker, DescribeTopicPartitions and DescribeLogDirs.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

import trio

from dafka.broker.access.permissions import Permissions
from dafka.broker.core.acls import Operation, ResourceType
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.topics import Topic, find_collision, find_name_problem
from dafka.errors import StorageError
from dafka.kafka.apis.shared.authorization import (
    TOPIC_REFUSED,
    add_refused,
    list_operations,
    name_of,
    permit_everyone,
    refuse,
    require_cluster,
    show_only,
    split_unauthorized,
)
from dafka.kafka.apis.shared.changes import make_change, requester_of
from dafka.kafka.apis.shared.registry import Decision, RequestContext, handles
from dafka.kafka.apis.shared.topic_ids import uuid_of
from dafka.kafka.protocol.messages.cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponseTopic,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from dafka.kafka.protocol.messages.topics import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    TopicRequest,
)
from dafka.kafka.protocol.tables import NIL
from dafka.kafka.server.cluster_view import ClusterView
from dafka.storage.disk_space import measure_disk

_SHOW_TOPICS = show_only("topics", lambda user, topic: user.may_see(topic.name or ""))


def _authorize(user: Permissions, context: RequestContext, request: MetadataRequest) -> Decision:
    """Require the permission to see the topics. A topic is created only for a user who may create it.

    An invisible topic that is requested by its id is answered like a topic that does not exist.
    """
    version = context.header.api_version
    if request.topics is None or (version == 0 and not request.topics):
        return _SHOW_TOPICS(user, context, request)
    refused = split_unauthorized(request, "topics", lambda each: user.may_see(name_of(context, each)))
    if version == 0 and not request.topics:  # an empty list would be all of them
        request.topics = None
    may_create = all(user.may_create_by_use(each.name) for each in request.topics or () if each.name)
    request.allow_auto_topic_creation = request.allow_auto_topic_creation and may_create
    is_none_left = request.topics is None

    def add(response: Any) -> None:
        if is_none_left:
            response.topics = []
        for each in refused:
            error = ErrorCode.UNKNOWN_TOPIC_ID if each.name is None else TOPIC_REFUSED
            response.topics.append(refuse(MetadataResponseTopic, each, error))

    return add if refused else None


@handles(MetadataRequest, _authorize)
async def describe_metadata(context: RequestContext, request: MetadataRequest) -> MetadataResponse:
    """Answer with the brokers and the topics. Topics requested by name are created if that is allowed."""
    node = context.broker.node
    is_for_all = request.topics is None or (context.header.api_version == 0 and not request.topics)
    found: list[Topic | MetadataResponseTopic] = []
    if not is_for_all:
        may_create = request.allow_auto_topic_creation and context.broker.config.kafka.auto_create_topics == "on"
        found = [await _find(context, each, may_create=may_create) for each in request.topics or ()]
    cluster = context.view_cluster()
    topics = [
        MetadataResponseTopic(
            error_code=ErrorCode.NONE,
            name=each.name,
            topic_id=uuid_of(each),
            partitions=[cluster.describe_log(log) for log in node.logs(each.name)],
            topic_authorized_operations=list_operations(
                context, ResourceType.TOPIC, each.name, is_asked=request.include_topic_authorized_operations
            ),
        )
        if isinstance(each, Topic)
        else each
        for each in (node.topics.values() if is_for_all else found)
    ]
    leaders = {log.leader_id for topic in topics for log in topic.partitions}
    return MetadataResponse(
        brokers=cluster.list_nodes(leaders),
        cluster_id=cluster.cluster_id,
        controller_id=cluster.controller,
        topics=topics,
        cluster_authorized_operations=list_operations(
            context, ResourceType.CLUSTER, is_asked=request.include_cluster_authorized_operations
        ),
    )


async def _find(
    context: RequestContext, asked: MetadataRequestTopic, *, may_create: bool
) -> Topic | MetadataResponseTopic:
    """Return a topic, or the error response if it does not exist."""
    node, name = context.broker.node, asked.name
    topic = context.find_topic(name, asked.topic_id)
    if topic is None and name is None:
        return _unknown(None, ErrorCode.UNKNOWN_TOPIC_ID, asked.topic_id)
    if topic is None and name is not None:
        if find_name_problem(name) or (may_create and find_collision(name, node.topics)):
            return _unknown(name, ErrorCode.INVALID_TOPIC_EXCEPTION)
        await node.leases.wait_metadata()  # others can have created it while this broker was stopped
        if may_create and node.find_topic(name) is None and not context.has_left():
            context.spend_mutations(context.broker.config.kafka.log_count)
            await make_change(node.admin.create_topic(name, ordered_by=requester_of(context)))
        topic = node.find_topic(name)
    missing = ErrorCode.LEADER_NOT_AVAILABLE if may_create else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return _unknown(name, missing) if topic is None else topic


def _unknown(name: str | None, error: ErrorCode, topic_id: uuid.UUID = NIL) -> MetadataResponseTopic:
    return MetadataResponseTopic(error_code=error, name=name, topic_id=topic_id, partitions=[])


BROKERS, CONTROLLERS = 1, 2
"""The types of endpoints that DescribeCluster asks for."""


@handles(DescribeClusterRequest, permit_everyone)
async def describe_cluster(context: RequestContext, request: DescribeClusterRequest) -> DescribeClusterResponse:
    """Answer with the brokers advertised to clients, and with dead ones as fenced if they are asked for (KIP-1073).

    There are no controllers that clients reach apart from them.
    """
    cluster = context.view_cluster()
    if request.endpoint_type != BROKERS:
        is_known = request.endpoint_type == CONTROLLERS
        error = ErrorCode.MISMATCHED_ENDPOINT_TYPE if is_known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        return DescribeClusterResponse(
            error_code=error,
            error_message=f"expected the type {BROKERS} of endpoints, which are brokers, not {request.endpoint_type}",
            endpoint_type=request.endpoint_type,
            cluster_id="",
            brokers=[],
        )
    fenced = cluster.list_fenced() if request.include_fenced_brokers else []
    return DescribeClusterResponse(
        error_code=ErrorCode.NONE,
        cluster_id=cluster.cluster_id,
        controller_id=cluster.controller,
        brokers=[_describe_broker(each) for each in cluster.nodes]
        + [_describe_broker(each, is_fenced=True) for each in fenced],
        cluster_authorized_operations=list_operations(
            context, ResourceType.CLUSTER, is_asked=request.include_cluster_authorized_operations
        ),
    )


def _describe_broker(node: MetadataResponseBroker, *, is_fenced: bool = False) -> DescribeClusterBroker:
    return DescribeClusterBroker(
        broker_id=node.node_id, host=node.host, port=node.port, rack=node.rack, is_fenced=is_fenced
    )


@handles(
    UnregisterBrokerRequest,
    require_cluster(Operation.ALTER, UnregisterBrokerResponse, error_message=None),
)
async def unregister_broker(context: RequestContext, request: UnregisterBrokerRequest) -> UnregisterBrokerResponse:
    """Forget a broker whose storage is lost. It is refused while the broker is alive, or logs need it."""
    node, number = context.broker.node, request.broker_id
    found = node.brokers.find_number(number)
    error: ErrorCode = ErrorCode.BROKER_ID_NOT_REGISTERED
    message: str | None = f"there is no broker {number}"
    if found is not None:
        error, message = await make_change(node.admin.forget_broker(found.address, ordered_by=requester_of(context)))
    return UnregisterBrokerResponse(error_code=error, error_message=message)


_PAGE_LOGS_MAX = 2000
"""The maximum number of logs in a response to DescribeTopicPartitions."""


def _authorize_topic_partitions(
    user: Permissions, context: RequestContext, request: DescribeTopicPartitionsRequest
) -> Decision:
    """Show the topics that the user may see."""
    refused: list[TopicRequest] = []
    if request.topics:
        refused = split_unauthorized(request, "topics", lambda each: user.may_see(each.name))
    else:
        request.topics = [TopicRequest(name=name) for name in context.broker.node.topics if user.may_see(name)]
    add = add_refused(refused, "topics", TOPIC_REFUSED)
    if request.topics:
        return add
    response = DescribeTopicPartitionsResponse(topics=[])  # an empty list would be all of them
    if add is not None:
        add(response)
    return response


@handles(DescribeTopicPartitionsRequest, _authorize_topic_partitions)
async def describe_topic_partitions(
    context: RequestContext, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    """Answer with a page of the logs of topics, by name."""
    node, cluster = context.broker.node, context.view_cluster()
    names = sorted({each.name for each in request.topics} or node.topics)
    cursor = request.cursor
    first = 0
    if cursor is not None:
        names = [name for name in names if name >= cursor.topic_name]
        first = max(cursor.partition_index, 0) if names[:1] == [cursor.topic_name] else 0
    left = max(min(request.response_partition_limit, _PAGE_LOGS_MAX), 1)
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    next_cursor = None
    for name in names:
        if left <= 0:
            next_cursor = Cursor(topic_name=name, partition_index=0)
            break
        topic = node.find_topic(name)
        if topic is None:
            topics.append(_unknown_page(name))
            continue
        numbers = range(first, topic.log_count)[:left]
        first, left = 0, left - len(numbers)
        described = _describe_topic(cluster, topic, node.logs(name)[numbers.start : numbers.stop])
        described.topic_authorized_operations = list_operations(context, ResourceType.TOPIC, name)
        topics.append(described)
        if numbers and numbers.stop < topic.log_count:
            next_cursor = Cursor(topic_name=name, partition_index=numbers.stop)
            break
    return DescribeTopicPartitionsResponse(topics=topics, next_cursor=next_cursor)


def _describe_topic(cluster: ClusterView, topic: Topic, logs: Iterable[Log]) -> DescribeTopicPartitionsResponseTopic:
    partitions = []
    for log in logs:
        view = cluster.describe_log(log)
        partitions.append(
            DescribeTopicPartitionsResponsePartition(
                error_code=view.error_code,
                partition_index=view.partition_index,
                leader_id=view.leader_id,
                leader_epoch=view.leader_epoch,
                replica_nodes=view.replica_nodes,
                isr_nodes=view.isr_nodes,
                eligible_leader_replicas=[],
                last_known_elr=[],
                offline_replicas=view.offline_replicas,
            )
        )
    return DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.NONE, name=topic.name, topic_id=uuid_of(topic), partitions=partitions
    )


def _unknown_page(name: str) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=name, topic_id=NIL, partitions=[]
    )


@handles(DescribeLogDirsRequest, require_cluster(Operation.DESCRIBE, DescribeLogDirsResponse))
async def describe_log_dirs(context: RequestContext, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
    """Answer with the sizes of the logs that this broker stores, and of the disk that they are on, if they are."""
    node, cluster = context.broker.node, context.view_cluster()
    asked = None if request.topics is None else {each.topic: set(each.partitions) for each in request.topics}
    error, topics = ErrorCode.NONE, list[DescribeLogDirsTopic]()
    try:
        for name in [name for name in node.topics if asked is None or name in asked]:
            sizes = await node.inventory.log_bytes(name)
            parts = [
                DescribeLogDirsPartition(
                    partition_index=log.number, partition_size=size, offset_lag=0, is_future_key=False
                )
                for log, size in zip(node.logs(name), sizes, strict=False)
                if (asked is None or log.number in asked[name]) and node.address in cluster.replicas_of(log)
            ]
            topics.append(DescribeLogDirsTopic(name=name, partitions=parts))
    except StorageError:
        error, topics = ErrorCode.KAFKA_STORAGE_ERROR, []
    url = context.broker.config.store.storage
    result = DescribeLogDirsResult(error_code=error, log_dir=url, topics=topics)
    disk = await trio.to_thread.run_sync(measure_disk, url)
    if disk is not None:
        result.total_bytes, result.usable_bytes = disk
    return DescribeLogDirsResponse(results=[result])
