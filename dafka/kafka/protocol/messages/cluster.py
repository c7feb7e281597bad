"""Metadata, DescribeCluster, UnregisterBroker and DescribeLogDirs: brokers, topics and logs."""

from __future__ import annotations

from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.tables import (
    NIL,
    Boolean,
    Int8,
    Int16,
    Int32,
    Int64,
    Request,
    Response,
    String,
    Struct,
    Uuid,
    field,
)


class MetadataRequestTopic(Struct):
    """An item of `MetadataRequest.topics`."""

    topic_id: Uuid = field("10+", default=NIL)
    name: String | None = field(nullable="10+")


class MetadataRequest(Request, key=ApiKey.METADATA, versions="0-13", flexible="9+"):
    """Ask for the brokers, and for topics with their logs; topics may be created by it."""

    topics: list[MetadataRequestTopic] | None = field(nullable="1+")
    allow_auto_topic_creation: Boolean = field("4+", default=True)
    include_cluster_authorized_operations: Boolean = field("8-10", default=False)
    include_topic_authorized_operations: Boolean = field("8+", default=False)


class MetadataResponseBroker(Struct):
    """An item of `MetadataResponse.brokers`."""

    node_id: Int32
    host: String
    port: Int32
    rack: String | None = field("1+", default=None)


class MetadataResponsePartition(Struct):
    """An item of `MetadataResponseTopic.partitions`."""

    error_code: Int16
    partition_index: Int32
    leader_id: Int32
    leader_epoch: Int32 = field("7+", default=-1)
    replica_nodes: list[Int32]
    isr_nodes: list[Int32]
    offline_replicas: list[Int32] = field("5+", default=[])


class MetadataResponseTopic(Struct):
    """An item of `MetadataResponse.topics`."""

    error_code: Int16
    name: String | None = field(nullable="12+")
    topic_id: Uuid = field("10+", default=NIL)
    is_internal: Boolean = field("1+", default=False)
    partitions: list[MetadataResponsePartition]
    topic_authorized_operations: Int32 = field("8+", default=-2147483648)


class MetadataResponse(Response, key=ApiKey.METADATA, versions="0-13", flexible="9+"):
    """The brokers, and topics with their logs."""

    throttle_time_ms: Int32 = field("3+", default=0)
    brokers: list[MetadataResponseBroker]
    cluster_id: String | None = field("2+", default=None)
    controller_id: Int32 = field("1+", default=-1)
    topics: list[MetadataResponseTopic]
    cluster_authorized_operations: Int32 = field("8-10", default=-2147483648)
    error_code: Int16 = field("13+", default=0)


class DescribeClusterRequest(Request, key=ApiKey.DESCRIBE_CLUSTER, versions="0-2", flexible="0+"):
    """Ask for the brokers."""

    include_cluster_authorized_operations: Boolean
    endpoint_type: Int8 = field("1+", default=1)
    include_fenced_brokers: Boolean = field("2+", default=False)


class DescribeClusterBroker(Struct):
    """An item of `DescribeClusterResponse.brokers`."""

    broker_id: Int32
    host: String
    port: Int32
    rack: String | None = field(default=None)
    is_fenced: Boolean = field("2+", default=False)


class DescribeClusterResponse(Response, key=ApiKey.DESCRIBE_CLUSTER, versions="0-2", flexible="0+"):
    """The brokers."""

    throttle_time_ms: Int32 = field(default=0)
    error_code: Int16
    error_message: String | None = field(default=None)
    endpoint_type: Int8 = field("1+", default=1)
    cluster_id: String
    controller_id: Int32 = field(default=-1)
    brokers: list[DescribeClusterBroker]
    cluster_authorized_operations: Int32 = field(default=-2147483648)


class UnregisterBrokerRequest(Request, key=ApiKey.UNREGISTER_BROKER, versions="0", flexible="0+"):
    """Remove a broker."""

    broker_id: Int32


class UnregisterBrokerResponse(Response, key=ApiKey.UNREGISTER_BROKER, versions="0", flexible="0+"):
    """Whether the broker was removed."""

    throttle_time_ms: Int32 = field(default=0)
    error_code: Int16
    error_message: String | None


class DescribableLogDirTopic(Struct):
    """An item of `DescribeLogDirsRequest.topics`."""

    topic: String
    partitions: list[Int32]


class DescribeLogDirsRequest(Request, key=ApiKey.DESCRIBE_LOG_DIRS, versions="0-5", flexible="2+"):
    """Ask how much space logs take in each folder of a broker."""

    topics: list[DescribableLogDirTopic] | None


class DescribeLogDirsPartition(Struct):
    """An item of `DescribeLogDirsTopic.partitions`."""

    partition_index: Int32
    partition_size: Int64
    offset_lag: Int64
    is_future_key: Boolean


class DescribeLogDirsTopic(Struct):
    """An item of `DescribeLogDirsResult.topics`."""

    name: String
    partitions: list[DescribeLogDirsPartition]


class DescribeLogDirsResult(Struct):
    """An item of `DescribeLogDirsResponse.results`."""

    error_code: Int16
    log_dir: String
    topics: list[DescribeLogDirsTopic]
    total_bytes: Int64 = field("4+", default=-1)
    usable_bytes: Int64 = field("4+", default=-1)
    is_cordoned: Boolean = field("5+", default=False)


class DescribeLogDirsResponse(Response, key=ApiKey.DESCRIBE_LOG_DIRS, versions="0-5", flexible="2+"):
    """The space that logs take in each folder of a broker."""

    throttle_time_ms: Int32 = field(default=0)
    error_code: Int16 = field("3+", default=0)
    results: list[DescribeLogDirsResult]
