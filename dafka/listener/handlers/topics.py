"""Metadata, and the APIs that create, change and delete topics."""

from __future__ import annotations

import uuid

from dafka.errors import ConfigError
from dafka.kafka.errors import ErrorCode
from dafka.kafka.protocol import NIL
from dafka.kafka.protocol.messages.cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataRequest,
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
from dafka.listener.handlers.configs import find_setting_problem, list_settings
from dafka.listener.handlers.registry import Client, handles
from dafka.protocol.logs import Topic, find_name_problem
from dafka.roles import Broker

NODE_ID = 0
"""The number of the only broker."""


@handles(MetadataRequest)
async def describe_metadata(client: Client, request: MetadataRequest) -> MetadataResponse:
    """Answer with the broker and the topics. Topics that are asked for by name are created if that is allowed."""
    broker = client.service.broker
    host, port = client.endpoint
    is_all = request.topics is None or (client.header.api_version == 0 and not request.topics)
    topics = []
    if is_all:
        topics = [_describe(topic) for topic in broker.order.topics.values()]
    for asked in () if is_all else request.topics or ():
        name = asked.name
        if name is None and (found := _find_by_id(broker, asked.topic_id)) is not None:
            name = found.name
        if name is None:
            topics.append(_unknown(None, ErrorCode.UNKNOWN_TOPIC_ID, asked.topic_id))
            continue
        if broker.find_topic(name) is None:
            is_allowed = request.allow_auto_topic_creation and client.service.config.kafka.auto_create_topics == "on"
            if find_name_problem(name):
                topics.append(_unknown(name, ErrorCode.INVALID_TOPIC_EXCEPTION))
                continue
            if not is_allowed:
                topics.append(_unknown(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
                continue
            await broker.create_topic(name).wait()
        topic = broker.find_topic(name)
        topics.append(_unknown(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) if topic is None else _describe(topic))
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=NODE_ID, host=host, port=port)],
        cluster_id=broker.address,
        controller_id=NODE_ID,
        topics=topics,
    )


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
    elif message := next(filter(None, (find_setting_problem(*each) for each in settings.items())), ""):
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
        topic_id=_topic_id(topic),
        error_code=error,
        num_partitions=count,
        replication_factor=1,
        configs=configs,
    )


@handles(DeleteTopicsRequest)
async def delete_topics(client: Client, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    """Delete topics, and the offsets that groups have committed for them."""
    broker = client.service.broker
    asked: list[tuple[str | None, uuid.UUID]] = [(name, NIL) for name in request.topic_names]
    asked += [(each.name, each.topic_id) for each in request.topics]
    responses = []
    for name, topic_id in asked:
        topics = broker.order.topics.values()
        topic = next(
            (each for each in topics if name == each.name or (name is None and _topic_id(each) == topic_id)), None
        )
        if topic is None:
            error = ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            responses.append(DeletableTopicResult(name=name, topic_id=topic_id, error_code=error))
            continue
        for log in broker.order.logs(topic.name):
            client.service.producers.forget(log)
        await broker.delete_topic(topic.name)
        client.service.carry_out(client.service.groups.delete_topic(topic.name))
        await client.service.settle(None)
        responses.append(DeletableTopicResult(name=topic.name, topic_id=_topic_id(topic), error_code=ErrorCode.NONE))
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


def _find_by_id(broker: Broker, topic_id: uuid.UUID) -> Topic | None:
    return next((each for each in broker.order.topics.values() if _topic_id(each) == topic_id), None)


def _topic_id(topic: Topic) -> uuid.UUID:
    return uuid.UUID(int=int(topic.topic_id, 16))


def _describe(topic: Topic) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=_topic_id(topic),
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
