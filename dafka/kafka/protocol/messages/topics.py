"""CreateTopics, DeleteTopics and CreatePartitions: topics and the number of their logs."""

from __future__ import annotations

from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.tables import NIL, Boolean, Int8, Int16, Int32, Request, Response, String, Struct, Uuid, field


class CreatableReplicaAssignment(Struct):
    """An item of `CreatableTopic.assignments`."""

    partition_index: Int32
    broker_ids: list[Int32]


class CreatableTopicConfig(Struct):
    """An item of `CreatableTopic.configs`."""

    name: String
    value: String | None


class CreatableTopic(Struct):
    """An item of `CreateTopicsRequest.topics`."""

    name: String
    num_partitions: Int32
    replication_factor: Int16
    assignments: list[CreatableReplicaAssignment]
    configs: list[CreatableTopicConfig]


class CreateTopicsRequest(Request, key=ApiKey.CREATE_TOPICS, versions="0-7", flexible="5+"):
    """Create topics."""

    topics: list[CreatableTopic]
    timeout_ms: Int32 = field(default=60000)
    validate_only: Boolean = field("1+", default=False)


class CreatableTopicConfigs(Struct):
    """An item of `CreatableTopicResult.configs`."""

    name: String
    value: String | None
    read_only: Boolean
    config_source: Int8 = field(default=-1)
    is_sensitive: Boolean


class CreatableTopicResult(Struct):
    """An item of `CreateTopicsResponse.topics`."""

    name: String
    topic_id: Uuid = field("7+", default=NIL)
    error_code: Int16
    error_message: String | None = field("1+", default=None)
    topic_config_error_code: Int16 = field("5+", tag=0, default=0)
    num_partitions: Int32 = field("5+", default=-1)
    replication_factor: Int16 = field("5+", default=-1)
    configs: list[CreatableTopicConfigs] | None = field("5+", default=None)


class CreateTopicsResponse(Response, key=ApiKey.CREATE_TOPICS, versions="0-7", flexible="5+"):
    """The topics that were created, or why they were not."""

    throttle_time_ms: Int32 = field("2+", default=0)
    topics: list[CreatableTopicResult]


class DeleteTopicState(Struct):
    """An item of `DeleteTopicsRequest.topics`."""

    name: String | None = field(default=None)
    topic_id: Uuid


class DeleteTopicsRequest(Request, key=ApiKey.DELETE_TOPICS, versions="0-6", flexible="4+"):
    """Delete topics."""

    topics: list[DeleteTopicState] = field("6+", default=[])
    topic_names: list[String] = field("0-5", default=[])
    timeout_ms: Int32


class DeletableTopicResult(Struct):
    """An item of `DeleteTopicsResponse.responses`."""

    name: String | None = field(nullable="6+")
    topic_id: Uuid = field("6+", default=NIL)
    error_code: Int16
    error_message: String | None = field("5+", default=None)


class DeleteTopicsResponse(Response, key=ApiKey.DELETE_TOPICS, versions="0-6", flexible="4+"):
    """Whether topics were deleted."""

    throttle_time_ms: Int32 = field("1+", default=0)
    responses: list[DeletableTopicResult]


class CreatePartitionsAssignment(Struct):
    """An item of `CreatePartitionsTopic.assignments`."""

    broker_ids: list[Int32]


class CreatePartitionsTopic(Struct):
    """An item of `CreatePartitionsRequest.topics`."""

    name: String
    count: Int32
    assignments: list[CreatePartitionsAssignment] | None


class CreatePartitionsRequest(Request, key=ApiKey.CREATE_PARTITIONS, versions="0-3", flexible="2+"):
    """Raise the number of a topic's logs."""

    topics: list[CreatePartitionsTopic]
    timeout_ms: Int32
    validate_only: Boolean


class CreatePartitionsTopicResult(Struct):
    """An item of `CreatePartitionsResponse.results`."""

    name: String
    error_code: Int16
    error_message: String | None = field(default=None)


class CreatePartitionsResponse(Response, key=ApiKey.CREATE_PARTITIONS, versions="0-3", flexible="2+"):
    """Whether topics have as many logs as were asked for."""

    throttle_time_ms: Int32 = field(default=0)
    results: list[CreatePartitionsTopicResult]


class TopicRequest(Struct):
    """An item of `DescribeTopicPartitionsRequest.topics`."""

    name: String


class Cursor(Struct):
    """The log with which the next page begins."""

    topic_name: String
    partition_index: Int32


class DescribeTopicPartitionsRequest(Request, key=ApiKey.DESCRIBE_TOPIC_PARTITIONS, versions="0", flexible="0+"):
    """Ask for the logs of topics, page by page."""

    topics: list[TopicRequest]
    response_partition_limit: Int32 = field(default=2000)
    cursor: Cursor | None = field(default=None)


class DescribeTopicPartitionsResponsePartition(Struct):
    """An item of `DescribeTopicPartitionsResponseTopic.partitions`."""

    error_code: Int16
    partition_index: Int32
    leader_id: Int32
    leader_epoch: Int32 = field(default=-1)
    replica_nodes: list[Int32]
    isr_nodes: list[Int32]
    eligible_leader_replicas: list[Int32] | None = field(default=None)
    last_known_elr: list[Int32] | None = field(default=None)
    offline_replicas: list[Int32]


class DescribeTopicPartitionsResponseTopic(Struct):
    """An item of `DescribeTopicPartitionsResponse.topics`."""

    error_code: Int16
    name: String | None
    topic_id: Uuid
    is_internal: Boolean = field(default=False)
    partitions: list[DescribeTopicPartitionsResponsePartition]
    topic_authorized_operations: Int32 = field(default=-2147483648)


class DescribeTopicPartitionsResponse(Response, key=ApiKey.DESCRIBE_TOPIC_PARTITIONS, versions="0", flexible="0+"):
    """A page of the logs of topics."""

    throttle_time_ms: Int32 = field(default=0)
    topics: list[DescribeTopicPartitionsResponseTopic]
    next_cursor: Cursor | None = field(default=None)
