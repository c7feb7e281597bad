"""Metadata, and the APIs that create, change and delete topics."""

from __future__ import annotations

import uuid

from dafka.broker.topic_settings import find_settings_problem
from dafka.errors import ConfigError
from dafka.kafka.errors import ErrorCode
from dafka.kafka.protocol import NIL
from dafka.kafka.protocol.messages.cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
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
from dafka.listener.handlers.configs import list_settings
from dafka.listener.handlers.registry import Client, handles, uuid_of
from dafka.protocol.logs import Topic, find_name_problem

NODE_ID = 0
"""The number of the only broker."""


@handles(MetadataRequest)
async def describe_metadata(client: Client, request: MetadataRequest) -> MetadataResponse:
    """Answer with the broker and the topics. Topics that are asked for by name are created if that is allowed."""
    broker = client.service.broker
    host, port = client.endpoint
    if request.topics is None or (client.header.api_version == 0 and not request.topics):
        topics = [_describe(topic) for topic in broker.order.topics.values()]
    else:
        may_create = request.allow_auto_topic_creation and client.service.config.kafka.auto_create_topics == "on"
        topics = [await _describe_asked(client, each, may_create=may_create) for each in request.topics]
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=NODE_ID, host=host, port=port)],
        cluster_id=broker.address,
        controller_id=NODE_ID,
        topics=topics,
    )


async def _describe_asked(client: Client, asked: MetadataRequestTopic, *, may_create: bool) -> MetadataResponseTopic:
    broker, name = client.service.broker, asked.name
    topic = client.find_topic(name, asked.topic_id)
    if topic is None and name is None:
        return _unknown(None, ErrorCode.UNKNOWN_TOPIC_ID, asked.topic_id)
    if topic is None and name is not None:
        if find_name_problem(name):
            return _unknown(name, ErrorCode.INVALID_TOPIC_EXCEPTION)
        if may_create:
            await broker.create_topic(name).wait()
            topic = broker.find_topic(name)
    return _unknown(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) if topic is None else _describe(topic)


@handles(DescribeClusterRequest)
async def describe_cluster(client: Client, _request: DescribeClusterRequest) -> DescribeClusterResponse:
    """Answer with the only broker."""
    host, port = client.endpoint
    return DescribeClusterResponse(
        throttle_time_ms=0,
        error_code=ErrorCode.NONE,
        cluster_id=client.service.broker.address,
        controller_id=NODE_ID,
        brokers=[DescribeClusterBroker(broker_id=NODE_ID, host=host, port=port)],
    )


@handles(CreateTopicsRequest)
async def create_topics(client: Client, request: CreateTopicsRequest) -> CreateTopicsResponse:
    """Create topics."""
    results = [await _create(client, each, request.validate_only) for each in request.topics]
    return CreateTopicsResponse(topics=results)


async def _create(client: Client, asked: CreatableTopic, is_trial: bool) -> CreatableTopicResult:
    broker = client.service.broker
    settings = {each.name: each.value for each in asked.configs if each.value is not None}
    count = len(asked.assignments) if asked.assignments else asked.num_partitions
    count = client.service.config.kafka.log_count if count == -1 else count
    error, message = ErrorCode.NONE, find_name_problem(asked.name)
    if message:
        error = ErrorCode.INVALID_TOPIC_EXCEPTION
    elif broker.find_topic(asked.name) is not None:
        error, message = ErrorCode.TOPIC_ALREADY_EXISTS, f"there is a topic {asked.name!r} already"
    elif not asked.assignments and asked.replication_factor not in {-1, 1}:
        error, message = ErrorCode.INVALID_REPLICATION_FACTOR, "there is one broker"
    elif any(each.broker_ids != [NODE_ID] for each in asked.assignments):
        error, message = ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"the only broker has the number {NODE_ID}"
    elif count < 1:
        error, message = ErrorCode.INVALID_PARTITIONS, "a topic has at least one partition"
    elif message := find_settings_problem(settings):
        error = ErrorCode.INVALID_CONFIG
    if not error and not is_trial:
        try:
            await broker.create_topic(asked.name, count, settings).wait()
        except ConfigError as refused:
            error, message = ErrorCode.INVALID_PARTITIONS, str(refused)
    if error:
        return CreatableTopicResult(name=asked.name, error_code=error, error_message=message)
    topic = broker.find_topic(asked.name) or Topic(asked.name, "0", count, settings)
    configs = [
        CreatableTopicConfigs(
            name=each.name, value=each.value, read_only=False, config_source=each.source, is_sensitive=False
        )
        for each in list_settings(topic, client.service.config)
    ]
    return CreatableTopicResult(
        name=asked.name,
        topic_id=uuid_of(topic),
        error_code=error,
        num_partitions=count,
        replication_factor=1,
        configs=configs,
    )


@handles(DeleteTopicsRequest)
async def delete_topics(client: Client, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    """Delete topics, and the offsets that groups have committed for them."""
    asked: list[tuple[str | None, uuid.UUID]] = [(name, NIL) for name in request.topic_names]
    asked += [(each.name, each.topic_id) for each in request.topics]
    responses = []
    for name, topic_id in asked:
        topic = client.find_topic(name, topic_id)
        if topic is None:
            error = ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            responses.append(DeletableTopicResult(name=name, topic_id=topic_id, error_code=error))
            continue
        await client.service.delete_topic(topic.name)
        responses.append(DeletableTopicResult(name=topic.name, topic_id=uuid_of(topic), error_code=ErrorCode.NONE))
    return DeleteTopicsResponse(responses=responses)


@handles(CreatePartitionsRequest)
async def create_partitions(client: Client, request: CreatePartitionsRequest) -> CreatePartitionsResponse:
    """Give topics further logs."""
    results = [await _add_logs(client, each, request.validate_only) for each in request.topics]
    return CreatePartitionsResponse(throttle_time_ms=0, results=results)


async def _add_logs(client: Client, asked: CreatePartitionsTopic, is_trial: bool) -> CreatePartitionsTopicResult:
    broker = client.service.broker
    topic = broker.find_topic(asked.name)
    error, message = ErrorCode.NONE, None
    if topic is None:
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    elif asked.count <= topic.log_count:
        error = ErrorCode.INVALID_PARTITIONS
        message = f"the topic has {topic.log_count} partitions already; their number can only increase"
    elif not is_trial:
        try:
            await broker.change_topic(asked.name, log_count=asked.count).wait()
        except ConfigError as refused:
            error, message = ErrorCode.INVALID_PARTITIONS, str(refused)
    return CreatePartitionsTopicResult(name=asked.name, error_code=error, error_message=message)


def _describe(topic: Topic) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=uuid_of(topic),
        partitions=[
            MetadataResponsePartition(
                error_code=ErrorCode.NONE,
                partition_index=number,
                leader_id=NODE_ID,
                leader_epoch=0,
                replica_nodes=[NODE_ID],
                isr_nodes=[NODE_ID],
            )
            for number in range(topic.log_count)
        ],
    )


def _unknown(name: str | None, error: ErrorCode, topic_id: uuid.UUID = NIL) -> MetadataResponseTopic:
    return MetadataResponseTopic(error_code=error, name=name, topic_id=topic_id, partitions=[])
