"""Metadata and DescribeCluster: the brokers, the topics, and the leaders of their logs."""

from __future__ import annotations

import uuid
from typing import Any

from dafka.broker.access.permissions import Permissions
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.metadata.topics import Topic, find_name_problem
from dafka.errors import StorageError
from dafka.kafka.apis.shared.authorization import (
    TOPIC_REFUSED,
    name_of,
    permit_everyone,
    refuse,
    show_only,
    split_unauthorized,
)
from dafka.kafka.apis.shared.registry import Decision, RequestContext, handles, uuid_of
from dafka.kafka.protocol import NIL
from dafka.kafka.protocol.messages.cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponseTopic,
)

_SHOW_TOPICS = show_only("topics", lambda user, topic: user.may_see(topic.name or ""))


def _authorize(user: Permissions, context: RequestContext, request: MetadataRequest) -> Decision:
    """Require the permission to see the topics. A topic is created only for a user with `write` or `admin` on it.

    An invisible topic that is requested by its id is answered like a topic that does not exist.
    """
    version = context.header.api_version
    if request.topics is None or (version == 0 and not request.topics):
        return _SHOW_TOPICS(user, context, request)
    refused = split_unauthorized(request, "topics", lambda each: user.may_see(name_of(context, each)))
    if version == 0 and not request.topics:  # an empty list would be all of them
        request.topics = None
    may_create = all(
        user.may_write(each.name) or user.may_administer(each.name) for each in request.topics or () if each.name
    )
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
        )
        if isinstance(each, Topic)
        else each
        for each in (node.topics.values() if is_for_all else found)
    ]
    leaders = {log.leader_id for topic in topics for log in topic.partitions}
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=each.number, host=each.host, port=each.port, rack=each.rack)
            for each in cluster.list_nodes(leaders)
        ],
        cluster_id=cluster.cluster_id,
        controller_id=cluster.controller,
        topics=topics,
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
        if find_name_problem(name):
            return _unknown(name, ErrorCode.INVALID_TOPIC_EXCEPTION)
        if may_create:
            await node.leases.wait_topics()
            try:
                if node.find_topic(name) is None:
                    await node.create_topic(name).wait()
            except StorageError:
                return _unknown(name, ErrorCode.LEADER_NOT_AVAILABLE)
            topic = node.find_topic(name)
    return _unknown(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) if topic is None else topic


def _unknown(name: str | None, error: ErrorCode, topic_id: uuid.UUID = NIL) -> MetadataResponseTopic:
    return MetadataResponseTopic(error_code=error, name=name, topic_id=topic_id, partitions=[])


@handles(DescribeClusterRequest, permit_everyone)
async def describe_cluster(context: RequestContext, _request: DescribeClusterRequest) -> DescribeClusterResponse:
    """Answer with the brokers advertised to clients."""
    cluster = context.view_cluster()
    return DescribeClusterResponse(
        error_code=ErrorCode.NONE,
        cluster_id=cluster.cluster_id,
        controller_id=cluster.controller,
        brokers=[
            DescribeClusterBroker(broker_id=each.number, host=each.host, port=each.port, rack=each.rack)
            for each in cluster.nodes
        ],
    )
