"""AlterPartitionReassignments, ListPartitionReassignments and ElectLeaders: which brokers keep and lead logs."""

from __future__ import annotations

from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.tables import Boolean, Int8, Int16, Int32, Request, Response, String, Struct, field


class ReassignablePartition(Struct):
    """An item of `ReassignableTopic.partitions`."""

    partition_index: Int32
    replicas: list[Int32] | None = field(default=None)


class ReassignableTopic(Struct):
    """An item of `AlterPartitionReassignmentsRequest.topics`."""

    name: String
    partitions: list[ReassignablePartition]


class AlterPartitionReassignmentsRequest(
    Request, key=ApiKey.ALTER_PARTITION_REASSIGNMENTS, versions="0-1", flexible="0+"
):
    """Have other brokers keep logs, or no longer begin to."""

    timeout_ms: Int32 = field(default=60000)
    allow_replication_factor_change: Boolean = field("1+", default=True)
    topics: list[ReassignableTopic]


class ReassignablePartitionResponse(Struct):
    """An item of `ReassignableTopicResponse.partitions`."""

    partition_index: Int32
    error_code: Int16
    error_message: String | None


class ReassignableTopicResponse(Struct):
    """An item of `AlterPartitionReassignmentsResponse.responses`."""

    name: String
    partitions: list[ReassignablePartitionResponse]


class AlterPartitionReassignmentsResponse(
    Response, key=ApiKey.ALTER_PARTITION_REASSIGNMENTS, versions="0-1", flexible="0+"
):
    """Whether other brokers begin to keep the logs."""

    throttle_time_ms: Int32 = field(default=0)
    allow_replication_factor_change: Boolean = field("1+", default=True)
    error_code: Int16
    error_message: String | None
    responses: list[ReassignableTopicResponse]


class ListPartitionReassignmentsTopics(Struct):
    """An item of `ListPartitionReassignmentsRequest.topics`."""

    name: String
    partition_indexes: list[Int32]


class ListPartitionReassignmentsRequest(Request, key=ApiKey.LIST_PARTITION_REASSIGNMENTS, versions="0", flexible="0+"):
    """Ask which logs other brokers begin to keep."""

    timeout_ms: Int32 = field(default=60000)
    topics: list[ListPartitionReassignmentsTopics] | None = field(default=None)


class OngoingPartitionReassignment(Struct):
    """An item of `OngoingTopicReassignment.partitions`."""

    partition_index: Int32
    replicas: list[Int32]
    adding_replicas: list[Int32]
    removing_replicas: list[Int32]


class OngoingTopicReassignment(Struct):
    """An item of `ListPartitionReassignmentsResponse.topics`."""

    name: String
    partitions: list[OngoingPartitionReassignment]


class ListPartitionReassignmentsResponse(
    Response, key=ApiKey.LIST_PARTITION_REASSIGNMENTS, versions="0", flexible="0+"
):
    """The logs that other brokers begin to keep."""

    throttle_time_ms: Int32 = field(default=0)
    error_code: Int16
    error_message: String | None
    topics: list[OngoingTopicReassignment]


class ElectableTopic(Struct):
    """An item of `ElectLeadersRequest.topic_partitions`."""

    topic: String
    partitions: list[Int32]


class ElectLeadersRequest(Request, key=ApiKey.ELECT_LEADERS, versions="0-2", flexible="2+"):
    """Have other brokers lead logs."""

    election_type: Int8 = field("1+", default=0)
    topic_partitions: list[ElectableTopic] | None
    timeout_ms: Int32 = field(default=60000)


class PartitionElectionResult(Struct):
    """An item of `ReplicaElectionResult.partition_result`."""

    partition_id: Int32
    error_code: Int16
    error_message: String | None


class ReplicaElectionResult(Struct):
    """An item of `ElectLeadersResponse.replica_election_results`."""

    topic: String
    partition_result: list[PartitionElectionResult]


class ElectLeadersResponse(Response, key=ApiKey.ELECT_LEADERS, versions="0-2", flexible="2+"):
    """Whether the logs have the leaders that were asked for."""

    throttle_time_ms: Int32 = field(default=0)
    error_code: Int16 = field("1+", default=0)
    replica_election_results: list[ReplicaElectionResult]
