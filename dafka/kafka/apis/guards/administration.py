"""Authorizes the APIs that create, change and delete topics, and those that concern the whole broker."""

from __future__ import annotations

from typing import Any

from dafka.kafka.apis.guards.registry import (
    CLUSTER_REFUSED,
    TOPIC_REFUSED,
    Decision,
    Permits,
    ResponsePatch,
    add_refused,
    guards,
    split_unauthorized,
)
from dafka.kafka.protocol import NIL
from dafka.kafka.protocol.constants import TOPIC
from dafka.kafka.protocol.messages.cluster import (
    DescribeClusterRequest,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from dafka.kafka.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResult,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from dafka.kafka.protocol.messages.elections import (
    ElectableTopic,
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionElectionResult,
    ReplicaElectionResult,
)
from dafka.kafka.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopic,
    ReassignableTopicResponse,
)
from dafka.kafka.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseTopic,
    TopicRequest,
)
from dafka.kafka.protocol.messages.transactions import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)


@guards(CreateTopicsRequest)
def guard_create(access: Permits, request: CreateTopicsRequest) -> Decision:
    """Require `admin` on the topics."""

    def answer(each: CreatableTopic) -> CreatableTopicResult:
        return CreatableTopicResult(name=each.name, error_code=TOPIC_REFUSED)

    refused = split_unauthorized(request, "topics", lambda each: access.user.may_administer(each.name))
    return add_refused(refused, "topics", answer)


@guards(DeleteTopicsRequest)
def guard_delete(access: Permits, request: DeleteTopicsRequest) -> Decision:
    """Require `admin`. A topic that the user may not see is answered by id only, if requested by id."""
    refused: list[Any] = split_unauthorized(request, "topic_names", access.user.may_administer)
    refused += split_unauthorized(
        request,
        "topics",
        lambda each: (
            (each.name is None and not access.name_of(None, each.topic_id))
            or access.user.may_administer(access.name_of(each.name, each.topic_id))
        ),
    )

    def answer(each: Any) -> DeletableTopicResult:
        if isinstance(each, str):
            return DeletableTopicResult(name=each, topic_id=NIL, error_code=TOPIC_REFUSED)
        return DeletableTopicResult(name=each.name, topic_id=each.topic_id, error_code=TOPIC_REFUSED)

    return add_refused(refused, "responses", answer)


@guards(CreatePartitionsRequest)
def guard_create_partitions(access: Permits, request: CreatePartitionsRequest) -> Decision:
    """Require `admin` on the topics."""

    def answer(each: CreatePartitionsTopic) -> CreatePartitionsTopicResult:
        return CreatePartitionsTopicResult(name=each.name, error_code=TOPIC_REFUSED)

    refused = split_unauthorized(request, "topics", lambda each: access.user.may_administer(each.name))
    return add_refused(refused, "results", answer)


@guards(AlterPartitionReassignmentsRequest)
def guard_alter_reassignments(access: Permits, request: AlterPartitionReassignmentsRequest) -> Decision:
    """Require `admin` on the topics."""

    def answer(each: ReassignableTopic) -> ReassignableTopicResponse:
        parts = [
            ReassignablePartitionResponse(
                partition_index=part.partition_index, error_code=TOPIC_REFUSED, error_message=None
            )
            for part in each.partitions
        ]
        return ReassignableTopicResponse(name=each.name, partitions=parts)

    refused = split_unauthorized(request, "topics", lambda each: access.user.may_administer(each.name))
    return add_refused(refused, "responses", answer)


@guards(ElectLeadersRequest)
def guard_elect_leaders(access: Permits, request: ElectLeadersRequest) -> Decision:
    """Require `admin` on the topics; for all topics, an administrator."""
    if request.topic_partitions is None:
        if access.user.is_administrator:
            return None
        return ElectLeadersResponse(throttle_time_ms=0, error_code=CLUSTER_REFUSED, replica_election_results=[])

    def answer(each: ElectableTopic) -> ReplicaElectionResult:
        parts = [
            PartitionElectionResult(partition_id=number, error_code=TOPIC_REFUSED, error_message=None)
            for number in each.partitions
        ]
        return ReplicaElectionResult(topic=each.topic, partition_result=parts)

    refused = split_unauthorized(request, "topic_partitions", lambda each: access.user.may_administer(each.topic))
    return add_refused(refused, "replica_election_results", answer)


