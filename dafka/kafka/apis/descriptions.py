"""DescribeTopicPartitions, DescribeLogDirs, DescribeProducers and ListConfigResources: APIs for consoles."""

from __future__ import annotations

from collections.abc import Iterable

from dafka.broker.access.permissions import Permissions
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.topics import Topic
from dafka.errors import StorageError
from dafka.kafka.apis.shared.authorization import (
    CLUSTER_REFUSED,
    TOPIC_REFUSED,
    add_refused,
    require,
    require_each,
    show_only,
    split_unauthorized,
)
from dafka.kafka.apis.shared.leaders import find_leader_error
from dafka.kafka.apis.shared.registry import Decision, RequestContext, handles, uuid_of
from dafka.kafka.protocol import NIL
from dafka.kafka.protocol.constants import BROKER, TOPIC
from dafka.kafka.protocol.messages.cluster import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from dafka.kafka.protocol.messages.configs import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from dafka.kafka.protocol.messages.topics import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    TopicRequest,
)
from dafka.kafka.protocol.messages.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from dafka.kafka.server.cluster_view import ClusterView

_PAGE_LOGS_MAX = 2000


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
    for name in names:
        if left <= 0:
            return DescribeTopicPartitionsResponse(
                topics=topics, next_cursor=Cursor(topic_name=name, partition_index=0)
            )
        topic = node.find_topic(name)
        if topic is None:
            topics.append(_unknown(name))
            continue
        numbers = range(first, topic.log_count)[:left]
        first, left = 0, left - len(numbers)
        topics.append(_describe_topic(cluster, topic, node.logs(name)[numbers.start : numbers.stop]))
        if numbers and numbers.stop < topic.log_count:
            cursor = Cursor(topic_name=name, partition_index=numbers.stop)
            return DescribeTopicPartitionsResponse(topics=topics, next_cursor=cursor)
    return DescribeTopicPartitionsResponse(topics=topics)


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


def _unknown(name: str) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=name, topic_id=NIL, partitions=[]
    )


@handles(
    DescribeLogDirsRequest,
    require(lambda user, _: user.is_administrator, DescribeLogDirsResponse, CLUSTER_REFUSED),
)
async def describe_log_dirs(context: RequestContext, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
    """Answer with the sizes of the logs that this broker stores."""
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
    result = DescribeLogDirsResult(error_code=error, log_dir=context.broker.config.store.storage, topics=topics)
    return DescribeLogDirsResponse(results=[result])


@handles(DescribeProducersRequest, require_each("topics", Permissions.may_read))
async def describe_producers(context: RequestContext, request: DescribeProducersRequest) -> DescribeProducersResponse:
    """Answer with the idempotent producers of logs."""
    topics = [
        TopicResponse(
            name=topic.name, partitions=[_describe_log(context, topic.name, each) for each in topic.partition_indexes]
        )
        for topic in request.topics
    ]
    return DescribeProducersResponse(topics=topics)


def _describe_log(context: RequestContext, topic: str, number: int) -> PartitionResponse:
    log = context.broker.node.find_log(topic, number)
    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if log is None else find_leader_error(log)
    if log is None or error:
        return PartitionResponse(partition_index=number, error_code=error, active_producers=[])
    known = log.producers
    begun = known.open_transactions
    states = []
    for producer_id, each in known.producers.items():
        state = ProducerState(
            producer_id=producer_id,
            producer_epoch=each.producer_epoch,
            last_sequence=-1 if each.last_sequence is None else each.last_sequence,
            last_timestamp=each.last_timestamp_ms,
            coordinator_epoch=0,
        )
        if producer_id in begun:
            state.current_txn_start_offset = log.find_offset(begun[producer_id])
        states.append(state)
    return PartitionResponse(partition_index=number, error_code=ErrorCode.NONE, active_producers=states)


def _may_see(user: Permissions, resource: ConfigResource) -> bool:
    return user.may_see(resource.resource_name) if resource.resource_type == TOPIC else user.is_administrator


@handles(ListConfigResourcesRequest, show_only("config_resources", _may_see))
async def list_config_resources(
    context: RequestContext, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    """Answer with the topics and brokers, which have settings."""
    if context.header.api_version == 0:  # it asks for the settings of client metrics, which do not exist here
        return ListConfigResourcesResponse(error_code=ErrorCode.NONE, config_resources=[])
    types = set(request.resource_types) or {TOPIC, BROKER}
    found: list[ConfigResource] = []
    if TOPIC in types:
        names = context.broker.node.topics
        found += [ConfigResource(resource_name=name, resource_type=TOPIC) for name in names]
    if BROKER in types:
        nodes = context.view_cluster().nodes
        found += [ConfigResource(resource_name=str(each.number), resource_type=BROKER) for each in nodes]
    return ListConfigResourcesResponse(error_code=ErrorCode.NONE, config_resources=found)