@guards(ListPartitionReassignmentsRequest)
def guard_list_reassignments(access: Permits, _request: ListPartitionReassignmentsRequest) -> ResponsePatch:
    """Show the topics that the user may see."""

    def amend(response: ListPartitionReassignmentsResponse) -> None:
        response.topics = [each for each in response.topics if access.user.may_see(each.name)]

    return amend


@guards(DescribeConfigsRequest)
def guard_describe_configs(access: Permits, request: DescribeConfigsRequest) -> Decision:
    """Require the permission to see the topics; for the broker, an administrator."""

    def answer(each: DescribeConfigsResource) -> DescribeConfigsResult:
        return DescribeConfigsResult(
            error_code=_error_of(each),
            error_message=None,
            resource_type=each.resource_type,
            resource_name=each.resource_name,
            configs=[],
        )

    def is_permitted(each: DescribeConfigsResource) -> bool:
        is_topic = each.resource_type == TOPIC
        return access.user.may_see(each.resource_name) if is_topic else access.user.is_administrator

    return add_refused(split_unauthorized(request, "resources", is_permitted), "results", answer)


@guards(AlterConfigsRequest)
@guards(IncrementalAlterConfigsRequest)
def guard_alter_configs(access: Permits, request: AlterConfigsRequest | IncrementalAlterConfigsRequest) -> Decision:
    """Require `admin` on the topics."""

    def answer(each: Any) -> AlterConfigsResourceResponse:
        return AlterConfigsResourceResponse(
            error_code=_error_of(each),
            error_message=None,
            resource_type=each.resource_type,
            resource_name=each.resource_name,
        )

    def is_permitted(each: Any) -> bool:
        is_topic = each.resource_type == TOPIC
        return access.user.may_administer(each.resource_name) if is_topic else access.user.is_administrator

    return add_refused(split_unauthorized(request, "resources", is_permitted), "responses", answer)


@guards(DescribeClusterRequest)
def guard_describe_cluster(_access: Permits, _request: DescribeClusterRequest) -> None:
    """Permit every user."""


@guards(DescribeTopicPartitionsRequest)
def guard_topic_partitions(access: Permits, request: DescribeTopicPartitionsRequest) -> Decision:
    """Show the topics that the user may see."""
    if not request.topics:
        names = access.context.broker.node.topics
        request.topics = [TopicRequest(name=name) for name in names if access.user.may_see(name)]
        return None if request.topics else DescribeTopicPartitionsResponse(throttle_time_ms=0, topics=[])

    def answer(each: TopicRequest) -> DescribeTopicPartitionsResponseTopic:
        return DescribeTopicPartitionsResponseTopic(
            error_code=TOPIC_REFUSED, name=each.name, topic_id=NIL, partitions=[]
        )

    refused = split_unauthorized(request, "topics", lambda each: access.user.may_see(each.name))
    if not request.topics:
        return DescribeTopicPartitionsResponse(throttle_time_ms=0, topics=[answer(each) for each in refused])
    return add_refused(refused, "topics", answer)


@guards(ListConfigResourcesRequest)
def guard_config_resources(access: Permits, _request: ListConfigResourcesRequest) -> Decision:
    """Require the permission to see the topics; for the broker, an administrator."""

    def amend(response: ListConfigResourcesResponse) -> None:
        response.config_resources = [
            each
            for each in response.config_resources
            if (
                access.user.may_see(each.resource_name) if each.resource_type == TOPIC else access.user.is_administrator
            )
        ]

    return amend


@guards(DescribeLogDirsRequest)
def guard_log_dirs(access: Permits, _request: DescribeLogDirsRequest) -> Decision:
    """Require an administrator."""
    if access.user.is_administrator:
        return None
    return DescribeLogDirsResponse(throttle_time_ms=0, error_code=CLUSTER_REFUSED, results=[])


@guards(WriteTxnMarkersRequest)
def guard_markers(access: Permits, request: WriteTxnMarkersRequest) -> Decision:
    """Require an administrator."""
    if access.user.is_administrator:
        return None
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            WritableTxnMarkerPartitionResult(partition_index=each, error_code=CLUSTER_REFUSED)
                            for each in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )


def _error_of(resource: Any) -> int:
    return TOPIC_REFUSED if resource.resource_type == TOPIC else CLUSTER_REFUSED
